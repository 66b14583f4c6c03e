"""Training on devices: what ExecuTorch cannot train is refused by name, and what it can is compared with PyTorch."""

from __future__ import annotations

import copy
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from potluck.core import InputError, Loss, SettingsError, UserError
from potluck.learn.losses import CrossEntropy
from potluck.learn.problems import SquaredError
from potluck.models import load
from potluck.models.trace import register
from potluck.shipping.executorch import CannotTrain, DeviceTrainer, write_training_pte
from potluck.shipping.formats import NoGraph, first_line, quiet
from potluck.shipping.standalone import ModelError, ShippedModel, checked_file

TRAINING_FILE = "train.pte"
STEPS, EXPORT_STEPS = 10, 2
"""Steps of a comparison, and of the shorter one before a folder is written."""
TOLERANCE = 1e-5
"""The largest difference of a parameter after the steps; relative to the largest parameter if that is above 1."""
RATES = (0.1, 0.01, 0.001, 0.0001)
ROUNDING, DRAWS = 3e-7, 3
"""How much of their size parameters are changed by, to see what rounding does; a few bits of a float32."""

MEANS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


class TrainingDiffers(UserError):
    """ExecuTorch does not train a network as PyTorch does."""

    exit_code = 9


@dataclass(frozen=True)
class Untrainable:
    """A kind of layer that ExecuTorch does not train, why not, and what to use in its place."""

    name: str
    layers: tuple[type[nn.Module], ...]
    operators: tuple[str, ...]
    """What the names of its operators in a graph begin with."""
    reason: str
    instead: str


