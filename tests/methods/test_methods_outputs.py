"""Learning through outputs: FedMD, FedDF, DS-FL, FedGEMS and Fed-ET, by the numbers of METHODS.

Networks here are MLPs of two inputs and two classes whose weights are all zero but for the head's bias: whatever they
are shown, their scores are that bias.
"""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, Shard, Shelf, data, zoo

from potluck.core import SERVER, Client, Examples, Local, Model, Reply, Round, SettingsError, Task, Tier, on_client
from potluck.engines import Desk, Serial, World
from potluck.learn import (
    Classify,
    CrossEntropy,
    Doubt,
    Follow,
    Guided,
    Mimic,
    SoftCrossEntropy,
    agreed,
    beside,
    confidence,
    dissenting,
    divergence,
    mean_scores,
    predicted,
    reliance,
    relied,
    sharpened,
)
from potluck.methods import DSFL, METHODS, FedDF, FedET, FedGEMS, FedMD
from potluck.methods.feddf import Distillation
from potluck.models import Menagerie, make_spec
from potluck.run import door, experiment, run

STILL = Local(lr=1.0, steps=0)
"""Clients that do not train on their own data; what they are taught has a learning rate of one."""
FIVE = ["fedmd", "feddf", "dsfl", "fedgems", "fedet"]


def saying(method):
    """This method with clients that do not train: the model they send says what their data holds."""

    @dataclass(frozen=True)
    class Saying(type(method)):
        @on_client
        def train(self, task, device):
            return Reply({"model": biased(task.models["model"].spec, device.data.column("x")[0])}, weight=1.0)

    return Saying(**vars(method))


def biased(spec, scores):
    """A model that says this of everything."""
    shapes = Menagerie(spec).shapes(spec)
    arrays = {name: torch.zeros(shape) for name, (shape, _) in shapes.items()}
    return Model(spec, {**arrays, "head.bias": torch.as_tensor(scores, dtype=torch.float32)})


class Speaking(Play):
    """A federation with four public rows, of class 0 unless said otherwise."""

    def __post_init__(self):
        labels = getattr(self.method, "public_labels", (0, 0, 0, 0))
        self.public = Examples({"x": torch.ones(4, 2), **({"y": torch.tensor(labels)} if labels else {})})
        self.zoo = replace(self.zoo, public=4)
        super().__post_init__()
        shelf = Shelf({id: Shard(train) for id, (_, train) in self.clients.items()} | {SERVER: Shard(self.public)})
        shelf.public = self.public
        world = World(self.method, self.zoo, shelf, Classify(2), self.seed)
        self.desk = Desk(Serial(world), self.method, self.zoo, recall=self.memories.get)

    def keep(self, **scores):
        """Clients that already have a model, which says this."""
        for client in self.everyone:
            if client.id in scores:
                self.memories[client.id] = (0, {"model": biased(client.tier.spec, scores[client.id])})

    def bias(self, client):
        return self.memories[client][1]["model"].arrays["head.bias"].tolist()

    def entries(self, verb):
        return [entry for entry in self.session.entries if entry.task.verb == verb]


def unlabelled(method):
    """This method in a federation whose public rows have no labels."""

    @dataclass(frozen=True)
    class Unlabelled(type(method)):
        public_labels = None

    return Unlabelled(**vars(method))


def net(*scores):
    """A live network that says this of everything."""
    spec = zoo(1).full
    return Menagerie(spec).build(biased(spec, scores))


def value(loss, live, **batch):
    """A loss on a batch, of whose inputs nothing depends."""
    rows = len(next(iter(batch.values())))
    return loss(live, {"x": torch.ones(rows, 2), **batch}).item()


def close(*values):
    return pytest.approx(values, abs=1e-6)


def two(method, **kinds):
    """Two clients with four rows each, of tier d1 unless said otherwise."""
    clients = {"a": (kinds.get("a", "d1"), data(4)), "b": (kinds.get("b", "d1"), data(4))}
    return Speaking(method, zoo(1, 2), clients)


# FedMD


