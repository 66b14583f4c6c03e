"""The tiers' average: known where every tier has a model, shown where it says more than the global score."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_runs import manifest, write_folder
from rich.console import Console

from potluck.report import RunRecord, compare_rows, compare_table, read_record, write_report
from potluck.report.summary import tier_average, tiers_differ

Tiers = Mapping[str, float | None]
SHARES = {"watch": 3.0, "phone": 1.0}


def made(path: Path, *rounds: Tiers, shared: float | None = 0.9, seed: int = 0, shares: object = SHARES) -> RunRecord:
    """A run with these scores of its tiers, round by round; None stands for a tier that only its clients score."""
    assert isinstance(shares, dict)
    scores = [
        {
            "round": index,
            "global": None if shared is None else {"test": {"accuracy": shared}},
            "clients": {"mean": 0.5},
            "tiers": {
                name: {"clients": {"mean": 0.5}} | ({} if score is None else {"test": {"accuracy": score}})
                for name, score in tiers.items()
            },
        }
        for index, tiers in enumerate(rounds, 1)
    ]
    declared = [{"name": name, "clients": 4} | ({"share": share} if share else {}) for name, share in shares.items()]
    return read_record(write_folder(path, manifest(path.name.split("-")[0], seed, tiers=declared), [], scores))


def line(run: RunRecord) -> list[tuple[float, float]]:
    return tier_average(run).line(lambda point: point.score)


def shown(width: int, *runs: RunRecord) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(compare_table(runs, width))
    return capture.get().splitlines()


def test_tiers_count_by_their_share_of_clients(tmp_path: Path) -> None:
    run = made(tmp_path / "a", {"watch": 0.2, "phone": 0.6}, {"watch": 0.4, "phone": 0.8})
    assert line(run) == [(1.0, pytest.approx(0.3)), (2.0, pytest.approx(0.5))]


@pytest.mark.parametrize(
    "shares", [{"watch": None, "phone": None}, {"watch": 3.0, "phone": None}, {"watch": -3, "phone": 1}]
)
def test_tiers_count_alike_where_shares_are_not_recorded(tmp_path: Path, shares: dict[str, float | None]) -> None:
    assert line(made(tmp_path / "a", {"watch": 0.2, "phone": 0.6}, shares=shares)) == [(1.0, pytest.approx(0.4))]


def test_the_servers_own_work_is_no_tier_of_the_average(tmp_path: Path) -> None:
    event = {"event": "task", "round": 1, "client": "server", "outcome": "accepted"}
    tiers = {name: {"test": {"accuracy": score}} for name, score in (("watch", 0.2), ("phone", 0.6), ("laptop", 0.4))}
    scores = [{"round": 1, "global": {"test": {"accuracy": 0.9}}, "tiers": tiers}]
    run = read_record(write_folder(tmp_path / "a", manifest(), [event], scores))  # shares of 0.4, 0.4 and 0.2
    assert [tier.name for tier in run.tiers] == ["watch", "phone", "laptop", "server"]
    assert line(run) == [(1.0, pytest.approx(0.4))]


def test_a_tier_without_a_model_leaves_the_average_unknown(tmp_path: Path) -> None:
    assert line(made(tmp_path / "scored by clients", {"watch": None, "phone": 0.6})) == []
    assert line(made(tmp_path / "never scored", {"phone": 0.6})) == []
    assert line(made(tmp_path / "at first", {"watch": None, "phone": 0.6}, {"watch": 0.2, "phone": 0.6})) == [
        (2.0, pytest.approx(0.3))
    ]


def test_a_run_that_its_clients_score_has_no_average(tmp_path: Path) -> None:
    assert line(made(tmp_path / "a", {"watch": None, "phone": None}, shared=None)) == []


def test_tiers_that_their_clients_score_on_the_common_test_set_have_an_average(tmp_path: Path) -> None:
    run = made(tmp_path / "b", {"watch": 0.2, "phone": 0.6}, shared=None)
    assert run.curve.on_clients
    assert line(run) == [(1.0, pytest.approx(0.3))]


def test_an_average_tells_where_tiers_of_some_run_differ(tmp_path: Path) -> None:
    alike = made(tmp_path / "alike", {"watch": 0.2, "phone": 0.6}, {"watch": 0.9, "phone": 0.9})
    apart = made(tmp_path / "apart", {"watch": 0.8, "phone": 0.9})
    alone = made(tmp_path / "alone", {"watch": 0.8}, shares={"watch": 1.0})
    unknown = made(tmp_path / "unknown", {"watch": 0.8, "phone": 0.9, "tv": None}, shares={**SHARES, "tv": 1.0})
    assert [tiers_differ([run]) for run in (alike, apart, alone, unknown)] == [False, True, False, False]
    assert tiers_differ([alike, apart])
    assert all("average" not in row for row in compare_rows([alike, alone, unknown]))


def test_rows_hold_the_mean_and_deviation_over_seeds_or_say_that_it_is_unknown(tmp_path: Path) -> None:
    runs = [made(tmp_path / f"a-{s}", {"watch": w, "phone": 0.6}, seed=s) for s, w in ((0, 0.2), (1, 0.4))]
    known, unknown = compare_rows([*runs, made(tmp_path / "b", {"watch": None, "phone": 0.7})])
    assert list(known)[list(known).index("global") + 1] == "average"
    assert known["average"] == {"mean": pytest.approx(0.375), "sd": pytest.approx(0.01125**0.5), "count": 2}
    assert unknown["average"] == {"mean": None, "sd": None, "count": 0}


def test_the_printed_table_has_the_average_after_the_global_score(tmp_path: Path) -> None:
    apart, unknown = made(tmp_path / "a", {"watch": 0.2, "phone": 0.6}), made(tmp_path / "b", {"watch": None})
    lines = shown(80, apart, unknown)
    assert lines[1].split()[:5] == ["method", "global", "average", "watch", "phone"]
    assert lines[3].split()[:5] == ["a", "90.0", "30.0", "20.0", "60.0"]
    assert lines[4].split()[:3] == ["b", "90.0", "—"]
    assert "average: of the tiers" in "\n".join(lines)
    assert "average" not in "\n".join(shown(80, unknown))


def test_a_terminal_too_narrow_for_the_average_keeps_the_range_of_the_tiers(tmp_path: Path) -> None:
    run = made(tmp_path / "a", {"watch": 0.2, "phone": 0.6})
    narrow = shown(52, run)
    assert narrow[1].split()[:4] == ["method", "global", "2", "tiers"]
    assert "average" not in "\n".join(narrow)
    assert max(map(len, narrow)) <= 52


def test_the_page_shows_the_average_and_the_rounds_it_took(tmp_path: Path) -> None:
    apart = made(tmp_path / "a", {"watch": 0.4, "phone": 0.6}, {"watch": 0.5, "phone": 0.7})
    unknown = made(tmp_path / "b", {"watch": None, "phone": 0.6})
    page = write_report([apart.folder, unknown.folder], tmp_path / "page.html").read_text()
    heads = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert heads[:4] == ["", "runs", "global", "average"]
    assert "Average: of the tiers" in page
    part = page[page.index("by the tiers") :]
    cells = re.findall(r"<td>(.*?)</td>", part[: part.index("</table>")])
    assert cells == ["2", "—", "—", "—", "—", "—", "—", "—"]  # 55 % in round 2; nothing for the other run


def test_the_page_says_nothing_of_an_average_that_repeats_the_global_score(tmp_path: Path) -> None:
    runs = [made(tmp_path / name, {"watch": 0.9, "phone": 0.9}) for name in "ab"]
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text()
    assert "verage: of the tiers" not in page
    assert "by the tiers" not in page
