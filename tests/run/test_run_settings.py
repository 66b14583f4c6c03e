import dataclasses
import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import TEXT, tiny

from potluck.core import SettingsError
from potluck.report import read_record
from potluck.run import experiment, read_experiment, recipe, run, toml, value


@pytest.fixture
def file(tmp_path):
    """Writes settings, as text or bytes, and reads them."""

    def read(content, *changes):
        path = tmp_path / "a.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_experiment(path, changes)

    return read


def refusal(read, *arguments):
    with pytest.raises(SettingsError) as caught:
        read(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rounds = 3", "roundz = 3", "line 2: the top of the file has no setting 'roundz'. Did you mean 'rounds'?"),
        ("clients = 8", "client = 8", "line 7: [data] has no setting 'client'. Did you mean 'clients'?"),
        ('profile = "tv"', 'profil = "tv"', "line 17: [tier] has no setting 'profil'. Did you mean 'profile'?"),
        ("epochs = 1", "epoch = 1", "line 27: [local] has no setting 'epoch'. Did you mean 'epochs'?"),
        ('share = "layerwise"', "widht = 1", "line 24: [method] has no setting 'widht'. There are: local, weighting"),
        ('"layerwise"', '"layer"', "line 24: method.share = 'layer': input should be 'whole', 'layerwise' or"),
        ('name = "fedavg"', 'name = "fedavgg"', "line 23: there is no method 'fedavgg'. Did you mean 'fedavg'?"),
        ('name = "fedavg"', "name = 3", '[method] needs a name, such as name = "fedavg".'),
        ('name = "fedavg"', 'name = ":"', "method ':' cannot be imported"),
        ('name = "fedavg"', 'name = "no_such_module:X"', "cannot be imported: No module named 'no_such_module'."),
        ('name = "fedavg"', 'name = "json:JSONDecoder"', "method 'json:JSONDecoder' has to be a dataclass."),
        ("rounds = 3", 'rounds = "3"', "line 2: rounds = '3': input should be a valid integer."),
        ("rounds = 3", "rounds = 3.5", "line 2: rounds = 3.5: input should be a valid integer."),
        ("rounds = 3", "rounds = true", "line 2: rounds = True: input should be a valid integer."),
        ("rounds = 3", "rounds = -1", "line 2: rounds = -1 is below 0."),
        ("cohort = 3", "cohort = 0", "line 3: cohort = 0 is below 1."),
        ("cohort = 3", "seed = -7", "line 3: seed = -7 is below 0."),
        ("epochs = 1", "lr = nan", "line 27: [local] lr = nan is not a finite number."),
        ("epochs = 1", "lr = -inf", "line 27: [local] lr = -inf is not a finite number."),
        ("epochs = 1", "lr = -0.5", "line 27: local.lr = -0.5 is below 0.0."),
        ("epochs = 1", "betas = [0.9, 1.0]", "line 27: local.betas = [0.9, 1.0] must lie between 0 and 1, 1 excluded."),
        ("epochs = 1", "betas = [0.9]", "line 27: local.betas.1 = [0.9]: field required."),
        ("epochs = 1", 'optimiser = "sdg"', "line 27: local.optimiser = 'sdg': input should be 'sgd' or 'adam'."),
        ("depth = 1", "width = inf", "line 16: [tier] width = inf is not a finite number."),
        ("depth = 1", 'width = "half"', "line 16: tier.0.width = 'half': input should be a valid number."),
        ("depth = 1", "share = 0", "tier 'small' has share = 0.0; give a number above 0, at most 1e9."),
        ("depth = 1", "share = 1e308", "tier 'small' has share = 1e+308; give a number above 0, at most 1e9."),
        ('name = "large"', 'name = "large"\nprofile = 3', "line 21: tier.1.profile = 3: input should be a valid"),
        ("clients = 2", "every = 0", "score.every must be at least 1 and score.clients at least 0."),
        ("clients = 2", "targets = [0.8, 85]", "line 31: score.targets = 85 must be above -1 and at most 1: for 85 %"),
        ("clients = 2", "targets = [-1]", "line 31: score.targets = -1 must be above -1 and at most 1."),
        ("clients = 2", "targets = [nan]", "line 31: [score.targets] 0 = nan is not a finite number."),
        ("clients = 2", 'targets = ["85%"]', "line 31: score.targets.0 = '85%': input should be a valid number."),
        ("clients = 2", "targets = 0.85", "line 31: score.targets = 0.85: input should be a valid array."),
        ('engine = "serial"', 'engine = "warp"', "line 34: run.engine = 'warp': input should be 'auto', 'serial'"),
        ('engine = "serial"', "keep = 0", "line 34: run.keep = 0 is below 1."),
        ('engine = "serial"', "streams = 0", "line 34: run.streams = 0 is below 1."),
        ('engine = "serial"', 'engine = "graphs"', 'run.engine = "graphs" needs run.hardware = "cuda"'),
        ('engine = "serial"', 'precision = "tf32"', 'run.precision = "tf32" needs run.hardware = "cuda"'),
        ('engine = "serial"', "channels_last = true", 'run.channels_last = true needs run.hardware = "cuda"'),
        ('engine = "serial"', 'hardware = "cuda"\nstack = 20', "run.stack = 20 is for CPUs"),
        ('engine = "serial"', 'hardware = "cuda"\nengine = "pool"', "a GPU is not shared among processes"),
        ('engine = "serial"', "stop_at = {f2 = 0.5}", "run.stop_at knows accuracy, f1, matthews and pearson, not f2."),
        ("[score]", "[gate]\nbound = 0\n[score]", "line 31: gate.bound = 0.0 must be above 0."),
        ("[score]", "[compare]\nmethods = [3]\n[score]", "line 31: compare.methods.0 = 3: input should be a valid str"),
        ('share = "layerwise"', "local = 3", "line 24: method.local = 3: input should be an object."),
        ('share = "layerwise"', "server = {name = 'adma'}", "[method.server] knows no 'adma'. Did you mean 'adam'?"),
        ('share = "layerwise"', "mean = {trim = 2}", "[method.mean] needs a name. There are: weighted, trimmed, "),
        ('share = "layerwise"', "server = {name = 'adam', lrr = 1}", "[method.server] has no setting 'lrr'. Did you"),
        ("rounds = 3", "rounds = 3\nrounds = 4", "line 3: Cannot overwrite a value."),
        ("[local]", "[data]\n[local]", "line 26: Cannot declare ('data',) twice."),
        ("rounds = 3", "rounds =", "line 2: Invalid value."),
        ("[local]", "[local", "line 26: Expected ']' at the end of a table declaration."),
        ("rounds = 3", f"rounds = {'9' * 5000}", "Exceeds the limit (4300 digits) for integer string conversion"),
        ("rounds = 3", f"rounds = {'[' * 100_000}", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_named_with_file_line_and_setting(file, tmp_path, old, new, said):
    assert TEXT.count(old) == 1 or old in ("depth = 1", "epochs = 1")
    text = refusal(file, TEXT.replace(old, new, 1))
    assert text.startswith(f"{tmp_path / 'a.toml'}: ")
    assert said in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TEXT.encode("utf-16"), "line 1: this is UTF-16. Save it as UTF-8."),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "line 1: this is UTF-16. Save it as UTF-8."),
        (TEXT.encode("utf-8-sig"), "line 1: this begins with a byte-order mark. Save it as UTF-8 without one."),
        (TEXT.replace("tiny", "caf\xe9").encode("latin-1"), "line 1: this is not UTF-8. Save it as UTF-8."),
        (TEXT.encode() + b"# \xff\n", "line 35: this is not UTF-8. Save it as UTF-8."),
        (b"\x00", "line 1: "),
    ],
)
def test_text_in_another_encoding_is_refused(file, content, said):
    assert said in refusal(file, content)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "a.toml: there is no such file. `potluck run`" in refusal(read_experiment, tmp_path / "a.toml")
    assert f"{tmp_path}: cannot be read: Is a directory." in refusal(read_experiment, tmp_path)


