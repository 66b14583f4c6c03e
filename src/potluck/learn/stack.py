"""Stacked training: several clients' networks of one shape train together, stacked along a new first dimension.

For small networks most of the time is overhead between operations; twenty stacked clients pay it once. Each client's
arithmetic stays the same, but batched matrix products may round differently: results are close, not equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from potluck.core import Batch, Examples, Fit, Grads, client_fault
from potluck.learn.fit import FitJob, batch_rows, run_fit
from potluck.learn.losses import CrossEntropy, MaskedCrossEntropy, ProximalTerm, mask_logits
from potluck.learn.optimisers import make_optimiser

LOSSES = (CrossEntropy, MaskedCrossEntropy)
"""Losses that work on stacked tensors."""
EDITS = (ProximalTerm,)
"""Edits that work entry by entry, and so also on stacked tensors."""


_PLAIN = (nn.Linear, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Flatten)
"""Layers that work on stacked tensors."""


def can_stack(net: nn.Module) -> bool:
    """Whether a network can be stacked: it has only linear layers, activations and flattening.

    A forward of one's own cannot: it may count dimensions, or look at the numbers of a batch.
    """
    if any(type(layer).__module__.split(".")[0] not in ("torch", "potluck") for layer in net.modules()):
        return False
    leaves = [layer for layer in net.modules() if next(layer.children(), None) is None]
    return next(net.buffers(), None) is None and all(isinstance(leaf, _PLAIN) for leaf in leaves)


def stacking_key(job: FitJob) -> Hashable | None:
    """Jobs with equal keys can run as one stack; None: this job runs alone."""
    values = (job.loss, *job.edits)
    known = type(job.loss) in LOSSES and all(type(edit) in EDITS for edit in job.edits)
    plain = not job.want_gradient and job.examples.augment is None and len(job.examples) > 0
    if job.kind is None or not known or not plain:
        return None
    spoken = tuple((type(value), *_plain_fields(value).items()) for value in values)
    if job.examples.columns["y"].dim() != 1:
        return None
    return job.kind, job.buffer is None, job.local, job.lr, len(job.examples), job.examples.prepare, spoken


def fit_stacked(jobs: Sequence[FitJob]) -> list[Fit]:
    """Trains the networks of jobs with equal stacking keys, all at once."""
    first = jobs[0]
    batches = [batch_rows(len(job.examples), job.local, job.rng) for job in jobs]
    buffers, stacked = _stack_weights(jobs)
    names, live = list(stacked), list(stacked.values())
    loss = _replace_tensors(first.loss, _stack_tensors([job.loss for job in jobs]))
    edits = [
        _replace_tensors(edit, _stack_tensors([job.edits[at] for job in jobs])) for at, edit in enumerate(first.edits)
    ]
    move, losses = make_optimiser(first.local, first.lr), [torch.zeros(0, len(jobs))]
    first.net.train()
    for step in zip(*batches, strict=True):
        values = _losses(first.net, stacked, loss, _batch(jobs, step))
        grads = list(torch.autograd.grad(values.sum(), live, materialize_grads=True))
        with torch.no_grad():
            if edits:
                edited: Grads = dict(zip(names, grads, strict=True))
                for edit in edits:
                    edited = edit(edited, stacked)
                grads = [edited[name] for name in names]
            move(live, grads if first.local.clip is None else _clip_each(grads, first.local.clip))
        losses.append(values.detach()[None])
    with torch.no_grad():
        torch._foreach_copy_([tensor for job in jobs for tensor in _buffers(job)], buffers)
    means = torch.cat(losses).mean(0).tolist()
    return [
        Fit(
            job.net,
            len(drawn),
            sum(map(len, drawn)),
            first.lr,
            mean,
            drawn[-1] if drawn else torch.zeros(0, dtype=torch.long),
        )
        for job, drawn, mean in zip(jobs, batches, means, strict=True)
    ]


def _stack_weights(jobs: Sequence[FitJob]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Every client's buffers, and the same memory as stacked weights: one tensor of all clients for each weight."""
    first = jobs[0]
    if first.buffer is None:
        tensors = {name: torch.stack([job.weights[name].detach() for job in jobs]) for name in first.weights}
        rows = [tensors[name][at] for at in range(len(jobs)) for name in tensors]
        return rows, {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    whole = torch.stack([job.buffer[0] for job in jobs if job.buffer is not None])
    found = {}
    for name, (shape, strides, start) in first.buffer[1].views.items():
        found[name] = whole.as_strided((len(jobs), *shape), (whole.stride(0), *strides), start).requires_grad_()
    return list(whole.unbind()), found


def _buffers(job: FitJob) -> list[Tensor]:
    """The tensors that hold a client's weights."""
    return list(job.weights.values()) if job.buffer is None else [job.buffer[0]]


def _losses(net: nn.Module, stacked: Mapping[str, Tensor], loss: Any, batch: Batch) -> Tensor:
    """Each client's mean cross-entropy."""
    with _Wide():
        scores: Tensor = functional_call(net, dict(stacked), (batch[loss.inputs],))
    if isinstance(loss, MaskedCrossEntropy):
        scores = mask_logits(scores, loss.owned[:, None])
    labels = batch[loss.labels]
    each = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(1)


class _Wide(TorchFunctionMode):
    """Linear layers as batched matrix products, [clients, batch, in] with [clients, out, in]. Flattening starts one
    dimension later."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            x, weight, *bias = args
            return (
                torch.bmm(x, weight.mT)
                if not bias or bias[0] is None
                else torch.baddbmm(bias[0][:, None], x, weight.mT)
            )
        if func is Tensor.flatten:
            x, start, *end = args
            return x.flatten(start + 1, *end)
        return func(*args, **(kwargs or {}))


def _plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a loss or an edit that hold no tensors."""
    return {name: item for name, item in vars(value).items() if not isinstance(item, Tensor | Mapping)}


def _replace_tensors(value: Any, told: Mapping[str, Any]) -> Any:
    """A loss or an edit with new tensors."""
    return replace(value, **told)


def _stack_tensors(values: Sequence[Any]) -> dict[str, Any]:
    """The stacked tensors of several losses or edits of one type, by field name."""
    found: dict[str, Any] = {}
    for field in fields(values[0]):
        items = [getattr(value, field.name) for value in values]
        if isinstance(items[0], Tensor):
            found[field.name] = torch.stack(items)
        elif isinstance(items[0], Mapping):
            found[field.name] = {name: torch.stack([item[name] for item in items]) for name in items[0]}
    return found


def _batch(jobs: Sequence[FitJob], step: Sequence[Tensor]) -> Batch:
    """All clients' batches of one step; gathered at once if the clients share their columns."""
    examples = jobs[0].examples
    first = examples.columns["x"] if "x" in examples.columns else next(iter(examples.columns.values()))
    if any(all(column is not first for column in job.examples.columns.values()) for job in jobs):
        apart = [job.examples[batch] for job, batch in zip(jobs, step, strict=True)]
        return {name: torch.stack([batch[name] for batch in apart]) for name in apart[0]}
    picked = [
        batch if job.examples.rows is None else job.examples.rows[batch] for job, batch in zip(jobs, step, strict=True)
    ]
    flat = Examples(examples.columns, torch.cat(picked), examples.prepare).all()
    return {name: column.view(len(jobs), -1, *column.shape[1:]) for name, column in flat.items()}


def _clip_each(grads: list[Tensor], most: float) -> list[Tensor]:
    """Each client's gradients, scaled down to a total norm of at most `most`."""
    norms = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in grads])
    scale = torch.clamp(most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6), max=1.0)
    return [grad * scale.view(-1, *[1] * (grad.dim() - 1)) for grad in grads]


def run_stacked(jobs: Sequence[FitJob]) -> list[Fit | BaseException]:
    """Runs jobs with equal stacking keys as one stack, and all others alone. A failed job gives its exception."""
    alike: dict[object, list[int]] = {}
    for at, job in enumerate(jobs):
        key = stacking_key(job)
        alike.setdefault(("alone", at) if key is None else key, []).append(at)
    found: dict[int, Fit | BaseException] = {}
    for members in alike.values():
        chosen = [jobs[at] for at in members]
        try:
            fits = fit_stacked(chosen) if len(chosen) > 1 else [run_fit(chosen[0])]
            found |= zip(members, fits, strict=True)
        except BaseException as fault:
            found |= dict.fromkeys(members, client_fault(fault))
    return [found[at] for at in range(len(jobs))]
