"""Runs whose devices were measured, or are drawn from a fitted fleet."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from command_lines import blocks
from tiny_runs import events, tiny

from potluck.core import SettingsError
from potluck.fleet import PROFILES, DeviceFit, MeasuredProfile, MeasuredStep, fit_devices
from potluck.ledger import read_run
from potluck.models import make_spec, tier_spec
from potluck.report import write_report
from potluck.run import assemble, resume, run
from potluck.run.advice import advice
from potluck.run.devices import (
    depths,
    network_id,
    read_fit,
    read_list,
    read_profile,
    step_size,
    write_fit,
    write_profile,
)
from potluck.run.measuring import Measurement, measure, random_source

FULL = make_spec("mlp", input=(1, 8, 8), classes=10, hidden=8, depth=2)
FIT = DeviceFit("invented", 10, 4.0, 0.5, 10.0, 0.8, 0.6)


def profile(*steps, **changes):
    facts = {"threads": 1, "slots": 0, "block": 1, "memory": 10**9, "model": "mlp", **changes}
    return MeasuredProfile("a processor", "today", "2.0", step=steps, **facts)


def step(seconds, memory=0, spec=FULL, batch=32):
    return MeasuredStep(network_id(spec), batch, seconds, memory, **asdict(step_size(spec, batch, 1)))


@pytest.fixture
def measured(tmp_path):
    """A profile by which a step of the whole network takes 0.5 s and twice the modelled memory."""
    path = tmp_path / "my.toml"
    write_profile(profile(step(0.5, 2 * step_size(FULL, 32, 1).bytes(0)), down=80.0, up=80.0), path)
    return str(path)


def test_a_run_prices_steps_as_they_were_measured_and_says_so(tmp_path, measured):
    tiers = [{"name": "small", "depth": 1, "profile": "tv"}, {"name": "large", "profile": measured}]
    result = run(tiny(tier=tiers, rounds=1, cohort=8), tmp_path / "run")
    lines = {line["tier"]: line for line in events(tmp_path / "run", "task")}
    assert "basis" not in lines["small"]["modelled"]
    line, told = lines["large"]["measured"], lines["large"]["modelled"]
    transfer = 8 * (line["bytes_down"] + line["bytes_up"]) / 80e6
    assert told["seconds"] == pytest.approx(transfer + told["flops"] / step_size(FULL, 32, 1).flops * 0.5)
    assert told["basis"] == "measured"
    tiers = {tier["name"]: tier for tier in read_run(result.folder).manifest["tiers"]}
    assert tiers["large"]["basis"] == "measured"
    assert tiers["large"]["source"].startswith("measured: a processor, 1 thread")
    assert "basis" not in tiers["small"]
    page = write_report([result.folder], tmp_path / "report.html").read_text("utf-8")
    assert "large: modelled time and memory rest on training steps of this very network, measured on the device" in page


def test_measured_memory_is_in_the_ledger(tmp_path, measured):
    for name, where in (("laptop", "a"), (measured, "b")):
        run(tiny(tier=[{"name": "large", "profile": name}], rounds=1), tmp_path / where)
    one, two = (events(tmp_path / where, "task")[0]["modelled"]["memory"] for where in ("a", "b"))
    assert two == 2 * one


def test_fit_rests_on_measured_seconds(tmp_path):
    """Eight clients have six steps each at most; the whole network takes 1 s a step, a part of it 0.001 s."""
    path = tmp_path / "my.toml"
    widths = {width: tier_spec(FULL, width) for width in (1.0, 0.5, 0.25)}
    shallow = tier_spec(FULL, depth=1)
    steps = [step(1.0 if width == 1 else 0.001, spec=spec) for width, spec in widths.items()]
    write_profile(profile(*steps, step(0.001, spec=shallow)), path)

    def chosen(**tier):
        fleet = {"seconds": 0.5, "widths": [1.0, 0.5, 0.25]}
        (found,) = assemble(tiny(tier=[{"name": "mine", "profile": str(path), **tier}], fleet=fleet)).population.tiers
        return found.width, found.depth

    assert chosen(width="fit") == (0.5, None)
    assert chosen(depth="fit") == (None, 1)
    assert chosen(width="fit", depth="fit") == (1.0, 1)  # of all that fit, it has the most FLOPs
    assert chosen() == (None, None)


def test_depths_to_choose_from_are_cut_in_all_stages_alike():
    assert list(depths(3)) == [3, 2, 1]
    assert list(depths((2, 4, 1))) == [(2, 4, 1), (2, 3, 1), (2, 2, 1), (1, 1, 1)]
    with pytest.raises(SettingsError, match=r'depth = "fit" needs a network with blocks'):
        depths(None)


def test_fitting_on_modelled_devices_knows_depths_too():
    tiers = [{"name": "eye", "depth": "fit", "profile": "camera"}]
    (tier,) = assemble(tiny(tier=tiers)).population.tiers
    assert tier.depth == 2
    with pytest.raises(SettingsError, match=r"tier 'eye': no depth fits the profile 'camera': the shallowest, 1,"):
        assemble(tiny(tier=tiers, fleet={"seconds": 1e-6}))


def test_a_profile_of_another_network_is_used_with_a_warning(measured):
    settings = tiny(tier=[{"name": "mine", "profile": measured}])
    setup = assemble(replace(settings, model={"name": "cnn", "depth": 1, "width": 4}))
    assert setup.population.devices["mine"].basis == "other network"
    assert any("was measured with another network" in line for line in advice(setup))
    assert not any("another network" in line for line in advice(assemble(tiny(tier=[{"profile": measured}]))))


def test_a_profile_comes_back_from_its_file_as_it_was(tmp_path):
    made = profile(step(0.1), replace(step(0.2), depth=(1, 2), width=0.5), up=3.5)
    write_profile(made, tmp_path / "my.toml")
    assert read_profile(tmp_path / "my.toml") == made


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "seconds = 0.5",
            "secnds = 0.5",
            r"my.toml: line \d+: \[step\] has no setting 'secnds'. Did you mean 'sec",
        ),
        ("seconds = 0.5", "seconds = nan", r"seconds = nan is not a finite number"),
        ("seconds = 0.5", "seconds = -1.0", r"step.seconds = -1.0 must be above 0"),
        ("seconds = 0.5", 'seconds = "fast"', r"my.toml: .*seconds = 'fast'"),
        ('like = "laptop"', 'like = "lap"', r"my.toml: like = 'lap' is not known. Did you mean 'laptop'"),
        ("threads = 1", "threads = [", r"my.toml: line \d+"),
        ("threads = 1\n", "", r"my.toml: threads"),
    ],
)
def test_a_profile_with_a_mistake_is_refused_in_one_line(measured, tmp_path, old, new, said):
    text = (tmp_path / "my.toml").read_text()
    assert old in text
    (tmp_path / "my.toml").write_text(text.replace(old, new))
    with pytest.raises(SettingsError, match=said) as found:
        assemble(tiny(tier=[{"profile": measured}]))
    assert "\n" not in str(found.value)


def test_a_profile_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"gone.toml: there is no such file. `potluck measure`"):
        assemble(tiny(tier=[{"profile": str(tmp_path / "gone.toml")}]))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(SettingsError, match="there is no such file"):
        read_profile(tmp_path / "folder.toml")


def test_a_run_whose_profile_changed_is_not_resumed(tmp_path, measured):
    result = run(tiny(tier=[{"profile": measured}], rounds=1), tmp_path / "run")
    assert resume(result.folder, rounds=2).rounds == 2
    write_profile(profile(step(0.25)), tmp_path / "my.toml")
    with pytest.raises(SettingsError):
        resume(result.folder, rounds=3)


def test_clients_of_a_fitted_fleet_have_devices_of_their_own(tmp_path):
    write_fit(FIT, tmp_path / "fleet.json")
    assert read_fit(tmp_path / "fleet.json") == FIT
    settings = tiny(fleet={"file": str(tmp_path / "fleet.json")}, rounds=1, cohort=8)
    result = run(settings, tmp_path / "run")
    population = assemble(settings).population
    for line in events(tmp_path / "run", "task"):
        device = population.device(population.client(population.index(line["client"]), 0))
        told, sent = line["modelled"], line["measured"]
        transfer = 8 * sent["bytes_down"] / device.down + 8 * sent["bytes_up"] / device.up
        assert told["seconds"] == pytest.approx(transfer + told["flops"] / device.flops)
        assert told["basis"] == "drawn"
    assert {tier["basis"] for tier in read_run(result.folder).manifest["tiers"]} == {"drawn"}
    assert resume(result.folder, rounds=2).rounds == 2


def test_weights_do_not_depend_on_devices(tmp_path, measured):
    """Availability aside, a fleet changes costs and nothing else."""
    write_fit(FIT, tmp_path / "fleet.json")
    plain = run(tiny(rounds=2), tmp_path / "plain")
    fleet = run(tiny(rounds=2, fleet={"file": str(tmp_path / "fleet.json")}), tmp_path / "fleet")
    assert plain.scores == fleet.scores


def test_a_tier_of_a_fitted_fleet_fits_its_weak_devices(tmp_path):
    write_fit(replace(FIT, memory_gb=1e-4), tmp_path / "fleet.json")
    tiers = [{"name": "weak", "width": "fit"}, {"name": "strong", "width": "fit"}]
    settings = tiny(model={"hidden": 128}, tier=tiers, fleet={"file": str(tmp_path / "fleet.json")})
    weak, strong = assemble(settings).population.tiers
    assert weak.width < strong.width < 1  # 100 kB in the median; the network needs more


def test_a_measured_profile_and_a_fleet_exclude_each_other(tmp_path, measured):
    write_fit(FIT, tmp_path / "fleet.json")
    with pytest.raises(SettingsError, match="a client's speed follows from one of them"):
        assemble(tiny(tier=[{"profile": measured}], fleet={"file": str(tmp_path / "fleet.json")}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must hold one JSON object"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"source": "x", "memory": 4}', r"has no setting 'memory'. Did you mean 'memory_gb'"),
        ('{"source": "x", "memory_gb": 1e999}', "not a finite number"),
    ],
)
def test_a_fleet_with_a_mistake_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "fleet.json").write_text(text)
    with pytest.raises(SettingsError, match=said):
        assemble(tiny(fleet={"file": str(tmp_path / "fleet.json")}))


@pytest.fixture(scope="module")
def found() -> Measurement:
    """Two passes over a tiny network."""
    tiers = [{"name": "small", "width": 0.45}, {"name": "large", "width": "fit", "profile": "gone.toml"}]
    settings = tiny(model={"hidden": 48}, tier=tiers)
    return measure(settings, random_source(settings, (1, 8, 8), 10), seconds=0, held_widths=(0.9, 0.65))


def test_widths_and_depths_and_tiers_are_measured_and_those_held_out_are_not_in_the_profile(found):
    sizes = [(step.width, step.depth) for step in found.profile.step]
    assert {(1.0, 2), (0.5, 2), (0.125, 2), (1.0, 1), (0.25, 1), (0.45, 2)} <= set(sizes)
    assert {step.width for step in found.held} == {0.9, 0.65}
    assert not {step.size for step in found.held} & {step.size for step in found.profile.step}
    assert (found.passes, found.settled, found.skipped) == (2, False, ())
    assert found.profile.threads == 1
    assert {step.batch for step in found.profile.step} == {32}


def test_a_measured_network_is_known_by_the_profile_and_other_widths_are_fitted(found):
    one = found.profile.step[0]
    assert found.profile.seconds(one.network, one.size) == (one.seconds, "measured")
    held = found.held[0]
    assert found.profile.seconds(held.network, held.size)[1] == "fitted"


def test_a_gpu_is_not_measured():
    settings = tiny(run={"engine": "auto", "hardware": "cuda"})
    with pytest.raises(SettingsError, match="only the processor is measured"):
        measure(settings, random_source(settings, (1, 8, 8), 10))


@pytest.mark.parametrize(
    "model", [{"name": "transformer", "hidden": 8, "heads": 2}, {"name": "bert", "hidden": 8, "heads": 2}]
)
def test_networks_that_read_tokens_are_measured_on_random_ones(model):
    settings = replace(tiny(), model={**model, "depth": 1})
    source = random_source(settings, (5,), 10)
    assert source.train.columns["x"].shape == (32, 5)


def test_the_list_in_the_documentation_can_be_fitted(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "devices.md").read_text("utf-8")
    (listed,) = blocks(text, "json")
    (tmp_path / "list.json").write_text(listed)
    fit = fit_devices(read_list(tmp_path / "list.json"), PROFILES["pixel5"], score=600)
    assert "INVENTED" in fit.source
    assert fit.memory_gb == pytest.approx((3**5 * 6**3 * 12) ** (1 / 9))
    # Both are there from 1:00 to 6:00, one of them until 7:00.
    assert fit.available[:8] == (0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.001)
