"""Rehearsals by the real command, and the same federations in one process to compare them with."""

import subprocess
import sys
from pathlib import Path

from small_nodes import Quiet

from potluck.engines.remote import InProcess
from potluck.federation.kits import read_kit
from potluck.federation.node import Node, NodeOptions
from potluck.federation.server import prepare, serve
from potluck.ledger import read_run
from potluck.run import read_experiment

HEAD = """\
name = "{method}"
rounds = 2
cohort = 3
[data]
name = "digits"
samples = 60
public = {public}
[model]
name = "mlp"
hidden = 16
depth = 3
[method]
name = "{method}"
[local]
epochs = 1
batch = 16
"""
TIERS = ("weak", "middle", "strong")
WIDTHS = [f"width = {width}" for width in (0.25, 0.5, 1.0)]
DEPTHS = [f"depth = {depth}" for depth in (1, 2, 3)]
OWN = [f'model = {{name = "mlp", hidden = {hidden}, depth = 2}}' for hidden in (8, 12, 16)]
CASES = {
    "heterofl": (WIDTHS, 0),
    "inclusivefl": (DEPTHS, 0),
    "fedrolex": (WIDTHS, 0),
    "scaffold": (["", "", ""], 0),
    "fedin": (DEPTHS, 0),
    "moss": (OWN, 40),
}


def rehearse(method, folder, *options):
    """Runs `potluck rehearse` for a method with three nodes of three tiers; returns the folder."""
    how, public = CASES[method]
    tiers = "".join(f'[[tier]]\nname = "{name}"\n{line}\n' for name, line in zip(TIERS, how, strict=True))
    file, out = folder / f"{method}.toml", folder / "rehearsal"
    file.write_text(HEAD.format(method=method, public=public) + tiers)
    command = [sys.executable, "-m", "potluck", "rehearse", str(file), "--nodes", "3", "--out", str(out), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    logs = "\n".join(f"{path.parent.name}: {path.read_text()}" for path in sorted(out.glob("kits/*/log.txt")))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    return out


def in_one_process(rehearsal, out):
    """The same federation, with the same keys and files, whose nodes are all in this process."""
    experiment = read_experiment(rehearsal / "run" / "settings.toml")
    kits = {path.parent.name: read_kit(path.parent) for path in sorted(rehearsal.glob("kits/node-*/kit.toml"))}
    public = Path(experiment.nodes.public) if experiment.nodes.public else None
    nodes = {}
    for (name, kit), tier in zip(kits.items(), TIERS, strict=True):
        options = NodeOptions(rehearsal / "data" / f"{name}.npz", public, tier)
        nodes[kit.node_id] = Node(kit.node_id, out / name, options, Quiet())
    transport = InProcess({id: node.respond for id, node in nodes.items()})
    names = {kit.node_id: name for name, kit in kits.items()}
    return serve(prepare(experiment, "test"), lambda spool: transport, lambda: names, out / "run")


def check_equal(rehearsal, out):
    """A rehearsal has the very weights, scores and modelled costs of the same federation in one process."""
    found, alone = read_run(rehearsal / "run").manifest["result"], in_one_process(rehearsal, out)
    assert found["weights_sha256"] == alone.weights_sha256
    for fact in ("scores", "bytes_down", "bytes_up", "joules"):
        assert found[fact] == alone.plain()[fact]
