"""A node: what it agrees to, what it answers, what it writes down, and what never leaves it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_nodes import Heard, Quiet, identity, make_nodes, run_in_process, settings

from potluck.core import Limits, Task, pack_array, unpack_array
from potluck.engines import TaskEnvelope
from potluck.engines.remote.messages import mark_of, pack_plain, pack_task, read_head
from potluck.federation.charter import CharterError
from potluck.federation.measure import DeviceBudget
from potluck.federation.node import Node
from potluck.federation.server import prepare
from potluck.ledger import read_run
from potluck.run import export


def told(parts):
    return read_head(parts, Limits())


def charter_of(method="heterofl", **changes):
    return prepare(settings(method, **changes), "test").charter


def offered(charter):
    return pack_plain("charter", charter=charter.plain)


def one_node(tmp_path, tier="small", consent=lambda charter, tier: True, **options):
    made = make_nodes(tmp_path, ("clinic-a",), (tier,))["clinic-a"]
    return Node(made.id, made.folder, replace(made.options, **options), Quiet(), consent)


def log_of(node):
    return [json.loads(line) for line in node.audit.path.read_text().splitlines()]


def task_for(node, charter, models=None, to="", round=0, memory=None, under=""):
    envelope = TaskEnvelope(Task("train", to or node.id, round=round), memory or {})
    parts = {key: (mark_of(part), part) for key, part in (models or {}).items()}
    return pack_task(envelope, parts, None, under or charter.hash, 0)


def test_a_node_says_its_tier_its_samples_and_nothing_of_its_data(tmp_path):
    node, charter = one_node(tmp_path), charter_of()
    answer = told(node.respond(offered(charter)))
    assert (answer["kind"], answer["tier"], answer["samples"]) == ("agreed", "small", 63)
    assert answer["scored"] == [9, 18]
    assert set(answer) == {"kind", "charter", "tier", "samples", "scored", "measured", "versions"}
    assert str(tmp_path) not in str(answer)


def test_consent_is_asked_once_for_a_charter_also_after_a_restart(tmp_path):
    asked = []
    charter, other = charter_of(), charter_of(rounds=3)
    for offers in ((charter, charter), (charter, other)):
        node = one_node(tmp_path, consent=lambda charter, tier: not asked.append((charter.hash, tier)))
        for each in offers:
            assert told(node.respond(offered(each)))["kind"] == "agreed"
    assert asked == [(charter.hash, "small"), (other.hash, "small")]


def test_a_no_is_told_to_the_server_and_ends_the_node(tmp_path):
    node = one_node(tmp_path, consent=lambda charter, tier: False)
    answer = told(node.respond(offered(charter_of())))
    assert (answer["kind"], answer["reason"]) == ("declined", "whoever runs the node said no.")
    assert str(node.fault) == "whoever runs the node said no."
    assert not (node.folder / "charters").exists()


def test_a_charter_that_does_not_fit_ends_the_node_with_the_reason(tmp_path):
    node = one_node(tmp_path)
    answer = told(node.respond(offered(charter_of(nodes={"shape": [1, 9, 9], "classes": 10}))))
    assert answer["reason"] == "its data: inputs of 1x8x8; the charter says 1x9x9."
    assert str(node.options.data) in str(node.fault)  # whoever runs the node sees which file


@pytest.mark.parametrize("name", ["data.npz", "with space.npz", "patients.npz"])
def test_no_path_of_the_machine_leaves_in_a_reason(tmp_path, name):
    node = one_node(tmp_path, data=tmp_path / "hospital" / name, public=tmp_path / "hospital" / "public.npz")
    for answer in (node.respond(offered(charter_of())), node._refusal("declined", "bad: /srv/secret/x.bin").parts):
        text = str(told(answer))
        assert "hospital" not in text
        assert name not in text
        assert "secret" not in text
        assert str(tmp_path) not in text
    assert node._public(f"{node.folder}/memory: full") == "its folder/memory: full"
    assert node._public("a/b of 3/4 rows") == "a/b of 3/4 rows"


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ("smal", "--tier smal: no tier of this federation; did you mean 'small'?"),
        ("xxl", "--tier xxl: no tier of this federation; there are small, medium, large."),
    ],
)
def test_a_wrong_tier_is_refused_with_the_nearest_name(tmp_path, wanted, fault):
    with pytest.raises(CharterError) as found:
        one_node(tmp_path, wanted).agree(charter_of())
    assert str(found.value) == fault


def test_without_a_tier_the_largest_that_fits_the_budget_is_taken(tmp_path):
    assert one_node(tmp_path, "").agree(charter_of()).tier == "large"
    with pytest.raises(CharterError, match="no tier fits this machine"):
        one_node(tmp_path, "", budget=DeviceBudget(1)).agree(charter_of())


def test_an_offer_of_a_smaller_tier_is_taken_and_kept_and_a_larger_one_is_not(tmp_path):
    node, charter = one_node(tmp_path, "medium"), charter_of()
    node.respond(offered(charter))
    for wanted, tier in (("large", "medium"), ("none", "medium"), ("small", "small"), ("medium", "small")):
        answer = told(node.respond(pack_plain("tier", tier=wanted)))
        assert (answer["kind"], answer["tier"]) == ("agreed", tier)
    again = one_node(tmp_path, "medium")  # the same command after a restart
    assert told(again.respond(offered(charter)))["tier"] == "small"
    other = one_node(tmp_path, "large")  # another one
    assert told(other.respond(offered(charter)))["tier"] == "large"


def test_all_that_leaves_is_in_the_audit_log_before_with_its_bytes_and_checksum(tmp_path):
    node, charter = one_node(tmp_path), charter_of()
    messages = [
        pack_plain("noise"),
        (np.zeros(9, np.uint8),),
        pack_plain("tier", tier="small"),
        task_for(node, charter).parts(),
        offered(charter),
        task_for(node, charter, {"model": pack_array(3)}).parts({mark_of(pack_array(3))}),
        pack_plain("end", how="done"),
    ]
    answers = [node.respond(message) for message in messages]
    lines = log_of(node)
    kinds = ["refused", "refused", "declined", "declined", "agreement", "missing", "goodbye"]
    assert [line["what"] for line in lines] == kinds
    for line, answer in zip(lines, answers, strict=True):
        assert line["bytes"] == sum(len(part) for part in answer)
        assert line["sha256"] == mark_of(np.concatenate([np.asarray(part) for part in answer]))
    assert lines[3]["reason"] == "this node has not agreed to that charter."
    assert oct(node.audit.path.stat().st_mode & 0o777) == "0o600"


def test_if_the_audit_log_cannot_be_written_nothing_leaves(tmp_path):
    node, charter = one_node(tmp_path), charter_of()
    node.audit.path.mkdir()
    answer = told(node.respond(offered(charter)))
    reason = "its audit log cannot be written: the disk may be full"
    assert answer == {"kind": "declined", "reason": reason, "later": True}
    assert "so nothing is sent" in node.watch.said[-1]


@pytest.mark.parametrize("odd", [{"to": "another"}, {"under": "0" * 64}])
def test_a_task_for_another_node_or_under_another_charter_is_not_done(tmp_path, odd):
    node, charter = one_node(tmp_path), charter_of()
    node.respond(offered(charter))
    assert told(node.respond(task_for(node, charter, **odd).parts()))["kind"] in ("refused", "declined")
    assert node.watch.began == []


def test_a_verb_that_is_not_the_methods_is_not_run(tmp_path):
    node, charter = one_node(tmp_path), charter_of()
    node.respond(offered(charter))
    envelope = TaskEnvelope(Task("init", node.id))
    answer = told(node.respond(pack_task(envelope, {}, None, charter.hash, 0).parts()))
    assert answer["reply"] is None
    assert "init" in answer["fault"]


def test_a_restarted_node_does_a_task_under_the_charter_that_it_agreed_to(tmp_path):
    charter = charter_of()
    first = one_node(tmp_path)
    first.respond(offered(charter))
    node = one_node(tmp_path)
    zoo = first._agreement.setup.context.zoo
    model = zoo.fresh(zoo.tiers[0].spec, torch.Generator().manual_seed(0))
    answer = told(node.respond(task_for(node, charter, {"model": pack_array(model)}).parts()))
    assert (answer["kind"], answer["fault"], answer["fresh"]) == ("result", "", False)
    assert answer["reply"]["weight"] == 63


def test_a_memory_that_the_server_names_and_that_is_not_here_is_told(tmp_path):
    node, charter = one_node(tmp_path), charter_of("local")
    node.respond(offered(charter))
    from potluck.core import Newborn

    spec = node._agreement.setup.context.zoo.tiers[0].spec
    newborn = {"model": pack_array(Newborn(spec))}
    first = told(node.respond(task_for(node, charter, newborn).parts()))
    assert (first["fresh"], first["memory"]["tier"]) == (False, "small")
    second = told(node.respond(task_for(node, charter, newborn, round=1, memory=first["memory"]).parts()))
    assert second["fresh"] is False
    other = first["memory"] | {"tier": "large"}
    assert told(node.respond(task_for(node, charter, newborn, round=2, memory=other).parts()))["fresh"] is True
    assert "is of another tier" in node.watch.said[-1]
    lost = first["memory"] | {"sha256": "0" * 64}
    assert told(node.respond(task_for(node, charter, newborn, round=3, memory=lost).parts()))["fresh"] is True
    assert "is not here" in node.watch.said[-1]


def test_noise_comes_from_the_operating_system(tmp_path):
    assert one_node(tmp_path).agree(charter_of()).setup.context.own_noise


def test_the_folder_is_for_its_owner_alone(tmp_path):
    node = one_node(tmp_path)
    assert oct(node.folder.stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize("method", ["heterofl", "scaffold"])
def test_rounded_updates_are_what_the_ledger_counts_and_change_the_model_a_little(tmp_path, method):
    uploads, found = {}, {}
    for updates in ("exact", "16-bit", "8-bit"):
        (tmp_path / updates).mkdir()
        experiment = settings(method, nodes={"updates": updates}, rounds=1, tier=[{"name": "small"}])
        nodes = make_nodes(tmp_path / updates, tiers=("small",) * 3)
        uploads[updates] = run_in_process(experiment, nodes, tmp_path / updates / "run").totals["bytes_up"]
        found[updates] = export(tmp_path / updates / "run", tmp_path / updates / "model").arrays
    others = uploads["exact"] / 2 if method == "scaffold" else 0  # control variates stay exact
    for updates, ratio in (("16-bit", 2), ("8-bit", 4)):
        assert uploads[updates] - others == pytest.approx((uploads["exact"] - others) / ratio, rel=0.02)
        apart = max(float((found[updates][name] - tensor).abs().max()) for name, tensor in found["exact"].items())
        assert 0 < apart < {2: 1e-4, 4: 2e-3}[ratio]


def test_a_node_that_declines_tasks_counts_as_absent_and_the_run_goes_on(tmp_path):
    nodes, watch = make_nodes(tmp_path), Heard()
    full = nodes["clinic-b"]
    respond = full.respond

    def out_of_space(parts):
        if told(parts)["kind"] == "task" and told(parts)["task"].verb == "train":
            full._work = lambda told, parts: (_ for _ in ()).throw(OSError(28, os.strerror(28)))
        return respond(parts)

    full.respond = out_of_space
    result = run_in_process(settings(rounds=4, gate={"strikes": 1}), nodes, tmp_path / "run", watch=watch)
    assert result.rounds == 4
    reasons = {
        event["reason"]
        for event in read_run(tmp_path / "run").events()
        if event.get("client") == identity("clinic-b") and event.get("reason")
    }
    assert reasons == {"failed: it declined: No space left on device at the node"}


def test_a_nodes_answer_is_a_message_of_plain_values_and_tensors(tmp_path):
    node, charter = one_node(tmp_path), charter_of()
    (part,) = node.respond(offered(charter))
    assert isinstance(unpack_array(part), dict)
    assert Path(node.folder / "charters" / f"{charter.hash}.json").exists()
