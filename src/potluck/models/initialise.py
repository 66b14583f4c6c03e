"""Live networks: with random weights from a generator, or with the arrays of a model at rest."""

from __future__ import annotations

import torch
from torch import nn

from potluck.core import Arrays, Model, SettingsError, Spec
from potluck.models.families import FAMILIES
from potluck.models.meta_device import shapes
from potluck.models.projection import add_projection, without_projection


def random_net(spec: Spec, rng: torch.Generator) -> nn.Module:
    """A network with random weights that depend on this generator alone; PyTorch's default generator is not moved."""
    seed = int(torch.randint(2**63 - 1, (), generator=rng, device=rng.device))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would reseed accelerators too, and those are not restored.
        torch.default_generator.manual_seed(seed)
        return add_projection(FAMILIES[spec.family].net(without_projection(spec)), spec)


def initial_model(spec: Spec, rng: torch.Generator) -> Model:
    """A new model at rest: random weights, and its family's pre-trained ones where names and shapes agree."""
    net = random_net(spec, rng)
    arrays = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    given = FAMILIES[spec.family].initial_weights(without_projection(spec))
    fitting = [name for name, tensor in given.items() if tensor.shape == arrays[name].shape]
    if given and not fitting:
        raise SettingsError(f"{spec.family}: pretrained weights fit no layer of so narrow a network. Give it a depth.")
    return Model(spec, arrays | {name: given[name].to(arrays[name].dtype, copy=True) for name in fitting})


def load_net(spec: Spec, arrays: Arrays) -> nn.Module:
    """A network with a copy of these arrays, on the device that holds them."""
    check_arrays(spec, arrays)
    device = next(iter(arrays.values())).device
    net = add_projection(FAMILIES[spec.family].empty_net(without_projection(spec), device), spec)
    net.load_state_dict(dict(arrays))
    return net


def check_arrays(spec: Spec, arrays: Arrays) -> None:
    """Refuse arrays that are not those of this network."""
    expected = shapes(spec)
    if missing := expected.keys() - arrays.keys():
        raise ValueError(f"the arrays lack '{min(missing)}', which {spec.family} has")
    if extra := arrays.keys() - expected.keys():
        raise ValueError(f"the arrays hold '{min(extra)}', which {spec.family} does not have")
    for name, (shape, dtype) in expected.items():
        found = arrays[name]
        if tuple(found.shape) != shape:
            raise ValueError(f"'{name}' has the shape {tuple(found.shape)}; {spec.family} needs {shape}")
        if found.dtype.is_floating_point != dtype.is_floating_point or found.dtype.is_complex:
            raise ValueError(f"'{name}' has the dtype {found.dtype}; {spec.family} needs {dtype}")
