"""FedMD: the consensus on public logits, the digest and the warm-up, by hand."""

from dataclasses import replace

import torch
from constant_logits import STILL, PublicPlay, hundred_rows, net, two_clients, value
from made_round import data, zoo

from potluck.learn import mean_logits
from potluck.methods import FedMD
from potluck.methods.fedmd import LogitsError


def test_the_consensus_is_the_mean_of_raw_logits_and_its_loss_the_absolute_error():
    consensus = mean_logits(torch.tensor([[[1.0, 3.0]], [[3.0, 5.0]]]))
    assert consensus.tolist() == [[2.0, 4.0]]
    assert value(LogitsError(), net(1.0, 3.0), scores=consensus) == 1.0


def test_clients_move_towards_the_consensus():
    """The gradient of the mean over two entries is a half for each: one step of rate 1 moves every score by that."""
    play = two_clients(FedMD(STILL))
    play.keep(a=[1.0, 3.0], b=[3.0, 5.0])
    play.round(play.init(), 1)
    assert play.bias("a") == [1.5, 3.5]
    assert play.bias("b") == [2.5, 4.5]


def digested(**settings):
    """What client a says after a digest of a hundred rows; it said [1, 1], and the consensus is [51, 51]."""
    play = two_clients(hundred_rows(FedMD(replace(STILL, batch=32), **settings)))
    play.keep(a=[1.0, 1.0], b=[101.0, 101.0])
    play.round(play.init(), 1)
    return play.bias("a")


def test_a_digest_has_the_clients_batches_unless_another_size_is_asked_for():
    """A hundred rows are four batches of 32, seven of 16 and one of 256; every step moves by a half."""
    assert digested() == [3.0, 3.0]
    assert digested(digests=2) == [5.0, 5.0]
    assert digested(batch=16) == [4.5, 4.5]
    assert digested(batch=256) == [1.5, 1.5]


def test_clients_that_agree_have_nothing_to_digest():
    play = two_clients(FedMD(STILL, digests=3), b="d2")
    play.keep(a=[1.0, 3.0], b=[1.0, 3.0])
    play.round(play.init(), 1)
    assert play.bias("a") == play.bias("b") == [1.0, 3.0]


def test_a_new_client_warms_up_on_public_rows_and_then_its_own_and_only_once():
    cold = PublicPlay(FedMD(STILL, warm_public=0, warm_private=0, digests=0), zoo(1), {"a": ("d1", data(4))})
    warm = PublicPlay(FedMD(STILL, warm_public=1, warm_private=0, digests=0), zoo(1), {"a": ("d1", data(4))})
    both = PublicPlay(FedMD(STILL, warm_public=1, warm_private=2, digests=0), zoo(1), {"a": ("d1", data(4))})
    for play in (cold, warm, both):
        play.round(play.init())
    flops = [play.entries("answer")[0].cost.flops for play in (cold, warm, both)]
    assert flops[2] - flops[0] == 3 * (flops[1] - flops[0]) > 0
    assert warm.bias("a")[0] > cold.bias("a")[0]  # every public row is of class 0
    before = warm.bias("a")
    warm.round(warm.init(), 1)
    assert warm.bias("a") == before


def test_only_clients_that_uploaded_logits_get_the_consensus_and_a_round_without_logits_passes():
    play = PublicPlay(FedMD(STILL), zoo(1), {"a": ("d1", data(4)), "empty": ("d1", data(0))})
    play.round(play.init())
    assert [entry.task.to for entry in play.entries("digest")] == ["a"]
    play.round(play.init(), 1, only=["empty"])
    assert not play.entries("digest")
