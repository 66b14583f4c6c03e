"""The charter: one hash everywhere, what differs is told by name, and code is never sent."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from small_nodes import make_nodes, settings

from potluck.core import SettingsError
from potluck.federation.charter import Charter, CharterError, read_charter, tier_names
from potluck.federation.checking import _difference
from potluck.federation.server import prepare
from potluck.methods import FedAvg

METHOD = '''"""A method of one's own."""

from dataclasses import dataclass

from potluck.methods import HeteroFL


@dataclass(frozen=True)
class Own(HeteroFL):
    """HeteroFL under another name."""

    extra: float = 0.5
'''


def charter_of(method="heterofl", **changes):
    return prepare(settings(method, **changes), "test").charter


def shuffled(value):
    """The same value with its keys in another order."""
    if isinstance(value, dict):
        names = list(value)
        random.Random(3).shuffle(names)
        return {name: shuffled(value[name]) for name in names}
    return [shuffled(item) for item in value] if isinstance(value, list | tuple) else value


def test_the_hash_does_not_depend_on_the_order_of_keys_and_survives_json():
    charter = charter_of()
    assert Charter(shuffled(charter.plain)).hash == charter.hash
    assert Charter(json.loads(json.dumps(charter.plain))).hash == charter.hash


def test_the_hash_is_the_same_in_every_process(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_charter import charter_of\n"
        "print(charter_of('fedrolex').hash)\n"
    )
    folder = __file__.rpartition("/")[0]
    found = {
        subprocess.run(
            [sys.executable, "-c", program, folder], env={**_environment(), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {charter_of("fedrolex").hash + "\n"}


def _environment():
    import os

    return os.environ


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"local": {"lr": 0.2}}, "experiment.local.lr is 0.1 here and 0.2 at the server"),
        ({"seed": 1}, "experiment.seed is 0 here and 1 at the server"),
        ({"nodes": {"floor": 9}}, "experiment.nodes.floor is 5 here and 9 at the server"),
        ({"model": {"hidden": 32}}, "experiment.model.hidden is 16 here and 32 at the server"),
        ({"rounds": 9}, "experiment.rounds is 2 here and 9 at the server"),
    ],
)
def test_another_setting_gives_another_hash_and_is_told_by_name(changes, told):
    ours, theirs = charter_of(), charter_of(**changes)
    assert ours.hash != theirs.hash
    assert told in _difference(ours, theirs)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"run": {"workers": 3, "checkpoint_every": 5}},
        {"nodes": {"patience": 99, "misses": 7, "deadlines": {"small": 3.0}}},
        {"data": {"path": "/srv/server/only.npz"}},
        {"track": {"mlflow": "http://server.only:5000"}},
    ],
)
def test_what_is_no_concern_of_nodes_is_not_in_the_charter(changes):
    assert charter_of(**changes).hash == charter_of().hash


def test_a_run_that_goes_on_longer_has_another_charter_and_the_same_memory():
    longer, other = charter_of(rounds=9, nodes={"floor": 9}), charter_of(local={"lr": 0.2})
    assert charter_of().hash != longer.hash
    assert charter_of().plain["run"] == longer.plain["run"] != other.plain["run"]


def test_the_charter_names_no_place_of_the_server(tmp_path):
    make_nodes(tmp_path)
    where = {"test": str(tmp_path / "test.npz"), "public": str(tmp_path / "public.npz")}
    charter = charter_of(
        nodes=where, data={"path": str(tmp_path), "public": 5, "public_from": {"name": "npz", "path": str(tmp_path)}}
    )
    assert str(tmp_path) not in json.dumps(charter.plain)


def test_shape_and_classes_follow_from_the_servers_test_rows(tmp_path):
    make_nodes(tmp_path)
    told = {"shape": [], "classes": None, "test": str(tmp_path / "test.npz")}
    plain = settings().plain()
    plain["nodes"] |= {name: value for name, value in told.items() if value is not None}
    plain["nodes"].pop("classes")
    from potluck.federation.charter import without_none
    from potluck.run import config

    federation = prepare(config.experiment(without_none(plain)), "test")
    assert federation.charter.plain["experiment"]["nodes"]["shape"] == [1, 8, 8]
    assert federation.charter.plain["experiment"]["nodes"]["classes"] == 10


def test_tiers_come_smallest_first():
    widths = [{"name": name, "width": width} for name, width in (("big", 1.0), ("tiny", 0.25), ("mid", 0.5))]
    assert tier_names(charter_of(tier=widths)) == ["tiny", "mid", "big"]


@pytest.mark.parametrize(
    ("odd", "fault"),
    [
        (3, "what the server calls a charter is none"),
        ({}, "the server speaks version None of the protocol"),
        ({"protocol": 2, "potluck": "9.9"}, "it has potluck 9.9, here is"),
        ({"code": "000000000000"}, "code 000000000000.*Install the same version on both sides"),
        ({"experiment": {"rounds": "many"}}, "rounds"),
        ({"experiment": None}, "what the server calls a charter is none|the charter"),
        ({"method": {"class": "os:system", "settings": {}}}, "the server names the module 'os', which is not"),
        ({"experiment": {"tier": [{"model": {"name": "spy:Net"}}]}}, "names the module 'spy'.*join with --trust spy"),
        ({"method": 5}, "what the server calls a charter is none"),
        ({"most_bytes": "x"}, "what the server calls a charter is none"),
    ],
)
def test_a_charter_that_makes_no_sense_or_is_of_another_version_is_refused_in_one_line(odd, fault):
    plain = odd if odd in (3, {}) else {**charter_of().plain, **odd}
    with pytest.raises(CharterError, match=fault) as found:
        read_charter(plain)
    assert "\n" not in str(found.value)


def test_a_network_that_is_another_at_the_server_is_named(tmp_path):
    node = make_nodes(tmp_path)["clinic-a"]
    charter = charter_of()
    odd = {**charter.plain, "networks": {**charter.plain["networks"], "medium": "0" * 16}}
    with pytest.raises(CharterError, match="the network of tier 'medium' is another here"):
        node.agree(Charter(odd))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module with a method of one's own."""
    (tmp_path / "own_method.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "own_method.py"
    sys.modules.pop("own_method", None)


def test_a_method_of_ones_own_is_named_and_checked_and_its_code_is_not_sent(tmp_path, own):
    charter = charter_of({"name": "own_method:Own", "extra": 0.25})
    assert charter.plain["method"]["class"] == "own_method:Own"
    assert charter.plain["method"]["settings"]["extra"] == 0.25
    assert "class Own" not in json.dumps(charter.plain)
    node = make_nodes(tmp_path)["clinic-a"]
    found = node.agree(read_charter(charter.plain, ["own_method"]))
    assert found.setup.context.method.extra == 0.25


def test_a_node_whose_copy_of_the_method_differs_refuses(tmp_path, own):
    charter = charter_of({"name": "own_method:Own"})
    own.write_text(METHOD.replace("0.5", "0.75"))
    node = make_nodes(tmp_path)["clinic-a"]
    with pytest.raises(CharterError, match="your own code differs: the module of Own has the checksum"):
        node.agree(charter)


def test_a_node_without_the_method_says_which_module_it_lacks(tmp_path, own):
    charter = charter_of({"name": "own_method:Own"})
    own.unlink()
    del sys.modules["own_method"]
    with pytest.raises(CharterError, match="method 'own_method:Own' cannot be imported"):
        read_charter(charter.plain, ["own_method"])


def test_a_module_that_is_not_trusted_is_not_imported(own):
    charter = charter_of({"name": "own_method:Own"})
    del sys.modules["own_method"]
    with pytest.raises(CharterError, match="the server names the module 'own_method'"):
        read_charter(charter.plain)
    assert "own_method" not in sys.modules


def test_a_method_that_nodes_cannot_import_is_refused_on_the_server():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Hidden(FedAvg):
        """Defined in a function."""

    with pytest.raises(SettingsError, match="put it into a module of its own"):
        prepare(settings(tier=[{"name": "small"}]), "test", Hidden())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"nodes": {"shape": []}}, r"\[nodes\] needs shape: .*such as shape = \[1, 28, 28\]"),
        ({"tier": [{"name": "a", "width": "fit"}]}, "tier 'a' has width = \"fit\""),
        ({"tier": [{"name": "a"}, {"name": "b", "absent": True}]}, "tier 'b' is absent"),
        ({"score": {"common": True}}, r"score\.common = true needs test rows"),
        ({"score": {"features": True, "compare_clients": 4}}, r"score\.compare_clients = 4 needs test rows"),
        ({"fleet": {"dropout": 0.1}}, r"\[fleet\] simulates who is there"),
        ({"nodes": {"deadlines": {"smal": 3.0}}}, "nodes.deadlines names 'smal'; the tiers are large, medium, small"),
        ({"nodes": {"updates": "8-bit"}, "privacy": {"epsilon": 1.0, "clip": 1.0}}, "rounded noise is not the noise"),
        ({"nodes": {"test": "/gone.npz"}}, "nodes.test = '/gone.npz': no such file on the server"),
        ({"nodes": {"public": "/gone.npz"}}, "nodes.public = '/gone.npz': no such file on the server"),
    ],
)
def test_settings_that_make_no_sense_with_real_nodes_are_refused(changes, fault):
    with pytest.raises(Exception, match=fault) as found:
        prepare(settings(**changes), "test")
    assert found.value.exit_code in (2, 3)


def test_a_method_that_needs_public_rows_asks_for_them():
    experiment = replace(settings("moss", tier=[{"name": "a", "model": {"name": "mlp", "hidden": 8, "depth": 2}}]))
    with pytest.raises(SettingsError, match=r"needs public rows: set nodes\.public"):
        prepare(experiment, "test")
