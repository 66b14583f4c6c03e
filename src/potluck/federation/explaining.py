"""What leaves a node, in words: for people who decide whether to take part."""

from __future__ import annotations

from typing import Any

from potluck.core import display_name, facts_of
from potluck.federation.charter import Charter
from potluck.secure.settings import Secure

ALWAYS = (
    "Once, when it joins: the tier that it takes, its number of training rows, how many rows it scores on, seconds a "
    "step and memory of each tier's network, and the versions of Python, torch and numpy.",
    "Your rows, labels and files never leave. The memory that a method keeps from round to round stays in the node's "
    "folder; the server gets its checksum and size.",
    "Everything that leaves is written into audit.jsonl in the node's folder, before it is sent.",
)


def explain(method: Any = None, floor: int = 20, noise: str = "", secure: Secure | None = None) -> list[str]:
    """Sentences on what leaves a node under a method; without one, on what leaves it under any."""
    found = [ALWAYS[0]]
    if method is None:
        found.append("In every round that it is asked: what the method uploads, mostly the weights of the sub-model.")
    else:
        what = _masked(secure) if secure is not None and secure.enabled else _uploads(method)
        found.append(f"In every round that it is asked ({display_name(method)}): {what}")
    found.append(
        "After rounds that are scored: counts of rows and of right answers, for each class, on the node's own test "
        f"and validation rows; none from splits of fewer than {floor} rows."
    )
    found.append(
        noise or "No noise is added to what leaves: weights can tell about the rows that they were trained on."
    )
    return [*found, *ALWAYS[1:]]


def _masked(secure: Secure) -> str:
    return (
        f"its update, masked ([secure]): the server sees sums over at least {secure.min_holders} nodes, and no single "
        "node's update. Beside it: new public keys, signed, and encrypted shares of the masks."
    )


def _uploads(method: Any) -> str:
    told = ["the weights that it trained, how many rows they stand for, and the training loss."]
    facts = facts_of(method)
    if facts is not None and not facts.sums:
        told.append("The server needs each node's update by itself, not only the sum.")
    if facts is not None and facts.public != "none":
        told.append("The method uses public rows; what is sent may hold outputs on these.")
    if getattr(method, "label_mask", False):
        told.append("Which classes the node has is visible (method.label_mask).")
    return " ".join(told)


def describe_charter(charter: Charter, tier: str) -> list[str]:
    """The charter in a few lines, for the question whether to take part."""
    experiment = charter.experiment
    wanted = experiment.privacy
    noise = f"Noise is added to every update before it leaves (norm at most {wanted.clip_at_first:g})."
    if wanted.where == "server":
        noise = (
            f"Every update is clipped before it leaves (norm {wanted.clip_at_first:g} at first), and counts as much as "
            "any other. The server sees it, and is trusted to add noise to the sum. Training loss and the number of "
            "steps stay here"
        ) + ("; whether the update was clipped is told." if wanted.clip == "adaptive" else ".")
    if wanted.where == "server" and experiment.secure.enabled:
        noise = (
            f"Every update is clipped (norm {wanted.clip_at_first:g}), counts as much as any other, and gets a share "
            "of noise before it is masked: the server sees sums with the noise of all nodes in them, and never one "
            "without. Training loss and the number of steps stay here."
        )
    noise = noise if wanted.enabled else ""
    head = [
        f"Federation '{charter.plain['federation']}' asks this node to take part:",
        f"  method {display_name(charter.method)}, {experiment.rounds} rounds, in tier '{tier}'; charter "
        f"{charter.hash[:12]}",
        "What leaves this node:",
    ]
    return [
        *head,
        *(f"  - {line}" for line in explain(charter.method, experiment.nodes.floor, noise, experiment.secure)),
    ]
