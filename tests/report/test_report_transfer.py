"""Knowledge transfer: read with gaps, drawn as curves and heat maps."""

from potluck.report.read import parse_transfer
from potluck.report.records import TransferRecord
from potluck.report.transfer import transfer_section

LOC = [[0.5, 1.0], [2.0, None]]


def event(**metrics):
    return {
        "event": "task",
        "round": 3,
        "client": "server",
        "verb": "teach",
        "key": "small > large",
        "metrics": metrics,
    }


def test_a_transfer_is_read_from_the_ledger():
    found = parse_transfer(event(fidelity=0.75, loc=LOC, taps=[["stem", "body"], ["a", "b"]]))
    assert found == TransferRecord(3, "small > large", 0.75, ("stem", "body"), ("a", "b"), ((0.5, 1.0), (2.0, None)))
    assert found.mean_loc == 3.5 / 3


def test_what_is_missing_or_odd_leaves_gaps():
    assert parse_transfer(event()) is None
    assert parse_transfer({"event": "task", "client": "c1"}) is None
    assert parse_transfer({**event(fidelity=1.0), "outcome": "quarantined"}) is None
    assert parse_transfer(event(fidelity=0.5, loc=[[1.0], [1.0, 2.0]])) == TransferRecord(3, "small > large", 0.5)
    assert parse_transfer(event(fidelity=0.5)).mean_loc is None
    nameless = parse_transfer(event(loc=[[1.0, 2.0]], taps=[["stem"]]))
    assert (nameless.fidelity, nameless.teacher_layers, nameless.student_layers) == (None, ("1",), ("1", "2"))


def test_maps_are_of_the_last_transfer_and_on_one_scale():
    early, late = (TransferRecord(at, "<a> > b", 0.5, ("x",), ("y",), ((loc,),)) for at, loc in ((1, 2.0), (2, 1.0)))
    other = TransferRecord(2, "b > a", 0.5, ("x",), ("y",), ((4.0,),))
    drawn = transfer_section([late, early, other])
    assert '<td style="--heat:15%">1.00</td>' in drawn
    assert '<td style="--heat:60%">4.00</td>' in drawn
    assert "2.00</td>" not in drawn
    assert "&lt;a&gt; &gt; b, round 2" in drawn


def test_fidelity_and_importance_are_curves_and_only_where_they_are_known():
    both = transfer_section(
        [TransferRecord(1, "a > b", 0.5, ("x",), ("y",), ((0.0,),)), TransferRecord(2, "a > b", 0.75)]
    )
    assert "Fidelity over rounds" in both
    assert "Importance of features over rounds" in both
    labels_only = transfer_section([TransferRecord(1, "a > b", 0.5)])
    assert "Importance of features" not in labels_only
    assert 'class="heat"' not in labels_only
    assert transfer_section([]) is None
