"""What happened: the run folder, with its events, scores, checkpoints and memories. Standard library only."""

from potluck.ledger.checkpoints import Checkpoints
from potluck.ledger.errors import CheckpointError, DamagedRecord, FolderError, LedgerError, MissingRun
from potluck.ledger.files import sweep, write_atomically
from potluck.ledger.folder import RunFolder
from potluck.ledger.journal import Journal, read
from potluck.ledger.lock import Lock
from potluck.ledger.memories import Memories
from potluck.ledger.record import Run, read_run

__all__ = [
    "CheckpointError", "Checkpoints", "DamagedRecord", "FolderError", "Journal", "LedgerError", "Lock", "Memories",
    "MissingRun", "Run", "RunFolder", "read", "read_run", "sweep", "write_atomically",
]  # fmt: skip