def test_an_empty_file_is_the_default_experiment_under_the_files_name(file):
    assert file("") == experiment({"name": "a"})


def test_the_built_in_experiment_reads_without_a_file():
    assert read_experiment(None) == experiment(tomllib.loads(recipe("digits")))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("rounds=7", lambda e: e.rounds == 7),
        ("name=my run", lambda e: e.name == "my run"),
        ('name="3"', lambda e: e.name == "3"),
        ("local.lr=0.5", lambda e: e.local.lr == 0.5),
        ("tier.large.share=3", lambda e: [t.share for t in e.tier] == [1.0, 3.0]),
        ("tier.1.share=3", lambda e: [t.share for t in e.tier] == [1.0, 3.0]),
        ("tier.small.model={name='cnn'}", lambda e: e.tier[0].model == {"name": "cnn"}),
        ("method.server.name=yogi", lambda e: e.method["server"] == {"name": "yogi"}),
        ("run.stop_at.accuracy=0.9", lambda e: e.run.stop_at == {"accuracy": 0.9}),
        ("compare.seeds=[4, 5]", lambda e: e.compare.seeds == (4, 5)),
        ("score.targets=[0.85]", lambda e: e.score.targets == (0.85,)),
        ("score.targets=[1, -0.5]", lambda e: e.score.targets == (1.0, -0.5)),
        ("compare.budget.energy=500", lambda e: e.compare.budget == {"energy": 500.0}),
        ("compare.budget={rounds = 3, bytes = 1e6}", lambda e: e.compare.budget == {"rounds": 3, "bytes": 1e6}),
    ],
)
def test_set_reaches_any_setting(file, change, found):
    assert found(file(TEXT, change))


