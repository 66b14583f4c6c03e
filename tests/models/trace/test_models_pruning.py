"""A pruned network has the tensors and the numbers of its width."""

import pytest
import torch
from traced_examples import MAPS, ROWS, TOKENS, Branches, Gated, Grouped, Tokens, UShaped

from potluck.core import SettingsError
from potluck.models.trace import trace
from potluck.parts import part

pytest.importorskip("torch_pruning")


def test_a_narrow_network_knows_its_own_numbers_and_the_full_one_is_untouched():
    net = Grouped()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    narrow = trace(net, MAPS).build({"a": 2, "grouped": 3})
    assert (narrow.grouped.in_channels, narrow.grouped.out_channels, narrow.grouped.groups) == (4, 6, 2)
    assert (narrow.thrice.in_channels, narrow.thrice.out_channels, narrow.thrice.groups) == (6, 18, 6)
    assert narrow.head.in_features == 80
    assert torch.equal(narrow.a.weight, net.a.weight[[0, 1, 6, 7]])
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_norms_over_units_follow_the_width():
    branches, tokens = trace(Branches(), MAPS).build({"stem": 3}), trace(Tokens(), TOKENS).build({"embed": 5})
    assert (branches.norm.num_groups, branches.norm.num_channels) == (1, 3)
    assert (tokens.norm.normalized_shape, tokens.embed.embedding_dim, tokens.place.shape) == ((5,), 5, (1, 5, 5))
    assert tokens(TOKENS).shape == (2, 5, 11)


def test_sizes_that_there_are_not_are_refused():
    traced = trace(Gated(), ROWS)
    with pytest.raises(SettingsError, match="no axis group 'c'"):
        traced.build({"c": 1})
    with pytest.raises(SettingsError, match="from 1 to 4"):
        traced.build({"a": 5})


def test_units_are_taken_in_the_order_in_which_they_are_chosen():
    traced = trace(UShaped(), MAPS)
    kept = part(traced.axes, lambda axis: [0] if axis.size == 1 else [2, 0]).take(traced.net.state_dict())
    whole = traced.net.c.weight[[2, 0]]
    assert torch.equal(kept["c.weight"], whole[:, [0, 1, 2, 5, 3, 10, 8]])
