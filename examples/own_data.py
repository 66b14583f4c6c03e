"""Your own arrays: x, y and, if you have it, whose row each is.

python examples/own_data.py
"""

import numpy as np

import potluck as pl

# Twelve people walk, run and rest; each of them moves a little differently.
rng = np.random.default_rng(0)
person = rng.integers(0, 12, 3000)
activity = rng.integers(0, 3, 3000)
tempo, style = np.array([0.02, 0.06, 0.0])[activity], rng.normal(0, 0.3, (12, 3))[person]
time = np.arange(64)
x = np.sin(2 * np.pi * tempo[:, None, None] * time + style[:, :, None]) + rng.normal(0, 2.5, (3000, 3, 64))

data = {"x": x.astype(np.float32), "y": activity, "user": person, "names": ("walk", "run", "rest"), "name": "gait"}

result = pl.run(
    {
        "name": "gait",
        "rounds": 8,
        "cohort": 6,
        "data": {"partition": "user", "clients": 12},
        "model": {"name": "mlp", "depth": 2, "hidden": 32},
        "tier": [{"name": "watch", "depth": 1}, {"name": "phone", "depth": 2}],
        "method": {"name": "fedavg", "share": "layerwise"},
        "local": {"lr": 0.05, "epochs": 2, "batch": 16},
    },
    data=data,
)

print(f"accuracy {result.accuracy:.1%} on everyone's held-out rows")
spread = result.scores["clients"]
print(f"each on their own: {spread['mean']:.1%} on average, {spread['worst']:.1%} for the worst tenth")
