"""Federations with kits and [secure], whose nodes are in this process; all messages are kept."""

from small_nodes import Quiet, settings, write_digits

from potluck.core import Limits
from potluck.engines.remote import InProcess
from potluck.engines.remote.messages import read_head
from potluck.federation import FederationSettings, provision
from potluck.federation.identities import KitIdentities
from potluck.federation.kits import read_kit
from potluck.federation.node import Node, NodeOptions
from potluck.federation.rehearsal import HOST, free_port
from potluck.federation.server import prepare, serve
from potluck.ledger import RunFolder, read_run
from potluck.run.restoring import read_checkpoint
from potluck.secure.settings import REQUEST

SITES = tuple(f"clinic-{letter}" for letter in "abcdef")
TIERS = ("small", "small", "large", "large", "large", "large")
WIDTHS = [{"name": "small", "width": 0.5}, {"name": "large", "width": 1.0}]


def told(parts):
    return read_head(parts, Limits())


def experiment_of(secure=True, min_holders=3, **changes):
    """Six nodes, of which any five are enough to open all blocks."""
    nodes = {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 5, "wait_for": 6} | changes.pop("nodes", {})
    on = {"secure": {"enabled": True, "min_holders": min_holders}} if secure else {}
    method = {"name": "heterofl", "label_mask": False}
    return settings(**{"rounds": 1, "method": method, "tier": WIDTHS, "nodes": nodes, **on, **changes})


class Kits:
    """The kits and the data of six clinics, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        provision(FederationSettings("six", f"{HOST}:{free_port()}", SITES), folder / "kits")
        self.files = dict(zip(SITES, write_digits(folder, len(SITES)), strict=True))
        self.server = read_kit(folder / "kits" / "server", "server")
        self.kits = {name: read_kit(folder / "kits" / name, "node") for name in SITES}
        self.names = {kit.node_id: name for name, kit in self.kits.items()}

    def node(self, name, state="state"):
        """A node as it is just after its start."""
        public = self.folder / "public.npz"  # only Moss asks for it
        kit, options = self.kits[name], NodeOptions(self.files[name], public, TIERS[SITES.index(name)])
        return Node(kit.node_id, self.folder / state / name, options, Quiet(), identities=KitIdentities.of(kit))

    def nodes(self, state="state"):
        return {name: self.node(name, state) for name in SITES}

    def prepare(self, experiment):
        return prepare(experiment, "six", identities=KitIdentities.of(self.server))


class Recorded:
    """Carries messages to nodes by name, and keeps what went and came: (name, task or None, message, answer).

    `dies` names nodes that end just before they would answer their n-th message of a round: no more is heard of them.
    """

    def __init__(self, kits, nodes, dies=None):
        self.kept, self.dies, self.dead = [], dies or {}, set()
        self.transport = InProcess({kits.kits[name].node_id: self._respond(name, node) for name, node in nodes.items()})

    def _respond(self, name, node):
        def respond(parts):
            head = told(parts)
            task = head.get("task")
            if task is not None and self.dies.get(name) == (task.verb, REQUEST in task.config):
                self.dead.add(name)
            if name in self.dead:
                return ()
            answer = node.respond(parts)
            self.kept.append((name, task, parts, answer))
            return answer

        return respond


def run_secure(kits, experiment, out, nodes=None, dies=None):
    """Runs a federation; what crossed the transport."""
    recorded = Recorded(kits, nodes or kits.nodes(f"state-{out}"), dies)
    serve(kits.prepare(experiment), lambda spool: recorded.transport, lambda: kits.names, kits.folder / out)
    return recorded


def state_of(folder):
    """The tensors of the server's model in the newest checkpoint."""
    with RunFolder.open(folder) as opened:
        return read_checkpoint(folder, *opened.latest(lambda text: None)).state["model"].arrays


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def events(folder, kind):
    return [event for event in read_run(folder).events() if event["event"] == kind]


def outcomes(kits, folder):
    """{(name, verb): (outcome, reason)} of all tasks."""
    found = events(folder, "task")
    return {(kits.names[each["client"]], each["verb"]): (each["outcome"], each["reason"]) for each in found}
