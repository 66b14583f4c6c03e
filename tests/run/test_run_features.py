"""A look into the tiers' networks: CKA and the plane by hand, stages as they are, and what a run leaves behind."""

import json
import math

import pytest
import torch
from tiny_runs import Listener, tiny
from torch import nn

from potluck.core import Examples, Newborn, stream
from potluck.ledger import DamagedRecord, read_run
from potluck.models import ModelZoo, make_spec
from potluck.report import read_record, write_report
from potluck.run import resume, run
from potluck.run.similarity import cka, neighbours, plane, stage_features, stages


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
