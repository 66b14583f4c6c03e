"""Secure sums between nodes: the same weights, nothing unmasked on the way, and what a node refuses to do."""

import json
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from secure_nodes import (
    Kits,
    events,
    experiment_of,
    largest_difference,
    outcomes,
    run_secure,
    state_of,
    told,
)
from small_nodes import settings
from test_node import offered, task_for

from potluck.core import SettingsError, pack_array
from potluck.engines import TaskEnvelope
from potluck.engines.remote.grpc_node import attend
from potluck.engines.remote.messages import pack_task
from potluck.federation.explaining import describe_charter
from potluck.federation.identities import KitIdentities
from potluck.federation.joining import next_start
from potluck.federation.listening import admitted_nodes, listen
from potluck.federation.server import prepare, serve
from potluck.secure.settings import AGREE, KEYS, OPEN, REQUEST, SHARES

STEP = 2e-6
"""Well above the fixed-point step after the division by the weights."""


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return Kits(tmp_path_factory.mktemp("six"))


@pytest.fixture(scope="module")
def plain(kits):
    return run_secure(kits, experiment_of(secure=False), "plain")


@pytest.fixture(scope="module")
def secure(kits):
    nodes = kits.nodes("state-secure")
    found = run_secure(kits, experiment_of(), "secure", nodes)
    found.nodes = nodes
    return found


def uploads(recorded):
    return {name: told(answer)["reply"] for name, task, _, answer in recorded.kept if task and task.verb == "train"}


def test_a_federation_with_secure_sums_has_the_weights_of_the_plain_one(kits, plain, secure):
    assert largest_difference(state_of(kits.folder / "secure"), state_of(kits.folder / "plain")) < STEP
    (line,) = events(kits.folder / "secure", "secure")
    assert (line["asked"], line["uploaded"], line["opened"], line["blocks"]) == (6, 6, 2, 2)
    verbs = [task.verb for name, task, _, _ in secure.kept if task and name == "clinic-a"]
    assert [verb for verb in verbs if verb != "score"] == [KEYS, SHARES, "train", AGREE, OPEN]


