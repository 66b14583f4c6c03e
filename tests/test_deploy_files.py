"""The files and commands for deploying: they parse, and name only commands, options and settings that exist."""

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from command_lines import blocks, command_lines, parse, unknown_words

from potluck.federation import read_federation
from potluck.federation.server import prepare
from potluck.run import read_experiment

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
GUIDE = (ROOT / "docs" / "deploying.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


class Twice(dict):
    """A section in which a name may stand several times, as in a unit of systemd."""

    def __setitem__(self, name, value):
        if isinstance(value, list) and isinstance(self.get(name), list):
            value = [*self[name], *value]
        super().__setitem__(name, value)


def unit(path):
    found = configparser.RawConfigParser(strict=False, dict_type=Twice, delimiters=("=",), comment_prefixes=("#",))
    found.optionxform = str
    found.read_string(path.read_text("utf-8"))
    return found


def commands_of(path):
    return command_lines(unit(path)["Service"]["ExecStart"])


def documents(name):
    """The TOML files that the README writes, by a here-document."""
    return tomllib.loads(re.search(rf"cat > {name} <<'EOF'\n(.*?)^EOF$", README, re.DOTALL | re.MULTILINE)[1])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_an_existing_command_as_a_user_without_rights(path):
    service = unit(path)["Service"]
    assert len(commands_of(path)) == 1
    parse(commands_of(path)[0])
    assert service["User"] == "potluck"
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["ProtectHome"]) == ("yes", "strict", "yes")
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_restarts_after_failures_that_may_pass_and_not_for_ever(path):
    service, limits = unit(path)["Service"], unit(path)["Unit"]
    assert service["Restart"] == "on-failure"
    assert {"2", "3", "4"} <= set(service["RestartPreventExitStatus"].split())
    assert "5" not in service["RestartPreventExitStatus"].split()
    assert service["SuccessExitStatus"] == "130"  # stopped by `potluck stop` or by systemctl
    assert int(limits["StartLimitBurst"]) <= 10
    assert limits["StartLimitIntervalSec"] == "1h"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_what_a_unit_writes_is_in_its_own_state_folder(path):
    service = unit(path)["Service"]
    home = f"/var/lib/{path.stem}"
    given = parse(commands_of(path)[0])
    assert service["StateDirectory"].split()[0] == path.stem
    assert f"{path.stem}/spool" in service["StateDirectory"].split()
    assert f"Environment=TMPDIR={home}/spool" in path.read_text("utf-8")
    assert str(given.get("out") or given["state"]).startswith(f"{home}/")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong_with_a_unit(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_text(path.read_text("utf-8").replace("/opt/potluck/bin/potluck", "/bin/true"), "utf-8")
    command = ["systemd-analyze", "verify", str(copy)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if re.search(r"Failed to (connect|initialize|set up|create)", told.stderr):
        pytest.skip(f"systemd-analyze does not work here: {told.stderr.splitlines()[0]}")
    assert (told.returncode, told.stderr) == (0, "")


@pytest.fixture(scope="module")
def services():
    yaml = pytest.importorskip("yaml", reason="the extra 'dev' is not installed")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]


def test_containers_run_existing_commands_without_rights(services):
    assert set(services) == {"server", "node"}
    for service in services.values():
        parse([str(word) for word in service["command"]])
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert re.fullmatch(r"on-failure:\d", service["restart"])


def test_only_the_server_opens_a_port_and_it_is_the_federation_s(services):
    port = read_federation(DEPLOY / "federation.toml").server.rpartition(":")[2]
    assert services["server"]["ports"] == [f"{port}:{port}"]
    assert parse(services["server"]["command"])["listen"].endswith(f":{port}")
    assert "ports" not in services["node"]


def test_containers_cannot_change_their_kits_and_mount_all_that_they_use(services):
    for service in services.values():
        mounts = [volume.split(":") for volume in service["volumes"]]
        assert all(rest == ["ro"] for _, inside, *rest in mounts if inside != "/state")
        inside = {mount[1] for mount in mounts}
        used = {f"/{word.split('/')[1]}" for word in service["command"] if word.startswith("/")}
        assert used <= inside
    host = read_federation(DEPLOY / "federation.toml").server.rpartition(":")[0]
    assert services["server"]["networks"]["default"]["aliases"] == [host]
    sites = read_federation(DEPLOY / "federation.toml").sites
    assert services["node"]["volumes"][0].startswith(f"./kits/{sites[0]}:")


def test_the_image_ends_as_a_user_without_rights_and_copies_files_that_exist():
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {kind for kind, _ in lines} <= {"FROM", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert lines[0][0] == "FROM"
    assert [rest for kind, rest in lines if kind == "USER"][-1] == "10001:10001"
    assert [rest for kind, rest in lines if kind == "ENTRYPOINT"] == ['["potluck"]']
    for rest in (rest for kind, rest in lines if kind == "COPY"):
        assert all((ROOT / name).exists() for name in rest.split()[:-1])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for name in ("Dockerfile", "compose.yaml"):
        assert f"potluck:{version}" in (DEPLOY / name).read_text("utf-8")


def test_the_example_federation_is_the_readme_s_with_a_name_for_the_server():
    ours, theirs = tomllib.loads((DEPLOY / "federation.toml").read_text("utf-8")), documents("federation.toml")
    assert (ours["name"], ours["sites"]) == (theirs["name"], theirs["sites"])
    assert ours["server"].rpartition(":")[2] == theirs["server"].rpartition(":")[2]


def test_the_example_experiment_is_the_readme_s_and_a_server_takes_it():
    path = DEPLOY / "experiment.toml"
    assert tomllib.loads(path.read_text("utf-8")) == documents("experiment.toml")
    assert [tier.name for tier in prepare(read_experiment(path), "clinics").roster.tiers] == ["weak", "strong"]


def guide_lines():
    return [words for language in ("", "sh") for body in blocks(GUIDE, language) for words in command_lines(body)]


@pytest.mark.parametrize("words", guide_lines(), ids=" ".join)
def test_a_command_line_of_the_guide_is_one_that_the_program_takes(words):
    parse(words)


def test_the_guide_shows_the_whole_walk():
    assert {"provision", "check", "server", "join", "status", "stop", "report", "nodes", "rehearse"} <= {
        words[0] for words in guide_lines()
    }


@pytest.mark.parametrize("name", ["docs/deploying.md", "docs/security.md", "README.md", "docs/wire.md"])
def test_commands_and_options_within_sentences_exist(name):
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    spans = [span.split()[1:] for span in re.findall(r"`(potluck [^`]+)`", text)]
    assert {" ".join(words): unknown_words(words) for words in spans if unknown_words(words)} == {}


@pytest.mark.parametrize("body", blocks(GUIDE, "toml"))
def test_settings_that_the_guide_shows_exist(body, tmp_path):
    path = tmp_path / "shown.toml"
    path.write_text(body, "utf-8")
    if "sites" in tomllib.loads(body):
        read_federation(path)
    else:
        read_experiment(path)


def test_the_guide_names_every_setting_of_nodes():
    from dataclasses import fields

    from potluck.run.settings import Nodes

    assert [field.name for field in fields(Nodes) if f"`{field.name}`" not in GUIDE] == []


def test_the_document_of_the_wire_names_every_kind_of_message():
    places = [*(ROOT / "src/potluck/federation").glob("*.py"), *(ROOT / "src/potluck/engines/remote").glob("*.py")]
    code = "\n".join(path.read_text("utf-8") for path in places)
    kinds = set(re.findall(r'(?:pack_plain\(|"kind": |_refus(?:e|al)\()\s*"([a-z]+)"', code))
    assert {
        "charter",
        "agreed",
        "declined",
        "task",
        "missing",
        "result",
        "tier",
        "end",
        "goodbye",
        "looked",
        "refused",
    } == kinds
    told = (ROOT / "docs" / "wire.md").read_text("utf-8")
    assert [kind for kind in sorted(kinds) if f"| `{kind}` |" not in told] == []


def test_a_command_with_a_misspelt_option_is_noticed():
    with pytest.raises(Exception, match="--kitt"):
        parse(["join", "--kitt", "a"])
    assert unknown_words(["join", "…", "--kitt"]) == ["--kitt"]
    assert unknown_words(["nodes", "remove"]) == ["remove"]
