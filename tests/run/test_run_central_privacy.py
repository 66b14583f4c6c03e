"""Noise of the server: numbers by hand, the same bits everywhere, what is counted, and what is refused."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tiny_runs import Moody, events, kept, killed_after, tiny

from potluck.core import QuorumError, SettingsError, Task, on_client, stream
from potluck.engines import ENGINES, Dispatcher, Graphs
from potluck.fleet import Odds
from potluck.methods import FedAvg, HeteroFL
from potluck.run import assemble, experiment, resume, run
from potluck.run.advice import advice
from potluck.run.central_checks import refuse_cohorts
from potluck.run.central_epsilon import epsilon_of_sums, epsilon_of_tree, largest_sensitivity, tree_sensitivity
from potluck.run.central_privacy import next_clip, split_noise
from potluck.run.world import start_engine

WIDE = [{"name": "small", "width": 0.5, "profile": "tv"}, {"name": "large"}]
WIDTHS = {"tier": WIDE, "method": {"name": "heterofl", "label_mask": False}}
WHOLE = {"tier": [{"name": "all"}], "method": {"name": "fedavg"}}
SUMS_SUFFICE = [
    {"name": "fedavg", "share": "layerwise"},
    {"name": "fedprox", "share": "layerwise"},
    {"name": "fedadam", "share": "per_arch"},
    {"name": "moon", "share": "layerwise"},
    {"name": "inclusivefl", "server": {"name": "replace"}},
    {"name": "exclusivefl"},
    {"name": "moss", "wire": {"epochs": 1}},
    {"name": "heterofl", "label_mask": False},
    {"name": "fedrolex", "label_mask": False},
    {"name": "feddropout", "label_mask": False, "shared_per_round": True},
    {"name": "fjord", "widths": [0.5, 1.0], "distill": False},
]
CUT = ("heterofl", "fedrolex", "feddropout", "fjord")


def central(privacy=(), **changes):
    return tiny(privacy={"where": "server", "clip": 0.5, "noise": 0.2, **dict(privacy)}, **changes)


def of_method(method, **changes):
    tiers = {"tier": WIDE} if method["name"] in CUT else {}
    return central(method=method, data={"clients": 8, "public": 20}, **tiers, **changes)


def told(folder):
    """The ledger, less what a clock measured."""
    found = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for line in found:
        line.pop("seconds", None)
        line.get("measured", {}).pop("seconds", None)
    return found


class Recorder:
    """Keeps the sums of a fold in place of making them private."""

    def __init__(self, clip):
        self.clip = clip

    def ask(self, tasks):
        return (replace(task, config={"privacy.clip": self.clip}) for task in tasks)

    def release(self, session, mean, summed, replies):
        self.update = {
            name: total - summed.sums.weights[name] * summed.start[name].double()
            for name, total in summed.sums.totals.items()
        }
        self.weights, self.replies = summed.sums.weights, replies
        return replies


def first_round(setup, clip, without=""):
    """What the first round adds up, without one client of its cohort."""
    method, zoo = setup.context.method, setup.context.zoo
    seen = Recorder(clip)
    dispatcher = Dispatcher(start_engine(setup), method, zoo, lost=lambda client, *_: client == without, private=seen)
    session = dispatcher.open(0)
    method.round(method.init(zoo, stream(0, "init")), setup.view(0, session))
    return seen


def length(update):
    return float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_two_cohorts_that_differ_in_one_client_differ_by_at_most_its_clip_whatever_its_tier(method):
    """Rates so large that every update is longer than the clip."""
    one = central(tier=WIDE, method={"name": method, "label_mask": False}, cohort=4, local={"epochs": 1, "lr": 2.0})
    setup = assemble(one)
    every = first_round(setup, 0.25)
    for client in setup.cohort(0):
        fewer = first_round(setup, 0.25, client.id)
        moved = {name: total - fewer.update.get(name, 0.0) for name, total in every.update.items()}
        assert length(moved) <= 0.25 * (1 + 1e-9)
        assert length(moved) == pytest.approx(0.25, rel=1e-3)


def test_nothing_but_the_clipped_update_leaves_a_client_and_all_weigh_the_same():
    setup = assemble(central(**WHOLE))
    seen = first_round(setup, 0.5)
    assert set(seen.weights.values()) == {3.0}
    assert all(reply.metrics == {} and reply.weight == 1.0 for reply in seen.replies)


def test_with_hardly_any_noise_the_round_is_the_mean_of_clipped_updates_over_the_expected_cohort(tmp_path):
    """Three of eight clients are drawn, so three are expected: the same as equal weights and this clip on devices."""
    same = {**WHOLE, "rounds": 1, "cohort": 3}
    at_server = run(central({"noise": 1e-6, "clip": 0.05}, **same), tmp_path / "server")
    method = {"name": "fedavg", "weighting": "uniform"}
    on_device = run(tiny(privacy={"clip": 0.05, "noise": 1e-6}, **(same | {"method": method})), tmp_path / "device")
    states = [kept(found.folder)[1]["state"]["model"].arrays for found in (at_server, on_device)]
    for name, tensor in states[0].items():
        assert torch.allclose(tensor, states[1][name], atol=1e-5)
    plain = run(tiny(**same), tmp_path / "plain")
    far = kept(plain.folder)[1]["state"]["model"].arrays
    assert any(not torch.allclose(tensor, far[name], atol=1e-3) for name, tensor in states[0].items())


@dataclass(frozen=True)
class StillWide(HeteroFL):
    """HeteroFL whose clients send back what they got, so that only noise moves the model."""

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        return replace(reply, models=dict(task.models))


def test_every_entry_gets_the_noise_of_its_expected_holders_whoever_came(tmp_path):
    """Two narrow clients and a wide one are expected: noise of 1 on the sum is 1/3 where all hold it, 1 elsewhere."""
    tiers = [{"name": "small", "width": 0.5, "share": 2.0}, {"name": "large"}]
    one = central(
        {"noise": 1.0, "clip": 1.0}, rounds=1, data={"clients": 6}, tier=tiers, model={"hidden": 64, "depth": 1}
    )
    method = StillWide(local=one.local, label_mask=False)
    setup = assemble(one, method=method)
    assert setup.population.odds(3) == {"small": (2.0, 0.5), "large": (1.0, 0.5)}
    start = method.init(setup.context.zoo, stream(0, "init")).model.arrays["stem.linear.weight"]
    end = kept(run(one, tmp_path / "run", method=method).folder)[1]["state"]["model"].arrays["stem.linear.weight"]
    moved = end.double() - start.double()
    assert float(moved[:32].std()) == pytest.approx(1 / 3, rel=0.05)
    assert float(moved[32:].std()) == pytest.approx(1.0, rel=0.05)


SLOW = [pytest.param(method, marks=pytest.mark.slow) if method["name"] == "moss" else method for method in SUMS_SUFFICE]


@pytest.mark.parametrize("method", SLOW, ids=lambda method: method["name"])
def test_every_engine_gives_the_same_bits(method, tmp_path, monkeypatch):
    reference = run(of_method(method), tmp_path / "serial")
    assert (
        reference.weights_sha256
        != run(replace(of_method(method), privacy=tiny().privacy), tmp_path / "p").weights_sha256
    )
    wire = run(of_method(method, run={"engine": "wire"}), tmp_path / "wire")
    monkeypatch.setitem(ENGINES, "serial", Graphs)
    graphs = run(of_method(method), tmp_path / "graphs")
    assert {wire.weights_sha256, graphs.weights_sha256} == {reference.weights_sha256}
    assert told(wire.folder) == told(reference.folder)
    assert reference.privacy["releases"] == 3


@pytest.mark.parametrize("more", [{}, {"clip": "adaptive"}, {"mechanism": "tree"}], ids=["fixed", "adaptive", "tree"])
def test_sums_of_workers_and_of_the_server_are_the_same_bits_and_resuming_changes_none(more, tmp_path):
    """Thirty-four tasks are more than two blocks of sixteen, which workers of the pool add up themselves."""
    big = {"data": {"clients": 60}, "cohort": 34, **WIDTHS, "fleet": {"draw": "by_tier"}}
    whole = run(central(more, rounds=4, **big), tmp_path / "whole")
    run(central(more, rounds=2, **big, run={"engine": "pool", "workers": 1}), tmp_path / "run")
    resumed = resume(tmp_path / "run", rounds=4)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert told(resumed.folder) == told(whole.folder)
    assert resumed.privacy == whole.privacy


def test_the_promise_of_every_round_is_that_of_the_accountant(tmp_path):
    found = run(central({"noise": 1.5}, rounds=3, fleet={"draw": "poisson"}, **WHOLE), tmp_path / "run")
    noted = events(found.folder, "privacy")
    wanted = [epsilon_of_sums("poisson", 1.5, 1e-5, (((3 / 8, 1), count),)) for count in (1, 2, 3)]
    assert [line["epsilon"] for line in noted] == wanted
    assert found.privacy == {
        "where": "server", "mechanism": "gaussian", "neighbours": "add-or-remove", "draw": "poisson", "rate": 3 / 8,
        "clip": 0.5, "noise": 1.5, "delta": 1e-5, "releases": 3, "epsilon": wanted[-1],
    }  # fmt: skip
    assert json.loads((found.folder / "manifest.json").read_text())["privacy"] == found.privacy


def test_the_tier_whose_clients_are_drawn_most_often_decides(tmp_path):
    """One of one against two of seven."""
    tiers = [{"name": "many", "share": 7.0}, {"name": "few", "share": 1.0}]
    one = central({"noise": 2.0}, tier=tiers, method={"name": "fedavg"}, rounds=1, fleet={"draw": "by_tier"})
    found = run(one, tmp_path / "run")
    assert (found.privacy["rate"], found.privacy["neighbours"]) == (1.0, "replace-one")
    assert found.privacy["rates"] == {"many": 2 / 7, "few": 1.0}
    assert found.privacy["epsilon"] == epsilon_of_sums("by_tier", 2.0, 1e-5, (((1.0, 1), 1),))


def test_a_target_is_met_and_not_stretched(tmp_path):
    whole = {**WHOLE, "cohort": 8}  # all take part: no search for the noise
    found = run(central({"noise": None, "epsilon": 3.0}, **whole), tmp_path / "run")
    assert 2.99 < found.privacy["epsilon"] <= 3.0
    with pytest.raises(SettingsError, match="epsilon = 3 is promised for 3 rounds"):
        resume(tmp_path / "run", rounds=4)


def test_with_noise_on_prefix_sums_the_rounds_of_the_busiest_client_count(tmp_path):
    found = run(central({"mechanism": "tree", "noise": 4.0}, rounds=4, **WHOLE), tmp_path / "run")
    took = {}
    for line in events(found.folder, "task"):
        took.setdefault(line["client"], []).append(line["round"])
    assert found.privacy["uploads"] == max(map(len, took.values()))
    assert found.privacy["epsilon"] == epsilon_of_tree(4.0, 1e-5, largest_sensitivity(took, 4))
    assert found.privacy["neighbours"] == "zero-out"
    other = {"mechanism": "tree", "noise": 4.0, "neighbours": "replace-one"}
    other = run(central(other, rounds=4, **WHOLE), tmp_path / "other").privacy
    assert other["epsilon"] == epsilon_of_tree(4.0, 1e-5, 2 * largest_sensitivity(took, 4))
    assert other["neighbours"] == "replace-one"
    aimed = run(central({"mechanism": "tree", "noise": None, "epsilon": 5.0}, rounds=4, **WHOLE), tmp_path / "aimed")
    assert aimed.privacy["epsilon"] == pytest.approx(5.0)


@dataclass(frozen=True)
class Still(FedAvg):
    """FedAvg whose clients send back what they got, so that only noise moves the model."""

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        return replace(reply, models=dict(task.models))


def noise_after(rounds, mechanism, folder, clip=1.0, hidden=8):
    """What noise has added to the model, in clips on the sum, after so many rounds."""
    told = {"mechanism": mechanism, "noise": 1.0, "clip": clip, "first_clip": 1.0}
    one = central(told, rounds=rounds, score={"every": 99}, model={"hidden": hidden}, **WHOLE)
    setup = assemble(one, method=Still(local=one.local))
    start = setup.context.method.init(setup.context.zoo, stream(0, "init")).model.arrays
    end = kept(run(one, folder, method=Still(local=one.local)).folder)[1]["state"]["model"].arrays
    return torch.cat([(end[name].double() - start[name].double()).flatten() for name in start]) * 3  # 3 are expected


def test_noise_on_prefix_sums_has_as_many_shares_as_the_round_has_bits(tmp_path):
    """After 3 rounds two nodes cover them, after 4 rounds one does. Independent noise adds up over all rounds."""
    for rounds, tree in ((3, 2), (4, 1)):
        assert float(noise_after(rounds, "tree", tmp_path / f"t{rounds}").var()) == pytest.approx(tree, rel=0.2)
        assert float(noise_after(rounds, "gaussian", tmp_path / f"g{rounds}").var()) == pytest.approx(rounds, rel=0.2)


ROUNDS = []


@dataclass(frozen=True)
class Noted(StillWide):
    """Counts its rounds."""

    def round(self, state, now):
        ROUNDS.append(now.index)
        return super().round(state, now)


def test_noise_on_prefix_sums_cancels_although_clients_come_and_go(tmp_path, monkeypatch):
    """After the fourth round one node of the tree is left. Six clients are expected at first, then twelve, then three;
    wide ones only from the second round on, so what only they hold has the noise of two nodes: the one that was taken
    back there never came in."""

    def odds(population, cohort):
        small, large = ((6.0, 0.0), (6.0, 6.0), (2.0, 1.0), (6.0, 3.0))[ROUNDS[-1] if ROUNDS else 0]
        return {"small": Odds(small, 0.5), "large": Odds(large, 0.5)}

    told = {"mechanism": "tree", "noise": 1.0, "clip": 1.0}
    one = central(told, rounds=4, tier=WIDE, model={"hidden": 64, "depth": 1}, score={"every": 99})
    method = Noted(local=one.local, label_mask=False)
    setup = assemble(one, method=method)
    ROUNDS.clear()
    monkeypatch.setattr(type(setup.population), "odds", odds)
    start = method.init(setup.context.zoo, stream(0, "init")).model.arrays["stem.linear.weight"]
    saved = kept(run(one, tmp_path / "run", method=method).folder)[1]
    moved = saved["state"]["model"].arrays["stem.linear.weight"].double() - start.double()
    assert ROUNDS[-4:] == [0, 1, 2, 3]
    assert float((moved[:32] * 6).var()) == pytest.approx(1.0, rel=0.1)
    assert float((moved[32:] * 6).var()) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("method", ["fedrolex", "feddropout"])
def test_methods_whose_parts_move_are_refused_with_noise_on_prefix_sums(method):
    more = {"shared_per_round": True} if method == "feddropout" else {}
    told = {"name": method, "label_mask": False, **more}
    assert assemble(of_method(told))
    with pytest.raises(SettingsError, match=r'"tree": .* gives tiers other parts of the model in other rounds'):
        assemble(central({"mechanism": "tree"}, method=told, tier=WIDE))


def test_with_an_adaptive_clip_updates_get_the_noise_that_the_count_leaves_them(tmp_path):
    """Three clients are expected: the count takes a tenth, so the noise is 1 / sqrt(0.9) = 1.054."""
    drawn = noise_after(1, "gaussian", tmp_path / "run", "adaptive", hidden=64)
    assert len(drawn) > 10_000
    assert float(drawn.std()) == pytest.approx(1.054, abs=0.025)


def test_the_noise_of_an_adaptive_clip_is_the_whole_noise_split_in_two():
    """Half a step of the count and a clip of the update: squares of sensitivity over noise add up."""
    for noise, cohort in ((1.0, 10.0), (1.0, 1000.0), (5.0, 30.0)):
        updates, count = split_noise(noise, cohort)
        assert updates**-2 + (0.5 / count) ** 2 == pytest.approx(noise**-2)
        assert noise < updates <= noise / math.sqrt(0.9) + 1e-9
    assert split_noise(1.0, 1000.0)[1] == 50.0


def test_an_adaptive_clip_moves_by_the_share_of_updates_within_it():
    def step(within, replies, cohort, noise=0.0):
        return next_clip(1.0, 0.5, within, replies, cohort, noise, stream(0, "x"))

    assert step(10, 10, 10) == pytest.approx(math.exp(-0.2 * 0.5))
    assert step(0, 10, 10) == pytest.approx(math.exp(0.2 * 0.5))
    assert step(5, 10, 10) == pytest.approx(1.0)
    assert step(0, 5, 10) == pytest.approx(math.exp(0.2 * 0.25))  # half of the cohort is missing: a quarter, not a half
    assert step(5, 10, 10, noise=3.0) != step(5, 10, 10)


def test_an_adaptive_clip_finds_the_median_norm(tmp_path):
    """From far below, it grows by a tenth of its logarithm a round until half of the updates are within it."""
    wide = {"clip": "adaptive", "first_clip": 0.02, "noise": 0.01}
    found = run(central(wide, rounds=30, cohort=8, score={"every": 99}, **WHOLE), tmp_path / "run")
    clips = [line["clip"] for line in events(found.folder, "privacy")]
    assert clips[4] == pytest.approx(0.02 * math.exp(0.5), rel=0.05)
    assert 0.04 < clips[-1] < 0.3
    assert clips[-1] < clips[-5] * 1.1


def test_attempts_that_failed_count_with_the_cohort_that_they_had(tmp_path):
    (tmp_path / "moods").mkdir()
    one = central({"noise": 2.0}, rounds=2, run={"quorum": 3}, **WHOLE)
    found = run(one, tmp_path / "run", method=Moody(local=one.local, folder=str(tmp_path / "moods")))
    assert found.privacy["releases"] == 4
    assert found.privacy["epsilon"] == epsilon_of_sums("uniform", 2.0, 1e-5, (((3 / 8, 2), 2),))


def test_another_attempt_at_a_round_has_other_noise(tmp_path):
    """Equal noise on two sums of unequal cohorts would show what the difference is."""
    found = []
    for name, quorum in (("moody", 3), ("steady", 0)):
        (tmp_path / name).mkdir()
        one = central({"noise": 2.0}, rounds=1, run={"quorum": quorum}, **WHOLE)
        method = Moody(local=one.local, folder=str(tmp_path / name)) if quorum else None
        found.append(run(one, tmp_path / f"{name} run", method=method).weights_sha256)
    assert found[0] != found[1]


def test_a_run_that_never_gets_its_quorum_has_spent_what_it_tried(tmp_path):
    (tmp_path / "moods").mkdir()
    (tmp_path / "moods" / "forever").touch()
    one = central({"noise": 2.0}, rounds=1, run={"quorum": 3, "retries": 1}, **WHOLE)
    with pytest.raises(QuorumError):
        run(one, tmp_path / "run", method=Moody(local=one.local, folder=str(tmp_path / "moods")))
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["privacy"]["releases"] == 2


@pytest.mark.parametrize("more", [{}, {"mechanism": "tree"}], ids=["gaussian", "tree"])
def test_a_kill_lowers_no_epsilon_and_changes_no_weight(more, tmp_path):
    """Killed after round 3, with a checkpoint of round 2: round 3 is done again, with the same noise, and counts."""
    one = central({"noise": 2.0, **more}, rounds=4, run={"checkpoint_every": 2}, score={"every": 9}, **WHOLE)
    whole = run(one, tmp_path / "whole")
    killed_after(3, one, tmp_path / "run")
    again = resume(tmp_path / "run")
    assert again.weights_sha256 == whole.weights_sha256
    assert (again.privacy["releases"], whole.privacy["releases"]) == (5, 4)
    assert again.privacy["epsilon"] > whole.privacy["epsilon"]
    if more:
        took = kept(tmp_path / "run")[1]["progress"]["central"]["took"]
        far = max(tree_sensitivity(rounds, 4, {3: 1}) for rounds in took.values())
        assert again.privacy["epsilon"] == epsilon_of_tree(2.0, 1e-5, far)
    else:
        rounds = (((3 / 8, 1), 3), ((3 / 8, 2), 1))
        assert again.privacy["epsilon"] == epsilon_of_sums("uniform", 2.0, 1e-5, rounds)


def test_a_round_in_which_nobody_takes_part_gets_noise_all_the_same(tmp_path):
    one = central(cohort=1, rounds=8, fleet={"draw": "poisson"}, **WHOLE)
    setup = assemble(one)
    empty = [index for index in range(8) if not setup.cohort(index)]
    assert empty
    found = run(one, tmp_path / "run")
    assert found.privacy["releases"] == 8
    said = [line["text"] for line in events(found.folder, "warning")]
    assert f"round {empty[0] + 1}: nobody could take part; the model gets noise alone" in said


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ({"name": "feddf"}, "FedDF's server needs each client's update by itself"),
        ({"name": "fedavg", "mean": {"name": "median"}}, "FedAvg's server needs each client's update by itself"),
        ({"name": "fednova"}, r"FedNova weighs clients by more than their samples \(method.weighting\)"),
        (
            {"name": "heterofl", "label_mask": False, "weighting": "width"},
            "HeteroFL weighs clients by more than their samples",
        ),
        ({"name": "heterofl"}, "method.label_mask: it shows the server a client's labels"),
        ({"name": "feddropout", "label_mask": False}, r"draws another part for each client .*method.shared_per_round"),
        ({"name": "scaffold"}, "SCAFFOLD's clients also upload"),
        ({"name": "fedmask", "label_mask": False}, "by itself|also upload"),
        ({"name": "hermes", "label_mask": False}, "by itself|also upload"),
        ({"name": "exclusivefl", "sampling": "eligible"}, "chooses its own clients"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_methods_that_need_more_than_one_sum_are_refused_by_name(method, why):
    if method["name"] == "hermes":
        method = {"name": "hermes"}
    tiers = WIDE if method["name"] in (*CUT, "fedmask") else [{"name": "all"}]
    with pytest.raises(SettingsError, match=why):
        assemble(central(method=method, data={"clients": 8, "public": 20}, tier=tiers))


def test_a_method_that_counts_replies_is_refused_where_their_number_is_secret():
    assert assemble(of_method({"name": "inclusivefl"}))
    with pytest.raises(SettingsError, match=r'"poisson": InclusiveFL counts the clients .* fleet.draw = "by_tier"'):
        assemble(of_method({"name": "inclusivefl"}, fleet={"draw": "poisson"}))
    assert assemble(of_method({"name": "fedavg"}, fleet={"draw": "poisson"}))


def test_what_makes_clients_depend_on_each_other_is_refused():
    with pytest.raises(SettingsError, match=r'gate.bound = "auto": its limit follows from the updates of all clients'):
        assemble(central(gate={"bound": "auto"}, **WHOLE))
    with pytest.raises(SettingsError, match=r'fleet.availability = 0.5: .* Set fleet.draw = "poisson"'):
        assemble(central(fleet={"availability": 0.5}, **WHOLE))
    assert assemble(central(fleet={"availability": 0.5, "draw": "poisson"}, **WHOLE))
    with pytest.raises(SettingsError, match=r"fleet.file: with few clients there"):
        refuse_cohorts(central(fleet={"file": "phones.json"}, **WHOLE))
    assert assemble(central({"mechanism": "tree"}, fleet={"availability": 0.5}, **WHOLE))
    with pytest.raises(SettingsError, match="batch norm gathers statistics"):
        assemble(central(model={"norm": "running"}, **WHOLE))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip": "adaptive"}, 'clip = "adaptive" needs privacy.where = "server"'),
        ({"mechanism": "tree"}, 'mechanism = "tree" needs privacy.where = "server"'),
        ({"where": "server", "per": "upload"}, 'per = "upload" needs privacy.where = "device"'),
        ({"where": "server", "mechanism": "tree", "clip": "adaptive"}, "exclude each other: give a clip"),
        ({"where": "server", "quantile": 1.0}, "privacy.quantile = 1.0 must be above 0 and below 1"),
        ({"where": "server", "first_clip": 0.0}, "privacy.first_clip = 0.0 must be from 1e-6"),
        ({"where": "cloud"}, "where"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, said):
    with pytest.raises(SettingsError, match=said):
        experiment({"privacy": {"noise": 1.0, **given}})


@dataclass(frozen=True)
class Asks(FedAvg):
    """FedAvg that asks its clients for their models by themselves from its second round on."""

    def round(self, state, now):
        if now.index:
            spec, expects = state.model.spec, self.expected_reply(state.model, {}, now)
            list(now.send(Task("train", c.id, models={"model": state.model}, expects=expects) for c in now.cohort))
            assert spec
        return super().round(state, now)


def test_a_method_that_asks_for_more_in_a_later_round_is_stopped_before_a_client_is_asked(tmp_path):
    one = central(**WHOLE)
    with pytest.raises(PermissionError, match="'train' asks clients for more than a sum"):
        run(one, tmp_path / "run", method=Asks(local=one.local))
    assert not any(line["round"] == 2 for line in events(tmp_path / "run", "task"))


def test_off_is_the_default_and_a_cohort_is_drawn_as_ever(tmp_path):
    plain = run(tiny(), tmp_path / "plain")
    off = run(tiny(privacy={"where": "server", "clip": 0.1}, fleet={"draw": "uniform"}), tmp_path / "off")
    assert off.weights_sha256 == plain.weights_sha256
    assert off.privacy is None
    assert Path(off.folder / "settings.toml").read_text().count("where")


def test_a_tier_that_drowns_in_noise_is_warned_of_before_round_0():
    tiers = [{"name": "many", "share": 7.0}, {"name": "few", "share": 1.0}]
    (said,) = advice(assemble(central({"noise": 2.0}, tier=tiers, method={"name": "fedavg"}, cohort=8)))
    assert said.startswith("of tier 'few' 1 clients are expected in a round, and the noise is 2 clips: it drowns")
    assert advice(assemble(central({"noise": 0.5}, tier=tiers, method={"name": "fedavg"}, cohort=8))) == []
