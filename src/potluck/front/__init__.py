"""What `import potluck as pl` offers: a thin layer over `run` and `report`, with progress and with objects of your own.

Nothing here imports torch before it is called. `running.py` trains, `reading.py` reads run folders, `compared.py` is
what a comparison returns, `given.py` turns arrays, networks and methods of your own into settings, `progress.py` shows
how far a run is.
"""

from potluck.front.compared import ComparisonResult
from potluck.front.reading import MethodList, export, frame, list_methods, load, plot, report, table, who_holds_what
from potluck.front.running import compare, resume, run

__all__ = [
    "ComparisonResult", "MethodList", "compare", "export", "frame", "list_methods", "load", "plot", "report", "resume",
    "run", "table", "who_holds_what",
]  # fmt: skip