def test_md1_the_consensus_is_the_mean_of_raw_scores_and_its_distance_an_absolute_one():
    consensus = mean_scores(torch.tensor([[[1.0, 3.0]], [[3.0, 5.0]]]))
    assert consensus.tolist() == [[2.0, 4.0]]
    assert value(Mimic(), net(1.0, 3.0), scores=consensus) == 1.0


def test_md1_clients_move_towards_the_consensus():
    """The gradient of the mean over two entries is a half for each: one step of rate 1 moves every score by that."""
    play = two(FedMD(STILL))
    play.keep(a=[1.0, 3.0], b=[3.0, 5.0])
    play.round(play.init(), 1)
    assert play.bias("a") == [1.5, 3.5]
    assert play.bias("b") == [2.5, 4.5]


def test_what_is_asked_about_public_rows_costs_a_forward_pass_of_each_on_clients_and_server():
    step = zoo(1).cost(zoo(1).tiers[0].spec, 4).flops  # forward and backward on the four rows
    alone = {"a": ("d1", data(4))}
    asked = Speaking(FedMD(STILL, warm_public=0, warm_private=0, digests=0), zoo(1), alone)
    asked.round(asked.init())
    assert [entry.cost.flops for entry in asked.entries("answer")] == [step // 3]
    assert asked.entries("answer")[0].cost.memory == zoo(1).cost(zoo(1).full, 4).parameter_bytes
    taught = Speaking(FedDF(STILL, teach=Distillation(steps=0)), zoo(1), alone)
    taught.round(taught.init())
    assert [(entry.task.to, entry.cost.flops) for entry in taught.entries("answer")] == [(SERVER, step // 3)]
    twice = Speaking(FedGEMS(STILL, passes=1), zoo(1), alone)
    twice.round(twice.init())
    (learned,) = twice.entries("learn")
    assert learned.cost.flops == 2 * (step // 3) + step  # before and after the pass


def test_md2_identical_clients_have_nothing_to_digest():
    play = two(FedMD(STILL, digests=3), b="d2")
    play.keep(a=[1.0, 3.0], b=[1.0, 3.0])
    play.round(play.init(), 1)
    assert play.bias("a") == play.bias("b") == [1.0, 3.0]


def test_a_new_client_warms_up_on_public_rows_and_then_its_own_and_only_once():
    cold = Speaking(FedMD(STILL, warm_public=0, warm_private=0, digests=0), zoo(1), {"a": ("d1", data(4))})
    warm = Speaking(FedMD(STILL, warm_public=1, warm_private=0, digests=0), zoo(1), {"a": ("d1", data(4))})
    both = Speaking(FedMD(STILL, warm_public=1, warm_private=2, digests=0), zoo(1), {"a": ("d1", data(4))})
    for play in (cold, warm, both):
        play.round(play.init())
    flops = [play.entries("answer")[0].cost.flops for play in (cold, warm, both)]
    assert flops[2] - flops[0] == 3 * (flops[1] - flops[0]) > 0
    assert warm.bias("a")[0] > cold.bias("a")[0]  # every public row is of class 0
    before = warm.bias("a")
    warm.round(warm.init(), 1)
    assert warm.bias("a") == before


def test_who_does_not_answer_is_not_told_and_a_round_without_answers_is_a_round():
    play = Speaking(FedMD(STILL), zoo(1), {"a": ("d1", data(4)), "empty": ("d1", data(0))})
    play.round(play.init())
    assert [entry.task.to for entry in play.entries("digest")] == ["a"]
    play.round(play.init(), 1, only=["empty"])
    assert not play.entries("digest")


# FedDF


def test_df1_a_student_follows_the_softmax_of_the_teachers_mean_scores():
    target = mean_scores(torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]]))
    assert target.softmax(-1)[0].tolist() == close(0.731059, 0.268941)
    assert value(Follow(), net(0.0, 0.0), scores=target) == pytest.approx(0.110944, abs=1e-6)


@pytest.mark.parametrize("on", ["public", "noise"])
def test_df1_all_clients_teach_every_architecture(on):
    """The average of d1 says what the teachers say; d2, of which nobody took part, starts uniform and learns it."""
    once = Distillation(optimiser="sgd", lr=1.0, steps=1)
    play = two(unlabelled(saying(FedDF(on=on, noise=3, teach=once))))
    play.clients["a"][1].columns["x"][:] = torch.tensor([2.0, 0.0])
    start = play.init()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in start.model.arrays.items()}
    state = play.round(replace(start, model=Model(start.model.spec, zeros)))
    losses = {entry.task.key: entry.metrics["loss"] for entry in play.entries("learn")}
    small, large = (tier.spec for tier in play.zoo.tiers)
    assert losses[small.key] == pytest.approx(0.0, abs=1e-7)
    assert losses[large.key] == pytest.approx(0.110944, abs=1e-6)
    assert play.served(state, "a").arrays["head.bias"].tolist() == close(1.0, 0.0)
    whole = play.method.serve(state, Client(SERVER, Tier("server", spec=play.zoo.full)), play.zoo)
    assert whole.spec == large
    assert whole.arrays["head.bias"].tolist() == close(0.231059, -0.231059)


