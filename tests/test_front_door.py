"""`import potluck as pl`: what it offers, and that it does what the functions behind it do."""

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from command_lines import blocks, command_lines, parse
from tiny_runs import TEXT, Diverges, Listener, scores, tiny
from torch import nn

import potluck as pl
from potluck.core import Local, ResourceError, SettingsError
from potluck.data import from_arrays
from potluck.front import running
from potluck.front.given import source_of
from potluck.front.progress import NotebookTable, in_notebook
from potluck.ledger import read_run
from potluck.methods import FedAvg
from potluck.report.paper_table import USUAL
from potluck.run import Interrupted, config
from potluck.run import run as run_directly

ROWS = 240


@dataclass(frozen=True)
class Halved(FedAvg):
    """A method of one's own, at the top of a module."""

    factor: float = 0.5

    def weigh(self, reply, zoo):
        return float(reply.weight) ** self.factor


class Net(nn.Module):
    """A network of one's own."""

    def __init__(self, classes, hidden=8):
        super().__init__()
        self.one, self.head = nn.Linear(6, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(torch.relu(self.one(x)))


def arrays():
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 6)).astype(np.float32), rng.integers(0, 3, ROWS)


def plain(**changes):
    """The tiny settings as a mapping."""
    return tiny(**changes).plain()


WIDTHS = [{"name": "small", "width": 0.5}, {"name": "large", "width": 1.0}]


class Stops(pl.Watch):
    """Presses the stop button after a round."""

    def __init__(self, last):
        self.last = last

    def round(self, done, scores, totals):
        if done == self.last:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return pl.run(plain(), tmp_path_factory.mktemp("front") / "run")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two methods of ours, one of one's own, and one that diverges, over two seeds."""
    methods = ["fedavg", {"name": "fedprox", "mu": 0.3}, Halved(factor=0.25), Diverges]
    out = tmp_path_factory.mktemp("compared") / "runs"
    return pl.compare(methods, plain(rounds=2, run={"retries": 0}), out, seeds=[0, 1])


def python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


# ---------------------------------------------------------------------------------------------------------- the names


def test_importing_potluck_loads_neither_torch_nor_numpy_nor_pandas_and_shows_all_names():
    found = python(
        "import sys\nimport potluck as pl\n"
        "names = 'run compare resume report export load list_methods check_method frame Watch Result'.split()\n"
        "assert set(names) <= set(dir(pl)) and set(names) <= set(pl.__all__), dir(pl)\n"
        "print(pl.__version__, sorted({'torch', 'numpy', 'pandas', 'rich'} & set(sys.modules)))"
    )
    assert found.stdout == f"{version('potluck')} []\n", found.stderr


