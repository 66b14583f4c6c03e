"""Reads what trackers really wrote, and what a run folder says, in one form: {round: {name: value}}."""

import json
import os
import struct
from pathlib import Path

from potluck.ledger import read_journal

COSTS = ("bytes_down", "bytes_up", "flops", "joules", "device_seconds", "round_seconds")
BLOCK = 32768


def numbers(value, path):
    """Every number in a line of scores, by its path; lists are left out."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(item, f"{path}/{name}")
    elif isinstance(value, int | float):
        yield path[1:], value


def written_scores(folder):
    """What scores.jsonl says, by round."""
    found = {}
    for line in read_journal(Path(folder) / "scores.jsonl"):
        assert line["round"] not in found
        found[line["round"]] = {name: value for name, value in numbers(line, "") if name != "round"}
    assert found
    return found


def only(found, costs):
    """Scores alone, or costs alone; rounds that have none are left out."""
    chosen = {
        round: {name: value for name, value in values.items() if name.startswith("cost/") == costs}
        for round, values in found.items()
    }
    return {round: values for round, values in chosen.items() if values}


def put(found, round, name, value):
    """Adds a value, which must not be there yet."""
    assert name not in found.setdefault(round, {}), f"round {round} has {name} twice"
    found[round][name] = value


def tensorboard_events(folder):
    """The event files of a folder, as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
    return found.Reload()


def read_tensorboard(folder):
    events, found = tensorboard_events(folder), {}
    for name in events.Tags()["scalars"]:
        for point in events.Scalars(name):
            put(found, point.step, name, point.value)
    return found


def as_float32(found):
    """The values as TensorBoard keeps them."""
    return {
        round: {name: struct.unpack("f", struct.pack("f", value))[0] for name, value in values.items()}
        for round, values in found.items()
    }


def mlflow_client(address):
    from potluck.track.mlflow import MlflowClient, quiet

    with quiet():
        return MlflowClient(Path(address.removeprefix("file:")).absolute().as_uri())


def mlflow_runs(address, name="tiny"):
    client = mlflow_client(address)
    return client.search_runs([client.get_experiment_by_name(name).experiment_id])


def read_mlflow(address, id):
    client, found = mlflow_client(address), {}
    for name in client.get_run(id).data.metrics:
        for point in client.get_metric_history(id, name):
            put(found, point.step, name, point.value)
    return found


def wandb_folders(folder):
    return sorted(Path(folder, "wandb").glob("offline-run-*"))


def wandb_records(folder):
    """The records of the one offline run in a run folder. The format is that of LevelDB's logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    ((path,),) = (list(one.glob("*.wandb")) for one in wandb_folders(folder))
    raw, at, parts, found = path.read_bytes(), 7, b"", []
    assert raw.startswith(b":W&B")
    while at + 7 <= len(raw):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


def read_wandb(folder):
    found = {}
    for record in wandb_records(folder):
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                put(found, record.history.step.num, name, json.loads(item.value_json))
    return found


def wandb_processes():
    """W&B's own processes that were started in the current folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "wandb-core" in Path(f"/proc/{name}/cmdline").read_text() and os.path.samefile(f"/proc/{name}/cwd", "."):
                found.append(int(name))
        except OSError:
            continue
    return found
