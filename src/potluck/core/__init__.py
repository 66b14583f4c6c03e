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
    client_fault,
    describe,
    gpu_advice,
    shown_lines,
    text_of,
    user_interrupt,
)
from potluck.core.examples import NOTHING, Augmentation, Batch, Column, Examples, Prepare
from potluck.core.facts import ContractSettings, Facts, facts_of
from potluck.core.local import Local
from potluck.core.message import (
    MESSAGE,
    STORED,
    Bytes,
    Limits,
    MessageError,
    count_nodes,
    detach_all,
    is_shape,
    join_tensors,
    pack,
    pack_array,
    split_tensors,
    unpack,
    unpack_array,
)
from potluck.core.method import Method, answer, display_name, on_client, settings, trains
from potluck.core.model import Arrays, BufferLayout, Depth, FlatArrays, Model, Newborn, Spec, digest, shapes_of, size
from potluck.core.noise import NoiseSource, SecretNoise, normal
from potluck.core.optional import require_library
from potluck.core.own_code import import_own
from potluck.core.pass_count import PassCount, count_pass
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
from potluck.core.text import nearest_name, one_line, suggestion

__all__ = [
    "EMPTY", "MESSAGE", "NOTHING", "SERVER", "STORED", "Arrays", "Augmentation", "Axis", "Batch", "BufferLayout",
    "Bytes", "Client", "ClientWork", "Column", "ContractSettings", "Cost", "Depth", "Device", "Dimension", "Dimensions",
    "DivergedError", "Edit", "Examples", "Expected", "Facts", "Fit", "FitRequest", "FlatArrays", "Fold", "FrozenDict",
    "Grads", "InputError", "Key", "Limits", "Local", "Loss", "Mean", "Memory", "MessageError", "Method", "Model",
    "Newborn", "NoiseSource", "PassCount", "Plain", "Prepare", "Problem", "QuorumError", "Reply", "ResourceError",
    "Round", "SecretNoise", "Selection", "Send", "SettingsError", "Shapes", "Skip", "Spec", "Task", "Tier",
    "UserError", "Weight", "Work", "Zoo", "answer",
    "client_fault", "count_nodes", "count_pass", "describe", "detach_all", "digest", "display_name", "entropy",
    "facts_of", "freeze", "gpu_advice",
    "import_own", "is_shape", "join_tensors", "nearest_name", "normal", "numpy_stream", "on_client", "one_line", "pack",
    "pack_array", "payload", "require_library", "settings", "shapes_of", "shown_lines", "size", "split_tensors",
    "stream", "suggestion", "text_of", "to_plain", "trains", "unpack", "unpack_array", "user_interrupt",
]  # fmt: skip