def test_type_checkers_see_every_public_name_and_every_name_can_be_loaded():
    tree = ast.parse(Path(pl.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {name.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen | {"__version__"} == set(pl.__all__)
    for name in pl.__all__:
        assert getattr(pl, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        pl.runn  # noqa: B018


def test_run_and_report_are_functions_and_packages_in_any_order_of_imports():
    first = "import potluck.run, potluck.report\nimport potluck as pl\nassert callable(pl.run) and callable(pl.report)"
    assert python(first).returncode == 0
    assert callable(pl.run)
    assert callable(pl.report)
    assert pl.run.session is sys.modules["potluck.run.session"]


def test_run_shows_the_arguments_and_the_words_of_the_function():
    assert inspect.signature(pl.run) == inspect.signature(running.run)
    assert inspect.getdoc(pl.run) == inspect.getdoc(running.run)


@pytest.mark.parametrize("name", ["run", "compare", "resume", "report", "frame", "table", "plot", "export", "load"])
def test_a_docstring_has_an_example_and_says_what_each_argument_is(name):
    function, words = getattr(pl, name), inspect.getdoc(getattr(pl, name))
    assert ">>> " in words
    if name != "load":
        for argument in inspect.signature(function).parameters:
            assert f"{argument}:" in words or f"{argument}," in words or f"`{argument}`" in words, argument


# ---------------------------------------------------------------------------------------------------------------- run


def test_run_reads_a_file_and_changes_settings_as_the_command_does(tmp_path):
    (tmp_path / "tiny.toml").write_text(TEXT)
    found = pl.run(tmp_path / "tiny.toml", tmp_path / "a", set={"rounds": 2, "local.lr": 0.05, "tier.small.share": 3})
    wanted = config.read_experiment(tmp_path / "tiny.toml", ["rounds=2", "local.lr=0.05", "tier.small.share=3"])
    assert found.weights_sha256 == run_directly(wanted, tmp_path / "b").weights_sha256
    assert found.path == tmp_path / "a"


def test_a_setting_that_is_not_there_is_one_line_with_the_nearest_name(tmp_path):
    with pytest.raises(SettingsError, match=r"has no setting 'lrr'\. Did you mean 'lr'") as told:
        pl.run(plain(), tmp_path / "a", set={"local.lrr": 0.1})
    assert told.value._render_traceback_() == [f"SettingsError: {told.value}"]


def test_with_debugging_a_notebook_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("POTLUCK_DEBUG", "1")
    with pytest.raises(SettingsError) as told:
        raise SettingsError("wrong")
    assert told.value._render_traceback_()[0].startswith("Traceback")


@pytest.mark.parametrize("kind", ["tuple", "mapping", "source", "dataset"])
def test_own_arrays_are_the_same_in_every_form(tmp_path, kind):
    x, y = arrays()
    data = {"tuple": (x, y), "mapping": {"x": x, "y": y}, "source": from_arrays(x, y)}
    data["dataset"] = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    found = pl.run(plain(), tmp_path / "a", data=data[kind])
    assert found.weights_sha256 == run_directly(tiny(), tmp_path / "b", source=from_arrays(x, y)).weights_sha256


def test_frames_and_data_sets_go_in_as_they_are():
    pandas = pytest.importorskip("pandas", reason="needs the package pandas")
    frame = pandas.DataFrame({"age": [1.0, 2.0], "label": ["a", "b"]})
    assert source_of(frame).fingerprint == pl.from_frame(frame).fingerprint
    with pytest.raises(
        pl.core.InputError, match=r"no column 'label'; it has age, kind\..*pl\.from_frame\(data, label="
    ):
        source_of(frame.rename(columns={"label": "kind"}))
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    made = datasets.Dataset.from_pandas(frame)
    assert source_of(made).fingerprint == pl.from_frame(frame).fingerprint
    assert len(source_of(datasets.DatasetDict({"train": made, "test": made})).test) == 2
    with pytest.raises(pl.core.InputError, match=r"pl\.from_hub\(data, label="):
        source_of(made.rename_column("label", "kind"))


def test_arrays_say_where_their_channels_are():
    x, y = np.zeros((4, 16, 16, 3), np.float32), [0, 1, 0, 1]
    assert source_of({"x": x, "y": y, "layout": "channels_last"}).shape == (3, 16, 16)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int32])
def test_whole_numbers_are_refused_before_round_0_by_a_network_that_reads_no_tokens(dtype, tmp_path):
    x, y = arrays()
    with pytest.raises(
        SettingsError, match=r"has inputs of whole numbers, which are token ids, and the model 'mlp' can"
    ):
        pl.run(plain(), tmp_path / "a", data=((100 * x).astype(dtype), y))
    assert not (tmp_path / "a").exists()


def test_a_run_is_exported_in_any_format(tmp_path):
    x, y = arrays()
    found = pl.run(plain(rounds=0), tmp_path / "a", data=(x, y))
    folder = pl.export(found, tmp_path / "graph", format="pt2")
    assert len(pl.predict(folder, x[:3])) == 3
    with pytest.raises(SettingsError, match="executorch"):
        pl.export(found, tmp_path / "other", format="pt2", train=True)


def test_a_run_is_called_after_its_data_and_never_digits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = {name: value for name, value in plain(rounds=0).items() if name != "name"}
    found = pl.run(told, data=arrays())
    assert found.folder.name == "arrays-fedavg-s0"
    assert read_run(found.folder).manifest["name"] == "arrays"
    named = pl.run(told, data={**dict(zip("xy", arrays(), strict=True)), "name": "/home/ann/gait.csv"})
    assert named.folder.name == "gait.csv-fedavg-s0"
    assert pl.run({**told, "name": "mine"}, data=arrays()).folder.name == "mine-fedavg-s0"
    np.savez("gait.npz", **dict(zip("xy", arrays(), strict=True)))
    read = pl.run(told, set={"data.name": "npz", "data.path": "gait.npz"})
    assert read.folder.name == "npz-fedavg-s0"
    assert pl.run(told).folder.name == "digits-fedavg-s0"


@pytest.mark.parametrize(
    ("data", "words"),
    [({"x": [[1.0]], "y": [0], "z": 1}, "no array 'z'"), ({"x": [[1.0]]}, "lacks the array 'y'"), ("digits", "a str")],
)
def test_data_that_is_none_is_refused_in_one_line(data, words):
    with pytest.raises(pl.core.InputError, match=words):
        pl.run(plain(), data=data)


def test_an_own_network_is_a_class_and_may_be_defined_again(tmp_path):
    class Same(Net):
        pass

    settings = plain(model={"name": "mlp"}, tier=WIDTHS, method={"name": "heterofl"})
    del settings["model"]
    first = pl.run(settings, tmp_path / "a", data=arrays(), model=Net)
    assert first.model("small").one.weight.shape == (4, 6)
    again = pl.run(settings, tmp_path / "b", data=arrays(), model={"name": Same, "hidden": 6})
    assert again.model().one.weight.shape == (6, 6)

    class Same(Net):  # a cell of a notebook that runs again
        pass

    assert pl.run(settings, tmp_path / "c", data=arrays(), model=Same).model().one.weight.shape == (8, 6)


@pytest.mark.parametrize(("model", "words"), [(Net(3), "a network itself: give its class"), (7, "a int")])
def test_a_model_that_makes_no_network_is_refused_in_one_line(model, words):
    with pytest.raises(SettingsError, match=words):
        pl.run(plain(), model=model)


def test_an_own_method_is_a_class_an_object_or_a_table_and_settings_name_it(tmp_path):
    local = Local(epochs=1, batch=32)
    wanted = run_directly(tiny(), tmp_path / "w", method=Halved(share="layerwise", local=local)).weights_sha256
    table = {"name": Halved, "share": "layerwise"}
    for number, method in enumerate((Halved(share="layerwise"), Halved(share="layerwise", local=local), table)):
        found = pl.run(plain(), tmp_path / str(number), method=method)
        assert found.weights_sha256 == wanted
        assert found.method == "test_front_door:Halved"
        assert read_run(found.path).manifest["label"].startswith("Halved")


def test_a_name_alone_keeps_the_experiments_own_settings_of_that_method(tmp_path):
    found = pl.run(plain(), tmp_path / "a", method="fedavg")
    assert read_run(found.path).manifest["label"] == "FedAvg (share=layerwise)"


def test_a_method_object_of_ours_is_called_by_its_name(tmp_path):
    assert pl.run(plain(), tmp_path / "a", method=FedAvg(share="layerwise")).method == "fedavg"


# ---------------------------------------------------------------------------------------------- interrupts, and resume


def test_an_interrupted_run_says_in_one_line_how_to_go_on_and_does(tmp_path, result):
    with pytest.raises(Interrupted) as stop:
        pl.run(plain(), tmp_path / "a", watch=Stops(2))
    assert str(stop.value) == f"interrupted after round 2; go on with: pl.resume({str(tmp_path / 'a')!r})"
    assert stop.value._render_traceback_() == [f"Interrupted: {stop.value}"]
    heard = Listener()
    assert pl.resume(tmp_path / "a", watch=heard).weights_sha256 == result.weights_sha256
    assert heard.rounds == [3]


def test_a_run_on_own_arrays_with_a_local_method_asks_for_both_again(tmp_path):
    @dataclass(frozen=True)
    class Inner(FedAvg):
        pass

    with pytest.raises(Interrupted, match=r"pl\.resume\('.*a', data=\.\.\., method=\.\.\.\)$"):
        pl.run(plain(), tmp_path / "a", data=arrays(), method=Inner(), watch=Stops(1))
    found = pl.resume(tmp_path / "a", data=arrays(), method=Inner())
    assert found.rounds == 3
    assert found.model().training is False
    assert pl.resume(found, rounds=4).rounds == 4
    with pytest.raises(SettingsError, match="inside a function"):
        pl.run(plain(), tmp_path / "b", method=Inner)


def test_resume_refuses_another_method_than_the_runs_own(result):
    with pytest.raises(SettingsError, match="ran fedavg, not fedprox; leave `method` out"):
        pl.resume(result, method="fedprox")


# ------------------------------------------------------------------------------------------------------------- results


def test_a_result_prints_as_four_lines(result):
    lines = str(result).splitlines()
    assert len(lines) == 4
    assert lines[0] == "fedavg, seed 0, 3 rounds"
    assert lines[1].startswith(f"accuracy {100 * result.score:.1f} %: small ")
    down, up = (result.totals[name] / 1e3 for name in ("bytes_down", "bytes_up"))
    assert lines[2].startswith(f"{down:.3g} kB down, {up:.3g} kB up; modelled on the devices: ")
    assert lines[3] == str(result.path)
    assert repr(result) == str(result)


def test_the_history_of_a_result_is_scores_jsonl(result):
    assert result.history == scores(result.path)
    assert [line["round"] for line in result.history] == [0, 1, 2, 3]


def test_the_frames_of_a_result_have_its_scores_and_costs(result):
    pytest.importorskip("pandas")
    found = result.frame()
    assert found[(found["tier"] == "all") & (found["round"] == 3)]["score"].tolist() == [result.score]
    costs = result.frame("costs")
    assert costs["bytes_up"].sum() == result.totals["bytes_up"]
    assert costs["device_seconds"].sum() == pytest.approx(result.totals["device_seconds"])
    tasks = result.frame("tasks")
    assert tasks["bytes_down"].sum() == result.totals["bytes_down"]


def test_a_live_model_is_the_exported_one_and_scores_what_the_result_says(result, tmp_path):
    live, stored = result.model("small"), pl.load(pl.export(result, tmp_path / "net", tier="small"))
    assert not live.training
    for name, tensor in stored.state_dict().items():
        assert torch.equal(tensor, live.state_dict()[name])
    assert sum(each.numel() for each in result.model().parameters()) > sum(each.numel() for each in live.parameters())
    with pytest.raises(SettingsError, match="this run has the tiers small, large"):
        result.model("phone")


def test_a_result_crosses_processes_as_plain_values(result):
    told = json.loads(json.dumps({**vars(run_directly_again(result)), "folder": str(result.folder)}))
    again = pl.Result(**{**told, "folder": Path(told["folder"])})
    assert dataclasses.asdict(again)["weights_sha256"] == result.weights_sha256
    assert str(again) == str(result)


def run_directly_again(result):
    return dataclasses.replace(result, given={})


def test_what_a_notebook_shows_of_a_result_is_escaped_and_drawn(tmp_path):
    found = pl.run(plain(name="<script>x</script>"), tmp_path / "<b>a", method={"name": "fedavg"})
    shown = found._repr_html_()
    assert "<script" not in shown
    assert "<b>a" not in shown
    assert shown.count("<path") == 3
    assert f"{100 * found.score:.1f} %" in shown


def test_a_result_whose_folder_is_gone_still_shows_its_lines(result, tmp_path):
    gone = dataclasses.replace(result, folder=tmp_path / "<gone>")
    assert gone._repr_html_().startswith("<pre>fedavg, seed 0")
    assert "&lt;gone&gt;" in gone._repr_html_()


# ---------------------------------------------------------------------------------------------------------- comparisons


def test_a_comparison_has_every_run_in_order_and_a_diverged_one_is_a_failed_run(compared):
    assert len(compared) == 8
    assert [one.method for one in compared][:4] == [
        "fedavg", "fedprox", "test_front_door:Halved", "tiny_runs:Diverges"
    ]  # fmt: skip
    assert [one.how for one in compared.failed] == ["diverged in round 2"] * 2
    assert compared.failed[0].label == "Diverges"
    assert isinstance(compared[3], pl.FailedRun)
    assert compared[3].path == compared[3].folder


def test_a_comparison_is_the_runs_that_run_makes(compared, tmp_path):
    method = Halved(factor=0.25)
    found = pl.run(plain(rounds=2, run={"retries": 0}), tmp_path / "a", method=method)
    assert compared[2].weights_sha256 == found.weights_sha256


def test_the_same_comparison_again_repeats_no_run(compared):
    heard = Listener()
    methods = ["fedavg", {"name": "fedprox", "mu": 0.3}, Halved(factor=0.25), Diverges]
    again = pl.compare(methods, plain(rounds=2, run={"retries": 0}), compared.path, seeds=[0, 1], watch=heard)
    assert heard.rounds == []
    assert [getattr(one, "score", None) for one in again] == [getattr(one, "score", None) for one in compared]


def test_a_comparison_prints_as_the_table_and_a_notebook_shows_it(compared):
    for shown in (str(compared), compared._repr_html_()):
        for label in ("FedAvg", "FedProx", "Halved", "diverged in round 2"):
            assert label in shown, label
    assert str(compared).splitlines()[0].startswith("Final test accuracy")
    assert str(compared).splitlines()[-1] == str(compared.path)


def test_a_comparison_goes_out_into_frames_tables_plots_and_a_report(compared, tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    last = compared.frame().query("tier == 'all' and round == 2").groupby("method")["score"].mean()
    row = next(row for row in compared.rows if row["label"] == "FedProx (mu=0.3)")
    assert last["fedprox"] == row["global"]["mean"]
    assert compared.table("latex", columns=["global"]) == pl.table(compared.path, "latex", columns=["global"])
    compared.plot("learning", tmp_path / "curve.pdf")
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    assert compared.report() == compared.path / "report.html"


def test_runs_are_named_by_paths_results_and_comparisons(compared, result):
    pytest.importorskip("pandas")
    for runs, count in ((compared, 8), (compared.path, 8), (result, 1), ([result, str(compared.path)], 9)):
        assert pl.frame(runs).scores["run"].nunique() == count
    assert pl.report(result) == result.path / "report.html"


def test_own_arrays_and_an_own_network_are_compared_under_an_own_method(tmp_path):
    settings = plain(rounds=1, tier=WIDTHS, method={"name": "heterofl"})
    found = pl.compare(["fedrolex", "heterofl"], settings, tmp_path / "a", data=arrays(), model=Net)
    assert [one.rounds for one in found] == [1, 1]
    assert found[0].model("small").one.weight.shape == (4, 6)
    again = pl.compare(["fedrolex", "heterofl"], settings, tmp_path / "a", data=arrays(), model=Net)
    assert [one.score for one in again] == [one.score for one in found]


def test_a_name_means_the_methods_of_that_name_under_compare_and_a_variant_runs_alone(tmp_path):
    listed = [{"name": "fedprox", "mu": 0.3}, {"name": "fedprox", "mu": 0.2}, {"name": "moon", "mu": 0.5}]
    variants = {"slow": ["local.lr=0.01"], "fast": ["local.lr=0.1"]}
    settings = plain(rounds=1, compare={"methods": listed, "variants": variants})
    found = pl.compare(["fedprox"], settings, tmp_path / "a", variants="fast")
    told = [config.read_experiment(one.path / "settings.toml") for one in found]
    assert [(one.method["name"], one.method["mu"], one.local.lr) for one in told] == [
        ("fedprox", 0.3, 0.1),
        ("fedprox", 0.2, 0.1),
    ]


def test_a_method_object_of_a_local_class_is_compared_too(tmp_path):
    @dataclass(frozen=True)
    class Inner(Halved):
        pass

    methods = [Inner(factor=1.0), Inner(factor=0.0), "fedavg"]
    found = pl.compare(methods, plain(rounds=1, method={"name": "fedavg"}), tmp_path / "a")
    assert found[0].weights_sha256 == found[2].weights_sha256 != found[1].weights_sha256
    assert [one.model().training for one in found] == [False] * 3


def test_a_tuned_method_object_of_a_local_class_is_gone_on_with(tmp_path):
    @dataclass(frozen=True)
    class Inner(Halved):
        pass

    settings = plain(rounds=1, method={"name": "fedavg"}, data={"clients": 8, "validation": 0.2})
    (found,) = pl.compare([Inner()], settings, tmp_path / "a", tune={"Inner.factor": [0.75], "local.lr": [0.02]})
    assert (found.given["method"].factor, found.given["method"].local.lr) == (0.75, 0.02)
    assert pl.resume(found, rounds=2).rounds == 2


def test_a_failed_run_of_a_local_class_is_gone_on_with(tmp_path):
    broken = [True]

    @dataclass(frozen=True)
    class Inner(FedAvg):
        def round(self, state, now):
            if broken:
                raise RuntimeError("a wheel came off")
            return super().round(state, now)

    (found,) = pl.compare([Inner()], plain(), tmp_path / "a", data=arrays())
    assert (found.status, found.reason) == ("failed", "RuntimeError: a wheel came off")
    broken.clear()
    assert pl.resume(found).rounds == 3


def test_a_run_on_own_arrays_says_how_python_hands_them_over(tmp_path):
    pl.run(plain(rounds=1), tmp_path / "a", data=arrays())
    with pytest.raises(pl.core.InputError, match=r"Hand over the same: pl\.resume\('.*a', data=\.\.\.\)\.$"):
        pl.resume(tmp_path / "a", rounds=2)


def test_a_method_that_is_no_dataclass_is_told_that_it_has_to_be_one():
    class Plain:
        def round(self, state, now):
            return state

    for method in (Plain, Plain(), {"name": Plain}):
        with pytest.raises(SettingsError, match="the method Plain has to be a dataclass: write @dataclass"):
            pl.compare([method])


def test_an_interrupted_comparison_says_how_to_go_on(tmp_path):
    with pytest.raises(Interrupted) as stop:
        pl.compare(["fedavg", "fedprox"], plain(), tmp_path / "a", watch=Stops(2))
    assert (
        str(stop.value) == f"interrupted with 0 runs done; go on with: the same call with out={str(tmp_path / 'a')!r}"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": []}, r"seeds = \[\]: give at least one whole number"),
        ({"seeds": "0,1"}, "seeds = '0,1': give at least one whole number"),
        ({"seeds": 3}, "seeds = 3: give at least one whole number"),
        ({"tune": {"local.lr": 0.1}}, r"tune 'local\.lr' = 0\.1: give a list of values"),
        ({"tune": {"local.lr": [0.1]}, "tune_seeds": 7}, "tune_seeds = 7: give at least one whole number"),
    ],
)
def test_seeds_and_values_that_are_no_lists_are_refused_in_one_line(options, said, tmp_path):
    with pytest.raises(SettingsError, match=said):
        pl.compare(["fedavg"], plain(), tmp_path / "out", **options)


def test_a_comparison_of_nothing_is_refused_in_one_line():
    with pytest.raises(SettingsError, match="nothing to compare"):
        pl.compare([], plain())


def test_every_method_may_choose_its_settings_first(tmp_path):
    found = pl.compare(
        ["fedavg"], plain(rounds=1), tmp_path / "a", tune={"local.lr": [1e-6, 0.1]}, tune_seeds=[1000], seeds=[0]
    )
    assert "lr = 0.1" in (found[0].path / "settings.toml").read_text()


# ----------------------------------------------------------------------------------------------- progress, and the rest


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_without_a_terminal_progress_shows_only_if_asked_for(tmp_path, capfd, progress, shown):
    pl.run(plain(rounds=1), tmp_path / "a", progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("round 1/1" in err) is shown


def test_a_notebooks_progress_is_escaped_and_says_how_a_run_ended(result):
    table = NotebookTable(3)
    row = table.row("<b>one\x1b</b>", 0)
    row.told, row.warnings = "<i>", ["a \x1b[31m <u>warning"]
    row.end(result)
    shown = table._repr_html_()
    assert "<b>" not in shown
    assert "<u>" not in shown
    assert "\x1b" not in shown
    assert 'value="3" max="3"' in shown
    assert "done" in shown
    row.end(pl.FailedRun(Path("x"), "one", "one", 0, "diverged", 2, "why"))
    assert "diverged in round 2" in repr(table)
    assert not in_notebook()


def test_methods_are_listed_as_rows_that_print_as_a_table():
    found = pl.list_methods()
    assert found[0]["name"] == "fedavg"
    assert str(found).splitlines()[0].startswith("fedavg ")
    assert "<table" in found._repr_html_()


def test_who_holds_what_is_a_frame_with_a_column_for_each_label():
    x, y = np.arange(100, dtype=np.float32)[:, None], np.array(["cat", "dog"] * 50)
    told = {"data": {"test": 0.0, "validation": 0.0}}
    found = pl.who_holds_what(told, data=(x, y), set={"data.clients": 4})
    assert list(found.columns) == ["client", "tier", "rows", "cat", "dog"]
    assert found["rows"].tolist() == [25] * 4
    assert (found["cat"].sum(), found["dog"].sum()) == (50, 50)
    assert found["client"].tolist() == ["c0", "c1", "c2", "c3"]


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(pl.core.InputError, match="is not a run folder and holds none"):
        pl.table(tmp_path)
    with pytest.raises(SettingsError, match="to = 'word': there is csv, latex, markdown, json"):
        pl.table(tmp_path, "word")
    with pytest.raises(pl.core.InputError, match="this is a int"):
        pl.report(7)


@pytest.mark.parametrize("call", ["report", "frame", "table", "plot"])
def test_no_runs_at_all_are_refused_in_one_line(call):
    with pytest.raises(pl.core.InputError, match="no runs were given; give run folders"):
        getattr(pl, call)([])


def test_one_column_may_be_given_as_text(result):
    assert pl.table(result, columns="global") == pl.table(result, columns=["global"])


@pytest.mark.parametrize(("library", "call", "extra"), [("pandas", "frame", "frames"), ("matplotlib", "plot", "plot")])
def test_without_an_optional_library_one_line_names_the_extra(monkeypatch, result, library, call, extra):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ResourceError, match=rf"pip install 'potluck\[{extra}\]'"):
        getattr(pl, call)(result)


def test_the_page_on_python_names_the_usual_columns_of_tables():
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text("utf-8")
    assert [name for name in USUAL if f"`{name}`" not in text] == []


def test_the_page_on_python_names_functions_and_commands_that_exist():
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text("utf-8")
    names = set(re.findall(r"\bpl\.(\w+)", text))
    assert {"run", "compare", "resume", "report", "export", "load", "list_methods", "check_method", "frame"} <= names
    assert names <= set(pl.__all__)
    commands = [words for block in blocks(text) for words in command_lines(block)]
    assert [words[0] for words in commands] == ["table", "plot"]
    for words in commands:
        parse(words)
