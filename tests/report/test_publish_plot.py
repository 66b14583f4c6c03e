"""Plots for papers: what they draw, their fonts, and that the same runs give the same bytes."""

import itertools
import re
import threading
import zlib

import pytest
from made_runs import made_run, made_widths, manifest, write_folder

from potluck.report import read_record

pytest.importorskip("matplotlib")

from potluck.report.paper_plot import OKABE_ITO, NothingToPlot, PaperPlot, make_plot


def run(folder, label, seed, scores, **facts):
    """A run whose model scores these values in rounds 0, 1, 2, …; each round sends 1 MB and takes 10 s."""
    lines = [
        {"round": at, "global": {"test": {"accuracy": value}}, "tiers": {"watch": {"test": {"accuracy": value / 2}}}}
        for at, value in enumerate(scores)
    ]
    events = []
    for at in range(1, len(scores)):
        cost = {"bytes_down": 600_000, "bytes_up": 400_000, "seconds": 0.1}
        told = {"flops": 1, "memory": 1, "seconds": 10.0, "joules": 5.0}
        events.append(
            {"event": "task", "round": at, "client": "c0", "tier": "watch", "measured": cost, "modelled": told}
        )
        events.append({"event": "round", "round": at, "seconds": 1.0, "device_seconds": 10.0})
    return read_record(write_folder(folder, manifest(label, seed, **facts), events, lines))


@pytest.fixture
def runs(tmp_path):
    return [run(tmp_path / "a0", "A", 0, [0.1, 0.5, 0.75]), run(tmp_path / "a1", "A", 1, [0.1, 0.25, 0.5]),
            run(tmp_path / "b0", "B", 0, [0.1, 0.2, 0.4])]  # fmt: skip


def drawn(plot: PaperPlot):
    """The lines of a plot by their label: x and y."""
    [axes] = plot.figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    return {
        label: (list(line.get_xdata()), list(line.get_ydata())) for label, line in lines.items() if label[:1] != "_"
    }


def test_learning_curves_are_means_over_seeds(runs):
    found = drawn(make_plot(runs, "learning"))
    assert found["A"] == ([0, 1, 2], [10.0, 37.5, 62.5])
    assert found["B"] == ([0, 1, 2], [10.0, 20.0, 40.0])


def test_the_band_is_one_standard_deviation_over_seeds(runs):
    [axes] = make_plot(runs, "learning").figure.axes
    [band] = axes.collections
    heights = sorted({round(float(y), 3) for x, y in band.get_paths()[0].vertices if x == 2})
    assert heights == [62.5 - 17.678, 62.5 + 17.678]


@pytest.mark.parametrize(
    ("cost", "xs"), [("bytes", [0.0, 1.0, 2.0]), ("time", [0.0, 10.0, 20.0]), ("energy", [0.0, 5.0, 10.0])]
)
def test_the_score_is_drawn_against_what_it_cost_so_far(runs, cost, xs):
    assert drawn(make_plot(runs, "cost", cost=cost))["B"] == (xs, [10.0, 20.0, 40.0])


def test_coverage_draws_how_often_each_unit_was_trained(tmp_path):
    folder = write_folder(
        tmp_path / "a", manifest("A", 0), [{"event": "coverage", "round": 1, "groups": {"g": [3, 1, 2]}}], []
    )
    found = drawn(make_plot([read_record(folder)], "coverage"))
    assert found["A"] == ([-0.5, 0.5, 1.5, 2.5], [3.0, 1.0, 2.0, 2.0])


def test_tiers_are_marks_in_the_row_of_their_method(tmp_path):
    folders = [made_run(tmp_path / f"{label}{seed}", label, seed, rounds=2) for label in "AB" for seed in (0, 1)]
    records = [read_record(folder) for folder in folders]
    plot = make_plot(records, "tiers")
    [axes] = plot.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["A", "B"]
    assert [text.get_text() for text in plot.figure.legends[0].get_texts()] == ["watch", "phone", "laptop"]


