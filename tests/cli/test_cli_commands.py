import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from cli_life import SETTINGS, saved

COMMANDS = ("run", "resume", "compare", "report", "export", "list", "explain")
THINGS = ("methods", "models", "data", "engines", "profiles")
QUICK = ("--set", "rounds=2", "--set", "method.name=fedavg")


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A finished run of two rounds, to be copied."""
    from potluck.run import read_experiment, run

    folder = tmp_path_factory.mktemp("done")
    (folder / "tiny.toml").write_text(SETTINGS)
    return run(read_experiment(folder / "tiny.toml", ["rounds=2", "method.name=fedavg"]), folder / "run").folder


@pytest.fixture
def copied(done, place):
    shutil.copytree(done, place / "run")
    return place / "run"


def in_process_of_its_own(*arguments):
    return subprocess.run([sys.executable, "-m", "potluck", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(command):
    found = in_process_of_its_own(command, "--help")
    assert found.returncode == 0
    assert f"Example: potluck {command} " in found.stdout
    assert found.stderr == ""


def test_help_names_every_command_and_is_what_potluck_alone_shows():
    found = in_process_of_its_own("--help")
    assert found.returncode == 0
    assert all(f" {command} " in found.stdout for command in COMMANDS)
    assert "--debug" in found.stdout
    assert in_process_of_its_own().stdout == found.stdout


def test_help_and_usage_errors_import_neither_torch_nor_numpy():
    program = (
        "import sys\n"
        "from potluck.cli import main\n"
        "for arguments in (['--help'], ['run', '--help'], ['compare', '-h'], ['nope'], ['run', '-x']):\n"
        "    try:\n"
        "        main(arguments)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print(sorted({'torch', 'numpy', 'sklearn', 'safetensors'} & set(sys.modules)))\n"
    )  # fmt: skip
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_the_version_is_printed(potluck):
    assert potluck("--version") == (0, "potluck 0.1.0\n", "")


def test_a_run_prints_one_json_object_and_nothing_else_on_stdout(potluck):
    code, out, err = potluck("run", "tiny.toml", *QUICK, "--out", "a run/ünï", "--format", "json")
    assert code == 0
    assert out.count("\n") == 1
    found = json.loads(out)
    assert set(found) >= {
        "run", "method", "rounds", "seed", "scores", "bytes_down", "bytes_up", "seconds", "weights_sha256"
    }  # fmt: skip
    assert set(found["scores"]) == {"global", "tiers"}
    assert (found["run"], found["rounds"], found["method"]) == ("a run/ünï", 2, "fedavg")
    assert "tiny: round 2/2  accuracy " in err


def test_a_run_and_a_resumed_run_print_a_table_and_the_next_step(potluck):
    code, out, _ = potluck("run", "tiny.toml", *QUICK, "--out", "run")
    assert code == 0
    assert "small" in out
    assert "folder: run\nnext:   potluck report run\n" in out
    code, out, err = potluck("resume", "run", "--rounds", "3", "--engine", "wire")
    assert code == 0
    assert "tiny: resumed at round 2" in err
    assert "tiny: round 3/3  accuracy " in err
    assert saved("run") == 3
    code, out, _ = potluck("resume", "run", "--format", "json")
    assert json.loads(out)["rounds"] == 3


def test_work_of_the_servers_own_that_failed_is_told_at_once_and_at_the_end(potluck):
    moss = ("--set", 'method={name="moss", wire={lr=1e9, epochs=2}}', "--set", "data.public=40")
    code, out, err = potluck("run", "tiny.toml", *QUICK, *moss, "--out", "run")
    assert code == 0
    assert err.count("the server's own 'teach' (small > the proxies) is refused and left out: ") == 1
    assert "tiny: round 1: the server's own 'teach' (" in err
    assert "refused: " in out
    assert "of the server's own: " in out
    code, out, _ = potluck("compare", "tiny.toml", *QUICK, *moss, "--set", 'compare.methods=["moss"]', "--seeds", "0")
    assert code == 0
    assert ", seed 0: " in out.split("refused in Moss")[1]


def test_without_a_folder_a_run_goes_to_a_new_one_under_runs(potluck):
    for number in ("", "-2", "-3"):
        code, out, _ = potluck("run", "tiny.toml", "--set", "rounds=0", "--set", "method.name=fedprox")
        assert code == 0
        assert f"folder: runs/tiny-fedprox-s0{number}\n" in out


def test_a_loss_that_is_not_finite_is_null_in_json(potluck):
    wild = ("--set", "local.lr=1e20", "--set", "local.clip=1.0", "--set", "local.steps=1", "--set", "rounds=1")
    code, out, _ = potluck("run", "tiny.toml", *QUICK, *wild, "--out", "run", "--format", "json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail)["scores"]["global"]["test"]["loss"] is None


def test_a_run_without_test_rows_is_shown_without_an_accuracy(potluck):
    code, _, err = potluck("run", "tiny.toml", *QUICK, "--set", "data.test=0", "--out", "run")
    assert code == 0
    assert "round 2/2  accuracy none  small none  large none" in err


@pytest.mark.parametrize("what", THINGS)
def test_things_are_listed_for_people_and_for_programs(what, potluck):
    code, out, err = potluck("list", what, "--format", "json")
    rows = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert all(row["name"] for row in rows)
    code, table, err = potluck("list", what)
    assert (code, err) == (0, "")
    assert all(row["name"][:20] in table for row in rows)


def test_the_lists_hold_what_can_be_asked_for(potluck):
    names = {what: [row["name"] for row in json.loads(potluck("list", what, "--format", "json")[1])] for what in THINGS}
    assert names["engines"] == ["serial", "wire", "pool", "graphs", "ray", "remote"]
    assert {"fedavg", "local"} <= set(names["methods"])
    assert {"mlp", "cnn"} <= set(names["models"])
    assert "digits" in names["data"]
    assert {"tv", "laptop"} <= set(names["profiles"])


@pytest.mark.parametrize("command", [("run", "tiny.toml", *QUICK, "--out", "new"), ("resume", "run", "--rounds", "3")])
def test_every_listed_engine_can_be_asked_for_and_graphs_without_a_gpu_ends_with_6(command, potluck, copied, place):
    for row in json.loads(potluck("list", "engines", "--format", "json")[1]):
        shutil.rmtree("new", ignore_errors=True)
        code, _, err = potluck(*command, "--engine", row["name"])
        if row["name"] == "graphs" and not torch.cuda.is_available():
            assert code == 6
            assert err.count("\n") == 1
            assert "torch sees no GPU here" in err
        elif row["name"] == "remote":  # `potluck server` starts it
            assert code == 2
        else:
            assert code == 0, err


def test_the_list_of_methods_says_what_each_needs_and_allows(potluck):
    facts = {row["name"]: row["facts"] for row in json.loads(potluck("list", "methods", "--format", "json")[1])}
    assert all(facts.values())
    assert [name for name, told in facts.items() if told["bound"]] == ["alllarge"]
    assert (facts["fedgems"]["public"], facts["fedrolex"]["larger"], facts["scaffold"]["memory"]) == (
        "labels",
        True,
        True,
    )
    assert "widths of one" in potluck("list", "methods")[1]


def test_methods_are_compared_end_to_end(potluck, place):
    both = ("--methods", "fedavg,fedprox:mu=0.5:share=layerwise", "--seeds", "0,1")
    code, out, err = potluck("compare", "tiny.toml", *both, "--set", "rounds=2", "--out", "all", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert out.count("\n") == 1
    assert [(run["method"], run["seed"]) for run in found["runs"]] == [
        ("fedavg", 0), ("fedprox", 0), ("fedavg", 1), ("fedprox", 1)
    ]  # fmt: skip
    assert [(row["runs"], row["seeds"]) for row in found["rows"]] == [(2, [0, 1]), (2, [0, 1])]
    assert found["report"] == "all/report.html"
    page = (place / "all" / "report.html").read_text("utf-8")
    assert "<html" in page
    assert "FedProx" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert sorted(os.listdir("all")) == [
        "fedavg-s0", "fedavg-s1", "fedprox_mu=0.5_share=layerwise-s0", "fedprox_mu=0.5_share=layerwise-s1",
        "report.html",
    ]  # fmt: skip

    first, second = found["rows"]
    assert first["best_other"] == second["label"]
    assert first["differences"][second["label"]]["count"] == 2
    assert len(first["by_seed"]["global"]) == 2
    assert first["worst_tier"]["count"] == first["worst"]["count"] == 2

    code, out, err = potluck("compare", "tiny.toml", *both, "--set", "rounds=2", "--out", "all")
    assert code == 0
    assert err.count("resumed at round 2") == 4
    assert "FedProx" in out
    assert "worst tier worst 10%" in " ".join(out.split())
    assert "Final accuracy: " in out
    assert "report: all/report.html" in out


def test_a_comparison_in_which_a_run_diverged_shows_it_and_ends_with_8(potluck, place):
    wild = ("--methods", "fedavg,fedavg:local={lr = 1e30}", "--set", "rounds=1", "--set", "run.retries=0")
    code, out, err = potluck("compare", "tiny.toml", *wild, "--out", "all")
    assert code == 8
    assert "diverged in round 1" in " ".join(out.split())
    assert "report: all/report.html" in out
    assert "diverged in round 1" in (place / "all" / "report.html").read_text("utf-8")
    said = "potluck: 1 of 2 runs has no result: fedavg (local.lr=1e+30), seed 0, diverged in round 1."
    assert err.splitlines()[-1].startswith(said)
    code, out, err = potluck("compare", "tiny.toml", *wild, "--out", "all", "--format", "json")
    assert code == 8
    found = json.loads(out)
    assert [run["method"] for run in found["runs"]] == ["fedavg"]
    assert [(run["status"], run["round"], run["seed"]) for run in found["failed"]] == [("diverged", 1, 0)]
    assert [(row["runs"], [one["round"] for one in row["failed"]]) for row in found["rows"]] == [(1, []), (0, [1])]


def test_a_report_is_written_about_one_run_or_a_folder_of_them(potluck, copied, place):
    assert potluck("report", "run") == (0, "report: run/report.html\n", "")
    assert "<html" in (copied / "report.html").read_text("utf-8")
    shutil.copytree(copied, place / "more" / "one")
    assert potluck("report", "run", "more", "--to", "both.html", "--title", "My <title>")[0] == 0
    assert "My &lt;title&gt;" in (place / "both.html").read_text("utf-8")


def test_a_model_is_exported_and_the_way_to_load_it_is_told(potluck, copied, place):
    code, out, _ = potluck("export", "run", "--tier", "small", "--to", "a model")
    assert code == 0
    assert 'load it with: from potluck.models import load; net = load("a model")' in out
    assert sorted(os.listdir("a model")) == [
        *("README.md", "model.json", "model.pt2", "model.safetensors", "predict.py", "requirements.txt", "sample.npz"),
    ]
    assert "small (written)" in out
    assert "latency is measured on this machine" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "tiny.toml", "--set", "roundz=1"), "the top of the file has no setting 'roundz'. Did you mean"),
        (("run", "missing.toml"), "missing.toml: there is no such file."),
        (("run", "tiny.toml", "--set", "rounds"), "--set rounds: write it as key=value"),
        (("run", "tiny.toml", "--engine", "warp"), "Invalid value for '--engine': 'warp' is not one of"),
        (("run", "tiny.toml", "extra"), "Got unexpected extra argument"),
        (("run", "--nope"), "No such option: --nope. Try `potluck --help`."),
        (("runn",), "No such command 'runn'. Did you mean 'run'? Try `potluck --help`."),
        (("resume",), "Missing argument 'folder'"),
        (("resume", "run", "--rounds", "-1"), "Invalid value for '--rounds'"),
        (("list", "cats"), "Invalid value for 'what': 'cats' is not one of 'methods'"),
        (("compare", "tiny.toml", "--methods", "fedavg,nope"), "there is no method 'nope'"),
        (("compare", "tiny.toml", "--methods", "fedavg:mu"), "cannot be imported"),
        (("compare", "tiny.toml", "--methods", "fedavg:share=whole:mu"), "write a setting as name:key=value"),
        (("compare", "tiny.toml", "--methods", " , "), "nothing to compare: name methods with --methods a,b"),
        (("compare", "tiny.toml"), "nothing to compare: name methods with --methods a,b"),
        (("compare", "tiny.toml", "--methods", "local,local"), "--methods names the same method twice"),
        (("compare", "tiny.toml", "--methods", "local", "--seeds", "a"), "--seeds a: write whole numbers"),
        (("compare", "tiny.toml", "--methods", "local", "--seeds", "-1"), "seed = -1 is below 0"),
        (("export", "run", "--tier", "phone", "--to", "x"), "--tier phone: this run has the tiers small, large."),
        (("export", "run", "--to", "x", "--format", "onx"), "Invalid value for '--format': 'onx' is not one of"),
        (("export", "run", "--client", "c99", "--to", "x"), "--client c99: 'c99' is no client of this fleet"),
        (("export", "run", "--client", "c0", "--server", "--to", "x"), "--tier, --client and --server: name one"),
    ],
)  # fmt: skip
def test_a_wrong_setting_ends_with_2_and_one_line(arguments, said, fail, copied, place):
    code, line = fail(*arguments)
    assert code == 2
    assert said in line
    # Python may have compiled held.py, which is none of ours.
    assert sorted(set(os.listdir()) - {"__pycache__"}) == ["gate", "held.py", "run", "tiny.toml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resume", "nowhere"), "nowhere is not a run folder: there is no such folder."),
        (("resume", "."), ". is not a run folder: it has no manifest.json."),
        (("report", "nowhere"), "nowhere is not a run folder and holds none"),
        (("report", "tiny.toml"), "tiny.toml is not a run folder and holds none"),
        (("export", "nowhere", "--to", "x"), "nowhere is not a run folder"),
        (("run", "tiny.toml", *QUICK, "--set", "data.name=npz", "--set", "data.path=no.npz"), "no.npz: no such file"),
        (("run", "tiny.toml", *QUICK, "--set", "data.name=npz", "--set", "data.path=held.py"), "not a complete npz"),
    ],
)  # fmt: skip
def test_a_wrong_file_ends_with_3_and_one_line(arguments, said, fail):
    code, line = fail(*arguments)
    assert code == 3
    assert said in line


def test_damaged_checkpoints_are_named_and_end_with_4(potluck, fail, copied):
    for path in (copied / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    code, out, err = potluck("resume", "run")
    assert (code, out) == (4, "")
    newer, older, last = err.splitlines()
    assert newer.startswith("tiny: skipped run/checkpoints/round-000002.ckpt: it holds ")
    assert older.startswith("tiny: skipped run/checkpoints/round-000001.ckpt: it holds ")
    assert last.startswith("potluck: run/checkpoints: none of 2 checkpoints can be used. Restore one from a backup")
    assert fail("export", "run", "--to", "x")[0] == 4


@pytest.mark.parametrize("change", [{"rounds": None}, {"rounds": "many"}, {"rounds": -1}, {"schema": 0}, {"keep": "x"}])
def test_a_manifest_with_odd_fields_ends_with_4_and_one_line(change, fail, copied):
    manifest = json.loads((copied / "manifest.json").read_text()) | change
    (copied / "manifest.json").write_text(json.dumps(manifest))
    code, line = fail("resume", "run")
    assert code == 4
    assert line.startswith("potluck: run/manifest.json is damaged: ")


def test_settings_in_utf_16_in_a_run_folder_end_with_2(fail, copied):
    (copied / "settings.toml").write_bytes((copied / "settings.toml").read_text().encode("utf-16"))
    for command in (("resume", "run"), ("report", "run"), ("export", "run", "--to", "x")):
        assert fail(*command) == (2, "potluck: run/settings.toml: line 1: this is UTF-16. Save it as UTF-8.")


@pytest.mark.parametrize("part", ["checkpoints", "ledger.jsonl"])
def test_a_lost_part_of_a_run_folder_ends_with_4_and_one_line(part, fail, copied):
    (copied / part).rename("elsewhere")
    code, line = fail("resume", "run")
    assert code == 4
    assert line.startswith(f"potluck: run/{part}: ")
    assert line.endswith("Restore it from a backup, or start a new run with another --out.")


def test_clients_that_never_answer_end_with_5(potluck):
    code, out, err = potluck("run", "tiny.toml", *QUICK, "--set", "local.lr=1e30", "--out", "run")
    assert (code, out) == (5, "")
    lines = err.splitlines()
    assert len(lines) == 5
    assert all(f"(try {number} of 4)" in line for number, line in enumerate(lines[:4], 1))
    assert lines[4].startswith("potluck: round 1: 0 of 3 clients answered; run.quorum is 1;")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "tiny.toml", *QUICK, "--out", "run"), "run already holds a run (manifest.json). Use `potluck resume"),
        (("run", "tiny.toml", *QUICK, "--out", "x" * 256), "File name too long. Choose a shorter path."),
        (("run", "tiny.toml", *QUICK, "--out", "tiny.toml/run"), "tiny.toml/run"),
        (("export", "run", "--to", "tiny.toml/model"), "tiny.toml/model: Not a directory."),
        (("report", "run", "--to", "tiny.toml/page.html"), "tiny.toml"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_used_ends_with_6_and_one_line(arguments, said, fail, copied):
    code, line = fail(*arguments)
    assert code == 6
    assert said in line


def test_a_folder_that_may_not_be_written_ends_with_6_and_one_line(place):
    """As nobody, who may write nowhere; root may write everywhere."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    from potluck.cli import main

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            os.chdir("/")
            sys.stderr = os.fdopen(write, "w")
            main(["run", "--set", "rounds=0", "--out", "/potluck test"])
        except SystemExit as left:
            sys.stderr.close()
            os._exit(left.code)
        finally:
            os._exit(99)
    os.close(write)
    with open(read) as said:
        err = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    assert err == (
        "potluck: /potluck test: cannot make the folder: Permission denied. "
        "Check who owns it and who may write there, or choose another path.\n"
    )