DEPTHS = [{"name": "small", "depth": 1}, {"name": "large", "depth": 3}]
OTHERS = {
    "fedavg": {"method": {"name": "fedavg"}, "tier": [{"name": "small"}, {"name": "large"}]},
    "layer by layer": {"method": {"name": "fedavg", "share": "layerwise"}, "tier": DEPTHS},
    "fedrolex": {"method": {"name": "fedrolex", "label_mask": False}},
    "fjord": {"method": {"name": "fjord", "widths": [0.5, 1.0]}},
    "feddropout": {"method": {"name": "feddropout", "shared_per_round": True, "label_mask": False}},
    "inclusivefl": {
        "method": {"name": "inclusivefl", "weighting": "samples", "server": {"name": "replace"}},
        "tier": DEPTHS,
    },
    "moss": {"method": {"name": "moss", "wire": {"epochs": 1}}, "tier": DEPTHS},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("phase", [None, KEYS, "train", OPEN])
def test_every_method_has_the_weights_of_its_plain_federation_whoever_is_lost(kits, name, phase):
    """The node that is lost is of the larger tier, of which four are there."""
    where = {"nodes": {"public": str(kits.folder / "public.npz")}} if name == "moss" else {}
    told = {**OTHERS[name], **where, "min_holders": 2}
    out = f"{name} {phase or 'all'}"
    run_secure(kits, experiment_of(**told), out, dies={"clinic-f": (phase, True)} if phase else None)
    gone = {"clinic-f": ("train", False)} if phase in (KEYS, "train") else None
    run_secure(kits, experiment_of(False, **told), f"plain {out}", dies=gone)
    assert largest_difference(state_of(kits.folder / out), state_of(kits.folder / f"plain {out}")) < STEP
    (line,) = events(kits.folder / out, "secure")[:1]
    assert (line["opened"], line["closed"]) == (line["blocks"], [])


@pytest.mark.slow
@pytest.mark.parametrize("phase", [SHARES, "train", AGREE, OPEN])
def test_a_node_that_dies_between_phases_costs_its_share_alone(kits, phase):
    out = f"dead-{phase.split()[-1]}"
    run_secure(kits, experiment_of(), out, dies={"clinic-f": (phase, True)})
    if phase in (AGREE, OPEN):
        wanted = "plain-all"
        run_secure(kits, experiment_of(False), wanted)
    else:
        wanted = f"plain-{out}"
        run_secure(kits, experiment_of(False), wanted, dies={"clinic-f": ("train", False)})
    assert largest_difference(state_of(kits.folder / out), state_of(kits.folder / wanted)) < STEP
    assert outcomes(kits, kits.folder / out)["clinic-f", phase][0] == "quarantined"  # an answer of no parts


def chunks(arrays):
    """All tensors in pieces of sixteen numbers, as bytes."""
    flat = [tensor.numpy().reshape(-1) for tensor in arrays.values()]
    return {each[at : at + 16].tobytes() for each in flat for at in range(0, len(each) - 15, 16)}


def test_no_message_and_no_file_of_the_server_holds_a_nodes_own_model(kits, plain, secure):
    openly, masked = (
        b"".join(bytes(part) for _, _, _, answer in found.kept for part in answer) for found in (plain, secure)
    )
    files = b"".join(path.read_bytes() for path in (kits.folder / "secure").rglob("*") if path.is_file())
    (start,) = (kits.folder / "plain").rglob("round-000000.ckpt")
    untrained = start.read_bytes()  # units that no gradient reached are as the server sent them
    assert len(uploads(plain)) == 6
    for reply in uploads(plain).values():
        trained = [chunk for chunk in chunks(reply["models"]["model"].arrays) if chunk not in untrained]
        assert len(trained) > 10
        for chunk in trained:
            assert chunk in openly
            assert chunk not in masked
            assert chunk not in files


def test_an_upload_is_masked_whole_numbers_and_the_number_of_steps(secure):
    for reply in uploads(secure).values():
        assert reply["models"] == {}
        assert set(reply["arrays"]) == {"masked", "told", "signature"}
        assert (reply["weight"], set(reply["metrics"])) == (1.0, {"steps"})
        high = reply["arrays"]["masked"].numpy().view(np.uint8)[3::4]
        assert np.isin(high, (0, 255)).mean() < 0.1  # small numbers in the open have no other highest bytes


def test_the_audit_log_says_in_words_what_leaves(secure):
    lines = [json.loads(line) for line in secure.nodes["clinic-a"].audit.path.read_text().splitlines()]
    count = uploads(secure)["clinic-a"]["arrays"]["masked"].numel()
    assert [line["secure"] for line in lines if "secure" in line] == [
        "new public keys for one secure sum, signed with this node's key",
        "shares of this node's masks, encrypted for 5 other nodes",
        f"a masked upload of {count} numbers",
        "a signature under who uploaded to this secure sum",
        "shares of masks, so that the server can read the sum, and no single update",
    ]


def test_a_plain_training_task_gets_a_refusal_and_no_model(kits):
    node, charter = kits.node("clinic-a", "asked-plainly"), kits.prepare(experiment_of()).charter
    assert told(node.respond(offered(charter)))["kind"] == "agreed"
    zoo = node._agreement.setup.context.zoo
    model = zoo.fresh(zoo.tiers[0].spec, torch.Generator().manual_seed(0))
    answer = told(node.respond(task_for(node, charter, {"model": pack_array(model)}).parts()))
    assert answer["reply"] is None
    assert "[secure] is on, and the answer to 'train' is not masked" in answer["fault"]


def test_settings_of_a_message_do_not_change_how_many_must_hold_a_block(kits, secure):
    """A server that drops nodes from a request asks for a sum of two."""
    node = kits.node("clinic-a", "few")
    charter = kits.prepare(experiment_of()).charter
    node.respond(offered(charter))
    kept = {task.verb: (task, parts) for name, task, parts, _ in secure.kept if task and name == "clinic-a"}
    task = kept[SHARES][0]
    node.respond(message(charter, kept[KEYS][0]))
    request = task.config[REQUEST]
    own, other, *_ = sorted(request["members"], key=lambda member: member in request["peers"])
    odd = {
        **request,
        "members": [own, other],
        "blocks": [[block, [0, 1]] for block, _ in request["blocks"]],
        "peers": {other: request["peers"][other]},
        "min_holders": 2,
    }
    answer = told(node.respond(message(charter, changed(task, odd))))
    assert "a block that fewer than 3 clients hold" in answer["fault"]


def changed(task, request):
    return replace(task, config={**task.config, REQUEST: request})


def message(charter, task):
    return pack_task(TaskEnvelope(task), {}, None, charter.hash, 0).parts()


def test_a_node_opens_a_sum_in_one_way_and_never_again_after_the_next_sum_began(kits, secure):
    kept = {task.verb: (task, parts) for name, task, parts, _ in secure.kept if task and name == "clinic-b"}
    node, (task, parts) = secure.nodes["clinic-b"], kept[OPEN]
    charter = kits.prepare(experiment_of()).charter
    assert told(node.respond(parts))["reply"] is not None  # the same request
    request = task.config[REQUEST]
    own = kits.kits["clinic-b"].node_id
    odd = {**request, "uploaded": [node for node in request["uploaded"] if node != own]}
    assert (
        "it uploaded, and is told now that it did not"
        in told(node.respond(message(charter, changed(task, odd))))["fault"]
    )
    gone = next(node for node in request["uploaded"] if node != own)
    odd = {**request, "uploaded": [node for node in request["uploaded"] if node != gone]}
    assert "in two ways" in told(node.respond(message(charter, changed(task, odd))))["fault"]
    again = told(node.respond(message(charter, kept[KEYS][0])))
    assert "it was asked for keys of the same secure sum twice" in again["fault"]
    next_sum = changed(kept[KEYS][0], {"session": "another"})
    assert told(node.respond(message(charter, next_sum)))["reply"] is not None
    for each in (parts, message(charter, changed(task, odd))):
        assert "it has no keys of this secure sum" in told(node.respond(each))["fault"]


@pytest.mark.slow
def test_a_node_that_was_started_again_between_phases_is_absent_and_has_done_nothing_wrong(kits):
    nodes = kits.nodes("restarted")

    class Restarting:
        """Starts again before it is asked for shares."""

        def respond(self, parts):
            task = told(parts).get("task")
            if task is not None and task.verb == SHARES:
                nodes["clinic-f"] = kits.node("clinic-f", "restarted")
            return nodes["clinic-f"].respond(parts)

    run_secure(kits, experiment_of(), "restarted", {**nodes, "clinic-f": Restarting()})
    outcome, reason = outcomes(kits, kits.folder / "restarted")["clinic-f", SHARES]
    assert outcome == "absent"
    assert "it was started again" in reason
    (line,) = events(kits.folder / "restarted", "secure")
    assert (line["uploaded"], line["opened"]) == (5, 2)


@pytest.mark.slow
def test_every_start_of_a_server_names_its_sums_anew(kits):
    labels = []
    for rounds in (1, 2):  # the second start goes on with the first one's run
        found = run_secure(kits, experiment_of(rounds=rounds), "again")
        asked = [task.config[REQUEST]["session"] for _, task, _, _ in found.kept if task and task.verb == KEYS]
        (label,) = {session.split()[0] for session in asked}
        labels.append(label)
    assert len(bytes.fromhex(labels[0])) == len(bytes.fromhex(labels[1])) == 16
    assert labels[0] != labels[1]


@pytest.mark.parametrize("updates", ["16-bit", "8-bit"])
def test_rounded_updates_are_refused_with_masks(kits, updates):
    with pytest.raises(SettingsError, match=r"^\[secure\] and nodes.updates: masked numbers cannot be rounded; use"):
        kits.prepare(experiment_of(nodes={"updates": updates}))


def test_without_a_kit_there_are_no_secure_sums_on_either_side(kits):
    with pytest.raises(SettingsError, match=r"^\[secure\] needs the keys of a kit"):
        prepare(experiment_of(), "six")
    node = kits.node("clinic-a", "keyless")
    node.identities = None
    answer = told(node.respond(offered(kits.prepare(experiment_of()).charter)))
    assert (answer["kind"], answer["reason"]) == (
        "declined",
        "[secure] needs the keys of a kit: nodes prove with them who they are.",
    )


def test_a_node_is_told_what_secure_sums_promise_before_it_agrees(kits):
    lines = describe_charter(kits.prepare(experiment_of()).charter, "small")
    (line,) = [line for line in lines if "[secure]" in line]
    assert "the server sees sums over at least 3 nodes, and no single node's update" in line
    assert not any("the weights that it trained" in line for line in lines)
    openly = describe_charter(prepare(settings(), "x").charter, "small")
    assert any("the weights that it trained" in line for line in openly)


def test_a_key_or_a_secret_is_in_no_repr(kits):
    node = kits.node("clinic-a", "shown")
    shown = repr(node.identities)
    assert "PRIVATE" not in shown
    assert repr(node.identities.secret) not in shown


class Killed(BaseException):
    """What ends a node in a thread, as a kill ends a process."""


def attend_until_killed(kits, name, killed_at=""):
    """A thread that connects a node over gRPC; it ends when the node is asked for this."""
    kit, node, stop = kits.kits[name], kits.node(name, f"grpc{killed_at}"), threading.Event()

    def respond(parts):
        task = told(parts).get("task")
        if task is not None and task.verb == killed_at:
            raise Killed
        answer = node.respond(parts)
        if node.ended:
            stop.set()
        return answer

    def run():
        start = (kit.address, kit.ca, kit.cert, kit.key, *next_start(node.folder))
        with suppress(Killed):
            attend(*start, respond, lambda line: None, stop, kits.folder)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_over_grpc_a_node_that_is_killed_after_it_sent_shares_costs_its_share_alone(kits):
    experiment = experiment_of(nodes={"grace": 1.0})
    federation, admitted = kits.prepare(experiment), admitted_nodes(kits.server)
    threads = [attend_until_killed(kits, name, "train" if name == "clinic-f" else "") for name in kits.kits]
    start = listen(kits.server, admitted, experiment.nodes.grace, federation.charter.limits.bytes)
    serve(federation, start, admitted.names, kits.folder / "grpc")
    for thread in threads:
        thread.join(60)
    run_secure(kits, experiment_of(False), "grpc-plain", dies={"clinic-f": ("train", False)})
    assert largest_difference(state_of(kits.folder / "grpc"), state_of(kits.folder / "grpc-plain")) < STEP
    found = outcomes(kits, kits.folder / "grpc")
    assert found["clinic-f", SHARES][0] == "accepted"
    assert found["clinic-f", "train"][0] == "absent"
    (seen,) = events(kits.folder / "grpc", "nodes")
    assert [node["name"] for node in seen["nodes"] if not node["answered"]] == ["clinic-f"]
    (line,) = events(kits.folder / "grpc", "secure")
    assert (line["asked"], line["uploaded"], line["opened"]) == (6, 5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["another node", "another federation"])
def test_a_node_that_shows_the_proof_of_another_is_left_out_by_name(kits, tmp_path, of):
    nodes = kits.nodes(f"thief-{of}")
    foreign = Kits(tmp_path).kits["clinic-f"] if of == "another federation" else kits.kits["clinic-e"]

    class Thief(KitIdentities):
        """Signs with a key that is not its own."""

        def sign(self, client, text):
            return KitIdentities.of(foreign).sign(foreign.node_id, text)

    own = nodes["clinic-f"].identities
    nodes["clinic-f"].identities = Thief(own.ca, own.node, own.cert, own.key)
    run_secure(kits, experiment_of(), f"thief-{of}", nodes)
    outcome, reason = outcomes(kits, kits.folder / f"thief-{of}")["clinic-f", KEYS]
    assert outcome == "quarantined"
    assert reason.startswith(f"secure sum: the keys of {own.node[:8]}: ")
    (line,) = events(kits.folder / f"thief-{of}", "secure")
    assert (line["asked"], line["uploaded"], line["opened"]) == (6, 5, 2)


def test_a_peer_does_not_mask_with_keys_that_another_node_signed(kits, secure):
    """Here the server is the one who lies: it gives one node's keys the name of another."""
    node, charter = kits.node("clinic-a", "lied-to"), kits.prepare(experiment_of()).charter
    node.respond(offered(charter))
    kept = {task.verb: task for name, task, _, _ in secure.kept if task and name == "clinic-a"}
    node.respond(message(charter, kept[KEYS]))
    request = kept[SHARES].config[REQUEST]
    one, other = list(request["peers"])[:2]
    odd = {**request, "peers": {**request["peers"], one: request["peers"][other]}}
    answer = told(node.respond(message(charter, changed(kept[SHARES], odd))))
    assert answer["reply"] is None
    assert f"the keys of {one[:8]}: this signature does not fit" in answer["fault"]
    assert told(node.respond(message(charter, kept[SHARES])))["reply"] is not None


def test_a_node_shares_its_masks_under_one_plan(kits, secure):
    """With two plans, some neighbours could give its seeds and others its private key, whatever the threshold."""
    node, charter = kits.node("clinic-a", "plans"), kits.prepare(experiment_of()).charter
    node.respond(offered(charter))
    kept = {task.verb: task for name, task, _, _ in secure.kept if task and name == "clinic-a"}
    node.respond(message(charter, kept[KEYS]))
    request = kept[SHARES].config[REQUEST]
    for _ in range(2):  # the same request may come again
        assert told(node.respond(message(charter, kept[SHARES])))["reply"] is not None
    fewer = dict(list(request["peers"].items())[:-1])
    for odd in ({**request, "blocks": request["blocks"][:1]}, {**request, "peers": fewer}):
        answer = told(node.respond(message(charter, changed(kept[SHARES], odd))))
        assert answer["reply"] is None
        assert "it was asked to share its masks under two plans" in answer["fault"]


def test_a_node_masks_one_upload_of_a_sum(kits):
    """The difference of two uploads under the same masks has no masks."""
    nodes, kept = kits.nodes("uploads"), {}

    class Twice:
        def respond(self, parts):
            answer = nodes["clinic-a"].respond(parts)
            task = told(parts).get("task")
            if task is not None and task.verb == "train":
                kept["first"], kept["again"] = told(answer), told(nodes["clinic-a"].respond(parts))
            return answer

    run_secure(kits, experiment_of(), "uploads", {**nodes, "clinic-a": Twice()})
    assert kept["first"]["reply"] is not None
    assert kept["again"]["reply"] is None
    assert "it was asked for two uploads of one secure sum" in kept["again"]["fault"]
    (line,) = events(kits.folder / "uploads", "secure")
    assert (line["uploaded"], line["opened"]) == (6, 2)
