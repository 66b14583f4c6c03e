"""Runs the model of this folder on a file: ``python predict.py FILE``. It needs what requirements.txt names.

FILE is what the model was trained on: a picture or a folder of pictures, a table (.csv, .tsv, .parquet), texts (.txt
with one on each line, .jsonl, .csv, .parquet), or rows of numbers (.npy, .npz with an array x, .csv). A line is printed
for each row: its class with the probabilities, its number, or its tags. With --json, a JSON object for each row.

The graph of the network is a program. Run it only if you trust who made this folder.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import io
import json
import logging
import os
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".tsv", ".parquet")
BATCH = 256
WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
PLAIN_ENTRY = re.compile(
    r"[^/]+/(models/[^/]+\.json|data/(weights|constants)/(weight_\d+|tensor_\d+|[^/]+_config\.json)"
    r"|archive_format|archive_version|byteorder|version|\.data/(version|serialization_id))"
)
"""What a pt2 file holds if nothing in it is a pickle."""


class ModelError(Exception):
    """A mistake in the file or the folder, told in one line."""


@dataclass(frozen=True)
class Rows:
    """The inputs of a file, as they were stored before training, and what to call each."""

    x: Array
    titles: list[str]
    words: list[list[tuple[str, int]]] | None = None
    """For tags: the words of each row, and the place of each word's first token."""
    ends: list[int] | None = None
    """For a stream: the place of the last token of each row."""


