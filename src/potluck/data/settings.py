"""The settings under [data]: which data set, and how it is divided among clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from potluck.core import freeze, nearest_name

Scaling = Literal["auto", "standard"]
Layout = Literal["auto", "channels_first", "channels_last"]

PARTITIONS = ("iid", "labels", "dirichlet", "user", "groups")
"""Our own partitions."""

FLOWER = "flwr:"
"""What the name of a partition of flwr-datasets begins with."""

UNDIVIDED: dict[str, Any] = {
    "partition": "iid",
    "flwr": {},
    "quantity_skew": "none",
    "samples": None,
    "groups": 0,
    "lean": 0.0,
}
"""The settings of data that is not divided any further, as a real node has it."""

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
    """The folder or file to read."""
    shape: tuple[int, ...] = ()
    """Reshape each npz or npy sample to this, as data.shape."""
    size: tuple[int, ...] = ()
    """Make each image [channels, height, width] of this size, as data.size."""
    window: int = 0
    """Cut npz recordings into windows of this length, as data.window."""
    scale: Scaling = "auto"
    """How inputs are scaled, as data.scale."""

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
    """A file with test rows, for sentences, tags and tables; without one, data.test says how many rows are held out."""
    shape: tuple[int, ...] = ()
    """Reshape each npz or npy sample to this, such as [1, 98, 40]; empty: as stored."""
    size: tuple[int, ...] = ()
    """Make each image [channels, height, width] of this size: sides resized, channels repeated (one grey channel to
    three); after data.shape; empty: as they are."""
    layout: Layout = "auto"
    """Where arrays of pictures have their channels. auto: first; arrays that look as if they had them last are refused.
    channels_last: (rows, height, width, channels), which is turned round."""
    folders: Literal["class", "user/class", "class/user"] = "class"
    """For pictures: what the folders inside `path` are. class: each holds the pictures of one class."""
    label_column: str = "label"
    """For tables and Hugging Face's data sets: the column to predict."""
    user_column: str = ""
    """For these: the column that says whose row it is; empty: "user", if there is one."""
    text_column: str = ""
    """For these: the column of texts; empty: inputs are numbers."""
    feature_columns: tuple[str, ...] = ()
    """For these: the columns of inputs; empty: all others. Of Hugging Face's, it may be one column of pictures."""
    subset: str = ""
    """For a data set on Hugging Face's hub: which of its configurations, such as "sst2" of GLUE."""
    test_split: str = ""
    """For Hugging Face's data sets: the split that holds the test rows; empty: "test", or "validation" if there is none
    or its rows have no labels."""
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
    partition: Literal["iid", "labels", "dirichlet", "user", "groups"] | str = "iid"
    """Which rows a client holds. iid: random rows; labels: rows of a few labels; dirichlet: a skewed label mix; user:
    the rows of one user; groups: the rows of several users, which no other group has (see groups). A partitioner of
    flwr-datasets: "flwr:PathologicalPartitioner" (extra `flower`; its arguments are under [data.flwr])."""
    flwr: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of a partitioner of flwr-datasets, by their names: num_classes_per_partition = 2. The number of
    partitions is data.clients, and the seed that of the run. partition_by is "label" or "user"."""
    groups: int = 0
    """For the partition "groups": the number of groups of users, of nearly equal rows. Clients share groups in order:
    with as many groups as tiers of equal share, each tier has its own users. 0: one group per client."""
    labels: int = 2
    """Labels per client, for the partition "labels"."""
    alpha: float = 0.5
    """Concentration, where a partition is "dirichlet": small values give skewed mixes, large values even ones."""
    lean: float = 0.0
    """How much labels lean by tier, from 0 (tiers have the same labels) to 1 (each tier has labels of its own), for the
    partitions "iid" and "dirichlet". Every class has a home tier, drawn by the seed: a tier is home to as many classes
    as its share of the clients says, and to one at least. This share of a class's rows is held by clients of its home
    tier; all clients divide the rest. Within a tier rows are divided as data.partition says."""
    lean_by: Literal["labels", "features"] = "labels"
    """What leans by tier. features: rows are put in order by the first principal component of their inputs, and each
    tier is home to a stretch of this order as long as its share of the clients; which stretch is drawn by the seed."""
    quantity_skew: Literal["none", "dirichlet", "power"] = "none"
    """How unequal the numbers of rows are that clients hold, for the partitions "iid", "labels" and "dirichlet".
    dirichlet: clients' shares of the rows are drawn from a symmetric Dirichlet with concentration data.beta, as in
    NIID-Bench. power: the share of the k-th largest client is in proportion to k to the power of -data.beta. Everyone
    has data.least rows first, and the rest is divided by the shares."""
    beta: float = 0.5
    """How skewed quantities are. quantity_skew = "dirichlet": small values give very unequal clients, large ones even
    ones. "power": 0 gives even ones, and the larger the value the more unequal they are."""
    least: int = 10
    """The fewest training rows of a client, with quantity_skew."""
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
    test_seed: int | None = None
    """The seed that draws the test, validation and public rows. None: the run's own seed, so that every seed has other
    test rows. `potluck compare --tune` sets it, so that no test row takes part in a choice."""
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
        object.__setattr__(self, "flwr", freeze(self.flwr))
        for name, low in (
            ("clients", 1),
            ("labels", 1),
            ("groups", 0),
            ("least", 0),
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
        self._check_partition()
        if self.test_seed is not None and self.test_seed < 0:
            raise ValueError(f"data.test_seed = {self.test_seed} is below 0")
        if not 0 <= self.lean <= 1:
            raise ValueError(f"data.lean = {self.lean} must be from 0 to 1")
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

    def _check_partition(self) -> None:
        """Refuses partitions that there are not, and settings that mean nothing with this one."""
        flower = self.partition.startswith(FLOWER)
        if not flower and self.partition not in PARTITIONS:
            close = nearest_name(self.partition, PARTITIONS)
            hint = f"did you mean '{close}'?" if close else "there is no such partition."
            raise ValueError(
                f"data.partition = '{self.partition}': {hint} There are {', '.join(PARTITIONS)}, and those of "
                f"flwr-datasets, such as '{FLOWER}PathologicalPartitioner'"
            )
        if self.flwr and not flower:
            raise ValueError(
                f"data.flwr has '{next(iter(self.flwr))}', and data.partition = '{self.partition}' is none of "
                f'flwr-datasets; set it to one, such as "{FLOWER}PathologicalPartitioner"'
            )
        if self.quantity_skew != "none" and self.partition not in ("iid", "labels", "dirichlet"):
            raise ValueError(
                f"data.quantity_skew = '{self.quantity_skew}' needs data.partition = 'iid', 'labels' or 'dirichlet'; "
                f"'{self.partition}' has sizes of its own"
            )
        if self.quantity_skew != "none" and self.balance:
            raise ValueError(f"data.quantity_skew = '{self.quantity_skew}' and data.balance exclude each other")
        low = self.beta > 0 or (self.beta == 0 and self.quantity_skew != "dirichlet")
        if not (low and math.isfinite(self.beta)):
            raise ValueError(f"data.beta = {self.beta} must be a number above 0")
