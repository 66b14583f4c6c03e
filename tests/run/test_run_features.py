"""A look into the tiers' networks: CKA and the plane by hand, stages as they are, and what a run leaves behind."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny_runs import Listener, tiny
from torch import nn
from torch.nn import functional

from potluck.core import SERVER, Examples, Newborn, ResourceError, UserError, stream
from potluck.learn import batch_rows, stage_features, stages
from potluck.ledger import DamagedRecord, RunFolder, read_run
from potluck.methods import FedAvg
from potluck.models import ModelZoo, make_spec
from potluck.report import read_record, write_report
from potluck.run import resume, run
from potluck.run.assemble import assemble
from potluck.run.restoring import read_checkpoint, restore_state
from potluck.run.similarity import cka, neighbours, plane, separation


def test_cka_is_one_for_turned_and_stretched_features_and_zero_for_unrelated_ones():
    line, cross = torch.tensor([[1.0], [-1.0], [0.0], [0.0]]), torch.tensor([[0.0], [0.0], [1.0], [-1.0]])
    both = torch.cat([line, cross], 1)
    assert cka(line, -3 * line + 7) == pytest.approx(1.0)
    assert cka(line, cross) == 0.0
    # |X'Y|^2 = 4, |X'X| = 2 sqrt(2), |Y'Y| = 2
    assert cka(both, line) == pytest.approx(4 / (2 * math.sqrt(2) * 2))
    assert cka(both, both.flip(1)) == pytest.approx(1.0)
    assert cka(line, torch.ones(4, 2)) is None


def test_the_plane_of_points_on_a_line_is_that_line():
    points, shares = plane(torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
    torch.testing.assert_close(points, torch.tensor([[-5.0, 0.0], [0.0, 0.0], [5.0, 0.0]]).double())
    assert shares == pytest.approx([1.0, 0.0])
    alone, _ = plane(torch.tensor([[2.0], [4.0]]))
    torch.testing.assert_close(alone, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double())
    assert plane(torch.ones(3, 4))[1] == [0.0, 0.0]


def test_t_sne_keeps_neighbours_together_and_repeats_with_its_seed():
    groups = torch.cat([torch.randn(20, 8, generator=stream(0, "x")) + 50 * place for place in range(3)])
    points = neighbours(groups, 0)
    assert points.shape == (60, 2)
    assert torch.equal(points, neighbours(groups, 0))
    near = torch.cdist(points, points).fill_diagonal_(math.inf).argmin(1)
    assert torch.equal(near // 20, torch.arange(60) // 20)
    assert neighbours(groups[:2], 0).isfinite().all()


def test_separation_is_the_mean_silhouette():
    """Two classes of two rows, 1 apart within and 10 apart between: each row's silhouette is 1 - 1/b."""
    line = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    outer, inner = 1 - 1 / 10.5, 1 - 1 / 9.5
    assert separation(line, [0, 0, 1, 1]) == pytest.approx((outer + inner) / 2)
    assert separation(line, [1, 1, 1, 1]) is None
    assert separation(line, [0, 1, 2, 3]) is None


def test_stages_are_stem_what_the_body_is_made_of_and_body_or_a_network_s_own_parts():
    spec = make_spec("resnet18", input=(3, 16, 16), classes=2, width=4)
    assert stages(ModelZoo(spec).build(Newborn(spec), stream(0)))[:5] == (
        "stem",
        "body.0",
        "body.1",
        "body.2",
        "body.3",
    )
    own = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    assert stages(own) == ("0", "1", "2")


class DoubleBackward(nn.Module):
    """Two parts, of which one is called twice, and one that gives no tensor."""

    def __init__(self):
        super().__init__()
        self.map, self.again, self.pair = nn.Conv2d(1, 1, 1, bias=False), nn.Tanh(), Pair()
        nn.init.constant_(self.map.weight, 2.0)

    def forward(self, x):
        return self.pair(self.again(self.again(self.map(x))))[0]


class Pair(nn.Module):
    def forward(self, x):
        return x, x


def test_features_of_maps_are_their_channels_means():
    x = torch.tensor([[[[1.0, 3.0]]], [[[0.0, 2.0]]]])
    found = stage_features(DoubleBackward(), Examples({"x": x, "y": torch.tensor([0, 1])}))
    assert {name: features.tolist() for name, features in found.items()} == {"map": [[4.0], [2.0]]}


