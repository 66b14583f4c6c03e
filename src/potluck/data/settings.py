"""The settings under [data]: which data set, and how it is divided among clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Scaling = Literal["auto", "standard"]

OWN = "own"
"""The name of data that is handed over in Python and not read from a file."""

MOST_TOKENS = 99_000
"""The largest vocabulary; a higher setting is a mistake."""

MOST_ROWS = 10**9
"""The most rows of a client; a higher setting is a mistake, and would fill the memory."""

LONGEST = 1024
"""The largest side of an image; a higher setting is a mistake, and would fill the memory."""


def _check_shapes(settings: Data | PublicData, where: str) -> None:
    """Turns lists into tuples and raises an error for an impossible shape, size or window."""
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
class PublicData:
    """Another data set, for public rows that are unrelated to the clients' data; each setting as in `Data`."""

    name: str = ""
    """What to read; empty: public rows are rows of the clients' own data set."""
    path: str = ""
    shape: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    window: int = 0
    scale: Scaling = "auto"

    def __post_init__(self) -> None:
        _check_shapes(self, "data.public_from")


@dataclass(frozen=True)
class Data:
    """Which data set, and who holds which rows of it."""

    name: str = "digits"
    """What to read: `potluck list data` shows all names. "own": data that was handed over in Python (`source=`)."""
    path: str = ""
    """The folder or file to read; digits needs none."""
    test_path: str = ""
    """A file with test rows, for sentences and tags; without one, data.test says how many rows are held out."""
    shape: tuple[int, ...] = ()
    """Reshape each npz or npy sample to this, such as [1, 98, 40]; empty: as stored."""
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
    """The most frequent tokens of a text, at most this many; padding, unknown and end of line are extra."""
    length: int = 20
    """Tokens in each row of a text."""
    tokenizer: str = ""
    """For sentences and tags: a pre-trained encoder's folder, with vocab.txt (or vocab.json and merges.txt). Without
    one, tokens are the most frequent words of the training rows."""
    metric: Literal["auto", "accuracy", "f1", "matthews"] = "auto"
    """The score of a run. auto: accuracy; F1 of entities for tags, Pearson's correlation for numbers. f1: of
    class 1 if there are two classes, else the mean over classes."""
    augment: Literal["none", "crop_flip", "crop_flip_cutout"] = "none"
    """crop_flip: at every training step, images are shifted by up to four pixels and half of them mirrored.
    crop_flip_cutout: then a square of 16x16 pixels, clipped at the border, is zero after scaling (Cutout)."""
    clients: int = 50
    """The number of clients; for the partition "user" the largest number."""
    partition: Literal["iid", "labels", "dirichlet", "user", "groups"] = "iid"
    """Which rows a client holds. iid: random rows; labels: rows of a few labels; dirichlet: a skewed label mix; user:
    the rows of one user; groups: the rows of several users, which no other group has (see groups)."""
    groups: int = 0
    """For the partition "groups": the number of groups of users, of nearly equal rows. Clients share groups in order:
    with as many groups as tiers of equal share, each tier has its own users. 0: one group per client."""
    labels: int = 2
    """Labels per client, for the partition "labels"."""
    alpha: float = 0.5
    """Concentration, where a partition is "dirichlet": small values give skewed mixes, large values even ones."""
    balance: bool = False
    """For the partition "dirichlet" without data.samples: a client that has its equal share of all rows gets none of
    the classes still to be divided, and everyone has at least 10 rows. Shards still differ in size."""
    samples: int | None = None
    """Training rows per client. None: the training data is divided among the clients, or 20 each if there are more
    clients than rows. If clients * samples exceeds the data, each client draws its rows with replacement."""
    test: float = 0.2
    """Share of the rows held out for testing if the source has no test set of its own; with the partitions "user" and
    "groups" also the share of each user's rows that are its own test rows."""
    validation: float = 0.1
    """Share of the training rows held out for validation."""
    held_out: Literal["rows", "users"] = "rows"
    """What testing and validation hold out: rows of every user, or whole users, to test on unseen users."""
    public: int = 0
    """Rows that the server holds and no client does."""
    public_partition: Literal["stratified", "iid", "dirichlet"] = "stratified"
    """Which rows are public. stratified: nearly the label mix of the whole data set; iid: random rows; dirichlet: a
    skewed label mix, drawn with data.alpha like that of one client."""
    public_from: PublicData = PublicData()
    """Take the public rows from another data set, without their labels, because its classes differ. As many rows of the
    clients' data set are left out, so that clients hold the same rows either way."""
    client_test: int = 100
    """At most this many rows in each client's own test split; they follow the client's label mix."""
    client_validation: int = 50
    """At most this many rows in each client's own validation split; they follow the client's label mix."""

    def __post_init__(self) -> None:
        _check_shapes(self, "data")
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
        if self.samples is not None and self.samples > MOST_ROWS:
            raise ValueError(f"data.samples = {self.samples} is above {MOST_ROWS}")
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
