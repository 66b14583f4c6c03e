"""The run folder: what happened in a run, with its events, scores, checkpoints and client memories.

Standard library only, so that reading a run starts at once.
"""

from potluck.ledger.checkpoints import Checkpoints
from potluck.ledger.errors import (
    CheckpointError,
    DamagedRecord,
    FolderError,
    LedgerError,
    MissingRun,
    UnreadableSettings,
)
from potluck.ledger.files import read_regular, remove_partial_files, write_atomically
from potluck.ledger.folder import VOCABULARY, RunFiles, RunFolder, planned_rounds, read_run
from potluck.ledger.journal import Journal, read_journal, replace_nonfinite
from potluck.ledger.lock import Lock, owner_of, process_in
from potluck.ledger.memories import Memories

__all__ = [
    "VOCABULARY", "CheckpointError", "Checkpoints", "DamagedRecord", "FolderError", "Journal", "LedgerError", "Lock",
    "Memories", "MissingRun", "RunFiles", "RunFolder", "UnreadableSettings", "owner_of", "planned_rounds", "process_in",
    "read_journal", "read_regular", "read_run", "remove_partial_files", "replace_nonfinite", "write_atomically",
]  # fmt: skip
