"""The demo, `potluck compare` without a file: what it compares, and what README and docs/demo.md say came out."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHODS = ["AllSmall", "ExclusiveFL", "InclusiveFL (server=replace)", "HeteroFL", "FedDF", "AllLarge"]


def shown_table(page):
    """The table of the demo's results on a page: the block that begins with its title."""
    (block,) = [
        text for text in (ROOT / page).read_text("utf-8").split("```\n") if text.startswith("Final test accuracy")
    ]
    return block


def test_readme_and_the_page_on_the_demo_show_the_same_table():
    table = shown_table("README.md")
    assert table == shown_table("docs/demo.md")
    assert all(name.split()[0] in table for name in METHODS)


def test_readme_says_which_methods_lie_below_leaving_weak_devices_out():
    text, table = (ROOT / "README.md").read_text("utf-8"), shown_table("README.md")
    rows = [line.split() for line in table.splitlines() if "±" in line and "mean ± sd" not in line]
    average, worst = ({row[0]: float(row[at].split("±")[0]) for row in rows if "‡" not in row} for at in (2, 3))
    below = {name for name in average if average[name] < average["ExclusiveFL"]}
    assert below == {name for name in worst if worst[name] < worst["ExclusiveFL"]} == {"InclusiveFL", "FedDF"}
    for name in below:
        assert f"{name} ({average[name]})" in text


@pytest.mark.slow
def test_the_demo_compares_a_method_of_every_family_on_the_average_and_on_the_worst_tier(potluck, place):
    code, out, err = potluck("compare", "--set", "rounds=2", "--seeds", "0", "--out", "demo")
    assert code == 0, err
    head = next(line for line in out.splitlines() if line.split()[:1] == ["method"])
    assert "average worst tier" in " ".join(head.split())
    code, told, _ = potluck("table", "demo", "--to", "json", "--columns", "average,worst_tier,tiers")
    rows = json.loads(told)
    assert sorted(row["method"] for row in rows) == sorted(METHODS)
    for row in rows:
        assert row["worst_tier"]["mean"] == min(row[tier]["mean"] for tier in ("tv", "phone", "flagship"))
        assert row["average"]["mean"] >= row["worst_tier"]["mean"]
    assert (place / "demo" / "report.html").exists()
