"""All runs of a comparison are checked before the first one starts, and all that is wrong is told at once."""

import pytest
from tiny_runs import Listener, tiny

from potluck.core import InputError, SettingsError
from potluck.ledger import LedgerError
from potluck.methods import FedAvg
from potluck.run import compare, run
from potluck.run.planning import CannotStart


def names(*methods):
    return [{"name": name} for name in methods]


def test_every_method_that_cannot_start_is_named_at_once_and_none_is_started(tmp_path):
    with pytest.raises(CannotStart) as caught:
        compare(tiny(), tmp_path / "out", names("alllarge", "feddf", "fedprox", "fedmd"), [0, 1])
    first, *others = caught.value.lines
    assert first == "2 of 4 methods cannot start, so no run was started:"
    assert [line.partition(":")[0] for line in others] == ["feddf", "fedmd"]
    assert "public rows" in others[0]
    assert "public rows" in others[1]
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_one_method_that_cannot_start_is_told_in_one_line(tmp_path):
    with pytest.raises(SettingsError, match=r"^feddf: FedDF learns from logits of public rows") as caught:
        compare(tiny(), tmp_path / "out", names("alllarge", "feddf"), [0])
    assert type(caught.value) is SettingsError


def test_several_methods_that_are_none_are_told_at_once(tmp_path):
    with pytest.raises(CannotStart) as caught:
        compare(tiny(), tmp_path / "out", names("fedavgg", "fedproxx", "local"), [0])
    assert [line.partition(" Did")[0] for line in caught.value.lines[1:]] == [
        "fedavgg: there is no method 'fedavgg'.",
        "fedproxx: there is no method 'fedproxx'.",
    ]


def test_methods_that_are_none_and_methods_that_lack_something_are_told_at_once(tmp_path):
    methods = [{"name": "fedavg", "shar": 1}, {"name": "alllarge"}, {"name": "feddf"}, {"name": "fedprox", "shar": 2}]
    for asked in (tiny(), tiny(compare={"tune": {"local.lr": (0.1, 0.2)}})):
        with pytest.raises(CannotStart) as caught:
            compare(asked, tmp_path / "out", methods, [0])
        first, *others = caught.value.lines
        assert first == "3 of 4 methods cannot start, so no run was started:"
        assert [line.partition(" Did")[0] for line in others[:1]] == [
            "fedavg (shar=1), fedprox (shar=2): [method] has no setting 'shar'."
        ]
        assert others[1].startswith("feddf: FedDF learns from logits of public rows")
    assert not (tmp_path / "out").exists()


def test_a_setting_that_a_method_has_not_is_told_with_the_name_of_the_method(tmp_path):
    with pytest.raises(SettingsError, match=r"^fedavg \(shar=1\): \[method\] has no setting 'shar'"):
        compare(tiny(), tmp_path / "out", [{"name": "fedavg", "shar": 1}, {"name": "local"}], [0])


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([], r"seeds = \[\]: give at least one whole number"),
        ("0,1", r"seeds = '0,1': give at least one whole number in a list"),
        (3, r"seeds = 3: give at least one whole number"),
        ([0, 1.5], r"give at least one whole number"),
        ([0, 1, 0], r"^seed 0 is given twice in seeds; give each once\.$"),
    ],
)
def test_seeds_that_are_none_or_twice_are_refused(seeds, said, tmp_path):
    with pytest.raises(SettingsError, match=said):
        compare(tiny(), tmp_path / "out", names("local"), seeds)
    assert not (tmp_path / "out").exists()


def test_data_that_cannot_be_read_or_divided_with_a_seed_stops_the_comparison_before_its_first_run(tmp_path):
    with pytest.raises(InputError, match=r"missing\.npz"):
        compare(
            tiny(data={"name": "npz", "path": str(tmp_path / "missing.npz")}), tmp_path / "out", names("local"), [0]
        )
    with pytest.raises(SettingsError, match="leave none to train on"):
        compare(tiny(data={"public": 5000}), tmp_path / "out", names("local"), [0, 1])
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_stops_the_comparison_before_its_first_run(tmp_path):
    compare(tiny(rounds=1), tmp_path, names("local"), [1])
    with pytest.raises(SettingsError, match=r"local: .*local-s1 holds a run with other settings"):
        compare(tiny(rounds=1, local={"lr": 0.7}), tmp_path, names("alllarge", "local"), [0, 1])
    assert [path.name for path in tmp_path.iterdir()] == ["local-s1"]


