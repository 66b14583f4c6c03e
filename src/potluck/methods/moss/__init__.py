"""Moss (Cai et al., IMWUT 2025): federated learning over architectures that have nothing in common.

- `method.py`: the round, the server's state and the proxies (PROM); the paper, and what differs from it.
- `wire.py`: the transfer from a teacher to a student (WIRE): its settings, meta-networks and training loop. It uses
  `feature_matching.py` (the loss of features), `bilevel.py` and `double_backward.py` (the gradient of the
  meta-networks), and `taps.py` (the layers whose outputs are features).
- `fidelity.py`: the average of the proxies (FILE).
"""

from potluck.methods.moss.method import Moss, MossState

__all__ = ["Moss", "MossState"]