class ShippedModel:
    """The model of a folder, ready to run."""

    def __init__(self, folder: str | Path, open_graph: bool = True) -> None:
        self.folder = Path(folder)
        try:
            self.told: dict[str, Any] = json.loads((self.folder / "model.json").read_bytes())
            self.input: dict[str, Any] = self.told["input"]
            self.output: dict[str, Any] = self.told["output"]
        except (OSError, ValueError, KeyError, TypeError):
            raise ModelError(f"{self.folder} holds no model.json of an exported model.") from None
        if open_graph:
            self.run = self._open_graph()

    def _open_graph(self) -> Callable[[Array], Array]:
        graph = self.told.get("graph")
        if not graph:
            raise ModelError(f"{self.folder} holds no graph of its network; load it with potluck.models.load.")
        openers = {"onnx": open_onnx, "executorch": open_pte}
        return openers.get(graph["format"], open_pt2)(checked_file(self.folder, graph))

    def scores(self, x: Array) -> Array:
        """The network's outputs for rows in the type in which they were stored."""
        rows = self.fit(np.asarray(x))
        parts = [self.run(self.scale(rows[at : at + BATCH])) for at in range(0, len(rows), BATCH)]
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)

    def fit(self, x: Array) -> Array:
        """Rows of the right shape and type; an error for others."""
        shape, dtype = tuple(self.input["shape"]), self.input["dtype"]
        if x.ndim == len(shape) + 1 and x.shape[1:] != shape and len(shape) == 3:
            turned = x.transpose(0, 3, 1, 2)  # pictures with their channels last
            x = turned if turned.shape[1:] == shape else x
        if x.ndim == 2 and len(shape) > 1 and x.shape[1] == int(np.prod(shape)):
            x = x.reshape(len(x), *shape)
        if x.shape[1:] != shape:
            raise ModelError(f"rows have the shape {list(x.shape[1:])}, and this model reads {list(shape)}.")
        if x.dtype.kind not in "biuf":
            raise ModelError(f"rows hold {x.dtype}; give numbers.")
        if dtype == "uint8" and x.dtype != np.uint8:
            if x.dtype.kind == "f" or x.min(initial=0) < 0 or x.max(initial=0) > 255:
                raise ModelError(f"rows hold {x.dtype}, and this model reads bytes from 0 to 255.")
        elif dtype == "float32" and x.dtype == np.uint8:
            raise ModelError("rows hold bytes, and this model reads floats; scale them as the training rows were.")
        elif dtype == "int64" and x.dtype.kind == "f":
            raise ModelError("rows hold floats, and this model reads token ids.")
        return np.ascontiguousarray(x.astype(dtype or "float32"))

    def scale(self, x: Array) -> Array:
        """Inputs of the network: ``(x - mean) / std`` per channel, as in training."""
        if self.input["mean"] is None:
            return x
        one_by_channel = (1, -1, *(1 for _ in x.shape[2:]))
        mean, std = (np.array(self.input[name], np.float32).reshape(one_by_channel) for name in ("mean", "std"))
        return (x.astype(np.float32) - mean) / std

    def answers(self, x: Array, rows: Rows | None = None) -> list[dict[str, Any]]:
        """What the model says of each row, as plain values."""
        scores, names, problem = self.scores(x), self.output["names"], self.output["problem"]
        if problem == "regress":
            return [{"value": float(value)} for value in scores.reshape(len(scores))]
        if problem == "nexttoken" and rows is not None and rows.ends is not None:
            scores = scores[np.arange(len(scores)), rows.ends]
        chances = probabilities(scores)
        if chances.ndim == 2:
            return [self._class(row, names) for row in chances]
        best = chances.argmax(-1)
        if rows is not None and rows.words is not None:
            return [
                {"tags": [[word, name_of(int(best[row, place]), names)] for word, place in words]}
                for row, words in enumerate(rows.words)
            ]
        return [{"classes": [name_of(int(each), names) for each in row]} for row in best]

    def _class(self, chances: Array, names: list[str]) -> dict[str, Any]:
        order = np.argsort(-chances, kind="stable")
        told = {name_of(int(place), names): float(chances[place]) for place in order[:100]}
        return {"class": name_of(int(order[0]), names), "probabilities": told}

    def predict(self, file: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """The title of each row of a file, and what the model says of it."""
        rows = Reader(self.input, self.folder).read(Path(file))
        yield from zip(rows.titles, self.answers(rows.x, rows), strict=True)


def open_pt2(path: Path) -> Callable[[Array], Array]:
    """The graph that torch.export wrote."""
    refuse_pickles(path)
    torch = library("torch", "torch")
    module = torch.export.load(str(path)).module()

    def run(x: Array) -> Array:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    return run


def open_onnx(path: Path) -> Callable[[Array], Array]:
    """The graph in ONNX, run by onnxruntime on the processor."""
    runtime = library("onnxruntime", "onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def open_pte(path: Path) -> Callable[[Array], Array]:
    """The graph for ExecuTorch, which reads one row at a time."""
    try:
        with silenced():
            runtime, torch = library("executorch.runtime", "executorch"), library("torch", "torch")
            program = runtime.Runtime.get().load_program(path.read_bytes())
            program.load_method("forward")
    except RuntimeError as fault:
        raise ModelError(f"{path} cannot be run by the ExecuTorch that is installed ({str(fault)[:80]}).") from None

    def run(x: Array) -> Array:
        with silenced():
            forward = program.load_method("forward")  # kept by the program, which must outlive it
            rows = [forward.execute((torch.from_numpy(x[at : at + 1]),))[0].numpy().copy() for at in range(len(x))]
        return np.concatenate(rows)

    return run


@contextmanager
def silenced(to: int | None = None) -> Iterator[None]:
    """Without what libraries say of their own insides on standard error; it goes to this open file, or nowhere."""
    sys.stderr.flush()
    before, kept = logging.root.manager.disable, os.dup(2)
    with open(os.devnull, "w") if to is None else os.fdopen(os.dup(to), "w") as file:
        os.dup2(file.fileno(), 2)
        logging.disable(logging.ERROR)
        try:
            with warnings.catch_warnings(), redirect_stderr(file):  # some libraries look up sys.stderr
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)
            os.dup2(kept, 2)
            os.close(kept)


def checked_file(folder: Path, told: dict[str, Any]) -> Path:
    """A file of the folder that model.json names with its checksum."""
    path = folder / Path(str(told["file"])).name
    if not path.is_file():
        raise ModelError(f"{path} is not there; export the model again.")
    if hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"]:
        raise ModelError(f"{path} does not match the checksum in model.json: one was altered. Export it again.")
    return path


def refuse_pickles(path: Path) -> None:
    """Refuses a pt2 file with anything in it that torch would unpickle, or run as a library."""
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            odd = [name for name, count in Counter(each.filename for each in entries).items() if count > 1]
            for entry in entries:
                samples = re.fullmatch(r"[^/]+/data/sample_inputs/[^/]+\.pt", entry.filename)
                if not (samples and not entry.file_size) and not PLAIN_ENTRY.fullmatch(entry.filename):
                    odd.append(entry.filename)
                if entry.filename.endswith("_config.json") and re.search(rb'"use_pickle":\s*true', file.read(entry)):
                    odd.append(entry.filename)
    except (zipfile.BadZipFile, OSError) as fault:
        raise ModelError(f"{path} is not a pt2 file ({fault}); export the model again.") from None
    if odd:
        raise ModelError(f"{path} refused: {odd[0]} may hold a pickle. Export the model again.")


def library(name: str, package: str) -> Any:
    """An optional library; an error that says how to get it if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModelError(f"this needs {package}: pip install -r requirements.txt") from None


def name_of(place: int, names: list[str]) -> str:
    return names[place] if place < len(names) else str(place)


def probabilities(scores: Array) -> Array:
    """Softmax over the last dimension."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Reader:
    """Reads files as the training data was read."""

    input: dict[str, Any]
    folder: Path

    def read(self, path: Path) -> Rows:
        """The rows of a file."""
        if not path.exists():
            raise ModelError(f"{path} does not exist.")
        ending, kind = path.suffix.lower(), self.input["kind"]
        if ending in (".npy", ".npz"):
            return self._arrays(path)
        if path.is_dir() or ending in PICTURES:
            return self._pictures(path)
        if kind in ("text", "tags", "stream"):
            return self._texts(path)
        if ending in TABLES:
            return self._table(path)
        raise ModelError(f"{path}: this model reads {self._wanted()}.")

    def _wanted(self) -> str:
        texts = ".txt, .jsonl, .csv or .parquet files of texts"
        kinds = {"picture": "pictures", "table": ".csv, .tsv or .parquet files", "text": texts, "tags": ".jsonl files"}
        found = {**kinds, "stream": ".txt or .jsonl files of texts"}.get(self.input["kind"], "rows of numbers")
        return f"{found}, .npy and .npz"

    def _arrays(self, path: Path) -> Rows:
        try:
            found = np.load(path, allow_pickle=False)
            x = found if isinstance(found, np.ndarray) else found["x"]
        except (ValueError, OSError, KeyError, EOFError) as fault:
            raise ModelError(f"{path}: no array x can be read ({str(fault).splitlines()[0][:80]}).") from None
        return Rows(x, [str(row) for row in range(len(x))])

    def _pictures(self, path: Path) -> Rows:
        shape = self.input["shape"]
        if len(shape) != 3 or self.input["dtype"] != "uint8":
            raise ModelError(f"{path}: this model reads {self._wanted()}.")
        files = sorted(each for each in path.rglob("*") if each.suffix.lower() in PICTURES) if path.is_dir() else [path]
        if not files:
            raise ModelError(f"{path} holds no pictures.")
        return Rows(np.stack([self._picture(each) for each in files]), [str(each) for each in files])

    def _picture(self, path: Path) -> Array:
        library("PIL", "pillow")
        from PIL import Image

        channels, *sides = self.input["shape"]
        try:
            with Image.open(path) as image:
                deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
                if image.mode in ("I", "F") and not deep:
                    raise ModelError(f"{path}: a picture of mode {image.mode}; save it with 8 or 16 bits.")
                if deep:  # the upper eight of 16 bits
                    pixels = (np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)
                else:
                    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        except (OSError, ValueError, SyntaxError, EOFError):
            raise ModelError(f"{path}: not a picture that can be read.") from None
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        times, left = divmod(channels, len(planes))
        if left:
            raise ModelError(f"{path}: a picture cannot have the {channels} channels that this model reads.")
        return np.tile(resized(planes, sides), (times, 1, 1))

    def _records(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a .csv, .tsv, .jsonl or .parquet file, by column."""
        if path.suffix.lower() == ".parquet":
            return parquet_rows(path, self.input["columns"])
        try:
            text = path.read_text("utf-8-sig")
        except (UnicodeDecodeError, OSError):
            raise ModelError(f"{path} is not a text in UTF-8.") from None
        if path.suffix.lower() in (".csv", ".tsv"):
            comma = "\t" if path.suffix.lower() == ".tsv" else ","
            return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=comma))
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise ModelError(f"{path}: a line is not JSON.") from None
        if not all(isinstance(each, dict) for each in found):
            raise ModelError(f"{path}: a line is not an object, such as {{...}}.")
        return found

    def _table(self, path: Path) -> Rows:
        columns = self.input["columns"]
        if not columns and path.suffix.lower() == ".parquet":
            raise ModelError(f"{path}: the names of this model's columns are not known; give a .csv or .npy file.")
        if not columns:
            try:
                x = np.loadtxt(path, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", ndmin=2)
            except ValueError:
                raise ModelError(f"{path}: give numbers alone, one row on each line, without a heading.") from None
            return Rows(x.astype(self.input["dtype"] or "float32"), [str(row) for row in range(len(x))])
        records = self._records(path)
        for column in columns:
            if records and column not in records[0]:
                raise ModelError(f"{path}: there is no column '{column}'; this model reads {', '.join(columns)}.")
        x = np.array([[number(each[column], path, row) for column in columns] for row, each in enumerate(records)])
        return Rows(x.reshape(len(records), len(columns)).astype(np.float32), [str(row) for row in range(len(records))])

    def _texts(self, path: Path) -> Rows:
        kind, columns = self.input["kind"], self.input["columns"]
        encoder = TextEncoder(self._tokenizer(), self.input["shape"][0])
        if path.suffix.lower() not in (*TABLES, ".jsonl", ".json"):
            lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
            told = {"tags": str.split, "stream": lambda line: [line]}.get(kind, str)
            records: list[dict[str, Any]] = [{columns[0]: told(line)} for line in lines]
        else:
            records = self._records(path)
        if not records:
            raise ModelError(f"{path} holds no texts.")
        titles = [str(row) for row in range(len(records))]
        if kind == "tags":
            found = [encoder.words(list_of(each, columns[0], path)) for each in records]
            return Rows(np.array([ids for ids, _ in found]), titles, words=[words for _, words in found])
        if kind == "stream":
            ended = [encoder.stream(lines_of(each, columns[0], path)) for each in records]
            return Rows(np.array([ids for ids, _ in ended]), titles, ends=[end for _, end in ended])
        pairs = [[text_of(each, name, path) for name in columns] for each in records]
        return Rows(np.array([encoder.row(*pair) for pair in pairs]), titles)

    def _tokenizer(self) -> dict[str, Any]:
        name = self.input.get("tokenizer")
        if not name:
            raise ModelError("this model's vocabulary is not known; give rows of token ids (.npy).")
        found: dict[str, Any] = json.loads((self.folder / Path(name).name).read_bytes())
        return found


def parquet_rows(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    """The rows of a Parquet file, with those of these columns that it has."""
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ModelError(f"{path}: Parquet files are read by pyarrow: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in (*columns, "text")]
            rows: list[dict[str, Any]] = file.read(columns=names).to_pylist()
    except (OSError, ValueError, NotImplementedError) as fault:  # pyarrow's own errors are among these
        raise ModelError(f"{path} cannot be read as Parquet ({str(fault).splitlines()[0][:80]}).") from None
    return rows


def number(text: Any, path: Path, row: int) -> float:
    """The number of a cell; true is 1 and false is 0."""
    if isinstance(text, bool | int | float):
        return float(text)
    said = str(text or "").strip().lower()
    said = {"true": "1", "false": "0"}.get(said, said)
    try:
        return float(said)
    except ValueError:
        raise ModelError(f"{path}: row {row} holds {text!r}, which is not a number.") from None


def text_of(record: dict[str, Any], column: str, path: Path) -> str:
    found = record.get(column, record.get("text"))
    if not isinstance(found, str):
        raise ModelError(f"{path}: a row has no text '{column}'.")
    return found


def lines_of(record: dict[str, Any], column: str, path: Path) -> list[str]:
    return list_of(record, column, path) if column in record else text_of(record, column, path).splitlines()


def list_of(record: dict[str, Any], column: str, path: Path) -> list[str]:
    found = record.get(column)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ModelError(f"{path}: a row has no list of words '{column}'.")
    return found


class TextEncoder:
    """Turns texts into rows of token ids, as the training texts were."""

    def __init__(self, told: dict[str, Any], length: int) -> None:
        self.told, self.length = told, length
        self.start, self.separator = list(told["start"]), list(told["separator"])
        self.cut = pieces_of(told)

    def row(self, one: str, two: str | None = None) -> list[int]:
        """One text, or two with separators; if they are too long, the longer one loses its end."""
        first, second = self.cut(one), None if two is None else self.cut(two)
        room = self.length - len(self.start) - 1 - (len(self.separator) if second is not None else 0)
        if second is None:
            return self._padded([*self.start, *first[:room], self.separator[0]])
        kept = min(len(first), max(room - len(second), -(-room // 2)))
        ids = [*self.start, *first[:kept], *self.separator, *second[: room - kept], self.separator[0]]
        return self._padded(ids)

    def words(self, words: list[str]) -> tuple[list[int], list[tuple[str, int]]]:
        """A list of words, and the place of the first token of each that there is room for."""
        ids, places = list(self.start), []
        for word in words:
            if len(ids) < self.length - 1:
                places.append((word, len(ids)))
            ids += self.cut(f" {word}") or [self.told["unknown"]]
        return self._padded([*ids[: self.length - 1], self.separator[0]]), places

    def stream(self, lines: list[str]) -> tuple[list[int], int]:
        """The end of a text whose next token is asked for, and the place of its last token."""
        ids = list(self.start)
        for number, line in enumerate(filter(None, map(self.cut, lines))):
            ids += [*(self.separator[:1] if number else []), *line]
        ids = ids[-self.length :]
        return self._padded(ids), len(ids) - 1

    def _padded(self, ids: list[int]) -> list[int]:
        return ids + [self.told["pad"]] * (self.length - len(ids))


def pieces_of(told: dict[str, Any]) -> Callable[[str], list[int]]:
    """The function that cuts a text into token ids."""
    known, unknown = told["known"], told["unknown"]
    if told["kind"] == "characters":
        return lambda text: [known.get(each, unknown) for each in text]
    if told["kind"] == "words":
        return lambda text: [known.get(each, unknown) for each in WORD.findall(text.lower())]
    library("tokenizers", "tokenizers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    if told["kind"] == "wordpiece":
        cutter = Tokenizer(models.WordPiece(known, unk_token="[UNK]", max_input_chars_per_word=100))
        cutter.normalizer = normalizers.BertNormalizer(lowercase=told["lower"], strip_accents=told["plain"])
        cutter.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        merges = [(first, second) for first, second in told["merges"]]
        cutter = Tokenizer(models.BPE(known, merges, unk_token="<unk>"))
        cutter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    errors = "ignore" if told["kind"] == "wordpiece" else "replace"  # for halves of surrogate pairs

    def cut(text: str) -> list[int]:
        return list(cutter.encode(text.encode("utf-8", errors).decode("utf-8"), add_special_tokens=False).ids)

    return cut


def resized(planes: Array, sides: list[int]) -> Array:
    """Planes of bytes in other sides: bilinear, each output a mean over the inputs that it covers."""
    if list(planes.shape[1:]) == list(sides):
        return planes
    down, across = (resize_weights(old, new) for old, new in zip(planes.shape[1:], sides, strict=True))
    found = down @ planes.astype(np.float64) @ across.T
    return np.rint(found).clip(0, 255).astype(np.uint8)


def resize_weights(old: int, new: int) -> Array:
    """How much each of the old places counts in each new one."""
    step = old / new
    reach = max(step, 1.0)
    centres = (np.arange(new)[:, None] + 0.5) * step
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(old)[None] + 0.5 - centres) / reach)
    return weights / weights.sum(1, keepdims=True)


def line_of(title: str, said: dict[str, Any], top: int) -> str:
    """What the model says of a row, for people."""
    if "value" in said:
        return f"{title}: {said['value']:.6g}"
    if "tags" in said:
        return f"{title}: " + " ".join(f"{word}/{tag}" for word, tag in said["tags"])
    if "classes" in said:
        return f"{title}: " + " ".join(said["classes"])
    return f"{title}: " + ", ".join(f"{name} {value:.4f}" for name, value in list(said["probabilities"].items())[:top])


def main() -> int:
    about = (__doc__ or "").partition("\n\nThe graph")[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each row")
    parser.add_argument("--top", type=int, default=5, help="how many classes to print for a row (default 5)")
    asked = parser.parse_args()
    try:
        model = ShippedModel(Path(__file__).parent)
        for note in model.told.get("missing", []):
            print(f"note: {note}", file=sys.stderr)
        for title, said in model.predict(asked.file):
            print(json.dumps({"row": title, **said}) if asked.json else line_of(title, said, asked.top))
    except ModelError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