def test_features_of_texts_are_means_over_tokens_that_are_no_padding():
    spec = make_spec("bert", input=(3,), classes=2, depth=1, hidden=4, heads=1, ffn=4, vocab=7, dropout=0.0)
    net = ModelZoo(spec).build(Newborn(spec), stream(0)).eval()
    ids = torch.tensor([[5, 3, 0], [2, 0, 0]])
    found = stage_features(net, Examples({"x": ids, "y": torch.tensor([0, 1])}), pad=0)
    assert list(found) == ["stem", "body.0", "body"]
    seen = net.body(net.stem(ids)).double()
    torch.testing.assert_close(found["body"], torch.stack([seen[0, :2].mean(0), seen[1, 0]]))


def test_a_run_leaves_what_its_tiers_see_and_another_leaves_nothing(tmp_path):
    run(tiny(score={"features": True}), tmp_path / "run")
    found = read_run(tmp_path / "run").features()
    assert (found["round"], found["rows"], len(found["labels"])) == (3, 359, 359)
    stages = {stage["name"]: stage for stage in found["stages"]}
    # The small tier's one block is the large one's first, and its body's end; the large one has a second.
    assert list(stages) == ["stem", "body.0", "body"]
    assert stages["stem"]["cka"] == [[1.0, 1.0], [1.0, 1.0]]
    end = stages["body"]
    assert end["tiers"] == ["small", "large"]
    assert end["cka"][0][0] == end["cka"][1][1] == 1.0
    assert 0 < end["cka"][0][1] == end["cka"][1][0] < 1
    assert [(plane["tier"], plane["stage"], len(plane["points"])) for plane in found["planes"]] == [
        ("small", "body", 359),
        ("large", "body", 359),
    ]
    run(tiny(), tmp_path / "other")
    assert not (tmp_path / "other" / "features.json").exists()
    assert read_run(tmp_path / "other").features() == {}
    assert read_record(tmp_path / "other").features == {}


def test_looking_changes_no_result_and_a_resumed_run_looks_again(tmp_path):
    plain = run(tiny(), tmp_path / "plain")
    assert run(tiny(score={"features": True}), tmp_path / "run").weights_sha256 == plain.weights_sha256
    before = read_run(tmp_path / "run").features()
    resume(tmp_path / "run", rounds=4)
    after = read_run(tmp_path / "run").features()
    assert (before["round"], after["round"]) == (3, 4)
    assert before["labels"] == after["labels"]


def test_features_can_be_drawn_by_t_sne(tmp_path):
    data = {"clients": 8, "test": 0.05}
    run(tiny(score={"features": True, "plane": "tsne"}, rounds=1, data=data), tmp_path / "run")
    found = read_run(tmp_path / "run").features()
    assert (found["plane"], found["rows"]) == ("tsne", 90)
    assert [(len(plane["points"]), plane["shares"]) for plane in found["planes"]] == [(90, [])] * 2
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "Features (t-SNE)" in page
    assert "principal component" not in page


def test_heads_that_clients_keep_are_not_missed(tmp_path):
    method = {"name": "inclusivefl", "private": "head"}
    run(tiny(score={"features": True}, method=method), tmp_path / "run")
    assert [plane["stage"] for plane in read_run(tmp_path / "run").features()["planes"]] == ["body", "body"]


def test_where_the_server_has_no_models_that_is_said(tmp_path):
    watch = Listener()
    run(tiny(score={"features": True}, method={"name": "local"}), tmp_path / "run", watch=watch)
    assert watch.warnings == ["score.features: the server has no models, or no test rows, to compare"]
    assert not (tmp_path / "run" / "features.json").exists()


def test_the_report_draws_a_map_for_each_stage_and_a_dot_for_each_row(tmp_path):
    run(tiny(score={"features": True}), tmp_path / "run")
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert page.count('<table class="heat">') == 3
    drawn = page.split("What the networks see")[1].split("</section>")[0]
    assert drawn.count("<circle") == 2 * 359
    (tmp_path / "run" / "features.json").write_text("{")
    with pytest.raises(DamagedRecord, match=r"features\.json is damaged: it is not JSON"):
        read_record(tmp_path / "run")
    (tmp_path / "run" / "features.json").write_text(json.dumps({"stages": 3, "planes": [{"points": [[1, None], 2]}]}))
    assert "What the networks see" not in write_report([tmp_path / "run"], tmp_path / "report.html").read_text()


CLIENTS = {"features": True, "compare_clients": 4}


def features_by_hand(folder, client):
    """A client's last features: of the model it is served, trained for its local epochs with its task's stream."""
    setup = assemble(tiny())
    method, zoo = setup.context.method, setup.context.zoo
    with RunFolder.open(folder) as opened:
        saved = read_checkpoint(folder, *opened.latest(print))
    state = restore_state(method.init(zoo, stream(0, "init")), saved.state)
    net = zoo.build(method.serve(state, setup.population.client(int(client[1:]), 3), zoo)).train()
    train, test = setup.context.datasets.shard(client).train, setup.context.datasets.shard(SERVER).test
    optimiser = torch.optim.SGD(net.parameters(), method.local.lr)
    for rows in batch_rows(len(train), method.local, stream(0, "task", 3, client, "show_features", "")):
        optimiser.zero_grad()
        functional.cross_entropy(net(train.column("x")[rows]), train.column("y")[rows]).backward()
        optimiser.step()
    return stage_features(net, test)["body"]


