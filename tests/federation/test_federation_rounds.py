"""Whole federations of nodes in this process."""

import dataclasses
from types import SimpleNamespace

import pytest
from small_nodes import NAMES, TIERS, Heard, identity, make_nodes, run_in_process, settings

from potluck.core import SERVER
from potluck.engines import Serial
from potluck.federation.node_data import read_source, split
from potluck.federation.roster import Member
from potluck.federation.server import default_folder, prepare
from potluck.ledger import RunFolder, read_run
from potluck.run import toml
from potluck.run.restoring import read_checkpoint
from potluck.run.session import manifest, mark, run_in_folder

DEPTHS = [{"name": name, "depth": depth} for name, depth in zip(TIERS, (1, 2, 3), strict=True)]
SAME = [{"name": name} for name in TIERS]
OWN = [
    {"name": name, "model": {"name": "mlp", "hidden": hidden, "depth": 2}}
    for name, hidden in zip(TIERS, (8, 12, 16), strict=True)
]
CASES = {
    "heterofl": {},
    "fedrolex": {},
    "inclusivefl": {"tier": DEPTHS},
    "scaffold": {"tier": SAME},
    "fedin": {"tier": DEPTHS},
    "moss": {"tier": OWN, "public": True},
    "lotteryfl": {"tier": SAME},
    "local": {},
}


def case(method, folder, **changes):
    """The settings and the nodes of a case."""
    told = dict(CASES[method])
    public = told.pop("public", False)
    nodes = make_nodes(folder, public=public)
    where = {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 5}
    where |= {"public": str(folder / "public.npz")} if public else {}
    return settings(method, **told, nodes=where | changes.pop("nodes", {}), **changes), nodes


class AllData:
    """The data of the server and of all nodes in one place, as a simulation has it."""

    def __init__(self, own, nodes, experiment):
        self.public, self.own = own.public, own
        read = {name: read_source(node.options.data, experiment.data) for name, node in nodes.items()}
        self.shards = {identity(name): split(source, experiment) for name, source in read.items()}

    def shard(self, client):
        return self.own.shard(SERVER) if client == SERVER else self.shards[client]


def simulate(experiment, nodes, out):
    """The same clients in one process, without nodes, messages and receipts."""
    made = prepare(experiment, "test")
    data = AllData(made.setup.context.datasets, nodes, experiment)
    for name, tier in zip(NAMES, TIERS, strict=True):
        made.roster.add(Member(identity(name), name, tier, len(data.shards[identity(name)].train)))
    made.roster.there = lambda: frozenset(made.roster.members)
    setup = dataclasses.replace(made.setup, context=dataclasses.replace(made.setup.context, datasets=data))

    def folder():
        return RunFolder.create(out, toml.write(experiment.plain()), manifest(setup), mark(setup))

    return run_in_folder(setup, folder, None, start=lambda setup: Serial(setup.context))


def server_state(folder):
    """The bytes of the state in the newest checkpoint."""
    with RunFolder.open(folder) as opened:
        found = opened.latest(lambda text: None)
        from potluck.core import digest
        from potluck.run.loop import _tensors

        return digest(_tensors(read_checkpoint(folder, *found).state, ""))


@pytest.mark.parametrize("method", CASES)
def test_nodes_give_the_very_weights_of_the_same_clients_in_one_process(tmp_path, method):
    experiment, nodes = case(method, tmp_path)
    alone = simulate(experiment, nodes, tmp_path / "alone")
    found = run_in_process(experiment, nodes, tmp_path / "run")
    assert found.scores == alone.scores
    assert server_state(tmp_path / "run") == server_state(tmp_path / "alone")


def test_a_federation_learns(tmp_path):
    experiment, nodes = case("heterofl", tmp_path, rounds=12, local={"epochs": 3, "lr": 0.1}, score={"every": 12})
    watch = Heard()
    result = run_in_process(experiment, nodes, tmp_path / "run", watch=watch)
    assert result.scores["tiers"]["large"]["clients"]["mean"] > 0.6
    assert read_run(tmp_path / "run").manifest["clients"] == 3
    assert watch.warnings == []
    assert [node.state for node in watch.seen[-1][0]] == ["here"] * 3


def test_a_method_sees_how_many_nodes_each_tier_has_now():
    made = prepare(settings("scaffold", tier=SAME), "test")
    for number, tier in enumerate(("small", "small", "large")):
        made.roster.add(Member(f"{number}", f"site-{number}", tier, 10, active=number < 2))
    seen = made.setup.view(0, SimpleNamespace(send=None, fold=None))
    assert {tier.name: tier.share for tier in seen.zoo.tiers} == {"small": 2.0, "medium": 0.0, "large": 0.0}
    assert seen.population == 2


def test_a_federation_has_one_folder_by_its_name_method_and_seed():
    for name in ("three-sites", "three-schools"):
        assert str(default_folder(settings("heterofl", name=name, seed=4))) == f"runs/{name}-heterofl-s4-federation"
