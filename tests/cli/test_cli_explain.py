import json
import os
import subprocess
import sys
import tomllib

import pytest

from potluck.reference import find, read_reference
from potluck.run import recipe

SECTIONS = ("data", "model", "tier", "fleet", "method", "local", "gate", "privacy", "score", "run", "compare", "nodes")


def test_a_setting_is_explained_with_its_type_its_default_and_its_meaning(potluck):
    code, out, err = potluck("explain", "run.engine")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert words.startswith('run.engine type: "auto", "serial", "wire", "pool", "graphs" or "ray" default: "auto"')
    assert words.endswith("else serial. ray: several machines.")


def test_a_value_that_the_built_in_experiment_changes_is_shown_and_others_are_not(potluck):
    shares = [tier["share"] for tier in tomllib.loads(recipe("digits"))["tier"]]
    _, out, _ = potluck("explain", "tier.share")
    assert all(f"= {share}" in out.split("built-in experiment:")[1] for share in shares)
    assert "built-in experiment" not in potluck("explain", "local.momentum")[1]


def test_the_share_of_one_tier_is_explained_as_that_of_any(potluck):
    assert potluck("explain", "tier.phone.share") == potluck("explain", "tier.share")


def test_local_training_under_a_method_is_explained_as_that_of_the_experiment(potluck):
    assert potluck("explain", "method.local.lr") == potluck("explain", "local.lr")


def test_a_section_lists_its_settings(potluck):
    code, out, _ = potluck("explain", "local")
    assert code == 0
    assert all(f" {setting.key} " in out for setting in find("local", read_reference())[0].settings)


def test_a_method_is_explained_by_its_name_alone(potluck):
    alone = potluck("explain", "fedrolex")
    assert alone == potluck("explain", "method.fedrolex")
    assert " rounding " in alone[1]
    assert "(table, as in [local])" in alone[1]
    assert "where it differs from [local]" in " ".join(alone[1].split())


def test_a_model_is_explained_by_its_name_or_by_that_of_a_member(potluck):
    assert potluck("explain", "resnet18") == potluck("explain", "model.resnet")


def test_a_setting_that_several_methods_have_is_explained_for_each(potluck):
    _, out, _ = potluck("explain", "method.mu", "--format", "json")
    assert {"method.fedprox.mu", "method.moon.mu"} <= {each["name"] for each in json.loads(out)}


def test_settings_of_the_server_rules_are_explained(potluck):
    assert "default: 0.99" in " ".join(potluck("explain", "method.server.adam.beta2")[1].split())


def test_a_files_layout_is_explained(potluck):
    assert "x_test" in potluck("explain", "npz")[1]
    assert "bytes_down" in potluck("explain", "ledger.jsonl")[1]