def test_df2_a_student_that_is_its_only_teacher_has_nothing_to_learn():
    target = torch.tensor([[0.3, -1.2]])
    assert float(divergence(target, target)) == 0.0
    only = net(0.3, -1.2)
    loss = Follow()(only, {"x": torch.ones(1, 2), "scores": predicted(only, Examples({"x": torch.ones(1, 2)}))})
    grads = torch.autograd.grad(loss, list(only.parameters()))
    assert all(float(grad.abs().max()) < 1e-7 for grad in grads)


def test_noise_needs_no_public_rows_and_teachers_and_students_see_the_same():
    method = FedDF(on="noise", noise=5)
    method.check(zoo(1))
    play = two(method)
    seeds = []
    for index in range(2):
        play.round(play.init(), index)
        asked = [entry.task.config["noise"] for verb in ("answer", "learn") for entry in play.entries(verb)]
        assert len(asked) == 4
        assert len(set(asked)) == 1
        seeds.append(asked[0])
    assert seeds[0] != seeds[1]


# DS-FL


def test_ds1_entropy_is_reduced_by_a_softmax_of_mean_probabilities():
    answers = torch.tensor([[[0.6, 0.4]], [[0.8, 0.2]]])
    assert DSFL().combined(answers)[0].tolist() == close(0.982014, 0.017986)
    assert DSFL(aggregate="sa").combined(answers)[0].tolist() == close(0.7, 0.3)


def test_ds2_a_uniform_mean_stays_uniform():
    assert sharpened(torch.tensor([[0.5, 0.5]]), 0.1).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("aggregate", "wanted"), [("era", 0.982014), ("sa", 0.7)])
def test_ds1_clients_and_server_learn_the_answers_without_labels(aggregate, wanted):
    """The gradient of cross-entropy is the softmax minus the answer, and the learning rate is one."""
    play = two(unlabelled(DSFL(STILL, aggregate=aggregate, distils=1)), b="d2")
    said = {"a": torch.tensor([0.6, 0.4]).log(), "b": torch.tensor([0.8, 0.2]).log()}
    play.keep(**said)
    start = replace(play.init(), model=biased(play.zoo.full, [0.0, 0.0]))
    state = play.round(start, 1)
    for client, chance in (("a", 0.6), ("b", 0.8)):
        assert play.bias(client)[0] == pytest.approx(float(said[client][0]) - (chance - wanted), abs=1e-5)
    assert state.model.arrays["head.bias"][0].item() == pytest.approx(wanted - 0.5, abs=1e-6)
    (learned,) = play.entries("learn")
    assert learned.task.to == SERVER
    assert learned.cost.flops > 0


def test_a_certain_answer_costs_its_cross_entropy():
    answers = torch.tensor([[0.7, 0.3]])
    assert value(SoftCrossEntropy(), net(1.0, 0.0), answers=answers) == pytest.approx(0.3 + 0.313262, abs=1e-6)


# FedGEMS


