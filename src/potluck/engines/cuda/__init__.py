"""The engine for one GPU: local steps are captured as CUDA graphs and replayed side by side."""

from potluck.engines.cuda.engine import Graphs

__all__ = ["Graphs"]
