"""InclusiveFL: the method (`method.py`), and the tiers' networks on the server (`depth_tiers.py`)."""

from potluck.methods.inclusivefl.method import InclusiveFL, InclusiveState

__all__ = ["InclusiveFL", "InclusiveState"]
