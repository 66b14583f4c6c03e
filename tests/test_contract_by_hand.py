"""The contract's federation by hand: bytes that one can count, and a tier that stays away."""

import math

import pytest
from test_contract import CASES, trial  # noqa: F401 - the fixture is shared

from potluck.core import SERVER, Client, digest
from potluck.run.contract import PUBLIC, is_finite, read_ledger, read_lines

UPLOADS = {
    "fedmd": {"answer": "up", "digest": "down"},
    "dsfl": {"train": "up", "distil": "down"},
    "fedgems": {"train": "up", "follow": "down"},
}
"""Methods of which only logits of public rows cross the wire: the way they go under each verb."""
MASKED = ("lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel")
"""Methods whose clients are asked for their masks."""
LENT = {"fedin": 16 * (8 + 8)}
"""Numbers that a client uploads beside its part in its first round: features of a batch at both ends of the body."""
TWICE = ("scaffold",)
"""Methods whose tensors cross the wire with a control variate each."""


def named(name):
    return next(case for case in CASES if str(case) == name)


def numbers(depth):
    """Weights and biases of the stem (64 inputs), of each block, and of the head (10 classes), 8 units wide."""
    return (64 * 8 + 8) + depth * (8 * 8 + 8) + (8 * 10 + 10)


def logits_bytes(case, verb):
    """Bytes down and up of logits of public rows and, where a round is about some of them, of which they are."""
    rows = case.own.get("rows")
    told, logits = 8 * (rows or 0), 4 * 10 * (rows or PUBLIC)
    return (told, logits) if UPLOADS[case.name][verb] == "up" else (told + logits, 0)


def masked_bytes(case, verb, units):
    """Bytes down and up of a first round under masks, to a client that keeps so many of the 8 units of a layer."""
    whole, part = 4 * numbers(3), 4 * (65 * units + 3 * (units * units + units) + 10 * units + 10)
    bits = 2 * math.ceil(units * units / 8) + math.ceil(10 * units / 8)  # of the last three layers
    held = {"lotteryfl": 64 + 3 * 8 + 10}.get(case.name, 4)  # a bit for each weight; for each of 4 x 8 units
    return {
        "show": (0, held),
        "tailor": (whole, held),
        "train": {"lotteryfl": (whole, whole + held), "tailorfl": (part, part), "fedmask": (0, bits)}.get(
            case.name, (whole, whole)
        ),
        "merge": (whole if case.name == "hermes" else 2 * units * units + 10 * units, 0),
    }[verb]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_in_the_ledger_are_the_size_of_the_part(case, trial):  # noqa: F811
    made = trial(case).rounds()
    state = made.init()
    clients = {client.id: client for client in made.setup.population.cohort(0, 9)}
    made.round(state)
    assert made.session.entries
    for entry in made.session.entries:
        found = (entry.cost.bytes_down, entry.cost.bytes_up)
        if entry.task.to == SERVER:  # what the server asks of itself crosses no wire
            continue
        if case.name in MASKED:
            units = {"small": 2, "medium": 5, "large": 8}[clients[entry.task.to].tier.name]
            assert found == masked_bytes(case, entry.task.verb, units)
        elif case.name in UPLOADS:
            assert found == logits_bytes(case, entry.task.verb)
        else:
            model = made.method.serve(state, clients[entry.task.to], made.zoo)
            count = sum(tensor.numel() for tensor in model.arrays.values()) if model else 0
            down = 2 * count if case.name in TWICE else count
            assert found == (4 * down, 4 * (down + LENT.get(case.name, 0)))


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("fedavg", {"small": 3, "medium": 3, "large": 3}),
        ("fedavg-layerwise", {"small": 1, "medium": 2, "large": 3}),
        ("fedavg-per_arch", {"small": 1, "medium": 2, "large": 3}),
        ("alllarge", {"small": 3, "medium": 3, "large": 3}),
        ("allsmall", {"small": 1, "medium": 1, "large": 1}),
        ("exclusivefl", {"large": 3}),
        ("local", {"small": None, "medium": None, "large": None}),
    ],
)
def test_bytes_by_hand(name, depths, trial):  # noqa: F811
    tasks = [line for line in read_ledger(trial(named(name)).run()) if line["event"] == "task"]
    found = {line["tier"]: line["measured"] for line in tasks}
    expected = {tier: 0 if depth is None else 4 * numbers(depth) for tier, depth in depths.items()}
    assert found == {tier: {"bytes_down": size, "bytes_up": size} for tier, size in expected.items()}


@pytest.mark.parametrize("name", ["fedavg-layerwise", "fedavg-per_arch", "fedadam-layerwise"])
def test_a_largest_tier_that_stays_away_keeps_its_bits_and_is_missed(name, trial):  # noqa: F811
    """The large tier's share is too small for a single client."""
    shares = {"small": 1.0, "medium": 1.0, "large": 0.001}
    tiers = [{"name": name, "depth": 1 + number, "share": share} for number, (name, share) in enumerate(shares.items())]
    made = trial(named(name)).rounds(tier=tiers)
    start = made.init()
    after = made.round(made.round(start), 1)
    large = next(tier for tier in made.zoo.tiers if tier.name == "large")
    old, new = (made.method.serve(state, Client("c0", large), made.zoo).arrays for state in (start, after))
    own = [tensor for tensor in old if tensor.startswith("body.2") or "per_arch" in name]
    assert len(own) == (10 if "per_arch" in name else 2)
    assert digest({tensor: new[tensor] for tensor in own}) == digest({tensor: old[tensor] for tensor in own})
    result = trial(named(name)).run(tier=tiers)
    (warning,) = [line["text"] for line in read_ledger(result) if line["event"] == "warning"]
    assert warning.startswith("round 3: nothing from tier 'large' for 3 rounds")
    assert f"{made.session.coverage:.0%} of the model was trained" in warning
    assert is_finite(read_lines(result, "scores.jsonl"))