def test_a_folder_that_is_damaged_stops_the_comparison_before_its_first_run(tmp_path):
    compare(tiny(rounds=1), tmp_path, names("local"), [0])
    (tmp_path / "local-s0" / "manifest.json").write_text("{")
    with pytest.raises(LedgerError, match=r"manifest\.json"):
        compare(tiny(rounds=1), tmp_path, names("alllarge", "local"), [0])
    assert [path.name for path in tmp_path.iterdir()] == ["local-s0"]


def test_methods_given_as_objects_are_compared_under_the_names_of_their_classes(tmp_path):
    settings = tiny(rounds=1)
    mine = FedAvg(local=settings.local, share="layerwise", weighting="uniform")
    found = compare(settings, tmp_path, [mine, {"name": "alllarge"}], [0])
    assert [result.folder.name for result in found] == ["FedAvg_weighting=uniform_share=layerwise-s0", "alllarge-s0"]
    named = run(tiny(rounds=1, method={"name": "fedavg", "share": "layerwise", "weighting": "uniform"}), tmp_path / "b")
    assert found[0].weights_sha256 == named.weights_sha256
    again = compare(settings, tmp_path, [mine, {"name": "alllarge"}], [0])
    assert [result.plain() for result in again] == [result.plain() for result in found]


def test_objects_do_not_leave_this_process(tmp_path):
    settings = tiny(rounds=1)
    with pytest.raises(SettingsError, match="stay in this process"):
        compare(settings, tmp_path / "out", [FedAvg(local=settings.local, share="layerwise")], [0, 1], jobs=2)


def test_widths_that_no_tier_has_are_warned_of_before_the_first_round(tmp_path):
    heard, watch = [], Listener()
    equal = tiny(rounds=1, tier=[{"name": "all"}])
    compare(equal, tmp_path / "out", names("fedrolex", "fedavg", "alllarge"), [0, 1], note=heard.append)
    assert len(heard) == 1
    assert heard[0].startswith(
        "fedrolex: FedRolex gives devices networks that differ in width, and no tier has a width"
    )
    run(tiny(rounds=1, tier=[{"name": "all"}], method={"name": "fedrolex"}), tmp_path / "run", watch=watch)
    assert f"fedrolex: {watch.warnings[0]}" == heard[0]


def test_no_warning_is_given_where_a_tier_is_narrower_or_shallower(tmp_path):
    heard = []
    narrow = tiny(rounds=1, tier=[{"name": "small", "width": 0.5}, {"name": "large"}])
    compare(narrow, tmp_path / "narrow", names("fedrolex"), [0], note=heard.append)
    compare(tiny(rounds=1), tmp_path / "shallow", names("inclusivefl"), [0], note=heard.append)
    assert heard == []


def test_tiers_without_clients_and_cohorts_larger_than_the_population_are_warned_of(tmp_path):
    heard = []
    tiers = [{"name": "many", "share": 1e6}, {"name": "few", "share": 1e-6}]
    compare(tiny(rounds=1, cohort=9, tier=tiers), tmp_path, names("fedavg"), [0], note=heard.append)
    assert heard == [
        "fedavg: no client belongs to tier 'few': there are 8 clients.",
        "fedavg: cohort = 9, but there are 8 clients: all of them take part in every round.",
    ]


def test_the_same_mistake_is_told_once_for_all_methods_that_have_it(tmp_path):
    with pytest.raises(SettingsError) as caught:
        compare(tiny(model={"hidden": 0}), tmp_path / "out", names("fedavg", "local", "fedprox", "alllarge"), [0])
    assert str(caught.value).startswith("fedavg, local, fedprox and 1 more: [model]: mlp: hidden = 0 must be")
    assert len(str(caught.value).splitlines()) == 1
