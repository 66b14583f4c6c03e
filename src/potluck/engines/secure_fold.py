"""A fold in which the server adds up what it cannot read: the five phases of a secure sum, as tasks of any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potluck.core import EMPTY, Expected, Mean, Model, Reply, Selection, Shapes, Task, Weight, settings
from potluck.engines.gate import HEAVIEST
from potluck.parts import OverlapMean, Part
from potluck.secure.blocks import RoundBlocks
from potluck.secure.crypto import Forged
from potluck.secure.server import Request, SecureSum
from potluck.secure.settings import AGREE, KEYS, OPEN, REQUEST, SHARES

if TYPE_CHECKING:
    from potluck.engines.dispatcher import RoundSession


def secure_fold(
    session: RoundSession,
    tasks: Iterable[Task],
    mean: Mean,
    held: Mapping[str, Selection],
    weigh: Callable[[Reply], Weight] | None = None,
) -> Sequence[Reply]:
    """Sends tasks, and adds the sum of the replies' models to the mean; no reply holds a model that can be read.

    The weight of a returned reply is the mean weight of the clients that hold the same as its own. Clients of whom
    nothing was opened have no reply.
    """
    if weigh is not None or not isinstance(mean, OverlapMean) or type(mean).add is not OverlapMean.add:
        raise RuntimeError(f"{type(session.dispatcher.method).__name__} weighs replies in a way that no sum can")
    sent = {task.to: task for task in tasks}
    total = _secure_sum(session, sent, mean, held)

    def phase(
        verb: str,
        clients: Iterable[str],
        request: Callable[[str], Request],
        shapes: Callable[[str], Shapes],
        take: Callable[[str, Reply], None],
    ) -> list[Reply]:
        def check(task: Task, reply: Reply) -> str | None:
            try:
                take(task.to, reply)
            except Forged as fault:
                return f"secure sum: {fault}"
            return None

        asked = (_request(verb, sent[client], total.session, request(client), shapes(client)) for client in clients)
        return session.ask(asked, check)

    phase(KEYS, sent, total.key_request, total.key_shapes, total.take_keys)
    phase(SHARES, total.make_plan(), total.share_request, total.share_shapes, total.take_shares)
    replies = phase("", total.choose_uploads(), total.upload_request, total.upload_shapes, total.take_upload)
    skipped = {entry.task.to for entry in session.entries if entry.skipped}
    left = len(sent.keys() - skipped)
    # Some methods have a fold for each group of clients: a fold of fewer clients than the quorum is not judged alone.
    short = left >= session.quorum > len(total.uploads)
    helpful = [] if short else total.choose_blocks()
    phase(AGREE, helpful, total.agree_request, total.agree_shapes, total.take_agreed)
    phase(OPEN, total.choose_openers(), total.open_request, total.open_shapes, total.take_opened)
    decoded = total.decode(total.open())
    mean.add_block(total.sums(decoded), 0)
    found = []
    for reply in replies:
        client = reply.task.to
        if (weight := total.weight(client, decoded)) is None:
            continue
        session.opened.add(client)
        session.held.append(getattr(held[client], "units", None) or None)
        bare = {"model": Model(sent[client].models["model"].spec, EMPTY)}
        found.append(Reply(bare, EMPTY, weight, reply.metrics, reply.task, reply.cost))
    session.coverage = mean.coverage()
    session.secure.append(_told(total, decoded) | {"short": short})
    return found


def _secure_sum(
    session: RoundSession, sent: Mapping[str, Task], mean: OverlapMean, held: Mapping[str, Selection]
) -> SecureSum:
    """The sum of the models that these tasks ask for."""
    run = session.dispatcher
    assert run.secure is not None
    floats = {
        client: [name for name, (_, dtype) in task.expects.models["model"].items() if dtype.is_floating_point]
        for client, task in sent.items()
    }
    told = settings(run.method)
    masked = run.zoo.class_rows if told.get("label_mask") else lambda spec: ()
    rows, row_names, buffers = {}, set[str](), set[str]()
    for client, task in sent.items():
        spec, part = task.models["model"].spec, held[client]
        assert isinstance(part, Part)
        rows[client] = [name for name in floats[client] if name in masked(spec)]
        row_names |= {part.place(name).name for name in rows[client]}
        buffers |= {part.place(name).name for name in floats[client] if name in run.zoo.buffers(spec)}
    samples = max((run.samples(client) for client in sent), default=1) if run.samples is not None else HEAVIEST
    equal = told.get("weighting") == "uniform" or run.secure.noise is not None
    heaviest = 1.0 if equal else float(run.gate.heaviest or max(samples, 1))
    # What a method sends to make a model ready for scores is a session of the same round, and not of the same sum.
    when = "ready" if session.needed else str(session.attempt)
    label = f"{run.session_label} {session.index} {when} {len(session.secure)}"
    blocks = RoundBlocks.of(mean.start, {client: held[client] for client in sent}, floats)
    return SecureSum(
        *(run.secure.settings, run.secure.identities, label, blocks, mean.start),
        *(frozenset(buffers), rows, frozenset(row_names), heaviest, run.secure.noise),
    )


def _request(verb: str, task: Task, session: str, request: Request, shapes: Shapes) -> Task:
    """A task of a phase. The task of the upload is the method's own, with the request beside it."""
    expects = Expected(arrays=shapes)
    if not verb:
        return replace(task, config={**task.config, REQUEST: request}, expects=expects)
    return Task(verb, task.to, session, config={REQUEST: request}, expects=expects)


def _told(total: SecureSum, decoded: Mapping[int, Any]) -> dict[str, Any]:
    """What became of a secure sum: how many blocks there were, how many were opened, and the share of entries."""
    entries = {block: 0 for block in total.blocks.whole.blocks() if block}
    for tensor in total.blocks.whole.tensors:
        start = total.start[tensor.name]
        for block in tensor.blocks() & entries.keys():
            rows = tensor.rows(block)
            lead = start.numel() if not tensor.dims else tensor.grid().size
            entries[block] += start.numel() if rows is None else len(rows) * (start.numel() // lead)
    count, clients = sum(entries.values()), list(total.blocks.number)
    closed = []
    for block in sorted(entries.keys() - decoded.keys()):
        holders = total.blocks.holders(block, clients)
        uploaded = len(total.contributors(block)) if block in total.wanted else 0
        closed.append({"holders": holders, "uploaded": uploaded, "entries": entries[block]})
    return {
        "asked": len(clients),
        "uploaded": len(total.uploads),
        "blocks": len(entries),
        "planned": len(total.near),
        "opened": len(decoded),
        "entries": count,
        "opened_entries": sum(entries[block] for block in decoded),
        "closed": closed,
        "faulty": dict(total.faulty),
        "refused": len(total.refused),
        "why": next(iter(total.refused.values()), ""),
    }
