"""Moss: the method (`method.py`), and what it is made of: proxies (PROM), transfers (WIRE) and fidelities (FILE)."""

from potluck.methods.moss.method import Moss

__all__ = ["Moss"]