def test_ge1_clients_are_relied_on_by_a_softmax_of_one_over_entropy():
    entropy, right = torch.tensor([[0.5], [1.0]]), torch.tensor([[True], [True]])
    assert reliance(entropy, right).flatten().tolist() == close(0.731059, 0.268941)


def test_a_client_that_is_wrong_counts_as_if_it_knew_nothing_or_not_at_all():
    entropy, right = torch.tensor([[0.5], [1.0]]), torch.tensor([[True], [False]])
    assert reliance(entropy, right).flatten().tolist() == close(0.880797, 0.119203)
    assert reliance(entropy, right, exclude=True).flatten().tolist() == [1.0, 0.0]
    nobody = torch.zeros(2, 1, dtype=torch.bool)
    assert reliance(entropy, nobody, exclude=True).flatten().tolist() == [0.5, 0.5]


def test_clients_without_any_doubt_leave_numbers_finite():
    scores = torch.tensor([[[1e4, 0.0]], [[0.0, 0.0]]])
    assert relied(scores, torch.tensor([0])).tolist() == [[1e4, 0.0]]


def test_rows_that_are_right_have_cross_entropy_alone_and_others_a_teacher_too():
    batch = {"y": torch.tensor([0, 1]), "scores": torch.tensor([[0.0, 9.0], [1.0, 0.0]])}
    own = [0.313262, 1.313262]  # of scores [1, 0]; the second row's teacher says the same, the first one's is not asked
    chosen = value(Guided(0.75, selective=True), net(1.0, 0.0), **batch)
    assert chosen == pytest.approx((own[0] + 0.75 * own[1]) / 2, abs=1e-6)
    everyone = value(Guided(0.75), net(1.0, 0.0), **batch)
    first = 0.75 * own[0] + 0.25 * float(divergence(torch.tensor([0.0, 9.0]), torch.tensor([1.0, 0.0])))
    assert everyone == pytest.approx((first + 0.75 * own[1]) / 2, abs=1e-5)


def learned(method, heard, known, kept=(0.0, 0.0)):
    """The head's bias after the server, which is wrong about all rows, has learned."""
    play = two(method)
    rows = {"kept": torch.tensor([kept] * 4), "known": torch.tensor([known] * 4), "heard": torch.tensor([[heard] * 4])}
    start = biased(play.zoo.full, [0.0, 1.0])
    (reply,) = play.desk.open(0).send([Task("learn", SERVER, models={"model": start}, arrays=rows)])
    return reply.models["model"].arrays["head.bias"]


def test_ge2_a_row_once_right_and_now_wrong_has_the_memory_as_its_teacher_and_no_client():
    method = FedGEMS(Local(lr=0.1, batch=4), passes=1)
    one, other = (learned(method, heard, True, kept=(2.0, 0.0)) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert torch.equal(one, other)
    one, other = (learned(method, heard, False, kept=(2.0, 0.0)) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert not torch.equal(one, other)


def test_without_selection_clients_are_always_asked():
    method = FedGEMS(Local(lr=0.1, batch=4), passes=1, select=False)
    one, other = (learned(method, heard, True) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert not torch.equal(one, other)


def test_the_server_remembers_its_scores_of_rows_that_it_gets_right():
    play = two(FedGEMS(Local(lr=2.0, batch=4), passes=1))
    start = play.init()
    assert not start.memory["known"].any()
    state = play.round(replace(start, model=biased(play.zoo.full, [0.0, 0.1])))
    assert state.memory["known"].all()
    bias = state.model.arrays["head.bias"]
    assert bias[0] > bias[1]  # every public row is of class 0
    assert torch.allclose(state.memory["kept"], bias.expand(4, 2))
    wrong = replace(state, model=biased(play.zoo.full, [0.0, 50.0]))
    kept = play.round(wrong, 1).memory
    assert kept["known"].all()
    assert torch.equal(kept["kept"], state.memory["kept"])


def test_rows_that_a_round_is_not_about_keep_their_memory():
    play = two(FedGEMS(Local(lr=2.0, batch=4), rows=3, passes=1))
    state = play.round(replace(play.init(), model=biased(play.zoo.full, [0.0, 0.1])))
    assert int(state.memory["known"].sum()) == 3
    assert state.memory["kept"][~state.memory["known"]].tolist() == [[0.0, 0.0]]


# Fed-ET

ET1 = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 4.0, 0.0]], [[1.0, 0.0, 0.0]]])