def test_later_changes_build_on_earlier_ones(file):
    both = file(TEXT, "compare.seeds=[4, 5]", "compare.seeds.0=6", "tier.small.name=tiny", "tier.tiny.share=2")
    assert both.compare.seeds == (6, 5)
    assert both.tier[0].share == 2.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rounds", "--set rounds: write it as key=value, such as --set local.lr=0.05."),
        ("=3", "--set =3: write it as key=value"),
        ("rounds.x=3", "--set rounds.x=3: 'rounds' is a value, not a section."),
        ("tier.phone.share=3", "--set tier.phone.share=3: 'phone' is none of small, large (or a number from 0)."),
        ("tier.2.share=3", "'2' is none of small, large"),
        ("tier.².share=3", "'²' is none of small, large"),
        ("compare.seeds.x=3", "compare.seeds = {'x': 3}: input should be a valid array."),
        ("local.lrr=3", "[local] has no setting 'lrr'. Did you mean 'lr'?"),
        ("local.lr=fast", "a.toml: local.lr = 'fast': input should be a valid number."),
        ("data.public_partition=dirichlett", "'dirichlett': input should be 'stratified', 'iid' or 'dirichlet'."),
        ("rounds=-1", "a.toml: rounds = -1 is below 0."),
        ("score.targets=[85]", "score.targets = 85 must be above -1 and at most 1: for 85 % write 0.85."),
        (
            "compare.budget.enrgy=500",
            "compare.budget.enrgy = 500: did you mean 'energy'? There are rounds, bytes, time, ",
        ),
        (
            "compare.budget.x=5",
            "compare.budget.x = 5: there is no such cost. There are rounds, bytes, time, energy, fl",
        ),
        ("compare.budget.time=0", "compare.budget.time = 0 must be above 0."),
        ("compare.budget.time=-3", "compare.budget.time = -3 must be above 0."),
        ("compare.budget.time=inf", "[compare.budget] time = inf is not a finite number."),
        ("compare.budget.time=3 s", "compare.budget.time = '3 s': input should be a valid number."),
        ("compare.budget=500", "compare.budget = 500: input should be "),
        (".=3", "the top of the file has no setting ''"),
        ("a..b=3", "the top of the file has no setting 'a'"),
        (f"rounds={'[' * 100_000}", "input should be a valid integer"),
    ],
)
def test_a_wrong_change_is_refused_and_never_points_to_a_line_of_the_file(file, change, said):
    text = refusal(file, TEXT, change)
    assert "line " not in text
    assert len(text) < 300
    assert said in text


def test_a_change_into_a_value_of_a_list_is_refused(file):
    text = refusal(file, TEXT, "compare.seeds=[4, 5]", "compare.seeds.0.x=3")
    assert text == "--set compare.seeds.0.x=3: '0' is a value, not a section."


@given(st.text(st.characters(exclude_characters="\n\r"), max_size=20))
def test_any_text_of_one_line_is_some_value(text):
    value(text)


def test_a_value_is_toml_or_else_text():
    assert [value(text) for text in ("3", "3.0", "true", "[1, 2]", "'3'", "abc", "1abc")] == [
        3, 3.0, True, [1, 2], "3", "abc", "1abc"
    ]  # fmt: skip


