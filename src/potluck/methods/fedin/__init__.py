"""FedIN: the method (`method.py`), lent features (`features.py`), combining gradients (`gradients.py`)."""

from potluck.methods.fedin.method import FedIN, FedINState

__all__ = ["FedIN", "FedINState"]
