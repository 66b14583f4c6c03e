"""Paired differences over seeds: means, t intervals, p-values, Holm's correction, and the rows that hold them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from made_runs import manifest, write_folder

from potluck.report import RunRecord, compare_rows, read_record, write_report
from potluck.report.statistics import critical_t, find_lead, holm, known_scores, paired_difference, two_sided_p


def scores(*values: float) -> dict[str, float]:
    return {str(seed): value for seed, value in enumerate(values)}


def test_the_interval_of_three_differences_is_the_one_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, sd 1, t(2) = 4.303, half-width 4.303 / sqrt(3) = 2.484."""
    found = paired_difference(scores(11, 22, 33), scores(10, 20, 30))
    assert found is not None
    assert (found.mean, found.ahead, found.count) == (2.0, 3, 3)
    assert (found.low, found.high) == (pytest.approx(2 - 2.484, abs=5e-4), pytest.approx(2 + 2.484, abs=5e-4))
    assert found.by_seed == {"0": 1, "1": 2, "2": 3}


def test_two_seeds_have_a_wide_interval_and_one_has_none() -> None:
    """Differences 1 and 3: mean 2, sd sqrt(2), error 1, t(1) = 12.706."""
    two = paired_difference(scores(11, 23), scores(10, 20))
    assert two is not None
    assert (two.low, two.high) == (pytest.approx(-10.706, abs=5e-4), pytest.approx(14.706, abs=5e-4))
    one = paired_difference(scores(11), scores(10))
    assert one is not None
    assert (one.mean, one.low, one.high, one.p, one.count) == (1.0, None, None, None, 1)


def test_a_pair_needs_a_seed_that_both_have() -> None:
    found = paired_difference({"0": 0.5, "1": 0.9, "7": 0.1}, {"1": 0.4, "2": 0.3})
    assert found is not None
    assert list(found.by_seed) == ["1"]
    assert paired_difference({"0": 0.5}, {"1": 0.4}) is None
    assert paired_difference({}, {}) is None


def test_a_tie_is_not_ahead() -> None:
    found = paired_difference(scores(0.5, 0.6, 0.7), scores(0.5, 0.5, 0.8))
    assert found is not None
    assert (found.ahead, found.count) == (1, 3)


def test_differences_that_do_not_vary_have_no_interval() -> None:
    """0.3 - 0.2 and 0.4 - 0.3 differ in their last bits only."""
    found = paired_difference(scores(0.3, 0.4), scores(0.2, 0.3))
    assert found is not None
    assert (found.mean, found.low, found.p) == (pytest.approx(0.1), None, None)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)])
def test_critical_values_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert critical_t(freedom) == pytest.approx(expected, abs=5e-4)


def test_p_values_of_one_and_two_degrees_of_freedom_have_closed_forms() -> None:
    assert two_sided_p(1.0, 1) == pytest.approx(0.5)  # a Cauchy variable lies beyond 1 in half of all cases
    assert two_sided_p(-math.sqrt(2), 2) == pytest.approx(1 - math.sqrt(0.5))
    assert two_sided_p(0.0, 5) == 1.0


def test_intervals_and_p_values_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = [0.61, 0.72, 0.80, 0.69, 0.75, 0.66], [0.60, 0.73, 0.74, 0.66, 0.71, 0.61]
    for count in (2, 3, 4, 5, 6):
        mine = paired_difference(scores(*first[:count]), scores(*second[:count]))
        theirs = stats.ttest_rel(first[:count], second[:count])
        ends = theirs.confidence_interval(0.95)
        assert mine is not None
        assert (mine.low, mine.high, mine.p) == pytest.approx((ends.low, ends.high, theirs.pvalue), rel=1e-9)


def test_holm_multiplies_the_smallest_by_all_and_never_falls_below_it() -> None:
    """0.01 times 3; 0.04 times 2; 0.03 times 2 is 0.06, and 0.04 times 1 may not be smaller."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([None, 0.01]) == pytest.approx([1.0, 0.02])
    assert holm([]) == []


def test_broken_scores_make_no_pairs() -> None:
    assert known_scores({"0": 0.5, "1": math.nan, "2": None, "3": "x", "4": 1e300, "5": True}) == {"0": 0.5}
    assert known_scores("nothing") == {}


def test_one_method_has_no_lead() -> None:
    row = {"label": "A", "global": {"mean": 0.5}, "by_seed": {"global": {"0": 0.5}}}
    blank = {"label": "B", "global": {"mean": None}, "by_seed": {"global": {}}}
    assert find_lead([row, blank], lambda one: one["global"]) is None


def folders(path: Path, **methods: tuple[float, ...]) -> list[RunRecord]:
    return [
        read_record(
            write_folder(
                path / f"{label}{seed}",
                manifest(label, seed, facts={"bound": label == "Bound"}),
                [],
                [{"round": 1, "global": {"test": {"accuracy": score}}}],
            )
        )
        for label, values in methods.items()
        for seed, score in enumerate(values)
    ]


def test_rows_hold_the_differences_to_every_other_method(tmp_path: Path) -> None:
    runs = folders(tmp_path, A=(0.5, 0.6), B=(0.4, 0.3), Bound=(0.9, 0.9))
    rows = {str(row["label"]): row for row in json.loads(json.dumps(compare_rows(runs)))}
    assert {label: list(row["differences"]) for label, row in rows.items()} == {
        "A": ["B", "Bound"],
        "B": ["A", "Bound"],
        "Bound": ["A", "B"],
    }
    found = rows["A"]["differences"]["B"]
    assert found["by_seed"] == {"0": pytest.approx(0.1), "1": pytest.approx(0.3)}
    assert (found["mean"], found["ahead"], found["count"]) == (pytest.approx(0.2), 2, 2)
    assert rows["B"]["differences"]["A"]["mean"] == pytest.approx(-0.2)
    assert rows["B"]["differences"]["A"]["high"] == pytest.approx(-found["low"])
    assert {label: row["best_other"] for label, row in rows.items()} == {"A": "B", "B": "A", "Bound": "A"}
    assert rows["A"]["by_seed"]["global"] == {"0": 0.5, "1": 0.6}


def test_methods_of_other_variants_or_problems_have_no_difference(tmp_path: Path) -> None:
    made = [
        write_folder(
            tmp_path / str(place), manifest(f"M{place}", **facts), [], [{"round": 1, "clients": {"mean": 0.5}}]
        )
        for place, facts in enumerate(({}, {"variant": "v"}, {"classes": 2}))
    ]
    rows = compare_rows([read_record(path) for path in made])
    assert [(row["differences"], row["best_other"]) for row in rows] == [({}, None)] * 3


def test_the_page_shows_each_method_against_the_best_other(tmp_path: Path) -> None:
    """A minus B: 1, 2, 3 points; C is 10 points below B in each seed but the last, where it is 13."""
    runs = folders(tmp_path, A=(0.61, 0.72, 0.83), B=(0.6, 0.7, 0.8), C=(0.5, 0.6, 0.67))
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text("utf-8")
    part = page[page.index("Differences by seed") :]
    text = " ".join(part[: part.index("</table>")].replace("<", " <").replace(">", "> ").split())
    for words in ("2.0", "-0.5", "4.5", "3 of 3 seeds", "0 of 3 seeds"):
        assert f"> {words} <" in text
    alone = write_report([runs[0].folder], tmp_path / "one.html").read_text("utf-8")
    assert "Differences by seed" not in alone
