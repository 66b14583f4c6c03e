"""The data types of a round (client, task, reply, model), and the message format that carries them."""

from potluck.core.axis import Axis, Dimension, Dimensions
from potluck.core.device import ClientWork, Device, Edit, Fit, FitRequest, Grads, Loss, Memory, Problem, Zoo
from potluck.core.errors import (
    DivergedError,
    InputError,
    QuorumError,
    ResourceError,
    SettingsError,
    Skip,
    UserError,
)
from potluck.core.examples import NOTHING, Augmentation, Batch, Examples, Prepare
from potluck.core.facts import ContractSettings, Facts, facts_of
from potluck.core.local import Local
from potluck.core.message import MessageError, detach_all, join_tensors, pack, split_tensors, unpack
from potluck.core.method import Method, answer, display_name, on_client, settings, trains
from potluck.core.model import Arrays, BufferLayout, Depth, FlatArrays, Model, Newborn, Spec, digest, shapes_of, size
from potluck.core.own_code import import_own
from potluck.core.plain import EMPTY, FrozenDict, Plain, freeze, to_plain
from potluck.core.round import (
    SERVER,
    Client,
    Cost,
    Expected,
    Fold,
    Mean,
    Reply,
    Round,
    Selection,
    Send,
    Shapes,
    Task,
    Tier,
    Weight,
    Work,
    payload,
)
from potluck.core.streams import Key, entropy, numpy_stream, stream
from potluck.core.text import one_line

__all__ = [
    "EMPTY", "NOTHING", "SERVER", "Arrays", "Augmentation", "Axis", "Batch", "BufferLayout", "Client", "ClientWork",
    "ContractSettings", "Cost", "Depth", "Device", "Dimension", "Dimensions", "DivergedError", "Edit", "Examples",
    "Expected", "Facts", "Fit", "FitRequest", "FlatArrays", "Fold", "FrozenDict", "Grads", "InputError", "Key", "Local",
    "Loss", "Mean", "Memory", "MessageError", "Method", "Model", "Newborn", "Plain", "Prepare", "Problem",
    "QuorumError", "Reply", "ResourceError", "Round", "Selection", "Send", "SettingsError", "Shapes", "Skip", "Spec",
    "Task", "Tier", "UserError", "Weight", "Work", "Zoo", "answer", "detach_all", "digest", "display_name", "entropy",
    "facts_of", "freeze", "import_own", "join_tensors", "numpy_stream", "on_client", "one_line", "pack", "payload",
    "settings", "shapes_of", "size", "split_tensors", "stream", "to_plain", "trains", "unpack",
]  # fmt: skip
