"""TensorBoard: one event file for each run, with one event for each round.

The file is written here, record by record, and a resumed run adds to the same one: no writer thread, no second file,
and no round twice. TensorBoard keeps scores as 32-bit numbers. It has no artefacts: the report stays in the run folder.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

from potluck.core import ResourceError
from potluck.ledger.files import NotRegular, make_folder, make_subfolder, not_regular, open_regular, write_all
from potluck.track.tracking import Line, TrackedRun, Tracking
from potluck.track.values import Setting

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "tensorboard":
        raise
    raise ResourceError("[track] tensorboard needs the package tensorboard: pip install 'potluck[track]'") from None

OWN = "tensorboard"
"""The folder in the run folder, with `tensorboard = true`."""
VERSION = "brain.Event:2"
_HEADER, _CHECKSUM = 12, 4


def check_folder(wanted: bool | str) -> None:
    """Refuses a folder that cannot be made or written to."""
    if isinstance(wanted, str):
        make_folder(Path(wanted))
        if not os.access(wanted, os.W_OK | os.X_OK):
            raise ResourceError(f"track.tensorboard = {wanted!r}: the folder cannot be written to. Choose another one.")


class TensorBoard(Tracking):
    """Writes a run's event file: scores and costs as scalars, settings and tags as a text and for the HParams page."""

    def __init__(self, run: TrackedRun, wanted: bool | str) -> None:
        super().__init__(run)
        self.wanted = wanted
        self._file = -1

    def open(self, tags: Mapping[str, str], done: int) -> int:
        path = self._folder() / f"events.out.tfevents.{self.run.id}"
        try:
            self._file = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except NotRegular as fault:
            raise not_regular(path, fault) from None
        found = _whole_events(self._file)
        if not found:
            self._write(Event(file_version=VERSION))
        told = {**self.run.settings, **{f"tag.{name}": value for name, value in tags.items()}}
        self._write(Event(summary=text_pb("settings", _table(told)), step=done))
        self._write(Event(summary=hparams_pb(_plain(told), self.run.name, start_time_secs=time.time())))
        rounds = (event.step for event in found if any(one.HasField("simple_value") for one in event.summary.value))
        return max(rounds, default=-1)

    def log(self, line: Line) -> None:
        round, values = line
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(summary=Summary(value=scalars), step=round))

    def close(self, status: str) -> None:
        pass

    def let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _folder(self) -> Path:
        """The folder of this run alone: TensorBoard shows all files of a folder as one run."""
        if not isinstance(self.wanted, str):
            make_subfolder(self.run.path / OWN)
            return self.run.path / OWN
        number = 1
        while True:
            found = Path(self.wanted) / (self.run.name if number == 1 else f"{self.run.name}-{number}")
            make_folder(found)
            if all(name.endswith(f".{self.run.id}") for name in os.listdir(found)):
                return found
            number += 1

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        record = BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        write_all(self._file, [record.getvalue()])


def _whole_events(file: int) -> list[Event]:
    """The events in a file. What a killed writer left of a last one is cut off."""
    with os.fdopen(os.dup(file), "rb") as opened:
        read = list(_events(opened.read()))
    os.ftruncate(file, read[-1][1] if read else 0)
    return [event for event, _ in read]


def _events(raw: bytes) -> Iterator[tuple[Event, int]]:
    """The events in the bytes of a file up to the first that is not whole, each with where it ends."""
    at = 0
    while at + _HEADER <= len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        data = raw[at + _HEADER : at + _HEADER + length]
        record = BytesIO()
        RecordWriter(record).write(data)
        at += _HEADER + len(data) + _CHECKSUM
        if raw[at - len(record.getvalue()) : at] != record.getvalue():
            return
        yield Event.FromString(data), at


def _table(told: Mapping[str, Setting]) -> str:
    """Settings as a table in Markdown."""
    rows = (f"| {name} | {' '.join(str(value).split()).replace('|', ' ')} |" for name, value in told.items())
    return "\n".join(["| setting | value |", "| --- | --- |", *rows])


def _plain(told: Mapping[str, Setting]) -> dict[str, str | bool | int | float]:
    return {name: "" if value is None else value for name, value in told.items()}
