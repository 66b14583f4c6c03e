"""The attack's driver: it counts cases, goes on after a finding, and prints the line that repeats it."""

import os
import random

from attack.driver import Attack, Finding, run
from attack.folders import damage
from attack.messages import mutate, originals
from attack.replies import PLAIN, WEIGHTS


def test_a_finding_is_printed_with_the_line_that_repeats_it(tmp_path, capsys):
    drawn = []

    def try_one(dice, folder):
        drawn.append(dice.random())
        if len(drawn) == 3:
            raise Finding("the third case is bad")
        return 1

    attack = Attack("made", try_one, enough=4)
    assert run([attack], minutes=1, seed=7, place=tmp_path) == 1
    out = capsys.readouterr().out
    assert "FINDING in made: the third case is bad" in out
    assert "repeat: cd tests && python -m attack --only made --seed 7 --number 3" in out
    assert (attack.cases, attack.numbers) == (4, 5)
    assert drawn[2] == random.Random("made/7/3").random()


def test_mutations_differ_from_the_message_and_are_repeatable():
    base = originals()
    for seed in range(40):
        message = random.Random(seed).choice(base)
        first, second = (mutate(message, random.Random(seed)) for _ in range(2))
        assert first == second
    changed = sum(mutate(base[0], random.Random(seed)) != base[0] for seed in range(40))
    assert changed > 35


def test_the_hostile_values_are_of_many_kinds():
    assert len({type(value) for value in WEIGHTS}) > 8
    assert len({type(value) for value in PLAIN}) > 5


def test_a_second_damage_leaves_the_links_and_pipes_of_the_first_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "to-a-folder").symlink_to(tmp_path)
    (folder / "to-a-file").symlink_to(folder / "file")
    os.mkfifo(folder / "pipe")
    for seed in range(20):
        (folder / "file").write_text("whole")
        assert damage(folder, random.Random(seed)).endswith(" file")
        if (folder / "file").is_dir():
            (folder / "file").rmdir()
        else:
            (folder / "file").unlink(missing_ok=True)
