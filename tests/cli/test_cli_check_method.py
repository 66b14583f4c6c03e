"""`potluck check-method`: the contract on a method outside the package."""

import json

import pytest

from potluck import check_method
from potluck.methods import FedProx

GOOD = '''
from dataclasses import dataclass
from potluck.methods import FedAvg

@dataclass(frozen=True)
class RootAvg(FedAvg):
    """A client counts by a power of its samples."""
    power: float = 0.5

    def weigh(self, reply, zoo):
        return float(reply.weight**self.power)
'''
KEEPS_STATE = '''
from dataclasses import dataclass
from potluck.methods import FedAvg

@dataclass(frozen=True)
class KeepsState(FedAvg):
    """Keeps a count of its rounds on itself, and forgets it when it is made again."""

    def round(self, state, now):
        object.__setattr__(self, "rounds", getattr(self, "rounds", 0) + 1)
        return super().round(state, now)

    def weigh(self, reply, zoo):
        return float(reply.weight ** (1 / self.rounds))
'''
KEEPS_STATE_ELSEWHERE = '''
from dataclasses import dataclass
from potluck.methods import FedAvg

ROUNDS = []

@dataclass(frozen=True)
class KeepsStateElsewhere(FedAvg):
    """Counts its rounds in its module."""

    def round(self, state, now):
        ROUNDS.append(now.index)
        return super().round(state, now)

    def weigh(self, reply, zoo):
        return float(reply.weight ** (1 / len(ROUNDS)))
'''
DRAWS_GLOBALLY = '''
from dataclasses import dataclass, replace
import torch
from potluck.core import Model
from potluck.methods import FedAvg

@dataclass(frozen=True)
class DrawsGlobally(FedAvg):
    """Adds noise from torch's global generator."""

    def server_step(self, state, mean, now):
        stepped = super().server_step(state, mean, now)
        noisy = {name: t + 0.01 * torch.randn(t.shape) for name, t in stepped.model.arrays.items()}
        return replace(stepped, model=Model(stepped.model.spec, noisy))
'''
EDITS_STATE = '''
from dataclasses import dataclass
from potluck.methods import FedAvg

@dataclass(frozen=True)
class EditsState(FedAvg):
    """Writes the mean into the tensors of the state that it was given."""

    def server_step(self, state, mean, now):
        for name, tensor in mean.value().items():
            state.model.arrays[name].copy_(tensor)
        return state
'''

HIDES_WORK = '''
from dataclasses import dataclass
from potluck.methods import FedAvg

@dataclass(frozen=True)
class HidesWork(FedAvg):
    """Looks at its data once more after training, and does not count it."""

    def report(self, task, device, fit):
        fit.net(device.data.all()["x"])
        return super().report(task, device, fit)
'''


def write(place, name, text):
    (place / f"{name}.py").write_text(text)


def test_an_outside_method_in_one_file_keeps_every_promise(place, potluck):
    write(place, "root_avg", GOOD)
    code, out, _ = potluck("check-method", "root_avg:RootAvg", "--set", "power=0.4")
    assert code == 0
    assert "BROKEN" not in out
    assert out.count("kept") >= 20


@pytest.mark.parametrize(
    ("name", "text", "promise", "how"),
    [
        ("KeepsState", KEEPS_STATE, "It keeps nothing on itself", "it keeps state on itself"),
        ("KeepsStateElsewhere", KEEPS_STATE_ELSEWHERE, "It keeps nothing on itself", "the same object gives another"),
        ("DrawsGlobally", DRAWS_GLOBALLY, "It draws only from", "depends on a global random generator"),
        ("HidesWork", HIDES_WORK, "The FLOPs in the ledger", "tell device.charge what a verb computes beside fits"),
        ("EditsState", EDITS_STATE, "A round returns a new state", "the very state that it was given"),
    ],
)
def test_a_method_that_breaks_a_promise_is_told_which(place, potluck, name, text, promise, how):
    write(place, name.lower(), text)
    code, out, err = potluck("check-method", f"{name.lower()}:{name}")
    assert code == 7
    assert f"{name.lower()}:{name} breaks" in err
    told = out.splitlines()
    at = next(number for number, line in enumerate(told) if line.startswith(f"BROKEN  {promise}"))
    assert how in told[at + 1]


def test_verdicts_are_there_for_programs(place, potluck):
    write(place, "root_avg", GOOD)
    code, out, _ = potluck("check-method", "root_avg:RootAvg", "--format", "json")
    assert code == 0
    assert {line["broken"] for line in json.loads(out)} == {None}


def test_in_python_a_class_is_enough():
    told = []
    verdicts = check_method(FedProx, {"mu": 0.2}, told.append)
    assert told == verdicts
    assert not any(verdict.broken for verdict in verdicts)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing:Here"], "method 'nothing:Here' cannot be imported"),
        (["fedprx"], "there is no method 'fedprx'. Did you mean 'fedprox'?"),
        (["fedprox", "--set", "mu"], "write a setting of the method as key=value"),
    ],
)
def test_wrong_words_get_one_line(fail, words, said):
    code, line = fail("check-method", *words)
    assert code == 2
    assert said in line
