"""Who may import whom, read off the source: packages form a hierarchy, and nothing is unpickled."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import potluck

SOURCE = Path(potluck.__file__).parent

ARROWS = {
    "front": {"cli"},
    "cli": {"run", "report", "federation", "reference", "board"},
    "board": {"report", "core"},
    "reference": {"run"},
    "federation": {"run"},
    "run": {"engines", "methods", "shipping", "models", "data", "fleet", "ledger", "track"},
    "shipping": {"models", "data", "learn"},
    "track": {"report", "core"},
    "report": {"ledger"},
    "engines": {"secure"},
    "methods": {"learn"},
    "learn": {"parts"},
    "models": {"parts"},
    "secure": {"learn"},
    "parts": {"core"},
    "data": {"core"},
    "fleet": {"core"},
    "ledger": set(),
    "core": set(),
}
"""Who may import whom (docs/architecture.md draws it); whatever these arrows reach may be imported too."""

FLOWER = ("app", "executor", "objects", "transport")
ONE_FILE = {
    "ray": "engines/cluster/engine.py",
    "flwr": " ".join(f"engines/remote/flower_{name}.py" for name in FLOWER),
    "flwr_datasets": "data/flower_partition.py",
    "grpc": "engines/remote/grpc_library.py",
    "tensorboard": "track/tensorboard.py",
    "mlflow": "track/mlflow.py",
    "wandb": "track/wandb.py",
    "cryptography": "federation/authority.py engines/remote/grpc_library.py secure/crypto.py",
    "pandas": "report/frames.py data/frames.py",
    "tokenizers": "data/subwords.py shipping/standalone.py",
    "matplotlib": "report/paper_plot.py",
    "executorch": "shipping/executorch.py",
    "starlette": "board/server.py",
    "uvicorn": "board/server.py engines/remote/flower_app.py",
}
"""Optional packages: each is known to these files only."""

PICKLING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__"}
LIGHT = {"report", "ledger", "board"}
"""Rooms that must start at once."""


def reach(room: str) -> set[str]:
    """Every room that the drawn arrows lead to."""
    return ARROWS[room] | {far for near in ARROWS[room] for far in reach(near)}


def sources() -> dict[str, str]:
    return {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what is imported anywhere in a file, inside functions too: module.name for ``from`` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide who imports whom"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def rooms_of(path: str, tree: ast.AST) -> set[str]:
    """The rooms other than its own that a file imports."""
    names = (name.split(".") for name in imported(tree))
    return {parts[1] for parts in names if parts[0] == "potluck" and len(parts) > 1} - {path.split("/")[0]}


def faults(files: dict[str, str]) -> list[str]:
    """Everything in these files that breaks a rule, one line each."""
    found: list[str] = []
    graph: dict[str, set[str]] = {}
    for path, text in files.items():
        tree, room = ast.parse(text), path.split("/")[0]
        seen = rooms_of(path, tree)
        graph.setdefault(room, set()).update(seen)
        if "/" in path:
            found += [f"{path}: {room} -> {other}" for other in sorted(seen - reach(room))]
        found += [f"{path}: {fault}" for fault in closed_doors(path, room, tree)]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as loop:
        found.append(f"a loop between rooms: {' -> '.join(loop.args[1])}")
    return found


def closed_doors(path: str, room: str, tree: ast.AST) -> Iterator[str]:
    for name in imported(tree):
        top = name.split(".")[0]
        if top in PICKLING or name == "torch.load":
            yield f"imports {name}"
        if top == "multiprocessing" and name != "multiprocessing.connection.wait":
            yield f"imports {name}, which pickles"
        if path not in ONE_FILE.get(top, path).split():
            yield f"imports {top}, which belongs to {ONE_FILE[top]}"
        if room in LIGHT and top in ("torch", "numpy"):
            yield f"imports {top}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from risky(node)


def risky(call: ast.Call) -> Iterator[str]:
    if isinstance(call.func, ast.Name) and call.func.id in CALLS:
        yield f"calls {call.func.id}"
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) in ("torch.load", "torch.save", "builtins.eval"):
        yield f"calls {ast.unparse(call.func)}"
    for keyword in call.keywords:
        if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False":
            yield "allows pickle"


def test_every_room_is_drawn_and_every_drawn_room_exists():
    assert {path.split("/")[0] for path in sources() if "/" in path} == set(ARROWS)


def test_imports_follow_the_arrows_and_nothing_unpickles_or_evaluates():
    assert faults(sources()) == []


def test_core_and_ledger_import_nothing_of_ours():
    for path, text in sources().items():
        if path.split("/")[0] in ("core", "ledger"):
            assert rooms_of(path, ast.parse(text)) == set(), path


@pytest.mark.parametrize(
    ("path", "line", "fault"),
    [
        ("core/axis.py", "from potluck.parts import Part", "core/axis.py: core -> parts"),
        ("core/axis.py", "import potluck.learn.fit", "core/axis.py: core -> learn"),
        ("core/axis.py", "from potluck import models", "core/axis.py: core -> models"),
        ("methods/local.py", "def f():\n    from potluck.engines import Pool", "methods/local.py: methods -> engines"),
        ("methods/local.py", "from potluck.models import make_spec", "methods/local.py: methods -> models"),
        ("report/page.py", "from potluck.run import run", "report/page.py: report -> run"),
        ("ledger/files.py", "from potluck.core import pack", "ledger/files.py: ledger -> core"),
        ("report/page.py", "import torch.nn", "report/page.py: imports torch"),
        ("ledger/files.py", "from numpy import array", "ledger/files.py: imports numpy"),
        ("data/npz.py", "import pickle", "data/npz.py: imports pickle"),
        ("data/npz.py", "from pickle import loads", "data/npz.py: imports pickle.loads"),
        ("data/npz.py", "import numpy\nnumpy.load('a', allow_pickle=True)", "data/npz.py: allows pickle"),
        ("models/folder.py", "import torch\ntorch.load('a')", "models/folder.py: calls torch.load"),
        ("models/folder.py", "from torch import load", "models/folder.py: imports torch.load"),
        ("run/config.py", "eval('1')", "run/config.py: calls eval"),
        ("run/config.py", "exec('1')", "run/config.py: calls exec"),
        ("engines/serial.py", "from multiprocessing import Pool", "engines/serial.py: imports multiprocessing.Pool"),
        ("learn/fit.py", "import ray", "learn/fit.py: imports ray, which belongs to engines/cluster/engine.py"),
        ("federation/kits.py", "import cryptography.x509", "federation/kits.py: imports cryptography, which"),
        ("methods/local.py", "import flwr.app", f"methods/local.py: imports flwr, which belongs to {ONE_FILE['flwr']}"),
    ],
)  # fmt: skip
def test_a_forbidden_line_is_found(path, line, fault):
    broken = sources()
    broken[path] += f"\n{line}\n"
    assert any(found.startswith(fault) for found in faults(broken))


def test_a_loop_between_rooms_is_found_even_along_allowed_arrows():
    assert faults({"cli/a.py": "import potluck.run", "run/b.py": "import potluck.cli"})[-1].startswith("a loop")


def test_a_live_networks_eval_and_a_file_for_ray_are_no_faults():
    fine = {
        "engines/cluster/engine.py": "import ray",
        "engines/remote/flower_app.py": "import flwr",
        "learn/fit.py": "net.eval()",
    }
    assert faults(fine) == []
