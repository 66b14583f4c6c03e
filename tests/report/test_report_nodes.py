"""Federations of real nodes: who was there when, bytes of messages, and names in the place of ids."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from made_runs import made_federation, made_run, manifest, node_id, nodes_event, task, write_folder
from rich.console import Console
from test_report_page import Page

from potluck.report import compare_table, name_nodes, nodes_table, read_record, refusal_summary, run_table, write_report
from potluck.report.presence import cell_size, count_states, describe_presence

SECTION = "Who was there when"
BESIDE = "Measured beside modelled"


def source(folders: list[Path], to: Path) -> str:
    return write_report(folders, to).read_text(encoding="utf-8")


def shown(table: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def federation(path: Path, *events: dict[str, object], **names: str) -> Path:
    """A federation with these nodes (id by name) and events."""
    facts = {"charter": "0" * 64, "nodes": {id: name for name, id in names.items()}}
    return write_folder(path, manifest(**facts), events, [])


def test_a_node_has_a_letter_for_every_round(tmp_path: Path) -> None:
    run = read_record(made_federation(tmp_path / "run", a="aast-a", b="  aaaa", c="a"))
    assert [(node.name, node.presence, node.answered, node.asked) for node in run.nodes] == [
        ("a", "aast-a", 3, 4),
        ("b", "  aaaa", 4, 4),
        ("c", "a     ", 1, 1),
    ]
    assert [(node.tier, node.bytes_down, node.bytes_up) for node in run.nodes] == [
        ("watch", 4000, 1200),
        ("phone", 4000, 1600),
        ("watch", 1000, 400),
    ]
    assert [node.score for node in run.nodes] == pytest.approx([0.5, 0.6, 0.7])


def test_of_a_round_that_was_done_again_the_later_event_counts(tmp_path: Path) -> None:
    run = read_record(federation(tmp_path / "run", nodes_event(1, a="s"), nodes_event(1, a="a")))
    (node,) = run.nodes
    assert (node.presence, node.bytes_down, run.message_bytes) == ("a", 1000, 1400)


def test_nodes_are_sorted_by_name_with_numbers_as_numbers(tmp_path: Path) -> None:
    run = read_record(
        made_federation(tmp_path / "run", **{"site-10": "a", "site-2": "a", "clinic": "a", "9" * 5000: "a"})
    )
    assert [node.name[:7] for node in run.nodes] == ["9999999", "clinic", "site-2", "site-10"]


def test_nodes_with_the_same_name_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    one, two = node_id("one"), node_id("two")
    facts = {"charter": "0" * 64, "nodes": {one: "clinic", two: "clinic", node_id("x"): "other"}}
    run = read_record(write_folder(tmp_path / "run", manifest(**facts), [], []))
    assert sorted(node.name for node in run.nodes) == sorted([f"clinic ({one[:8]})", f"clinic ({two[:8]})", "other"])


def test_a_simulation_has_no_nodes_and_no_such_sections(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", rounds=2)
    run, page = read_record(folder), source([folder], tmp_path / "a.html")
    assert (run.nodes, run.message_bytes, nodes_table(run)) == ((), None, None)
    assert SECTION not in page
    assert BESIDE not in page
    assert "messages of all kinds" not in page


def test_every_node_has_a_strip_with_a_path_for_each_state(tmp_path: Path) -> None:
    page = source([made_federation(tmp_path / "run", a="aast-", b="  aaa")], tmp_path / "a.html")
    part = page[page.index(SECTION) : page.index("What accuracy costs")]
    strips = [json.loads(unescape(found)) for found in re.findall(r'data-presence="([^"]*)"', part)]
    assert strips == [{"rounds": 5, "size": 1, "cells": "aast-"}, {"rounds": 5, "size": 1, "cells": "  aaa"}]
    first = re.findall(r'<path d="([^"]*)" class="(\w+)"', part.split("</svg>")[0])
    assert first == [
        ("M0 100v-100h1V100zM1 100v-100h1V100z", "answered"),
        ("M2 100v-100h1V100z", "silent"),
        ("M3 100v-100h1V100z", "there"),
        ("M4 100v-100h1V100z", "away"),
    ]
    words = "a, tier watch: rounds 1 to 2 answered; round 3 asked, no answer; round 4 there, not asked; round 5 away"
    assert f'aria-label="{words}"' in part
    assert 'aria-label="b, tier phone: rounds 1 to 2 not joined; rounds 3 to 5 answered"' in part
    for words in (
        "answered 2 of 3",
        "answered 3 of 3",
        "had not joined",
        "there, not asked",
        f"id {node_id('a')[:8]}…",
    ):
        assert words in part


def test_only_a_node_that_came_late_needs_the_words_had_not_joined(tmp_path: Path) -> None:
    assert "had not joined" not in source([made_federation(tmp_path / "run", a="as", b="a-")], tmp_path / "a.html")


def test_a_cell_of_several_rounds_stacks_what_the_node_did(tmp_path: Path) -> None:
    presence = "aas-" + "a" * 476
    assert count_states("aas-aaa", 4) == [[2, 1, 0, 1], [3, 0, 0, 0]]
    page = source([made_federation(tmp_path / "run", a=presence)], tmp_path / "a.html")
    assert "each cell holds 4 rounds" in page
    assert '"M0 100v-50h4V100zM4 100v-100h4V100z' in page
    assert '<path d="M0 50v-25h4V50z" class="silent">' in page
    assert '<path d="M0 25v-25h4V25z" class="away">' in page


def test_cells_hold_one_round_until_there_are_too_many() -> None:
    assert [cell_size(rounds) for rounds in (1, 120, 121, 240, 241)] == [1, 1, 2, 2, 3]
    assert [cell_size(120, nodes) for nodes in (33, 40, 100, 1000)] == [1, 2, 3, 4]


def test_many_changes_are_told_as_counts() -> None:
    assert describe_presence("as" * 4).count("round ") == 8
    assert describe_presence("as" * 5) == (
        "answered in 5 rounds; asked, no answer in 5 rounds; there, not asked in 0 rounds; away in 0 rounds"
    )


def test_a_long_federation_of_many_nodes_stays_small(tmp_path: Path) -> None:
    events = [nodes_event(n, **{f"site-{index}": "astas-"[n % 6] for index in range(50)}) for n in range(1, 162)]
    page = source([federation(tmp_path / "run", *events)], tmp_path / "a.html")
    assert page.count('data-presence="') == 50
    assert len(page.encode()) < 400_000


def test_bytes_of_messages_stand_beside_models_and_times_by_tier(tmp_path: Path) -> None:
    """Watch: a asked 3 times, answered 2; c asked and answered once. Phone: b asked and answered twice."""
    folder = made_federation(tmp_path / "run", a="aas", b=" aa", c="a--")
    page = source([folder], tmp_path / "a.html")
    part = page[page.index(BESIDE) : page.index("Cost per tier")]
    rows = [re.findall(r"<t[hd][^>]*>(?:<div>)?([^<]*)", row) for row in re.findall(r"<tr[^>]*>.*?</tr>", part)]
    assert rows[2:] == [
        ["watch", "4 kB", "1.2 kB", "3.6 kB", "900 B", "8 s", "20 s"],
        ["phone", "2 kB", "800 B", "1.8 kB", "600 B", "4 s", "10 s"],
        ["all", "6 kB", "2 kB", "5.4 kB", "1.5 kB", "12 s", "30 s"],
    ]
    assert "8 kB in messages of all kinds" in page


def test_a_node_that_changed_its_tier_counts_where_it_was(tmp_path: Path) -> None:
    first, second = nodes_event(1, a="a"), nodes_event(2, a="a")
    second["nodes"][0]["tier"] = "laptop"  # type: ignore[index]
    run = read_record(federation(tmp_path / "run", first, second))
    assert {tier.name: (tier.messages_down, tier.messages_up) for tier in run.tiers if tier.messages_down} == {
        "watch": (1000, 400),
        "laptop": (1000, 400),
    }
    assert run.nodes[0].tier == "laptop"


def test_ids_in_warnings_and_reasons_become_names(tmp_path: Path) -> None:
    a, other = node_id("a"), "0" * 32
    words = f"scoring after round 1: {a}: it failed; {other} was refused"
    folder = federation(
        tmp_path / "run",
        task(1, a, "watch", "quarantined", f"{a} sent nonsense"),
        {"event": "warning", "round": 1, "text": words},
        nodes_event(1, a="a"),
    )
    run = read_record(folder)
    assert run.warnings == ((1, f"scoring after round 1: a: it failed; {other} was refused"),)
    assert [(one.node, one.reason) for one in run.failures] == [("a", "a sent nonsense")]
    page = source([folder], tmp_path / "a.html")
    assert a not in page[: page.index("<summary>Settings")]
    assert name_nodes(f"{a}{a} {a}", {a: "x"}) == f"{a}{a} x"


def test_refusals_are_counted_for_each_node_and_name_it(tmp_path: Path) -> None:
    a, b = node_id("a"), node_id("b")
    events = [task(n, client, "watch", "quarantined", "not finite") for n, client in ((1, a), (1, b), (2, b))]
    folder = federation(tmp_path / "run", *events, task(3, "server", "server", "quarantined", "late"), a=a, b=b)
    run = read_record(folder)
    assert [(one.node, one.times) for one in run.failures] == [("b", 2), ("", 1), ("a", 1)]
    assert refusal_summary(run) == "4 replies; 2 from b: not finite"
    page = source([folder], tmp_path / "a.html")
    assert re.search(r"<th[^>]*>outcome</th><th[^>]*>node</th>", page)


def test_simulated_clients_fail_by_tier_and_not_by_client(tmp_path: Path) -> None:
    events = [task(1, client, "watch", "quarantined", "not finite") for client in ("c1", "c2")]
    run = read_record(write_folder(tmp_path / "run", manifest(), events, []))
    assert [(one.node, one.times) for one in run.failures] == [("", 2)]
    assert refusal_summary(run) == "2 replies; 2 from tier 'watch': not finite"


def test_the_terminal_has_a_row_for_each_node(tmp_path: Path) -> None:
    run = read_record(made_federation(tmp_path / "run", a="aast", b=" aaa"))
    table = nodes_table(run)
    assert table
    text = shown(table)
    rows = [line.split() for line in text.splitlines()]
    assert ["a", "watch", "50.0", "%", "2", "of", "3", "3", "kB", "800", "B"] in rows
    assert ["b", "phone", "60.0", "%", "3", "of", "3", "3", "kB", "1.2", "kB"] in rows
    assert node_id("a") not in text + shown(run_table(run))


def test_every_nodes_score_has_its_name(tmp_path: Path) -> None:
    page = source([made_federation(tmp_path / "run", a="a", b="a")], tmp_path / "a.html")
    part = page[page.index("Accuracy of every node") :]
    assert re.findall(r'class="meter"><span>(\w+)</span><span>([0-9.]+ %)', part) == [("a", "50.0 %"), ("b", "60.0 %")]


def test_names_that_look_like_markup_stay_text(tmp_path: Path) -> None:
    nasty = "</b><script>alert(1)</script>\"' onload='x"
    folder = made_federation(tmp_path / "run", **{nasty: "as"})
    found = Page(source([folder], tmp_path / "a.html"))
    assert found.names.count("script") == 1
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert found.text.count(nasty) == 3  # the strip, the failure, the score
    assert [value for _, name, value in found.attributes if name == "aria-label" and value.startswith(nasty)]


def test_runs_with_and_without_nodes_are_compared(tmp_path: Path) -> None:
    folders = [made_federation(tmp_path / "real", a="aas", b="a--"), made_run(tmp_path / "simulated", rounds=3)]
    for chosen in (folders, folders[::-1]):
        found = Page(source(chosen, tmp_path / "a.html"))
        assert "2 runs" in found.text
        assert "no answer within 60 s" in found.text
        assert "Accuracy of every node" in found.text
    assert "FedAvg" in shown(compare_table([read_record(folder) for folder in folders]))


def test_a_federation_makes_the_same_page_twice(tmp_path: Path) -> None:
    folder = made_federation(tmp_path / "run", a="aast-", b="  aaa")
    assert source([folder], tmp_path / "a.html") == source([folder], tmp_path / "b.html")


@pytest.mark.parametrize(
    "nodes", [None, 7, [7, None, {}], [{"client": "x"}], [{"client": "x", "name": 3, "bytes_up": -5, "tier": None}]]
)
@pytest.mark.parametrize("round_", [1, 0, -3, None, 10**400, 10**12])
def test_odd_events_do_not_stop_the_page(tmp_path: Path, nodes: object, round_: object) -> None:
    folder = federation(tmp_path / "run", {"event": "nodes", "round": round_, "nodes": nodes})
    for node in read_record(folder).nodes:
        assert (node.presence, node.bytes_up) == ("-", 0)
    assert "</html>" in source([folder], tmp_path / "a.html")


def test_before_the_first_round_there_is_no_strip(tmp_path: Path) -> None:
    folder = federation(tmp_path / "run", a=node_id("a"))
    assert SECTION not in source([folder], tmp_path / "a.html")
    assert [node.name for node in read_record(folder).nodes] == ["a"]
