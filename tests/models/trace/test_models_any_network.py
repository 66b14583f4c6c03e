"""A network of any kind takes part where nothing is cut; where something is, it is refused with the reason."""

import copy
import re
import sys
from pathlib import Path

import pytest
import torch
from own_networks import branching, declared_lstm, encoder, grouped, own_vit, recurrent, unet, vit
from torch import nn

from potluck.core import Axis, Newborn, SettingsError, stream
from potluck.models import ModelZoo, make_spec, register
from potluck.models.specs import uncut
from potluck.models.trace import trace
from potluck.run import assemble, experiment, run

register("any-recurrent", recurrent)
register("any-branching", branching)
for factory in (vit, own_vit, encoder, grouped, unet, declared_lstm):
    register(f"any-{factory.__name__}", factory)

SHAPE = {"input": (1, 8, 8), "classes": 10}
REASONS = {"any-recurrent": "layer 'lstm' (LSTM)", "any-branching": "forward of Branching depends on its data"}
UNCUT = sorted(REASONS)
TWO = [{"name": "small", "profile": "tv"}, {"name": "large"}]


def settings(model, tier=TWO, **method):
    """Two rounds of two steps."""
    return experiment(
        {
            "name": "any",
            "rounds": 2,
            "cohort": 3,
            "data": {"clients": 6, "public": 40},
            "model": {"name": model} if isinstance(model, str) else model,
            "tier": tier,
            "method": method,
            "local": {"steps": 2, "batch": 8},
            "score": {"clients": 2},
            "run": {"engine": "serial"},
        }
    )


@pytest.mark.parametrize("model", UNCUT)
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedavg", "share": "per_arch"},
        {"name": "scaffold"},
        {"name": "fedmd"},
        {"name": "feddf"},
        {"name": "local"},
    ],
    ids=lambda method: "-".join(method.values()),
)
def test_where_nothing_is_cut_any_network_takes_part(model, method, tmp_path):
    assert run(settings(model, **method), tmp_path / "run").rounds == 2


class Passing(nn.Module):
    """A parameter goes straight into a layer; the size of another layer is not told."""

    def __init__(self, classes):
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 8, 8))
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(8)
        self.read = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))
        self.wide = nn.LazyLinear(5)
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        x = x.flatten(1, 2) + self.drop(self.place) + self.norm(self.place)
        return self.head(torch.relu(self.wide(self.read(x).flatten(1))))


register("any-passing", lambda classes: Passing(classes))


def test_parameters_as_inputs_of_layers_and_lazy_layers_are_fine_where_nothing_is_cut(tmp_path):
    assert run(settings("any-passing", name="fedavg"), tmp_path / "run").rounds == 2
    zoo = ModelZoo(make_spec("any-passing", **SHAPE))
    spec = zoo.full
    assert zoo.shapes(spec)["wide.weight"][0] == (5, 48)
    read, wide, head = 8 * 8 * 6, 48 * 5, 5 * 10  # multiplications of one row
    # Forward, and backward for weights and for inputs; the first layer reads parameters too, so its inputs count.
    assert zoo.cost(spec, 1).flops == 2 * 3 * (read + wide + head)