def test_et1_networks_agree_by_the_variance_of_their_scores():
    assert confidence(ET1).flatten().tolist() == close(0.190476, 0.761905, 0.047619)
    assert agreed(ET1)[0].tolist() == close(0.428571, 3.047619, 0.0)
    assert agreed(ET1).argmax(-1).tolist() == [1]
    doubts, doubted = dissenting(ET1)
    assert doubts[0].tolist() == close(1.8, 0.0, 0.0)
    assert doubted.tolist() == [True]


def test_et2_where_all_agree_only_cross_entropy_is_left():
    alike = torch.tensor([[[2.0, 0.0]], [[3.0, 1.0]]])
    doubts, doubted = dissenting(alike)
    assert (doubts.tolist(), doubted.tolist()) == ([[0.0, 0.0]], [False])
    batch = {"agreed": torch.tensor([0]), "doubts": doubts}
    own = value(CrossEntropy(labels="agreed"), net(0.0, 1.0), **batch)
    assert value(Doubt(0.05), net(0.0, 1.0), **batch, doubted=doubted) == own
    uniform = float(divergence(torch.zeros(2), torch.tensor([0.0, 1.0])))
    doubting = value(Doubt(0.05), net(0.0, 1.0), **batch, doubted=torch.tensor([True]))
    assert doubting == pytest.approx(own + 0.05 * uniform, abs=1e-6)


def test_networks_that_tell_no_class_from_another_count_alike():
    flat = torch.zeros(2, 1, 3)
    assert confidence(flat).flatten().tolist() == [0.5, 0.5]
    assert all(bool(tensor.isfinite().all()) for tensor in dissenting(flat))


def heads(method):
    """A federation in which a (d1) says [1, 3], b and c (d2) say [4, 0], after one round."""
    told = {"a": [1.0, 3.0], "b": [4.0, 0.0], "c": [4.0, 0.0]}
    clients = {id: ("d1" if id == "a" else "d2", data(2, tuple(said))) for id, said in told.items()}
    play = Speaking(unlabelled(saying(method)), zoo(1, 2), clients)
    return play, play.round(play.init())


def test_the_representation_layer_is_the_mean_of_the_clients_and_goes_back_to_all():
    """By clients: (1 + 4 + 4) / 3 and (3 + 0 + 0) / 3."""
    play, state = heads(FedET(teach=replace(FedET().teach, steps=0)))
    assert state.large.arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "a").arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "b").arrays["head.bias"].tolist() == [3.0, 1.0]


def test_the_large_model_learns_what_is_agreed_on_and_its_layer_with_it():
    """Scores [4, 0] vary most: all public rows are taken for class 0."""
    play, state = heads(FedET())
    bias = state.large.arrays["head.bias"].tolist()
    assert bias[0] - bias[1] > 2.0
    assert play.served(state, "a").arrays["head.bias"].tolist() == bias
    assert play.method.serve(state, Client(SERVER, play.everyone[0].tier), play.zoo) is state.large
    (learn,) = play.entries("learn")
    assert (learn.task.to, learn.cost.flops > 0) == (SERVER, True)


def test_a_head_of_another_shape_stays_its_architectures_own():
    full = make_spec("lenet", input=(1, 8, 8), classes=2)
    other = make_spec("cnn", input=(1, 8, 8), classes=2)
    made = Menagerie(full, [Tier("l", spec=full), Tier("c", spec=other)], public=4)
    assert [spec.family for spec in FedET().heads(made)] == ["lenet"]


# All five


@pytest.mark.parametrize("name", FIVE)
def test_a_federation_without_public_rows_is_refused_before_round_0(name):
    with pytest.raises(SettingsError, match=r"public rows, and there are none; set data\.public to some") as refused:
        METHODS[name]().check(zoo(1))
    assert "\n" not in str(refused.value)
    METHODS[name]().check(replace(zoo(1), public=1))


