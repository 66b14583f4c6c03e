"""The nouns of a round, and the format in which they travel."""

from potluck.core.axis import Axis, Dimension, Dimensions
from potluck.core.device import Device, Edit, Fit, Grads, Loss, Memory, Problem, Zoo
from potluck.core.errors import InputError, QuorumError, ResourceError, SettingsError, Skip, Trouble
from potluck.core.examples import NOTHING, Batch, Examples, Prepare, Vary
from potluck.core.facts import Facts, facts_of
from potluck.core.local import Local
from potluck.core.message import MessageError, apart, joined, pack, settled, unpack
from potluck.core.method import Expected, Method, Shapes, answer, name_of, on_client, settings
from potluck.core.model import Arrays, Depth, Flat, Layout, Model, Spec, digest, size
from potluck.core.plain import EMPTY, Bag, Plain, frozen, thawed
from potluck.core.round import (
    SERVER,
    Client,
    Cost,
    Fold,
    Held,
    Mean,
    Reply,
    Round,
    Send,
    Task,
    Tier,
    Weight,
    Work,
    payload,
)
from potluck.core.streams import Key, dice, entropy, stream

__all__ = [
    "EMPTY", "NOTHING", "SERVER", "Arrays", "Axis", "Bag", "Batch", "Client", "Cost", "Depth", "Device", "Dimension",
    "Dimensions", "Edit", "Examples", "Expected", "Facts", "Fit", "Flat", "Fold", "Grads", "Held", "InputError", "Key",
    "Layout", "Local", "Loss", "Mean", "Memory", "MessageError", "Method", "Model", "Plain", "Prepare", "Problem",
    "QuorumError", "Reply", "ResourceError", "Round", "Send", "SettingsError", "Shapes", "Skip", "Spec", "Task", "Tier",
    "Trouble", "Vary", "Weight", "Work", "Zoo", "answer", "apart", "dice", "digest", "entropy", "facts_of", "frozen",
    "joined", "name_of", "on_client", "pack", "payload", "settings", "settled", "size", "stream", "thawed", "unpack",
]  # fmt: skip