FULL = experiment(
    {
        "name": "odd \"quotes\", back\\slash, tab\t, é, 漢, \U0001f600, \x7f, \u2028, \x01, new\nline",
        "seed": 12345678901234567890,
        "data": {"partition": "dirichlet", "alpha": 1e-05, "shape": [1, 2], "samples": 7, "path": "a b/ü"},
        "model": {"name": "mlp", "hidden": 8, "depth": 3, "norm": "static"},
        "tier": [
            {"name": "a", "width": {"hidden0": 0.5, "hidden1": 1}, "depth": 2},
            {"name": "b \" ]", "model": {"name": "cnn", "width": 4, "deep": {"er": [1, [2]]}}},
            {"name": "c", "depth": [1, 2], "share": 0.1},
        ],
        "fleet": {"tiers": "redrawn", "availability": 0.5, "dropout": 0.25},
        "method": {"name": "fedadam", "server": {"name": "adam", "lr": 1e-16}, "local": {"lr": 1}},
        "local": {"steps": 4, "clip": 0.5, "milestones": [1, 2], "betas": [0.5, 0.75], "schedule": "steps"},
        "gate": {"bound": 2.5, "strikes": 0},
        "score": {"every": 4, "targets": [0.855, -0.5, 1]},
        "run": {"stop_at": {"accuracy": 0.5}, "keep": 7},
        "compare": {"methods": ["local", {"name": "x", "a key \U0001f600": {}, "": []}], "seeds": [3, 4]},
    }
)  # fmt: skip


@pytest.mark.parametrize("wanted", [FULL, tiny(), experiment({}), read_experiment(None)], ids=lambda e: e.name[:4])
def test_settings_written_as_toml_read_back_equal(wanted, tmp_path):
    (tmp_path / "settings.toml").write_text(toml.write(wanted.plain()), "utf-8")
    assert read_experiment_as_is(tmp_path / "settings.toml") == wanted


def read_experiment_as_is(path):
    plain, text = toml.read(path)
    return experiment(plain, str(path), text)


def test_none_is_left_out_at_every_level():
    assert toml.write({"a": None, "b": {"c": None, "d": {"e": None, "f": 1}}}) == "\n[b]\nd = {f = 1}\n"


@given(st.text(), st.text())
def test_any_text_survives_as_key_and_value(key, text):
    assert tomllib.loads(toml.write({"a": {key: text}, "b": text})) == {"a": {key: text}, "b": text}


def test_a_run_writes_every_setting_that_is_not_none_and_reads_back_equal(tmp_path):
    wanted = tiny(rounds=0, name="odd \U0001f600\n", compare={"methods": ["local", {"name": "fedavg", "é": 1}]})
    run(wanted, tmp_path / "run")
    assert read_experiment_as_is(tmp_path / "run" / "settings.toml") == wanted
    written = tomllib.loads((tmp_path / "run" / "settings.toml").read_text("utf-8"))
    for field in dataclasses.fields(wanted):
        asked = json.loads(json.dumps(wanted.plain()[field.name]))
        assert written[field.name] == without_none(asked)


def test_a_report_reads_the_targets_that_a_run_was_given(tmp_path):
    named = run(tiny(rounds=0, score={"targets": [0.85, 0.6]}), tmp_path / "named")
    plain = run(tiny(rounds=0), tmp_path / "plain")
    assert [read_record(result.folder).targets for result in (named, plain)] == [(0.85, 0.6), ()]


def test_a_report_reads_the_budget_that_a_comparison_was_given(tmp_path):
    named = run(tiny(rounds=0, compare={"budget": {"energy": 500}}), tmp_path / "named")
    plain = run(tiny(rounds=0), tmp_path / "plain")
    assert [read_record(result.folder).budget for result in (named, plain)] == [{"energy": 500.0}, {}]


def without_none(value):
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def test_a_name_that_is_no_text_at_all_is_refused():
    assert refusal(experiment, {"name": "\ud800"}).startswith("settings: ")


def test_settings_from_python_are_checked_like_a_file():
    assert "settings: [local] has no setting 'lrr'. Did you mean 'lr'?" in refusal(experiment, {"local": {"lrr": 1}})
    assert "settings: rounds = '3': input should be a valid integer." in refusal(run, {"rounds": "3"})
