"""Live networks: born from a generator, or filled with the numbers of a model at rest."""

from __future__ import annotations

import torch
from torch import nn

from potluck.core import Arrays, Model, SettingsError, Spec
from potluck.models.families import FAMILIES
from potluck.models.skeleton import shapes, skeleton


def born(spec: Spec, rng: torch.Generator) -> nn.Module:
    """A network with random weights that depend on the generator alone; torch's own generator is left as it was."""
    seed = int(torch.randint(2**63 - 1, (), generator=rng, device=rng.device))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would reseed accelerators too, and those are not restored.
        torch.default_generator.manual_seed(seed)
        return FAMILIES[spec.family].net(spec)


def fresh(spec: Spec, rng: torch.Generator) -> Model:
    """A newborn model at rest: random, or as its family has it start where names and shapes agree."""
    model = at_rest(spec, born(spec, rng))
    arrays, given = dict(model.arrays or {}), FAMILIES[spec.family].initial_weights(spec)
    agreed = [name for name, tensor in given.items() if tensor.shape == arrays[name].shape]
    if given and not agreed:
        raise SettingsError(f"{spec.family}: pretrained weights fit no layer of so narrow a network. Give it a depth.")
    return Model(spec, arrays | {name: given[name].to(arrays[name].dtype, copy=True) for name in agreed})


def filled(spec: Spec, arrays: Arrays) -> nn.Module:
    """A network with a copy of these numbers, on the device where they lie."""
    check(spec, arrays)
    net = skeleton(spec).to_empty(device=next(iter(arrays.values())).device)
    net.load_state_dict(dict(arrays))
    return net


def check(spec: Spec, arrays: Arrays) -> None:
    """Refuse arrays that are not this network's."""
    wanted = shapes(spec)
    if missing := wanted.keys() - arrays.keys():
        raise ValueError(f"the arrays lack '{min(missing)}', which {spec.family} has")
    if extra := arrays.keys() - wanted.keys():
        raise ValueError(f"the arrays hold '{min(extra)}', which {spec.family} has not")
    for name, (shape, dtype) in wanted.items():
        found = arrays[name]
        if tuple(found.shape) != shape:
            raise ValueError(f"'{name}' has the shape {tuple(found.shape)}; {spec.family} wants {shape}")
        if found.dtype.is_floating_point != dtype.is_floating_point or found.dtype.is_complex:
            raise ValueError(f"'{name}' is of {found.dtype}; {spec.family} wants {dtype}")


def at_rest(spec: Spec, net: nn.Module) -> Model:
    """A network's numbers as a model at rest."""
    return Model(spec, {name: tensor.detach().clone() for name, tensor in net.state_dict().items()})
