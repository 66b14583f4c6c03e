import json
import re
import shutil
import stat
import subprocess
import sys

import pytest

COMMANDS = ("provision", "nodes list", "nodes admit", "nodes revoke", "nodes renew", "nodes new-key")
FEDERATION = 'name = "two clinics"\nserver = "localhost:9443"\nsites = ["clinic-a", "clinic-b"]\n'


@pytest.fixture
def kits(place, potluck):
    (place / "federation.toml").write_text(FEDERATION)
    assert potluck("provision", "federation.toml", "--to", "kits")[0] == 0
    return place / "kits"


def statuses(potluck):
    code, out, err = potluck("nodes", "list", "--kit", "kits/server", "--format", "json")
    assert (code, err) == (0, "")
    return {row["name"]: row["status"] for row in json.loads(out)}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(command, potluck):
    code, out, err = potluck(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert f"Example: potluck {command} " in out


def test_help_names_the_commands_and_imports_neither_torch_nor_cryptography():
    program = (
        "import sys\n"
        "from potluck.cli import main\n"
        "for arguments in (['--help'], ['provision', '--help'], ['nodes', '-h'], ['nodes', 'revoke']):\n"
        "    try:\n"
        "        main(arguments)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print(sorted({'torch', 'numpy', 'cryptography'} & set(sys.modules)))\n"
    )  # fmt: skip
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
    assert " provision " in found.stdout
    assert " nodes " in found.stdout


def test_without_the_package_cryptography_one_line_names_the_extra():
    program = (
        "import sys\n"
        "sys.modules['cryptography'] = None\n"
        "from potluck.cli import main\n"
        "main(['nodes', 'list', '--kit', 'kits/server'])\n"
    )  # fmt: skip
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 6
    assert found.stderr == "potluck: a federation needs the package cryptography: pip install 'potluck[deploy]'\n"


def test_provision_says_what_it_made_and_what_comes_next(place, potluck):
    (place / "federation.toml").write_text(FEDERATION)
    code, out, err = potluck("provision", "federation.toml", "--to", "kits/")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [
        "made kits/authority", "made kits/server", "made kits/clinic-a", "made kits/clinic-b"
    ]  # fmt: skip
    assert "keep it offline" in lines[0]
    assert lines[4:] == ["next: take each new kit to its machine; its README.txt says what to run."]


def test_provision_again_says_what_it_kept(kits, place, potluck):
    code, out, _ = potluck("provision", "federation.toml", "--to", "kits")
    assert code == 0
    assert re.findall(r"^(\w+) kits/([\w-]+):", out, re.MULTILINE) == [
        ("kept", "authority"), ("kept", "server"), ("kept", "clinic-a"), ("kept", "clinic-b")
    ]  # fmt: skip
    assert out.endswith("no new site\n")
    (place / "federation.toml").write_text(FEDERATION.replace('"clinic-b"', '"clinic-b", "clinic-c"'))
    code, out, _ = potluck("provision", "federation.toml", "--to", "kits")
    assert code == 0
    assert "made kits/clinic-c: node " in out
    assert "There: potluck nodes admit SITE/cert.pem --kit ." in out
    assert statuses(potluck) == {"clinic-a": "admitted", "clinic-b": "admitted", "clinic-c": "admitted"}


def test_a_site_with_its_own_key_joins_by_its_public_key(kits, place, potluck):
    code, made, _ = potluck("nodes", "new-key", "--to", "clinic-d/")
    assert code == 0
    assert "made clinic-d/key.pem: secret, it stays here" in made
    assert stat.S_IMODE((place / "clinic-d" / "key.pem").stat().st_mode) == 0o600
    code, out, _ = potluck("provision", "federation.toml", "--to", "kits", "--admit", "clinic-d/clinic-d.pub")
    assert code == 0
    assert "made kits/clinic-d: " in out
    assert "the key is at the site" in out
    told = re.search(r"the node's id will be ([0-9a-f]{32})", made)
    listed = json.loads(potluck("nodes", "list", "--kit", "kits/server", "--format", "json")[1])
    assert listed[-1]["id"] == told[1]
    assert not (kits / "clinic-d" / "key.pem").exists()
    code, out, _ = potluck("nodes", "new-key", "--to", "else", "--name", "x")
    code, out, _ = potluck(
        "provision", "federation.toml", "--to", "kits", "--admit", "else/x.pub", "--name", "clinic-e"
    )
    assert code == 0
    assert set(statuses(potluck)) == {"clinic-a", "clinic-b", "clinic-d", "clinic-e"}


def test_no_command_shows_a_secret(kits, place, potluck):
    potluck("nodes", "new-key", "--to", "clinic-d")
    said = ""
    for command in (
        ("provision", "federation.toml", "--to", "kits", "--admit", "clinic-d/key.pem", "--debug"),
        ("provision", "federation.toml", "--to", "kits", "--admit", "clinic-d/clinic-d.pub"),
        ("nodes", "list", "--kit", "kits/server"),
        ("nodes", "list", "--kit", "kits/server", "--format", "json"),
        ("nodes", "admit", "kits/clinic-a/key.pem", "--kit", "kits/server", "--debug"),
        ("nodes", "renew", "kits/clinic-a", "--authority", "kits/authority", "--kit", "kits/server"),
        ("nodes", "renew", "kits/clinic-a", "--authority", "kits/clinic-a", "--debug"),
    ):
        _, out, err = potluck(*command)
        said += out + err
    secrets = [path for path in place.rglob("*") if path.name in ("key.pem", "ca.key")]
    assert len(secrets) == 5
    for path in secrets:
        assert not any(line in said for line in path.read_text().splitlines()[1:-1])


def test_nodes_are_listed_for_people_and_for_programs(kits, potluck):
    code, table, err = potluck("nodes", "list", "--kit", "kits/server")
    assert (code, err) == (0, "")
    code, out, _ = potluck("nodes", "list", "--kit", "kits/server", "--format", "json")
    rows = json.loads(out)
    assert [set(row) for row in rows] == [{"name", "id", "status", "since", "expires"}] * 2
    assert all(row["id"][:12] in table and row["id"] not in table for row in rows)
    assert all(row["since"][:16].replace("T", " ") in table for row in rows)


def test_a_node_is_revoked_and_admitted_again(kits, potluck):
    code, out, _ = potluck("nodes", "revoke", "clinic-b", "--kit", "kits/server")
    assert (code, out.split(" (")[0]) == (0, "revoked: clinic-b")
    assert statuses(potluck) == {"clinic-a": "admitted", "clinic-b": "revoked"}
    code, out, _ = potluck("nodes", "admit", "clinic-b", "--kit", "kits/server", "--format", "json")
    row = json.loads(out)
    assert (code, row["name"], row["status"]) == (0, "clinic-b", "admitted")
    code, out, _ = potluck("nodes", "revoke", row["id"][:12], "--kit", "kits/server", "--format", "json")
    assert json.loads(out)["status"] == "revoked"


def test_a_certificate_is_renewed(kits, potluck):
    code, out, _ = potluck("nodes", "renew", "kits/clinic-a", "--authority", "kits/authority", "--days", "30")
    assert code == 0
    assert "renewed kits/clinic-a/cert.pem: clinic-a, until " in out
    assert "On the server: potluck nodes admit kits/clinic-a/cert.pem --kit SERVER_KIT" in out
    code, out, _ = potluck("nodes", "admit", "kits/clinic-a/cert.pem", "--kit", "kits/server")
    assert code == 0
    code, out, _ = potluck("nodes", "renew", "kits/server", "--authority", "kits/authority", "--also", "10.0.0.7")
    assert code == 0
    assert "start the server again" in out


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("provision nowhere.toml --to kits", 2, "nowhere.toml: there is no such file."),
        ("provision federation.toml", 2, "Missing option '--to'."),
        ("provision federation.toml --to kits --name x", 2, "--name belongs to exactly one --admit FILE."),
        ("provision federation.toml --to kits --admit nowhere.pub", 3, "nowhere.pub: there is no such file."),
        ("provision federation.toml --to kits --admit kits/clinic-a/key.pem", 3, "THIS IS A PRIVATE KEY."),
        ("provision federation.toml --to .", 3, ".: it is there, and `potluck provision` did not make it."),
        ("provision federation.toml --to federation.toml", 3, "federation.toml: it is there, and"),
        ("nodes list --kit kits", 3, "kits: this is no kit, it has no kit.toml."),
        ("nodes list --kit kits/clinic-a", 3, "kits/clinic-a: this is the kit of node 'clinic-a'; the server's"),
        ("nodes revoke clinc-a --kit kits/server", 2, "there is no node 'clinc-a'. Did you mean 'clinic-a'?"),
        ("nodes admit nowhere.pem --kit kits/server", 3, "nowhere.pem: there is no such file."),
        ("nodes admit kits/server/cert.pem --kit kits/server", 3, "this is not the certificate of a node."),
        ("nodes renew kits/clinic-a --authority kits/server", 3, "kits/server/ca.key: there is no such file."),
        ("nodes renew kits/clinic-a --authority kits/authority --days 0", 2, "--days 0: give 1 to 3650."),
        ("nodes new-key --to kits/clinic-a --name server", 2, "the names server and authority are taken."),
        ("nodes revok clinic-a", 2, "No such command 'revok'"),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(command, code, said, kits, fail):
    found, line = fail(*command.split())
    assert found == code
    assert said in line


def test_two_public_keys_of_one_name_are_refused(kits, fail, potluck):
    for folder in ("one", "two"):
        potluck("nodes", "new-key", "--to", folder, "--name", "clinic-d")
    admit = ("--admit", "one/clinic-d.pub", "--admit", "two/clinic-d.pub")
    code, line = fail("provision", "federation.toml", "--to", "kits", *admit)
    assert code == 2
    assert "two --admit files have the same name" in line


@pytest.mark.parametrize("command", ["list", "revoke clinic-a", "admit clinic-a", "admit kits/clinic-a/cert.pem"])
def test_a_damaged_list_of_nodes_ends_with_4_and_stays_as_it_is(command, kits, fail):
    path = kits / "server" / "nodes.json"
    path.write_bytes(raw := path.read_bytes()[:100])
    code, line = fail("nodes", *command.split(), "--kit", "kits/server")
    assert code == 4
    assert "kits/server/nodes.json: the list of nodes is damaged: " in line
    assert path.read_bytes() == raw


def test_control_characters_of_a_name_do_not_reach_the_terminal(kits, fail):
    code, line = fail("nodes", "revoke", "a\x1b[2Jb", "--kit", "kits/server")
    assert code == 2
    assert "\x1b" not in line


def test_an_empty_federation_has_no_node_yet(place, potluck):
    (place / "federation.toml").write_text('name = "x"\nserver = "localhost:1"\nsites = []\n')
    assert potluck("provision", "federation.toml", "--to", "kits")[0] == 0
    assert potluck("nodes", "list", "--kit", "kits/server") == (0, "no node yet\n", "")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_a_key_that_openssl_made_is_taken(kits, place, potluck):
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384", "-out", "key.pem"]
    subprocess.run(make, check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "clinic-e.pub"], check=True)
    assert potluck("provision", "federation.toml", "--to", "kits", "--admit", "clinic-e.pub")[0] == 0
    assert statuses(potluck)["clinic-e"] == "admitted"