def test_lazy_layers_that_no_example_reaches_are_refused():
    register("any-lazy", lambda classes: nn.Sequential(nn.LazyLinear(5), nn.Linear(4, classes)))
    with pytest.raises(SettingsError, match="any-lazy has lazy layers, and cannot run: "):
        make_spec("any-lazy", **SHAPE)
    with pytest.raises(SettingsError, match=r"'0' \(LazyLinear\) has no size yet"):
        trace(nn.Sequential(nn.LazyLinear(5)), torch.zeros(2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("model", UNCUT)
def test_moss_takes_networks_of_any_kind_together(model, tmp_path):
    tiers = [{"name": "small", "profile": "tv"}, {"name": "large", "model": {"name": "lenet"}}]
    assert run(settings(model, tiers, name="moss"), tmp_path / "run").rounds == 2


@pytest.mark.parametrize("model", UNCUT)
@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fjord", "hermes", "tailorfl", "fedskel"])
def test_width_methods_refuse_before_round_0_with_the_reason_in_one_line(model, method):
    with pytest.raises(SettingsError) as refusal:
        assemble(settings(model, name=method))
    assert REASONS[model] in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("width", [0.5, {"*": 0.5}])
def test_a_width_for_a_network_that_cannot_be_cut_is_refused_with_the_reason(width):
    with pytest.raises(SettingsError, match=r"tier 'half': 'any-recurrent' cannot be cut in width.*LSTM"):
        assemble(settings("any-recurrent", [{"name": "half", "width": width}], name="fedavg"))


def test_a_library_that_is_missing_is_no_hindrance_where_nothing_is_cut(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    dense = [nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10)]
    register("any-without-library", lambda: nn.Sequential(*copy.deepcopy(dense)))
    assemble(settings("any-without-library", name="fedavg"))
    with pytest.raises(SettingsError, match=r"pip install 'potluck\[trace\]'"):
        assemble(settings("any-without-library", name="heterofl"))


def test_the_cost_of_a_recurrent_network_is_counted():
    spec = make_spec("any-recurrent", **SHAPE)
    work = ModelZoo(spec).cost(spec, 2)
    assert work.parameters == 8 * 6 + 6 + 4 * 6 * (6 + 6 + 2) + 6 * 10 + 10
    # Two examples, multiply and add: eight rows are read and pass the four gates, then the head.
    forward = 2 * 2 * (8 * (8 * 6 + 6 * 24 + 6 * 24) + 6 * 10)
    assert 2 * forward < work.flops <= 3 * forward


def test_the_cost_of_a_forward_that_depends_on_its_data_is_that_of_the_way_it_took():
    spec = make_spec("any-branching", **SHAPE)
    zoo = ModelZoo(spec)
    assert zoo.cost(spec, 6).flops == 2 * zoo.cost(spec, 3).flops
    # Products with weights: forward and gradients of weights in both layers, gradients of inputs in the head only.
    assert zoo.cost(spec, 3).flops == 3 * 2 * (2 * 64 * 6 + 3 * 6 * 10)
    assert zoo.cost(spec, 1).parameters == 2 * (64 * 6 + 6) + 6 * 10 + 10


class Masked(nn.Module):
    """A buffer outside the state dict: never sent, so every device must have the same."""

    def __init__(self, classes, mask):
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)
        self.a, self.head = nn.Linear(64, 6), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(torch.relu(self.a(x.flatten(1) * self.mask)))


def test_buffers_outside_the_state_dict_keep_the_factorys_numbers():
    register("any-masked", lambda classes: Masked(classes, torch.arange(64.0)))
    spec = make_spec("any-masked", **SHAPE)
    zoo = ModelZoo(spec)
    model = zoo.fresh(zoo.narrow(spec, 0.5), stream(0))
    assert model.arrays["a.weight"].shape == (3, 64)
    assert zoo.build(model).mask.tolist() == zoo.build(Newborn(spec), stream(0)).mask.tolist() == list(range(64))


def test_random_buffers_outside_the_state_dict_are_refused():
    register("any-random-mask", lambda classes: Masked(classes, torch.rand(64)))
    with pytest.raises(SettingsError, match=r"'mask' is not in the state dict.*random. Make it persistent"):
        make_spec("any-random-mask", **SHAPE)


HALVES = [{"name": "half", "width": 0.5}, {"name": "whole"}]


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
@pytest.mark.parametrize("model", ["vit", "own_vit", "encoder", "grouped", "unet", "declared_lstm"])
def test_networks_of_ones_own_are_cut_in_width(model, method, tmp_path):
    asked = settings(f"any-{model}", HALVES, name=method)
    small, large = assemble(asked).context.zoo.tiers
    assert 2 * sum(small.spec.sizes.values()) == sum(large.spec.sizes.values())
    assert run(asked, tmp_path / "run").rounds == 2


@pytest.mark.parametrize("cut_heads", ["width", "whole"])
def test_a_setting_says_how_heads_are_cut(cut_heads):
    zoo = assemble(settings({"name": "any-vit", "cut_heads": cut_heads}, HALVES, name="heterofl")).context.zoo
    attend = zoo.build(Newborn(zoo.tiers[0].spec), stream(0)).blocks[0].attend
    assert attend.num_heads == {"width": 4, "whole": 2}[cut_heads]
    assert attend.in_proj_weight.shape == (3 * 8, 8)


def test_heads_can_be_cut_in_two_ways_only():
    with pytest.raises(SettingsError, match=r"cut_heads = 'half' is not a choice. There are: width, whole"):
        make_spec("any-vit", cut_heads="half", **SHAPE)


def test_a_narrow_network_with_attention_is_built_again_from_its_arrays():
    spec = make_spec("any-vit", cut_heads="whole", **SHAPE)
    zoo = ModelZoo(spec)
    narrow = zoo.narrow(spec, 0.5)
    model = zoo.fresh(narrow, stream(0))
    x = torch.randn(2, 1, 8, 8, generator=stream(1))
    first = zoo.build(Newborn(narrow), stream(0)).eval()
    assert torch.equal(zoo.build(model).eval()(x), first(x))
    assert zoo.cost(narrow, 2).flops < zoo.cost(spec, 2).flops


BLOCKS = {"name": "any-vit", "blocks": "blocks"}
DEPTHS = [{"name": "shallow", "depth": 1}, {"name": "deep"}]


def test_depth_counts_the_blocks_of_a_list():
    spec = make_spec(**BLOCKS, **SHAPE)
    zoo = ModelZoo(spec)
    shallow = zoo.shallow(spec, 1)
    assert (spec.depth, shallow.depth) == (2, 1)
    assert {name.split(".")[1] for name in zoo.shapes(shallow) if name.startswith("blocks.")} == {"0"}
    assert all(zoo.shapes(spec)[name] == shape for name, shape in zoo.shapes(shallow).items())
    assert [zoo.block(spec, f"{name}.bias") for name in ("patch", "blocks.0.up", "blocks.1.up", "head")] == [
        None, 0, 1, None,
    ]  # fmt: skip
    assert shallow.sizes.keys() == {group for group in spec.sizes if not group.startswith("blocks.1")}
    assert zoo.narrow(shallow, 0.5) == zoo.shallow(zoo.narrow(spec, 0.5), 1)


@pytest.mark.parametrize(
    "method",
    [{"name": "inclusivefl"}, {"name": "fedavg", "share": "layerwise"}, {"name": "heterofl"}],
    ids=lambda method: method["name"],
)
def test_depth_tiers_run_on_blocks_of_ones_own(method, tmp_path):
    assert run(settings(BLOCKS, DEPTHS, **method), tmp_path / "run").rounds == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"depth": 1}, 'has one depth: leave depth = 1 out, or name the list of its blocks, such as blocks = "encoder'),
        ({"blocks": "block"}, "blocks = 'block' is no nn.ModuleList or nn.Sequential of the network. Did you mean 'bl"),
        ({"blocks": "head"}, "blocks = 'head' is no nn.ModuleList"),
        ({"blocks": "blocks", "depth": 3}, "depth = 3 must be a whole number from 1 to 2"),
    ],
)
def test_blocks_that_are_not_there_are_refused(options, why):
    with pytest.raises(SettingsError) as refusal:
        make_spec("any-vit", **SHAPE | options)
    assert why in str(refusal.value)