def test_a_run_that_failed_is_in_no_mean_and_is_named(runs, tmp_path):
    lost = run(tmp_path / "c", "C", 0, [0.1, 0.9], status="diverged", fault_round=2)
    plot = make_plot([*runs, lost], "learning")
    names = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert names == ["A", "B", "C (seed 0 diverged in round 2)"]
    assert drawn(plot)["C (seed 0 diverged in round 2)"] == ([], [])


def test_what_no_run_recorded_is_refused_in_one_line(runs):
    with pytest.raises(NothingToPlot, match="no run here recorded how often units were trained"):
        make_plot(runs, "coverage")


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_the_same_runs_give_the_same_bytes(runs, kind):
    one, other = (make_plot(runs, "learning").render(kind) for _ in range(2))
    assert one == other
    assert not re.search(rb"20\d\d-\d\d-\d\d|D:20\d\d", one)


def test_a_users_own_style_and_other_plots_change_nothing(runs):
    import matplotlib

    usual = make_plot(runs, "learning").render("svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none", "pdf.fonttype": 3}):
        assert make_plot(runs, "learning").render("svg") == usual
        assert matplotlib.rcParams["font.size"] == 30


def test_plots_can_be_drawn_in_threads(runs):
    usual, found = make_plot(runs, "learning").render("svg"), []
    threads = [
        threading.Thread(target=lambda: found.append(make_plot(runs, "learning").render("svg"))) for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [usual] * 4


def streams(data: bytes) -> bytes:
    """The unpacked streams of a PDF."""
    found = b""
    for part in re.findall(rb"stream\r?\n(.*?)endstream", data, re.DOTALL):
        try:
            found += zlib.decompress(part)
        except zlib.error:
            found += part
    return found


def test_a_pdf_embeds_its_fonts_as_truetype_and_is_one_column_wide(runs):
    data = make_plot(runs, "learning").render("pdf")
    everything = data + streams(data)
    assert b"/FontFile2" in everything
    assert b"/Type3" not in everything
    assert not re.search(rb"/Subtype /Type1\b", everything)
    width = float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", data)[1])
    assert width == pytest.approx(3.5 * 72, abs=0.5)


def test_two_columns_are_twice_as_wide(runs):
    data = make_plot(runs, "learning", columns=2).render("pdf")
    assert float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", data)[1]) == pytest.approx(7.16 * 72, abs=0.5)


def test_an_svg_draws_its_letters_and_needs_no_font_and_no_script(runs):
    text = make_plot(runs, "learning").render("svg").decode()
    for word in ("<text", "font-family", "<script"):
        assert word not in text, word


def test_methods_differ_in_colour_line_and_mark(tmp_path):
    many = [run(tmp_path / f"m{at}", f"M{at}", 0, [0.1, 0.2 + at / 100]) for at in range(16)]
    [axes] = make_plot(many, "learning").figure.axes
    lines = [line for line in axes.get_lines() if line.get_label()[:1] != "_"]
    assert {line.get_color() for line in lines} <= set(OKABE_ITO)
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 16
    for one, other in itertools.pairwise(lines):  # neighbours differ without colour too
        assert (one.get_linestyle(), one.get_marker()) != (other.get_linestyle(), other.get_marker())


def test_a_label_is_text_and_never_mathematics(tmp_path):
    odd = "$\\bad{$ _x_ ^ \x1b[31m\n<b>"
    data = make_plot([run(tmp_path / "a", odd, 0, [0.1, 0.5])], "learning").render("svg")
    assert data.startswith(b"<?xml")


def test_a_plot_of_widths_draws_every_method(tmp_path):
    records = [read_record(folder) for folder in made_widths(tmp_path, rounds=4)]
    assert set(drawn(make_plot(records, "coverage"))) == {"FedRolex", "HeteroFL", "Federated Dropout"}


def test_a_plot_saves_by_the_ending_of_its_file(runs, tmp_path):
    plot = make_plot(runs, "learning")
    plot.save(tmp_path / "deep" / "curve.pdf")
    assert (tmp_path / "deep" / "curve.pdf").read_bytes() == plot.render("pdf")
    assert plot._repr_png_().startswith(b"\x89PNG")