def test_an_internal_error_is_one_line_too_and_debug_shows_where(potluck, place, monkeypatch):
    (place / "broken.py").write_text(
        "from dataclasses import dataclass\nfrom potluck.methods import FedAvg\n\n\n@dataclass(frozen=True)\n"
        "class Broken(FedAvg):\n    def init(self, zoo, rng):\n        raise ZeroDivisionError('a\\nb')\n"
    )
    command = ("run", "tiny.toml", "--set", "method.name=broken:Broken")
    code, _, err = potluck(*command, "--out", "a")
    assert (code, err) == (1, "potluck: ZeroDivisionError: a b (internal error; rerun with --debug)\n")
    code, _, err = potluck("--debug", *command, "--out", "b")
    assert code == 1
    assert "Traceback (most recent call last):" in err
    assert "broken.py" in err
    monkeypatch.setenv("POTLUCK_DEBUG", "1")
    assert potluck(*command, "--out", "c")[2].startswith("Traceback (most recent call last):")
    monkeypatch.setenv("POTLUCK_DEBUG", "0")
    assert "Traceback" not in potluck(*command, "--out", "d")[2]


def test_debug_keeps_the_exit_code(potluck):
    code, _, err = potluck("run", "tiny.toml", "--set", "rounds=x", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1] == "potluck: tiny.toml: rounds = 'x': input should be a valid integer."


def test_real_processes_leave_with_the_same_codes(copied):
    found = in_process_of_its_own("run", "tiny.toml", "--set", "roundz=1")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.count("\n") == 1
    assert in_process_of_its_own("report", "nowhere").returncode == 3


def test_a_reader_that_leaves_early_is_no_mistake_to_speak_of():
    command = f"{sys.executable} -m potluck list profiles --format json | head -c 1"
    found = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("[", "")
    assert found.returncode in (0, 141)  # whether everything fitted into the pipe or not


@pytest.mark.slow
def test_a_run_is_exported_where_no_package_for_federations_is_installed(place, whole):
    """As after a plain `pip install`: only a node's own export needs them."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('cryptography', 'grpc')));"
        f"from potluck.cli import main; main(['export', {str(whole.folder)!r}, '--to', 'model'])"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, cwd=place, check=False)
    assert done.returncode == 0, done.stderr
    assert (place / "model" / "model.json").exists()
