"""The client's whole program: only marked verbs are answered."""

from dataclasses import dataclass

import pytest

from potluck.core import Reply, Task, answer, display_name, on_client, settings, trains
from potluck.methods import METHODS


@dataclass(frozen=True)
class Greeter:
    word: str = "hello"
    verbs: tuple[str, ...] = ("greet",)

    @on_client
    def greet(self, task, device):
        return Reply(metrics={"said": f"{self.word} {task.to} on {device}"})

    @on_client
    def mumble(self, task, device):
        return task.config["thing"]

    @on_client
    def learn(self, task, device):
        fit = yield "a request"
        return Reply(metrics={"said": fit})

    @on_client
    def __secret(self, task, device):
        return Reply()

    def round(self, task, device):
        raise AssertionError("the server's half ran on a client")


@dataclass(frozen=True)
class Overriding(Greeter):
    def greet(self, task, device):
        return Reply(metrics={"said": "unmarked"})


def test_a_marked_verb_is_called_with_its_task_and_device():
    assert answer(Greeter(), Task("greet", "c1"), "a phone").metrics == {"said": "hello c1 on a phone"}


@pytest.mark.parametrize(
    "verb",
    [
        "round", "init", "settings", "word", "verbs", "", "nope", "greet ", "greet.__call__", "__secret", "__init__",
        "__class__", "__eq__", "__hash__", "__repr__", "__reduce__", "__reduce_ex__", "__dict__",
    ],
)  # fmt: skip
def test_an_unmarked_verb_is_refused(verb):
    with pytest.raises(PermissionError, match="Greeter has no client verb"):
        answer(Greeter(), Task(verb, "c1"), None)


def test_an_override_must_be_marked_again():
    with pytest.raises(PermissionError):
        answer(Overriding(), Task("greet", "c1"), None)


@pytest.mark.parametrize("thing", [{"said": "nothing"}, None, [Reply()], iter([Reply()]), Reply])
def test_a_verb_that_returns_neither_a_reply_nor_a_generator_is_refused(thing):
    with pytest.raises(TypeError, match=rf"Greeter\.mumble returned {type(thing).__name__}, not a Reply"):
        answer(Greeter(), Task("mumble", "c1", config={"thing": thing}), None)


def test_a_verb_that_trains_answers_with_its_generator_which_has_done_nothing_yet():
    work = answer(Greeter(), Task("learn", "c1"), None)
    assert next(work) == "a request"
    with pytest.raises(StopIteration) as end:
        work.send("a fit")
    assert end.value.value.metrics == {"said": "a fit"}


def test_only_a_verb_that_is_a_generator_trains():
    assert trains(Greeter(), "learn")
    assert not any(trains(Greeter(), verb) for verb in ("greet", "mumble", "round", "word", "nope", ""))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_to_train_and_score_and_to_nothing_of_the_servers(name):
    method = METHODS[name]()
    marked = {verb for verb in dir(method) if getattr(getattr(method, verb), "on_client", False)}
    assert marked >= {"train", "score"}
    assert not marked & {"init", "round", "ready", "serve", "complete", "facts", "check"}
    assert not any(verb.startswith("_") for verb in marked)


def test_settings_are_plain_values():
    assert settings(Greeter("hi")) == {"word": "hi", "verbs": ["greet"]}


def test_a_method_is_called_what_its_own_class_says_and_otherwise_as_the_class():
    class Cased:
        called = "Ca-SED"

    class Heir(Cased):
        pass

    assert [display_name(Cased()), display_name(Heir())] == ["Ca-SED", "Heir"]
