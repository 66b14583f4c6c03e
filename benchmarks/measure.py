"""What a measured profile says of steps that it was not made from, beside these steps, measured in the same run.

    python benchmarks/measure.py [FILE or MODEL ...] [--widths 0.9,0.6,0.3] [--seconds 60]

As `potluck measure`, but with a few widths more, of which the profile does not know. Prints the modelled and the
measured seconds of a step at each of these, and ends with 1 if they differ by more than 20 %. The profile goes through
its file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from potluck.cli.measuring import choose_network
from potluck.run.devices import read_profile, write_profile
from potluck.run.measuring import Measurement, measure

ALLOWED = 0.20


def modelled(found: Measurement) -> list[tuple[float, float, float]]:
    """The width, the modelled and the measured seconds of each step that the profile does not know."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.toml"
        write_profile(found.profile, path)
        profile = read_profile(path)
    return [(step.width, profile.seconds(step.network, step.size)[0], step.seconds) for step in found.held]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["", "mlp", "resnet18"])
    parser.add_argument("--widths", default="0.9,0.6,0.3")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    widths = [float(width) for width in given.widths.split(",")]
    worst = 0.0
    print(f"{'network':<12}{'width':>7}{'modelled, ms':>14}{'measured, ms':>14}{'error':>8}   passes, load")
    for name in given.networks:
        experiment, source = choose_network(name)
        found = measure(experiment, source, threads=given.threads, seconds=given.seconds, held_widths=widths)
        told = f"{found.passes}{'' if found.settled else ' (not settled)'}, {os.getloadavg()[0]:.1f}"
        for width, said, seconds in sorted(modelled(found), reverse=True):
            error = said / seconds - 1
            worst = max(worst, abs(error))
            print(f"{name or 'digits':<12}{width:>7g}{said * 1e3:>14.3f}{seconds * 1e3:>14.3f}{error:>+8.1%}   {told}")
    print(f"largest error {worst:.1%}; allowed are {ALLOWED:.0%}")
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
