"""Odd names, numbers and texts on the command line and in settings."""

import io
import os

import pytest
from cli_life import SETTINGS
from rich.table import Table
from rich.text import Text

from potluck.cli.display import BarProgress, _progress
from potluck.cli.safe_text import SafeConsole, visible

QUICK = ("--set", "rounds=0", "--set", "method.name=fedavg")
RED = "\x1b[31mred\x1b]0;title\x07"


@pytest.mark.parametrize("name", ["../../../x", "/etc/x", "..", "a\x1b[2J"])
@pytest.mark.parametrize("command", [("run",), ("compare", "--methods", "fedavg")])
def test_whatever_a_name_holds_its_folder_is_directly_in_runs(command, name, potluck, place):
    (place / "deep" / "er").mkdir(parents=True)
    os.chdir(place / "deep" / "er")
    before = sorted(place.rglob("*"))
    code, _, err = potluck(*command, "../../tiny.toml", *QUICK, "--set", f"name={name}")
    assert code == 0, err
    (made,) = (place / "deep" / "er" / "runs").iterdir()
    assert not (made / ".." / "..").resolve().samefile(place)
    made_outside = [path for path in sorted(place.rglob("*")) if "runs" not in path.parts and path not in before]
    assert made_outside == []


@pytest.mark.parametrize(
    "change",
    [
        *(f"{name}={10**30}" for name in ("data.clients", "cohort", "data.public", "rounds", "data.samples")),
        *(f"{name}={10**30}" for name in ("local.epochs", "model.hidden", "run.workers", "tier.0.depth")),
        f"data={{clients={10**19}, groups={10**19}, partition='groups'}}",
        "data.clients=" + "9" * 400,
        "data.samples=100000000000000",
    ],
)  # fmt: skip
def test_a_number_beyond_all_bounds_ends_with_2_and_one_line(change, fail):
    code, line = fail("run", "tiny.toml", *QUICK, "--set", change)
    assert code == 2
    assert len(line) < 200
    assert " above 4611686018427387904, the largest whole number." in line or "is above 1000000000" in line


def test_a_seed_may_be_any_whole_number_from_0(potluck):
    assert potluck("run", "tiny.toml", *QUICK, "--set", f"seed={10**30}", "--out", "run")[0] == 0


@pytest.mark.parametrize("given", ["rounds=1\nseed=5", "rounds=1\rseed=5", 'name="""a\nb"""'])
def test_a_change_of_two_lines_is_refused(given, fail):
    code, line = fail("run", "tiny.toml", *QUICK, "--set", given)
    assert (code, "a setting is one line. Give the option once for each setting." in line) == (2, True)


def test_a_methods_setting_of_two_lines_is_refused(fail):
    for command in (("compare", "tiny.toml", "--methods", "fedprox:mu=1\nx=2"), ("check-method", "fedprox")):
        more = ("--set", "mu=1\nx=2") if command[0] == "check-method" else ()
        code, line = fail(*command, *more)
        assert (code, "a setting is one line" in line) == (2, True)


def test_one_bracket_for_a_list_of_tiers_is_told(fail, place):
    (place / "single.toml").write_text(SETTINGS.replace("[[tier]]", "[tier]", 1).split("[[tier]]")[0])
    code, line = fail("run", "single.toml")
    said = "single.toml: line 14: [tier] is a list: write [[tier]] with double brackets, once for each tier."
    assert (code, line) == (2, f"potluck: {said}")


def test_control_characters_of_users_never_reach_the_terminal(potluck, place):
    tiers = f'[{{name="{RED}"}}, {{name="b"}}]'.replace("\x1b", "\\u001b").replace("\x07", "\\u0007")
    name = RED.replace("\x1b", "\\u001b").replace("\x07", "\\u0007")
    code, out, err = potluck(
        "run", "tiny.toml", "--set", "rounds=1", "--set", "method.name=fedavg",
        "--set", f'name="{name}"', "--set", f"tier={tiers}", "--out", "run",
    )  # fmt: skip
    assert code == 0, err
    shown = out + err + "".join(potluck("resume", "run", "--rounds", "2")[1:])
    shown += "".join(potluck("export", "run", "--to", "x", "--tier", RED + "?")[1:])
    shown += "".join(potluck("run", "tiny.toml", "--set", f"{RED}=1")[1:])
    shown += "".join(potluck("run", f"{RED}.toml")[1:])
    shown += "".join(potluck(f"ru{RED}")[1:])
    assert "red" in shown
    assert [letter for letter in shown if not letter.isprintable() and letter != "\n"] == []


def test_a_console_shows_control_characters_as_marks_and_keeps_its_own_colours():
    assert visible(f"{RED}\n\u202e") == "�[31mred�]0;title�\n�"
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system="standard", width=60)
    table = Table()
    table.add_column(Text(RED))
    table.add_row(Text(RED, style="bold"))
    console.print(table)
    console.print(RED, markup=False, highlight=False, style="yellow")
    assert out.getvalue().count("�[31mred�]0;tit") == 3
    assert "\x1b[33m" in out.getvalue()
    assert "\x1b]0;" not in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()


def test_a_title_in_brackets_is_no_markup(capfd):
    with _progress() as progress:
        bar = BarProgress(progress, progress.add_task("[/] [bold]x", total=1, scores="[/]"), 1)
        bar.round(1, None, {})
    assert "[/] [bold]x" in capfd.readouterr().err
