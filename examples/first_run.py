"""A federation of unequal devices in a handful of lines: three tiers train networks of three depths, and meet.

python examples/first_run.py
"""

import potluck as pl

result = pl.run(
    {
        "name": "first-run",
        "rounds": 10,
        "data": {"name": "digits", "clients": 30},
        "model": {"name": "cnn", "depth": 3},
        "tier": [
            {"name": "tv", "share": 5, "depth": 1, "profile": "tv"},
            {"name": "phone", "share": 3, "depth": 2, "profile": "pixel5"},
            {"name": "flagship", "share": 2, "depth": 3, "profile": "mate_x3"},
        ],
        "method": {"name": "fedavg", "share": "layerwise"},
    }
)

for name, tier in result.scores["tiers"].items():
    worst = tier["clients"]["worst"]
    print(f"{name:>9}: {tier['test']['accuracy']:.1%} on the test set, {worst:.1%} on its worst clients")
print(f"{result.totals['bytes_up'] / 1e6:.1f} MB came back; everything is in {result.path}")
