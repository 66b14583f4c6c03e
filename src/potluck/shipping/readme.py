"""The README of an exported folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potluck.core import Spec, one_line
from potluck.shipping.figures import Figures

FILES = {
    "picture": "a picture (PNG, JPEG, ...) or a folder of pictures",
    "table": "a .csv, .tsv or .parquet file with these columns",
    "text": "texts: a .txt file with one on each line, or a .jsonl, .csv or .parquet file",
    "tags": 'lists of words: a .jsonl file of {"tokens": [...]}, or a .txt file with a sentence on each line',
    "stream": "texts to go on with: a .txt file with one on each line, or a .jsonl file",
    "array": "rows of numbers",
}


def readme(spec: Spec, card: Mapping[str, Any], told: Figures, real: bool) -> str:
    """The text of README.md; `card` is what ``model.json`` says."""
    run, graph, training = card["run"], card.get("graph"), card.get("training")
    rows = "test rows of the run's data" if real else "made-up rows"
    lines = [
        f"# {_text(run['model'])}",
        "",
        f"A `{_text(spec.family)}` trained by {_text(run['method'])} in {run['rounds']} rounds of federated learning.",
        *([f"Score in the run: {_text(run['score'])}."] if run["score"] else []),
        "",
        "| | |",
        "|---|---|",
        f"| input | {_input_text(card['input'])} |",
        f"| output | {_output_text(card['output'])} |",
        f"| parameters | {told.parameters:,} |",
        f"| bytes of all tensors | {told.bytes:,} |",
        f"| FLOPs of one row | {told.flops:,} |",
        f"| peak memory for one row, modelled | {told.memory:,} bytes |",
        "",
        *(_how_to_run(card["input"]) if graph else ["Load it in Python: `potluck.models.load(folder)`."]),
        "",
        f"`sample.npz` holds {rows} (`x`, before scaling) and the outputs that the network gave for them (`expected`).",
    ]
    if training:
        lines += ["", *_how_to_train(training)]
    if graph:
        lines += [f"`{graph['file']}` was compared with the network on such rows before this folder was written."]
        lines += ["", "The graph is a program: run it only if you trust who made it."]
    if card["missing"]:
        lines += ["", "Not known:", "", *(f"- {_text(each)}" for each in card["missing"])]
    return "\n".join(lines) + "\n"


def _how_to_run(told: Mapping[str, Any]) -> list[str]:
    return [
        "    pip install -r requirements.txt",
        "    python predict.py FILE",
        "",
        f"FILE is {FILES[told['kind']]}; or .npy or .npz (x) with rows as described above. `--json` prints JSON.",
    ]


def _how_to_train(told: Mapping[str, Any]) -> list[str]:
    loss = "mean squared error" if told["loss"] == "SquaredError" else "mean cross-entropy"
    return [
        f"`{told['file']}` is for ExecuTorch's training runtime. Its method `forward` takes a batch of {told['rows']}",
        f"rows, as the network reads them, with their labels. It gives the {loss} and the gradient of every",
        "parameter. Dropout is left out. `model.safetensors` holds the same parameters. `potluck verify-device FOLDER`",
        "compares ten steps of it with PyTorch.",
        "",
    ]


def _input_text(told: Mapping[str, Any]) -> str:
    shape = " x ".join(map(str, told["shape"]))
    parts = [f"{told['dtype'] or 'numbers as the network reads them'}, {shape}"]
    if told["mean"] is not None:
        parts.append(f"scaled by (x - mean) / std with mean {_few(told['mean'])} and std {_few(told['std'])}")
    if told["columns"] and told["kind"] == "table":
        parts.append(f"columns {_few(told['columns'])}")
    return "; ".join(parts)


def _output_text(told: Mapping[str, Any]) -> str:
    if told["problem"] == "regress":
        return "a number"
    what = {"tag": "a tag for each token", "nexttoken": "the next token"}.get(told["problem"], "a class")
    named = f": {_few(told['names'])}" if told["names"] else ", numbered from 0"
    return f"logits of {told['classes']} classes, {what}{named}"


def _few(values: list[Any]) -> str:
    shown = [f"{each:.6g}" if isinstance(each, float) else _text(str(each)) for each in values[:12]]
    return ", ".join([*shown, *(["..."] if len(values) > 12 else [])])


def _text(text: str) -> str:
    """Text from elsewhere, such as the name of a class, on one line and without meaning for Markdown."""
    return one_line(text, 200).replace("<", "&lt;").replace("|", "\\|").replace("`", "'")
