"""The settings in which runs differ."""

from __future__ import annotations

from pathlib import Path

from made_runs import made_run

from potluck.report import read_record, write_report
from potluck.report.records import RunRecord
from potluck.report.settings_table import differing_settings, read_settings

BASE = (
    'seed = {seed}\nname = "x"\n[method]\nname = "{method}"\n{own}\n[local]\nlr = {lr}\nepochs = 2\n'
    '[[tier]]\nname = "phone"\nshare = {share}\n'
)
TITLE = "Settings that differ between runs"


def run(label: str, seed: int = 0, own: str = "", lr: float = 0.1, share: int = 1) -> RunRecord:
    text = BASE.format(seed=seed, method=label.lower(), own=own, lr=lr, share=share)
    return RunRecord(Path(f"{label}{seed}"), label, label, seed=seed, settings=text)


def test_settings_have_their_full_names() -> None:
    found = read_settings(BASE.format(seed=3, method="fedavg", own="", lr=0.1, share=2))
    assert found["local.lr"] == 0.1
    assert found["tier.phone.share"] == 2
    assert read_settings("= broken") == {}


def test_only_what_differs_is_told_and_no_seed() -> None:
    runs = [run("FedAvg", 0), run("FedAvg", 1), run("FedProx", 0, own="mu = 0.01", lr=0.3), run("FedProx", 1, lr=0.3)]
    assert differing_settings(runs) == {
        "FedAvg": {"method": "", "local.lr": "0.1"},
        "FedProx": {"method": "mu = 0.01 / —", "local.lr": "0.3"},
    }
    assert differing_settings([run("A", share=1), run("B", share=8)]) == {
        "A": {"tier.phone.share": "1"}, "B": {"tier.phone.share": "8"},
    }  # fmt: skip


def test_runs_that_differ_in_method_and_seed_alone_are_said_to(tmp_path: Path) -> None:
    settings = [BASE.format(seed=seed, method=name, own="", lr=0.1, share=1) for seed, name in enumerate("ab")]
    folders = [made_run(tmp_path / f"{n}", f"M{n}", rounds=1, settings=text) for n, text in enumerate(settings)]
    page = write_report(folders, tmp_path / "page.html").read_text("utf-8")
    assert "But for method and seed, all runs have the same settings." in page


def test_values_are_text_and_numbers_can_be_sorted(tmp_path: Path) -> None:
    nasty = 'own = "<script>alert(1)</script>"'
    settings = [BASE.format(seed=0, method="m", own=own, lr=lr, share=1) for own, lr in ((nasty, 0.1), ("", 10))]
    folders = [made_run(tmp_path / f"{n}", f"M{n}", rounds=1, settings=text) for n, text in enumerate(settings)]
    page = write_report(folders, tmp_path / "page.html").read_text("utf-8")
    part = page[page.index(f"<h2>{TITLE}") :]
    part = part[: part.index("</section>")]
    assert '<td data-value="0.1">0.1</td>' in part
    assert '<td data-value="10">10</td>' in part
    assert "own = &lt;script&gt;alert(1)&lt;/script&gt;" in part
    assert read_record(folders[0]).settings == settings[0]