def test_explain_alone_lists_the_sections(potluck):
    code, out, _ = potluck("explain")
    assert code == 0
    assert all(f" {name} " in out for name in SECTIONS)
    assert "under [[tier]]" in " ".join(out.split())


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("local.lrr", "local.lr"),
        ("lr", "local.lr"),
        ("fedrolx", "method.fedrolex"),
        ("locl", "local"),
        ("run.engin", "run.engine"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest_name(fail, wrong, near):
    code, said = fail("explain", wrong)
    assert code == 2
    assert said.endswith(f"Did you mean '{near}'?")


def test_a_name_that_is_near_to_nothing_says_how_to_list_them(fail):
    assert fail("explain", "zzzzqqq") == (
        2, "potluck: there is no setting or section 'zzzzqqq'. `potluck explain` lists the sections."
    )  # fmt: skip


def test_json_has_the_same(potluck):
    found = json.loads(potluck("explain", "tier.share", "--format", "json")[1])
    assert set(found) == {"name", "type", "default", "about", "built_in"}
    section = json.loads(potluck("explain", "local", "--format", "json")[1])
    assert section["settings"][0]["name"] == "local.lr"
    listed = json.loads(potluck("explain", "--format", "json")[1])
    assert {each["name"] for each in listed} >= set(SECTIONS)


def test_a_method_of_ones_own_is_explained_from_its_docstrings(potluck, place):
    (place / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom potluck.methods import FedAvg\n\n\n"
        '@dataclass(frozen=True)\nclass Mine(FedAvg):\n    """My own."""\n\n'
        '    pull: float = 0.25\n    """How hard."""\n'
    )
    _, out, _ = potluck("explain", "mine:Mine")
    assert "My own." in out
    assert "How hard." in out
    assert "0.25" in out


def test_explaining_and_completing_import_neither_torch_nor_numpy():
    program = (
        "import os, sys\n"
        "from potluck.cli import main\n"
        "for words in (['explain'], ['explain', 'local'], ['explain', 'local.lr'], ['explain', 'nope'], None):\n"
        "    if words is None:\n"
        "        os.environ |= {'_POTLUCK_COMPLETE': 'complete_bash', 'COMP_WORDS': 'potluck explain loc',"
        " 'COMP_CWORD': '2'}\n"
        "    try:\n"
        "        main(words or [])\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print(sorted({'torch', 'numpy', 'sklearn', 'safetensors'} & set(sys.modules)))\n"
    )  # fmt: skip
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "local.lr" in found.stdout.splitlines()
    assert found.stdout.splitlines()[-1] == "[]"


def completed(*words, shell="bash", **more):
    """What completion offers for the last of these words."""
    line = " ".join(("potluck", *words))
    asked = {"bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words))}}.get(shell, {"_TYPER_COMPLETE_ARGS": line})
    environment = {**os.environ, "_POTLUCK_COMPLETE": f"complete_{shell}", **asked, **more}
    found = subprocess.run([sys.executable, "-m", "potluck"], capture_output=True, text=True, env=environment)
    assert found.stderr == ""
    return found.stdout.split("\n")[:-1] if shell == "bash" else found.stdout


def test_completion_knows_commands_and_options():
    assert completed("com") == ["compare"]
    assert completed("compare", "--me") == ["--methods"]
    assert completed("list", "meth") == ["methods"]
    assert completed("run", "--engine", "se") == ["serial"]


def test_completion_knows_methods_also_at_the_end_of_a_list():
    assert completed("compare", "--methods", "fedpr") == ["fedprox"]
    assert completed("compare", "--methods", "alllarge,fedpr") == ["alllarge,fedprox"]
    assert completed("compare", "--methods", "fedprox:m") == ["fedprox:mean=", "fedprox:mu="]
    assert completed("check-method", "fedrol") == ["fedrolex"]


def test_completion_knows_settings():
    assert set(completed("run", "--set", "privacy.d")) == {"privacy.delta=", "privacy.delta=1e-05"}
    assert "local.lr=" in completed("run", "--set", "local.")
    assert completed("run", "--set", "run.engine=se") == ["run.engine=serial"]
    assert "method.mu=" in completed("run", "--set", "method.")


def test_in_bash_a_word_is_completed_after_the_marks_at_which_bash_cuts_words():
    assert completed("run", "--set", "run.engine", "=", "se") == ["serial"]
    assert "serial" in completed("run", "--set", "run.engine", "=")
    cut = ("compare", "--methods", "fedavg", ":", "share", "=", "layerwise,fedpr")
    assert completed(*cut) == ["layerwise,fedprox"]


def test_completion_knows_what_can_be_explained():
    assert completed("explain", "local.l") == ["local.lr"]
    assert completed("explain", "fedrol") == ["fedrolex"]


def test_completion_knows_run_folders(place):
    for name in ("a", "b"):
        (place / "runs" / name).mkdir(parents=True)
    (place / "runs" / "a" / "manifest.json").write_text("{}")
    assert completed("resume", "runs/") == ["runs/a"]
    assert completed("report", "") == ["runs/a"]
    (place / "runs" / "b" / "c").mkdir()
    (place / "runs" / "b" / "c" / "manifest.json").write_text("{}")
    for command in ("table", "plot", "report"):
        assert completed(command, "runs/") == ["runs/a", "runs/b"]
    assert completed("resume", "runs/") == ["runs/a"]
    assert completed("export", "nowhere/") == [""], "the shell itself completes paths"


def test_bash_itself_completes_with_the_script_that_it_is_given(place):
    (place / "bin").mkdir()
    program = place / "bin" / "potluck"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m potluck "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_POTLUCK_COMPLETE=source_bash potluck)"; COMP_WORDS=(potluck compare --methods fedavg,fedpr);'
        " COMP_CWORD=3; _potluck_completion potluck; echo ${COMPREPLY[@]}"
    )
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert (found.stdout, found.stderr) == ("fedavg,fedprox\n", "")


def test_zsh_and_fish_are_answered_too():
    assert '"fedprox"' in completed("compare", "--methods", "fedpr", shell="zsh")
    asked = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert completed("compare", "--methods", "fedpr", shell="fish", **asked) == "fedprox\n"


@pytest.mark.parametrize("line", ["", "nope ", "run --set =", "run --set a.b.c.d=", "compare --methods ::", 'run "'])
def test_completion_of_nonsense_says_nothing(line):
    assert not any("Error" in each for each in completed(*line.split(" ")))


def test_a_shell_that_asks_nonsense_is_told_nothing():
    assert completed("run", "", COMP_CWORD="x") == [""]
    assert completed("run", "", COMP_CWORD="-7") == [""]
    assert completed("run", "", _POTLUCK_COMPLETE="complete_nosuchshell") == [""]


def test_a_script_is_shown_for_each_shell():
    for shell in ("bash", "zsh", "fish"):
        environment = {**os.environ, "_POTLUCK_COMPLETE": f"source_{shell}"}
        found = subprocess.run([sys.executable, "-m", "potluck"], capture_output=True, text=True, env=environment)
        assert f"_POTLUCK_COMPLETE=complete_{shell}" in found.stdout
        assert found.returncode == 0