def test_serve_says_what_the_server_has():
    made = replace(zoo(1, 2), public=4)
    server, client = Client(SERVER, Tier("server", spec=made.full)), Client("c0", made.tiers[0])
    found = {}
    for name in FIVE:
        method = METHODS[name]()
        state = method.init(made, torch.Generator().manual_seed(0))
        found[name] = [model and model.spec for model in (method.serve(state, who, made) for who in (server, client))]
    small = made.tiers[0].spec
    assert found["fedmd"] == [None, None]
    assert found["dsfl"] == found["fedgems"] == [made.full, None]
    assert found["feddf"] == found["fedet"] == [made.full, small]


def test_all_clients_of_a_round_speak_of_the_same_rows_and_each_round_of_others():
    method = DSFL(rows=3)
    play = two(method)
    drawn = []
    for index in range(6):
        play.round(play.init(), index)
        drawn.append(tuple(method.about(_now(play, index))["rows"].tolist()))
    assert all(len(set(rows)) == 3 and set(rows) <= set(range(4)) for rows in drawn)
    assert len(set(drawn)) > 1
    assert not DSFL(rows=9).about(_now(play, 0))


def _now(play, index):
    session = play.desk.open(index)
    return Round(index, play.everyone, 2, play.zoo, 0, session.send, session.fold, lambda wanted: [])


def test_columns_beside_examples_follow_their_rows():
    examples = Examples({"x": torch.arange(4.0)[:, None]}, torch.tensor([3, 1]))
    more = beside(examples, scores=torch.tensor([[30.0], [10.0]]))
    assert more[torch.tensor([1])]["x"].tolist() == [[1.0]]
    assert more[torch.tensor([1])]["scores"].tolist() == [[10.0]]


def test_settings_for_teaching_keep_what_they_do_not_name():
    made = door.method({"name": "feddf", "teach": {"epochs": 2}}, Local())
    assert (made.teach.optimiser, made.teach.lr, made.teach.epochs) == ("adam", 1e-3, 2)
    assert str(made.teach) == "epochs 2"
    made = door.method({"name": "fedet", "teach": {"steps": 3}}, Local())
    assert (made.teach.lr, made.teach.momentum, made.teach.steps) == (5e-3, 0.9, 3)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("fedmd", "rows", 0), ("fedmd", "digests", -1), ("dsfl", "temperature", 0.0), ("fedgems", "share", 1.5)],
)
def test_settings_out_of_range_are_refused_by_name(name, setting, value):
    with pytest.raises(SettingsError, match=rf"method\.{setting} = {value}"):
        door.method({"name": name, setting: value}, Local())


UNEQUAL = [
    {"name": "small", "model": {"name": "lenet"}},
    {"name": "medium", "model": {"name": "mobilenet_v2"}},
    {"name": "large"},
]


@pytest.mark.parametrize("name", FIVE)
def test_architectures_with_nothing_in_common_take_part(name, tmp_path):
    settings = {
        "rounds": 1,
        "cohort": 3,
        "data": {"clients": 3, "samples": 20, "public": 20, "client_test": 10},
        "model": {"name": "resnet18"},
        "tier": UNEQUAL,
        "method": {"name": name, **({"warm_public": 1, "warm_private": 1} if name == "fedmd" else {})},
        "local": {"lr": 0.05, "epochs": 1, "batch": 20},
        "score": {"every": 5, "clients": 3},
        "run": {"engine": "serial"},
    }
    if name == "fedet":
        settings["method"]["teach"] = {"steps": 1}
    result = run(experiment(settings), tmp_path / "run")
    assert all(tier["clients"]["count"] == 1 for tier in result.scores["tiers"].values())
    tasks = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    tasks = [line for line in tasks if line["event"] == "task"]
    assert {line["outcome"] for line in tasks} == {"accepted"}
    own = [line for line in tasks if line["tier"] == "server"]
    assert bool(own) == (name != "fedmd")
    assert any(line["modelled"]["flops"] > 0 for line in own) or name == "fedmd"