def test_an_argument_of_the_factory_that_is_called_blocks_is_the_factorys():
    def make(classes, blocks=2):
        middle = [nn.Linear(6, 6) for _ in range(blocks)]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), *middle, nn.Linear(6, classes))

    register("any-blocks", make)
    assert len(make_spec("any-blocks", blocks=3, **SHAPE).sizes) == 4


def test_declared_axes_cut_what_cannot_be_traced():
    spec = make_spec("any-declared_lstm", **SHAPE)
    assert spec.sizes == {"hidden": 6, "read": 6}
    narrow = ModelZoo(spec).narrow(spec, 0.5)
    lstm = ModelZoo(spec).build(Newborn(narrow), stream(0)).lstm
    assert (lstm.input_size, lstm.hidden_size, lstm.weight_ih_l0.shape) == (3, 3, (12, 3))


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"reed.weight": (Axis("read", 6),)}, "no tensor 'reed.weight'. Did you mean 'read.weight'?"),
        ({"read.weight": (Axis("read", 5),)}, "dimension 0 has 6 entries, and the axes 1 x 5 x 1"),
        ({"read.weight": (None, None, Axis("read", 6))}, "3 dimensions, and the tensor has 2"),
        ({"read.weight": (6,)}, "6 is not an Axis"),
        ({"read.bias": Axis("u", 6), "head.weight": (Axis("u", 5, 2),)}, "'u' has 5 units here, and 6 elsewhere"),
        ({"head.weight": (None, Axis("hidden", 6))}, "width 0.5"),
    ],
)
def test_axes_that_are_declared_wrongly_are_refused(axes, why, request):
    def make(input, classes):
        return recurrent(input, classes)

    make.axes = lambda net: axes
    register(request.node.name, make)
    with pytest.raises(SettingsError) as refusal:
        make_spec(request.node.name, **SHAPE)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_example_of_the_documentation_is_cut(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "networks.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {"__name__": "networks"})
    assert make_spec("reader", **SHAPE).sizes == {"hidden": 16}
    assert run(settings("reader", HALVES, name="heterofl"), tmp_path / "run").rounds == 2
    assert run(settings("reader", name="moss"), tmp_path / "moss").rounds == 2


class Rotary(nn.Module):
    """Attention over tokens, not to padding; the angles of units follow from the width of a head."""

    def __init__(self, vocab, classes):
        super().__init__()
        self.heads, self.embed = 2, nn.Embedding(vocab, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        seen, (rows, length) = self.embed(x), x.shape
        q, k, v = (each(seen).view(rows, length, self.heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        allowed = (x != 0)[:, None, None] | torch.eye(length, dtype=torch.bool, device=x.device)
        mixed = nn.functional.scaled_dot_product_attention(self.turn(q), self.turn(k), v, allowed)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))

    def turn(self, x):
        half = x.shape[-1] // 2
        place = torch.arange(x.shape[-2], device=x.device)[:, None]
        angle = place * (1 + torch.arange(x.shape[-1], device=x.device) % max(half, 1)) / x.shape[-1]
        return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()


def test_the_example_of_tokens_is_no_padding_so_that_attention_is_compared():
    def make(input, classes, vocab=30):
        return Rotary(vocab, classes)

    make.tokens = True
    register("any-rotary", make)
    spec = make_spec("any-rotary", input=6, classes=3)
    assert "does not compute what the full one computes" in uncut(spec)
    assert not uncut(make_spec("any-rotary", input=6, classes=3, cut_heads="whole"))


def test_dropout_within_attention_has_the_seed_of_the_run(tmp_path):
    def make(input, classes):
        net = vit(input, classes, depth_blocks=1)
        net.blocks[0].attend.dropout = 0.5
        return net

    register("any-dropout", make)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(run(settings("any-dropout", name="fedavg"), tmp_path / str(seed)).weights_sha256)
    assert found[0] == found[1]