def test_clients_are_compared_after_their_local_epochs(tmp_path):
    """Every test row is looked at, so two clients' figure can be computed by hand."""
    run(tiny(score=CLIENTS), tmp_path / "run")
    found = read_run(tmp_path / "run").features()["clients"]
    assert found["tiers"] == {"c1": "small", "c3": "small", "c6": "large", "c7": "large"}
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert list(stages) == ["stem", "body.0", "body"]
    table = stages["body"]["cka"]
    assert [table[i][i] for i in range(4)] == [1.0] * 4
    assert all(table[a][b] == table[b][a] < 1 for a in range(4) for b in range(4) if a != b)
    pairs = [table[a][b] for a in range(4) for b in range(a)]
    assert stages["body"]["mean"] == pytest.approx(sum(pairs) / 6, abs=1e-5)
    one, other = (features_by_hand(tmp_path / "run", client) for client in ("c1", "c7"))
    assert table[0][3] == pytest.approx(cka(one, other), abs=2e-5)
    told = read_run(tmp_path / "run").manifest["features"]
    assert told["clients"] == {name: stage["mean"] for name, stage in stages.items()}
    assert told["separation"].keys() == {"small", "large"}


@pytest.mark.parametrize("engine", ["wire", "pool"])
def test_comparing_clients_changes_no_result_and_is_the_same_on_every_engine(tmp_path, engine):
    plain = run(tiny(), tmp_path / "plain")
    serial = run(tiny(score=CLIENTS), tmp_path / "serial")
    other = run(tiny(score=CLIENTS, run={"engine": engine}), tmp_path / "other")
    assert serial.weights_sha256 == other.weights_sha256 == plain.weights_sha256
    assert read_run(tmp_path / "serial").features() == read_run(tmp_path / "other").features()


@pytest.mark.parametrize("method", ["local", "fedmd", "lotteryfl", "tailorfl"])
def test_clients_that_keep_their_models_are_compared_if_they_have_trained(tmp_path, method):
    watch, data = Listener(), {"clients": 8, "public": 40}
    run(tiny(score=CLIENTS, method={"name": method}, data=data), tmp_path / "run", watch=watch)
    found = read_run(tmp_path / "run").features()
    assert found["clients"]["tiers"].keys() == {"c1", "c3", "c7"}
    assert [stage["name"] for stage in found["clients"]["stages"]][-1] == "body"
    assert watch.warnings == ["score.compare_clients: 1 client is left out; c6: never trained"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"score": {"compare_clients": 4}}, r"score\.compare_clients needs score\.features = true"),
        ({"score": {"features": True, "compare_clients": 1}}, r"score\.compare_clients = 1; give 0, or 2 or more"),
        ({"score": CLIENTS, "secure": {"enabled": True}}, r"score\.compare_clients shows .* \[secure\] promises"),
        ({"score": CLIENTS, "privacy": {"noise": 1.0}}, r"score\.compare_clients shows .* \[privacy\] promises"),
    ],
)
def test_what_cannot_be_compared_or_was_promised_to_stay_unseen_is_refused(tmp_path, changes, told):
    with pytest.raises(UserError, match=told):
        run(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class BlindOnce(FedAvg):
    """Its server model is lost after the last round, until a file says that it was found."""

    found: str = ""

    def serve(self, state, client, zoo):
        if client.id.startswith("c") and not Path(self.found).exists():
            raise ResourceError("the model is lost")
        return super().serve(state, client, zoo)


def test_a_fault_while_clients_are_compared_ends_the_run_and_a_resumed_run_compares_them(tmp_path):
    """Scores need no client's model here: they are of the tiers alone."""
    method = BlindOnce(share="layerwise", found=str(tmp_path / "found"))
    with pytest.raises(ResourceError, match="the model is lost"):
        run(tiny(score={**CLIENTS, "clients": 0}), tmp_path / "run", method=method)
    left = read_run(tmp_path / "run").manifest
    assert (left["status"], "the model is lost" in left["fault"]) == ("failed", True)
    (tmp_path / "found").touch()
    resume(tmp_path / "run", method=method)
    assert read_run(tmp_path / "run").manifest["status"] == "done"
    assert len(read_run(tmp_path / "run").features()["clients"]["tiers"]) == 4