UNTRAINABLE = (
    Untrainable(
        "max-pooling",
        (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
        ("max_pool", "adaptive_max_pool"),
        "its gradient is wrong there",
        "a convolution with stride 2, as in device_cnn",
    ),
    Untrainable(
        "average pooling",
        (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, *MEANS),
        ("avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool"),
        "it has no gradient there",
        "a convolution with stride 2, or a mean over the whole map",
    ),
    Untrainable(
        "batch norm",
        (_BatchNorm,),
        ("batch_norm", "_native_batch_norm", "native_batch_norm", "cudnn_batch_norm"),
        "it cannot be written in training mode",
        'group norm, norm = "group"',
    ),
    Untrainable(
        "dropout in a forward function",
        (),
        ("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "bernoulli", "rand"),
        "what it draws cannot be compared",
        "nn.Dropout, which the training graph leaves out",
    ),
)


class TrainingStep(nn.Module):
    """A network with its loss, as the training graph holds them; dropout is left out."""

    def __init__(self, net: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).train()
        self.loss = loss
        for layer in self.net.modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()
            if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
                layer.dropout = 0.0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net, {"x": x, "y": y})


def loss_of(problem: str) -> Loss:
    """The training loss of a problem, by its name in ``model.json``."""
    return SquaredError() if problem == "regress" else CrossEntropy()


def write_training_graph(net: nn.Module, family: str, loss: Loss, x: Tensor, y: Tensor, path: Path) -> None:
    """Writes the training graph of a network for batches like x and y, if ExecuTorch trains it as PyTorch does."""
    step = TrainingStep(net, loss)
    _refuse(family, _layers_in(step.net))
    _freeze_unused(step, x, y)
    try:
        with quiet(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no backward there
            program = torch.export.export(step, (x, y))
    except Exception as fault:  # whatever the network's own code leads to
        raise _no_graph(family, first_line(fault)) from fault
    _refuse(family, _operators_in(program))
    try:
        with sdpa_kernel(SDPBackend.MATH):
            write_training_pte(program, path)
        found = compare(step, x, y, path, EXPORT_STEPS)
    except UserError:
        raise
    except CannotTrain as fault:
        raise _no_graph(family, str(fault)) from None
    except Exception as fault:  # ExecuTorch has errors of its own
        raise _no_graph(family, first_line(fault)) from fault
    if found.wrong:
        raise TrainingDiffers(f"{found.verdict} Nothing was written.")


def _freeze_unused(step: TrainingStep, x: Tensor, y: Tensor) -> None:
    """Parameters that the loss does not depend on have no gradient, and a training graph must not ask for one."""
    step(x, y).backward()
    for tensor in step.parameters():
        tensor.requires_grad_(tensor.grad is not None)
        tensor.grad = None


def _no_graph(family: str, reason: str) -> NoGraph:
    return NoGraph(f"the network '{family}' cannot be trained by ExecuTorch {_version()}: {reason}.")


def _version() -> str:
    try:
        return importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        return "1.5.1"


def _refuse(family: str, found: Mapping[Untrainable, Sequence[str]]) -> None:
    if found:
        raise _no_graph(family, "; ".join(_fault(kind, places) for kind, places in found.items()))


def _fault(kind: Untrainable, places: Sequence[str]) -> str:
    more = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return f"{kind.name} ({', '.join(places[:2])}{more}): {kind.reason}. Use {kind.instead}"


def _layers_in(net: nn.Module) -> dict[Untrainable, list[str]]:
    """The layers of a network that cannot be trained."""
    found: dict[Untrainable, list[str]] = {}
    for name, layer in net.named_modules():
        for kind in UNTRAINABLE:
            if isinstance(layer, kind.layers) and not (isinstance(layer, MEANS) and _is_mean(layer.output_size)):
                found.setdefault(kind, []).append(name or type(layer).__name__)
    return found


def _operators_in(program: torch.export.ExportedProgram) -> dict[Untrainable, list[str]]:
    """The operators of a graph that cannot be trained, such as those of functions in a forward."""
    found: dict[Untrainable, list[str]] = {}
    for node in program.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        name = "" if packet is None else str(packet).rpartition(".")[2]
        for kind in UNTRAINABLE:
            if name.startswith(kind.operators) and not _harmless(node):
                found.setdefault(kind, []).append(name)
    return {kind: sorted(set(names)) for kind, names in found.items()}


def _harmless(node: torch.fx.Node) -> bool:
    """Whether it is a mean over a whole map, or a dropout that does nothing."""
    name, arguments = str(node.target), list[Any](node.args)
    if "adaptive_avg_pool" in name:
        return _is_mean(arguments[1])
    return "dropout" in name and bool(arguments[1] == 0 or arguments[2] is False)


def _is_mean(size: Any) -> bool:
    """Whether an adaptive pooling to this size is one mean over the whole map."""
    return all(side == 1 for side in (size if isinstance(size, list | tuple) else [size]))


@dataclass(frozen=True)
class TensorCheck:
    """How far training moved one parameter tensor, and how far the two results of it are apart."""

    name: str
    moved: float
    off: float


@dataclass(frozen=True)
class TrainingCheck:
    """The comparison of ExecuTorch's training with PyTorch's on the same rows, from the same parameters."""

    tensors: tuple[TensorCheck, ...]
    """The largest difference first."""
    steps: int
    rows: int
    rate: float
    rounding: float
    """How far parameters go apart if they are changed by a few bits at the start, in PyTorch alone."""
    allowed: float
    losses: tuple[float, float]
    """ExecuTorch's loss before the first and before the last step."""

    @property
    def off(self) -> float:
        return self.tensors[0].off

    @property
    def wrong(self) -> tuple[TensorCheck, ...]:
        return tuple(each for each in self.tensors if not each.off <= self.allowed)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        steps = f"after {self.steps} steps of SGD (lr {self.rate:g}, {self.rows} rows)"
        if not self.wrong:
            return (
                f"ExecuTorch and PyTorch agree {steps}: largest difference {self.off:.1e}, allowed {self.allowed:.1e}."
            )
        worst, count = self.wrong[0], f"{len(self.wrong)} of {len(self.tensors)}"
        known = f" Rounding alone makes {self.rounding:.1e} of it." if self.rounding > self.allowed else ""
        return (
            f"ExecuTorch and PyTorch differ {steps} in {count} tensors, by up to {worst.off:.1e} in '{worst.name}'; "
            f"allowed {self.allowed:.1e}.{known}"
        )

    def plain(self) -> dict[str, Any]:
        return {
            "agrees": not self.wrong,
            **{name: getattr(self, name) for name in ("steps", "rows", "rate", "off", "allowed", "rounding")},
            "losses": list(self.losses),
            "tensors": [{"name": each.name, "moved": each.moved, "off": each.off} for each in self.tensors],
        }


def compare(
    step: TrainingStep, x: Tensor, y: Tensor, path: Path, steps: int = STEPS, rate: float | None = None
) -> TrainingCheck:
    """Trains some steps with ExecuTorch and in eager PyTorch.

    Where a ReLU switches, or a norm divides by little, rounding grows from step to step, and two correct programs
    differ. So without a `rate` the longest steps are taken for which rounding stays far below what is allowed.
    """
    before = {name: tensor.detach().clone() for name, tensor in step.named_parameters() if tensor.requires_grad}
    allowed = TOLERANCE * max(1.0, max(float(tensor.abs().max()) for tensor in before.values()))
    rate, wanted, rounding = _choose_rate(step, x, y, steps, allowed, rate)
    trainer = DeviceTrainer(path, rate)
    losses = [trainer.step(x, y) for _ in range(steps)]
    found = trainer.parameters()
    checks = []
    for name, start in before.items():
        moved = _apart(wanted[name], start)
        unused = name not in found and moved == 0
        off = 0.0 if unused else _apart(wanted[name], found.get(name))
        checks.append(TensorCheck(name.removeprefix("net."), moved, off))
    order = sorted(checks, key=lambda each: -each.off)
    return TrainingCheck(tuple(order), steps, len(x), rate, rounding, allowed, (losses[0], losses[-1]))


def _apart(one: Tensor, two: Tensor | None) -> float:
    """The largest difference; infinite where there is nothing to compare, or no number."""
    if two is None or one.shape != two.shape:
        return float("inf")
    return float((one - two).abs().max().nan_to_num(nan=float("inf"))) if one.numel() else 0.0


def _choose_rate(
    step: TrainingStep, x: Tensor, y: Tensor, steps: int, allowed: float, rate: float | None
) -> tuple[float, dict[str, Tensor], float]:
    """The step length, PyTorch's parameters after the steps, and what rounding makes of them."""
    for tried in RATES if rate is None else (rate,):
        plain, steps_taken = _train(step, x, y, steps, tried)
        others = (_train(step, x, y, steps, tried, draw)[1] for draw in range(1, DRAWS + 1))
        rounding = max(_apart(taken, other[name]) for other in others for name, taken in steps_taken.items())
        if rounding <= allowed / 10:
            break
    return tried, plain, rounding


def _train(
    step: TrainingStep, x: Tensor, y: Tensor, steps: int, rate: float, draw: int = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters after training in eager PyTorch, and how far each went.

    A `draw` above 0 changes the last bits of the parameters at random before.
    """
    net = copy.deepcopy(step)
    trained = {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}
    if draw:
        rng = torch.Generator().manual_seed(draw)
        with torch.no_grad():
            for tensor in trained.values():
                tensor.mul_(1 + ROUNDING * torch.randn(tensor.shape, generator=rng))
    start = {name: tensor.detach().clone() for name, tensor in trained.items()}
    optimiser = torch.optim.SGD(trained.values(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        net(x, y).backward()
        optimiser.step()
    end = {name: tensor.detach() for name, tensor in trained.items()}
    return end, {name: end[name] - start[name] for name in end}


def verify_device(folder: Path | str, rate: float | None = None, model: str = "") -> TrainingCheck:
    """Trains the sample rows of an exported folder with ExecuTorch and in PyTorch, and compares parameters.

    `model` is ``module:factory`` if the network is one of your own; it is imported.
    """
    place = Path(folder)
    if rate is not None and not 0 < rate < float("inf"):
        raise SettingsError(f"--lr {rate:g} must be a number above 0.")
    if model:
        register(model)
    try:
        told = json.loads((place / "model.json").read_bytes())
        training, problem = told["training"], str(told["output"]["problem"])
        rows = int(training["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{place} holds no training graph; write it with potluck export --train.") from None
    try:
        path = checked_file(place, training)
        x, y = _batch(place, rows)
    except ModelError as fault:
        raise InputError(str(fault)) from None
    step = TrainingStep(load(place), loss_of(problem))
    try:
        return compare(step, x, y, path, rate=rate)
    except CannotTrain as fault:
        raise TrainingDiffers(f"{path}: ExecuTorch {_version()} cannot run it: {fault}.") from None


def _batch(place: Path, rows: int) -> tuple[Tensor, Tensor]:
    """The sample rows of a folder as the network reads them, with their labels; repeated to a whole batch."""
    shipped = ShippedModel(place, open_graph=False)
    try:
        with np.load(place / "sample.npz", allow_pickle=False) as sample:
            x, y = torch.from_numpy(shipped.scale(shipped.fit(sample["x"]))), torch.from_numpy(sample["y"])
    except (OSError, ValueError, KeyError, EOFError):
        raise InputError(f"{place / 'sample.npz'}: no rows x with labels y can be read; export it again.") from None
    return batch_of(x, y, rows)


def batch_of(x: Tensor, y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """A batch of so many rows; if there are fewer, they are repeated."""
    places = torch.arange(rows) % len(x)
    return x[places], y[places]
