"""The graph of a network as a file: torch.export's pt2, ONNX, or ExecuTorch's pte."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from potluck.core import ResourceError, SettingsError, one_line
from potluck.shipping.executorch import write_pte

FORMATS = ("safetensors", "pt2", "onnx", "executorch")
GRAPH_FILES = {"pt2": "model.pt2", "onnx": "model.onnx", "executorch": "model.pte"}
MISSING = "--format onnx needs the packages onnx, onnxruntime and onnxscript: pip install 'potluck[onnx]'"


class NoGraph(SettingsError):
    """A network that cannot be written in a format."""


def write_graph(net: nn.Module, family: str, x: Tensor, path: Path, format: str) -> None:
    """Writes the graph of a network that reads inputs like x, in any number of rows (executorch: one)."""
    batch_norms = (layer for layer in net.modules() if isinstance(layer, _BatchNorm))
    if any(layer.running_mean is None for layer in batch_norms):
        reason = "its batch norm has no statistics of its own and uses those of each batch"
        raise NoGraph(_refusal(family, format, reason))
    try:
        with quiet():
            WRITERS[format](net, x, path)
    except ResourceError:
        raise
    except Exception as fault:  # the exporters raise whatever the network's own code leads to
        raise NoGraph(_refusal(family, format, first_line(fault))) from fault


def _refusal(family: str, format: str, reason: str) -> str:
    return f"the network '{family}' cannot be written as {format}: {reason}."


def first_line(fault: Exception) -> str:
    """An exporter's error in one line."""
    cause = fault.__cause__ if isinstance(fault.__cause__, Exception) else fault  # ONNX's own text is a page
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return one_line(f"{type(cause).__name__}: {lines[0] if lines else ''}", 200).rstrip(".")


def write_pt2(net: nn.Module, x: Tensor, path: Path) -> None:
    """Writes what torch.export makes of a network."""
    program = torch.export.export(net, (x,), dynamic_shapes=_any_number_of_rows())
    program._example_inputs = None  # they would be stored as a pickle
    torch.export.save(program, str(path))


def write_onnx(net: nn.Module, x: Tensor, path: Path) -> None:
    """Writes a network as ONNX, with its weights in the same file."""
    require_onnx()
    torch.onnx.export(
        *(net, (x,), str(path)),
        dynamo=True,
        dynamic_shapes=_any_number_of_rows(),
        input_names=["x"],
        output_names=["scores"],
        external_data=False,
        verbose=False,
    )


WRITERS: Mapping[str, Callable[[nn.Module, Tensor, Path], None]] = MappingProxyType(
    {"pt2": write_pt2, "onnx": write_onnx, "executorch": write_pte}
)


def require_onnx() -> None:
    """Refuses to go on without the packages that ONNX needs."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise ResourceError(MISSING) from None


def _any_number_of_rows() -> tuple[dict[int, torch.export.Dim]]:
    return ({0: torch.export.Dim("rows")},)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and the log of the exporters, which speak of their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
