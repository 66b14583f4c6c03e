"""Which data, and how it is dealt out, as settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Scaling = Literal["auto", "standard"]

MOST_TOKENS = 99_000
"""More different tokens than this are a mistake in the setting."""

LONGEST = 1024
"""A longer side than this is a mistake in the setting, and fills the memory."""


def _settle_shapes(settings: Data | Elsewhere, where: str) -> None:
    """Lists become tuples; what cannot be a shape, a size or a window is refused."""
    for name in ("shape", "size"):
        found = tuple(getattr(settings, name))
        object.__setattr__(settings, name, found)
        if any(length < 1 for length in found):
            raise ValueError(f"{where}.{name} = {list(found)} must hold whole numbers above 0")
    if max(settings.size, default=0) > LONGEST:
        raise ValueError(f"{where}.size = {list(settings.size)} must hold no number above {LONGEST}")
    if len(settings.size) not in (0, 3):
        raise ValueError(f"{where}.size = {list(settings.size)} must hold channels, height and width")
    if settings.window < 0:
        raise ValueError(f"{where}.window = {settings.window} is below 0")


@dataclass(frozen=True)
class Elsewhere:
    """Another data set, for public rows that need not be related to the clients'; each setting as in `Data`."""

    name: str = ""
    """What to read; empty: public rows are rows of the data itself."""
    path: str = ""
    shape: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    window: int = 0
    scale: Scaling = "auto"

    def __post_init__(self) -> None:
        _settle_shapes(self, "data.public_from")


@dataclass(frozen=True)
class Data:
    """Which data set, and who holds which rows of it."""

    name: str = "digits"
    """What to read: `potluck list data` names them."""
    path: str = ""
    """The folder or file to read; digits needs none."""
    test_path: str = ""
    """A file with test rows, for sentences and tags; without one, data.test says how many rows are held out."""
    shape: tuple[int, ...] = ()
    """Reshape each npz sample to this, such as [1, 98, 40]; empty: as stored."""
    size: tuple[int, ...] = ()
    """Make each image [channels, height, width] of this size: sides resized, channels repeated (one grey channel to
    three); after data.shape; empty: as they are."""
    window: int = 0
    """Cut npz recordings of different lengths (x of (samples, channels) end to end, off) into windows of this length;
    each is a row of (channels, length)."""
    scale: Scaling = "auto"
    """auto: bytes become floats in [0, 1] (CIFAR-10: its usual channel means and deviations), floats stay as they are.
    standard: each channel (first dimension of a sample) to mean 0 and deviation 1 over the source's training rows."""
    tokens: Literal["words", "characters"] = "words"
    """What a text is cut into: words in lower case and punctuation marks, or characters."""
    vocabulary: int = 10_000
    """At most so many different tokens of a text, the most frequent ones; padding, unknown and end of line come on
    top."""
    length: int = 20
    """Tokens in each row of a text."""
    tokenizer: str = ""
    """For sentences and tags: a pre-trained encoder's folder, with vocab.txt (or vocab.json and merges.txt). Without
    one, tokens are the most frequent words of the training rows."""
    metric: Literal["auto", "accuracy", "f1", "matthews"] = "auto"
    """What runs are judged by. auto: accuracy; F1 of entities for tags, Pearson's correlation for numbers. f1 is class
    1's where there are two classes, and else the mean over classes."""
    augment: Literal["none", "crop_flip"] = "none"
    """crop_flip: in training, images are moved by up to four pixels and half of them mirrored, anew at every step."""
    clients: int = 50
    """How many clients there are; for the partition "user" the most there may be."""
    partition: Literal["iid", "labels", "dirichlet", "user", "groups"] = "iid"
    """Who holds what: anything; a few labels each; a skewed label mix each; one user's rows each; rows of several users
    each, whose rows nobody else has (see groups)."""
    groups: int = 0
    """For the partition "groups": how many groups users are put in, of nearly equal rows. Clients share them in order:
    as many groups as there are tiers of equal share give each tier users of its own. 0: one for each client."""
    labels: int = 2
    """Labels per client, for the partition "labels"."""
    alpha: float = 0.5
    """Concentration, for the partition "dirichlet": small is skewed, large is even."""
    samples: int | None = None
    """Training samples per client. None: the training data divided up, or 20 each where there are more clients than
    rows. Where clients * samples exceeds the data, each client draws its own, with replacement."""
    test: float = 0.2
    """Share of the rows held out for testing, where the source has no test set of its own; with the partitions
    "user" and "groups" also each user's share of own test rows."""
    validation: float = 0.1
    """Share of the training rows held out for validation."""
    held_out: Literal["rows", "users"] = "rows"
    """What testing and validation hold out: rows of everybody, or whole users, to test models on strangers."""
    public: int = 0
    """Rows that the server holds and no client does."""
    public_from: Elsewhere = Elsewhere()
    """Take the public rows from another data set, without their labels, as these are of other classes. As many rows of
    the data itself are left aside, so that clients hold the same rows either way."""
    client_test: int = 100
    """At most this many rows in each client's own test split; they follow the client's label mix."""
    client_validation: int = 50
    """At most this many rows in each client's own validation split; they follow the client's label mix."""

    def __post_init__(self) -> None:
        _settle_shapes(self, "data")
        for name, low in (
            ("clients", 1),
            ("labels", 1),
            ("groups", 0),
            ("public", 0),
            ("client_test", 0),
            ("client_validation", 0),
            ("vocabulary", 1),
            ("length", 2),
        ):
            if getattr(self, name) < low:
                raise ValueError(f"data.{name} = {getattr(self, name)} is below {low}")
        if self.vocabulary > MOST_TOKENS:
            raise ValueError(f"data.vocabulary = {self.vocabulary} is above {MOST_TOKENS}")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"data.samples = {self.samples} is below 1; leave it out to divide the data up")
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ValueError(f"data.alpha = {self.alpha} must be a number above 0")
        if self.groups > self.clients:
            raise ValueError(f"data.groups = {self.groups} is above data.clients = {self.clients}")
        if self.public_from.name and not self.public:
            raise ValueError("data.public = 0 takes no rows from data.public_from; set it to some, such as 100")
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"data.{name} = {getattr(self, name)} must be at least 0 and below 1")
        if self.test + self.validation >= 1:
            raise ValueError(
                f"data.test = {self.test} and data.validation = {self.validation} leave nothing to train on"
            )
