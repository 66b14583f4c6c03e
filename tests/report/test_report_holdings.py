"""Who holds what: read with gaps, drawn in shades, and nothing in a name becomes code."""

import json
import xml.etree.ElementTree as ET

from made_runs import made_run

from potluck.report import read_record, write_report
from potluck.report.holdings import (
    MAX_CLIENTS,
    ClientHoldings,
    HoldingsRecord,
    TierClients,
    describe_client,
    holdings_section,
    holdings_svg,
    parse_holdings,
    shade,
    tier_colours,
    write_holdings,
)

FOUND = {
    "partition": "dirichlet",
    "clients": 900,
    "labels": ["cat", "dog"],
    "tiers": [{"name": "tv", "clients": 600, "absent": False}, {"name": "phone", "clients": 300, "absent": True}],
    "held": [
        {"client": "c0", "tier": "tv", "counts": [9, 0]},
        {"client": "c8", "tier": "tv", "counts": [1, 4]},
        {"client": "c700", "tier": "phone", "counts": [0, 36]},
    ],
}


def test_a_record_is_read_as_it_was_written():
    assert parse_holdings(FOUND) == HoldingsRecord(
        "dirichlet",
        900,
        ("cat", "dog"),
        (TierClients("tv", 600), TierClients("phone", 300, True)),
        (
            ClientHoldings("c0", "tv", (9, 0)),
            ClientHoldings("c8", "tv", (1, 4)),
            ClientHoldings("c700", "phone", (0, 36)),
        ),
    )


def test_what_is_missing_or_odd_leaves_gaps():
    assert parse_holdings({}) == HoldingsRecord()
    held = [
        {"client": "c0", "counts": [1]},
        {"client": "c1", "counts": [1, -1]},
        {"client": "c2", "counts": [1, float("nan")]},
        {"client": "c3", "counts": [1, 10**400]},
        {"client": "c4", "counts": "ab"},
        {"client": "c5", "tier": "new\x1b[2J", "counts": [1, 2]},
        7,
    ]
    found = parse_holdings({"labels": ["a", "b"], "tiers": [{"name": "empty"}, 3], "held": held, "clients": "x"})
    assert found.held == (ClientHoldings("c5", "new\N{REPLACEMENT CHARACTER}[2J", (1, 2)),)
    assert [tier.name for tier in found.tiers] == [found.held[0].tier]
    assert found.clients is None
    many = [{"client": "c", "tier": "t", "counts": [1]}] * 100_000
    assert len(parse_holdings({"held": many}).held) == MAX_CLIENTS
    assert holdings_section(HoldingsRecord()) is None


def test_the_shade_of_a_cell_is_the_root_of_its_share():
    assert [shade(count, 36) for count in (1, 4, 9, 16, 25, 36)] == [1, 2, 3, 4, 5, 6]
    assert shade(1, 10**15) == 1


def test_each_client_is_a_column_of_shaded_cells():
    found = parse_holdings(FOUND)
    drawn = holdings_svg(found, tier_colours(found))
    shades = {part.split('"')[0] for part in drawn.split("fill-opacity:")[1:]}
    assert shades == {"0.17", "0.33", "0.50", "1.00"}  # of 1, 4, 9 and 36 rows of 36
    assert drawn.count("data-tip=") == 3
    assert 'data-tip="c8 (tv): 5 rows; dog: 4, cat: 1"' in drawn
    assert ">cat<" in drawn
    assert "phone (absent)" in str(holdings_section(found))


def test_the_section_says_which_clients_are_shown_and_what_tiers_have():
    page = holdings_section(parse_holdings(FOUND), {"tv": "var(--c3)"})
    assert page is not None
    assert "Training rows of 3 of 900 clients, evenly spaced in every tier, by the partition “dirichlet”." in page
    assert "The darkest cell is 36 rows." in page
    assert "var(--c3)" in page
    assert '<td data-value="7">7</td><td data-value="5">5</td><td data-value="9">9</td><td data-value="1.5">' in page
    whole = holdings_section(parse_holdings({**FOUND, "clients": 3}))
    assert whole is not None
    assert "Training rows of 3 clients," in whole


def test_rows_without_a_single_label_are_drawn_as_bars_alone():
    found = parse_holdings({"held": [{"client": "c0", "tier": "", "counts": [7]}], "clients": 1})
    page = holdings_section(found)
    assert page is not None
    assert "rows have no single label" in page
    assert "fill-opacity" not in page
    assert describe_client(found, found.tiers[0], found.held[0]) == "c0: 7 rows"


def test_clients_without_any_row_are_drawn_too():
    assert holdings_section(parse_holdings({"labels": ["a"], "held": [{"client": "c0", "tier": "t", "counts": [0]}]}))


def test_names_are_text_in_the_page_and_in_the_file(tmp_path):
    bad = "<script>alert(1)</script>\"'&"
    told = {
        "partition": bad,
        "labels": [bad, "\x00"],
        "tiers": [{"name": bad}],
        "held": [{"client": bad, "tier": bad, "counts": [1, 2]}],
    }
    assert "<script>alert" not in str(holdings_section(parse_holdings(told)))
    picture = write_holdings(parse_holdings(told), tmp_path / "new" / "a.svg", bad).read_text()
    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script>" not in picture
    page = write_holdings(parse_holdings(told), tmp_path / "a.html", bad).read_text()
    assert "<script>alert" not in page
    assert "Content-Security-Policy" in page


def test_a_run_s_report_shows_it_without_the_data(tmp_path):
    folder = made_run(tmp_path / "run", rounds=2)
    assert "Who holds what" not in write_report([folder], tmp_path / "before.html").read_text()
    (folder / "holdings.json").write_text(json.dumps(FOUND))
    assert read_record(folder).holdings == FOUND
    assert "Who holds what" in write_report([folder], tmp_path / "after.html").read_text()
    (folder / "holdings.json").write_text("[1, 2]")
    assert "Who holds what" not in write_report([folder], tmp_path / "odd.html").read_text()
