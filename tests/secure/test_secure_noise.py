"""Noise that clients add together under the masks: distribution, spread in sums, epsilon, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import kept, killed_after, tiny

from potluck.core import SecretNoise, SettingsError, on_client, stream
from potluck.engines import Dispatcher, Serial
from potluck.methods import HeteroFL
from potluck.parts import WHOLE
from potluck.run import assemble, resume, run
from potluck.run.central_epsilon import epsilon_of_shares, noise_for_shares
from potluck.run.privacy import epsilon
from potluck.secure.blocks import RoundBlocks
from potluck.secure.client import Update
from potluck.secure.noise import NoiseShare, NoisyUpdate, discrete_gaussian
from potluck.secure.ring import Ring

WIDTHS = [{"name": "small", "width": 0.5}, {"name": "large", "width": 1.0}]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def both(privacy=(), secure=(), **changes):
    told = {
        "cohort": 8,
        "data": {"clients": 8},
        "tier": WIDTHS,
        "method": {"name": "heterofl", "label_mask": False},
        "secure": {"enabled": True, **dict(secure)},
        "privacy": {"where": "server", "clip": 0.5, "noise": 1.0, **dict(privacy)},
    }
    return tiny(**{**told, **changes})


def model(folder):
    return kept(Path(folder))[1]["state"]["model"].arrays


@pytest.mark.parametrize("deviation", [0.7, 4.0])
def test_discrete_gaussians_have_their_probabilities(deviation):
    """Chi-square with up to 35 degrees of freedom; above 80 in one of 50,000 samples. The key is fixed."""
    count = 200_000
    drawn = discrete_gaussian(deviation, count, SecretNoise(b"g" * 32))
    values = np.arange(-17, 18)
    weights = np.exp(-(values**2) / (2 * deviation**2))
    expected = count * weights / weights.sum()
    enough = expected > 10
    seen = np.array([(drawn == value).sum() for value in values])
    assert ((seen - expected)[enough] ** 2 / expected[enough]).sum() < 80
    assert not np.any(drawn != np.rint(drawn))


def test_a_wide_discrete_gaussian_has_its_deviation():
    drawn = discrete_gaussian(1e6, 100_000, SecretNoise(b"h" * 32))
    assert drawn.std() == pytest.approx(1e6, rel=0.01)
    assert drawn.mean() == pytest.approx(0, abs=4e6 / math.sqrt(100_000))


@dataclass(frozen=True)
class Still(HeteroFL):
    """HeteroFL whose clients send back what they got, so that only noise moves the model."""

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        return replace(reply, models=dict(task.models))


@pytest.mark.parametrize("least", [2, 4])
def test_every_opened_sum_has_at_least_the_noise_that_is_stated(least):
    """Eight clients hold the first rows, four of them the others too. Each adds a variance of 1 / least (in clips)."""
    one = both({"clip": 2.0}, {"min_holders": least}, rounds=1, model={"hidden": 64, "depth": 1})
    method = Still(local=one.local, label_mask=False)
    setup = assemble(one, method=method)
    start = method.init(setup.context.zoo, stream(0, "init")).model.arrays["stem.linear.weight"]
    run(one, "run", method=method)
    moved = (model("run")["stem.linear.weight"] - start).double() / 2.0  # in clips
    assert float((moved[:32] * 8).var()) == pytest.approx(8 / least, rel=0.1)
    assert float((moved[32:] * 4).var()) == pytest.approx(4 / least, rel=0.1)


def test_with_hardly_any_noise_the_round_is_that_of_a_server_that_adds_it():
    """All eight take part, so as many are expected as come."""
    one = both({"noise": 1e-5}, rounds=1)
    run(one, "shares")
    run(replace(one, secure=tiny().secure), "server")
    far = model("server")
    for name, tensor in model("shares").items():
        assert torch.allclose(tensor, far[name], atol=1e-5)


def test_every_engine_and_a_killed_run_have_the_same_bits():
    want = run(both(), "serial")
    found = run(both(run={"engine": "pool", "workers": 2}), "pool")
    assert found.weights_sha256 == want.weights_sha256
    assert found.privacy == want.privacy
    killed_after(1, both(), "killed")
    assert resume("killed").weights_sha256 == want.weights_sha256
    assert run(both(seed=1), "other").weights_sha256 != want.weights_sha256


def test_epsilon_is_for_other_data_and_counts_every_upload_of_the_busiest_client():
    found = run(both({"noise": None, "epsilon": 4.0}), "run").privacy
    assert 3.99 < found["epsilon"] <= 4.0
    assert found["epsilon"] == epsilon_of_shares(found["noise"], 1e-5, 3)
    assert (found["where"], found["neighbours"], found["uploads"]) == ("clients", "replace-one", 3)


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (5.0, 1), (20.0, 50), (400.0, 1)])
def test_epsilon_is_a_little_above_that_of_continuous_noise(noise, times):
    exact = epsilon(noise, 1e-5, times)
    assert exact <= epsilon_of_shares(noise, 1e-5, times) <= 1.25 * exact
    assert epsilon_of_shares(noise_for_shares(exact, 1e-5, times), 1e-5, times) <= exact
    assert epsilon_of_shares(noise, 1e-5, 0) == 0


class Kept(Serial):
    """Keeps what clients upload."""

    def __init__(self, context):
        super().__init__(context)
        self.masked = {}

    def run(self, envelopes):
        for result in super().run(envelopes):
            if result.reply is not None and "masked" in result.reply.arrays:
                self.masked[result.task.to] = result.reply
            yield result


def test_no_plain_value_leaves_a_client_and_all_weigh_the_same():
    setup = assemble(both())
    context = setup.context
    engine = Kept(context)
    dispatcher = Dispatcher(engine, context.method, context.zoo, secure=context.secure, samples=context.samples)
    session = dispatcher.open(0)
    context.method.round(context.method.init(context.zoo, stream(0, "init")), setup.view(0, session))
    assert len(engine.masked) == 8
    assert all(reply.metrics == {} and reply.weight == 1.0 for reply in engine.masked.values())


SHARE = NoiseShare(clip=1.0, noise=2.0, least=4)


def covered(step, scale=2.0**20, key="k", heaviest=1.0, weight=1.0):
    start = {"w": torch.zeros(len(step))}
    blocks = RoundBlocks.of(start, {"c0": WHOLE}, {"c0": ["w"]})
    update = Update(
        blocks.layout("c0"), {"w": step.double()}, {"w": scale}, weight, 1.0, {}, heaviest, start, frozenset()
    )
    (block,) = blocks.whole.blocks()
    made = SHARE.cover(update, heaviest, frozenset(), lambda purpose: (key + purpose).encode().ljust(32)[:32])
    return made, block


def test_an_update_is_cut_towards_zero_so_that_it_is_never_longer_than_its_clip():
    step = torch.randn(10_000, generator=stream(1, "x"), dtype=torch.float64)
    step /= step.norm()
    made, _ = covered(step, 16.0)
    assert isinstance(made, NoisyUpdate)
    assert float(made.tensors["w"].norm()) <= 1.0
    whole = made.tensors["w"] * 16.0
    assert torch.equal(whole, whole.round())
    assert torch.equal((step * 16.0).trunc(), whole)


def test_other_values_and_other_keys_have_other_noise_and_the_same_have_the_same():
    step = torch.full((500,), 0.01)
    made, block = covered(step)
    first = made.encode(block, Ring(32))
    again = covered(step)[0].encode(block, Ring(32))
    assert (first == again).all()
    plain = np.trunc(step.double().numpy() * 2.0**20).astype(np.int64)
    noise = first[:-1].view(np.int32).astype(np.int64) - plain
    assert noise.std() == pytest.approx(2.0**20, rel=0.15)  # 2 / sqrt(4) clips
    assert first[-1] == 1
    other = covered(step, key="other")[0].encode(block, Ring(32))
    step[0] += 0.5
    moved = covered(step)[0].encode(block, Ring(32))
    for values in (other, moved):
        assert (values[1:-1] != first[1:-1]).mean() > 0.99


def test_a_client_adds_no_noise_that_is_lost_in_coarse_numbers_and_takes_no_other_weight():
    with pytest.raises(PermissionError, match="so coarse that noise would be lost"):
        covered(torch.zeros(3), scale=2.0)
    for odd in ({"heaviest": 100.0}, {"weight": 0.5}):
        with pytest.raises(PermissionError, match="the weight 1"):
            covered(torch.zeros(3), **odd)


@pytest.mark.parametrize(
    ("privacy", "secure", "why"),
    [
        ({"mechanism": "tree"}, {}, r'mechanism = "tree": clients add the noise .* Set privacy.mechanism = "gaussian"'),
        ({"clip": "adaptive"}, {}, r'clip = "adaptive": each client would tell .* Give privacy.clip a number'),
        ({"noise": 1e-6}, {"min_holders": 8}, r"share is .* steps of the ring, and 4 are needed. Set secure.bits = 64"),
    ],
)
def test_what_clients_cannot_do_together_is_refused_with_what_to_change(privacy, secure, why):
    changes = {"cohort": 800, "data": {"clients": 800}} if "noise" in privacy else {}
    with pytest.raises(SettingsError, match=why):
        assemble(both(privacy, secure, **changes))
    if "noise" in privacy:
        assert assemble(both(privacy, {**secure, "bits": 64}, **changes))
