"""Fingerprints of every contract case on every CPU engine: a change that should alter no result shows them equal.

    PYTHONHASHSEED=0 python benchmarks/fingerprints.py --to before.json
    PYTHONHASHSEED=0 python benchmarks/fingerprints.py --to after.json --against before.json

Beside the weights' hash (`weights_sha256`) it takes one of the scores. It prints a table of the cases that differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_contract import CASES

from potluck.run.contract import MethodCase

ENGINES = {"serial": {"engine": "serial"}, "wire": {"engine": "wire"}, "pool": {"engine": "pool", "workers": 2}}


def fingerprint(case: MethodCase, engine: str, folder: Path) -> dict[str, str]:
    """The hashes of weights and scores after a case's four rounds."""
    result = case.run(folder, run=ENGINES[engine])
    scores = hashlib.sha256((folder / "scores.jsonl").read_bytes()).hexdigest()
    return {"weights": result.weights_sha256, "scores": scores}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--to", type=Path, required=True, help="where to write the fingerprints")
    words.add_argument("--against", type=Path, help="fingerprints to compare with")
    words.add_argument("--engines", default=",".join(ENGINES))
    words.add_argument("--only", default="", help="only cases whose name contains this")
    given = words.parse_args()
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        sys.exit("Set PYTHONHASHSEED: the order of sets reaches some hashes.")
    found: dict[str, dict[str, str]] = {}
    cases = [case for case in CASES if given.only in str(case)]
    for engine in given.engines.split(","):
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                found[f"{case} on {engine}"] = fingerprint(case, engine, Path(folder) / "run")
        print(f"{engine}: {len(cases)} cases", file=sys.stderr, flush=True)
    given.to.write_text(json.dumps(found, indent=1) + "\n")
    if given.against:
        before = json.loads(given.against.read_text())
        changed = [name for name in found if found[name] != before.get(name)]
        print(f"{len(found) - len(changed)} of {len(found)} fingerprints are equal")
        for name in changed:
            print(f"  {name}: {before.get(name)} became {found[name]}")
        sys.exit(bool(changed))


if __name__ == "__main__":
    main()
