import hashlib
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import threading
import tomllib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kit_life import NOW, contents, dies_at, long_ago, make_kits, settings

from potluck.core import InputError, SettingsError
from potluck.federation import (
    AdmittedNodes,
    make_site_key,
    provision,
    read_federation,
    read_kit,
    read_nodes,
    read_site_key,
    renew,
)
from potluck.federation.admission import find_node, pack_nodes
from potluck.federation.authority import make_key, public_key
from potluck.federation.provisioning import admit, admit_certificate, revoke
from potluck.ledger import DamagedRecord, FolderError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Kits to be copied, or only read."""
    return make_kits(tmp_path_factory.mktemp("made") / "kits", also=("10.0.0.5", "localhost"))


@pytest.fixture
def kits(made, tmp_path):
    shutil.copytree(made, tmp_path / "kits")
    return tmp_path / "kits"


def certificate(folder, name="cert.pem"):
    return x509.load_pem_x509_certificate((folder / name).read_bytes())


def extension(cert, kind):
    return cert.extensions.get_extension_for_class(kind)


def nodes_of(kits):
    return read_nodes(kits / "server" / "nodes.json")


def pem_of(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


# --- what is made


def test_a_federation_has_an_authority_and_a_kit_for_the_server_and_each_site(made):
    kit = {"kit.toml", "ca.pem", "cert.pem", "key.pem", "README.txt"}
    assert {path.name for path in made.iterdir()} == {"authority", "server", "clinic-a", "clinic-b"}
    assert {path.name for path in (made / "authority").iterdir()} == {"ca.pem", "ca.key"}
    assert {path.name for path in (made / "server").iterdir()} == kit | {"nodes.json"}
    assert {path.name for path in (made / "clinic-a").iterdir()} == kit
    assert tomllib.loads((made / "clinic-a" / "kit.toml").read_text()) == {
        "kind": "node", "federation": "two clinics", "name": "clinic-a", "address": "potluck.example.org:9443",
    }  # fmt: skip


def test_private_keys_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        kits = make_kits(tmp_path / "kits")
    finally:
        os.umask(before)
    keys = [path for path in kits.rglob("*") if path.name in ("key.pem", "ca.key")]
    assert len(keys) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (kits, *kits.iterdir())} == {0o700}


def test_the_authoritys_key_is_in_no_kit(made):
    secret = (made / "authority" / "ca.key").read_bytes()
    assert [name for name, raw in contents(made).items() if secret in raw] == ["authority/ca.key"]


def test_the_readme_of_a_kit_has_three_lines_what_to_run_and_whom_to_tell(made):
    lines = (made / "clinic-a" / "README.txt").read_text().splitlines()
    assert len(lines) == 3
    assert "'clinic-a'" in lines[0]
    assert "potluck join --kit . --data FILE" in lines[1]
    assert "potluck nodes revoke clinic-a" in lines[2]


def test_a_nodes_id_is_the_fingerprint_of_its_public_key(made):
    key = certificate(made / "clinic-a").public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert nodes_of(made)[0].id == hashlib.sha256(der).hexdigest()[:32] == read_kit(made / "clinic-a").node_id


def test_certificates_say_what_they_are_for_and_nothing_more(made):
    ca, server, node = (
        certificate(made / "authority", "ca.pem"),
        *map(certificate, (made / "server", made / "clinic-a")),
    )
    limits = extension(ca, x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert extension(ca, x509.KeyUsage).critical
    assert extension(ca, x509.KeyUsage).value.key_cert_sign
    for cert, purpose in ((server, ExtendedKeyUsageOID.SERVER_AUTH), (node, ExtendedKeyUsageOID.CLIENT_AUTH)):
        assert not extension(cert, x509.BasicConstraints).value.ca
        assert list(extension(cert, x509.ExtendedKeyUsage).value) == [purpose]
    for cert in (ca, server, node):
        assert isinstance(cert.public_key().curve, ec.SECP384R1)
        assert isinstance(cert.signature_hash_algorithm, hashes.SHA384)
    assert node.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "clinic-a"
    assert len({ca.serial_number, server.serial_number, node.serial_number}) == 3


def test_the_servers_certificate_names_its_hosts_and_no_other(made, tmp_path):
    names = extension(certificate(made / "server"), x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["potluck.example.org", "10.0.0.5", "localhost"]
    assert [type(name) for name in names] == [x509.DNSName, x509.IPAddress, x509.DNSName]
    plain = make_kits(tmp_path / "kits", server="[FD00::5]:9443")
    names = extension(certificate(plain / "server"), x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["fd00::5"]


def test_certificates_begin_a_day_early_and_end_when_asked(tmp_path):
    kits = make_kits(tmp_path / "kits", days=30)
    ca, node = certificate(kits / "authority", "ca.pem"), certificate(kits / "clinic-a")
    assert node.not_valid_before_utc == ca.not_valid_before_utc == NOW - timedelta(days=1)
    assert node.not_valid_after_utc == NOW + timedelta(days=30)
    assert ca.not_valid_after_utc == NOW + timedelta(days=3650)
    assert nodes_of(kits)[0].expires == (NOW + timedelta(days=30)).isoformat()


def test_no_certificate_outlives_the_authoritys(tmp_path):
    kits = make_kits(tmp_path / "kits", now=long_ago(3600))
    found = renew(kits / "clinic-a", kits / "authority", days=365)
    assert found.expires == long_ago(3600) + timedelta(days=3650)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_openssl_accepts_the_certificates_for_their_purpose_and_for_no_other(made):
    def verify(kit, *options):
        command = ["openssl", "verify", "-x509_strict", *options, "-CAfile", made / "authority" / "ca.pem"]
        return subprocess.run([*command, made / kit / "cert.pem"], capture_output=True, check=False).returncode == 0

    assert verify("server", "-purpose", "sslserver", "-verify_hostname", "potluck.example.org")
    assert verify("server", "-purpose", "sslserver", "-verify_ip", "10.0.0.5")
    assert verify("clinic-a", "-purpose", "sslclient")
    assert not verify("server", "-verify_hostname", "other.example.org")
    assert not verify("server", "-verify_ip", "127.0.0.1")
    assert not verify("server", "-purpose", "sslclient")
    assert not verify("clinic-a", "-purpose", "sslserver")


# --- federation.toml


GOOD = 'name = "x"\nserver = "h:1"\nsites = ["a"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + 'sties = ["b"]\n', "line 4: the top of the file has no setting 'sties'. Did you mean 'sites'?"),
        ('server = "h:1"\nsites = []\n', "'name' is missing. Add name = \"three-clinics\"."),
        ('name = "x"\nsites = []\n', "'server' is missing."),
        ('name = "x"\nserver = "h:1"\n', "'sites' is missing."),
        (GOOD + "days = 0\n", "line 4: days = 0: give 1 to 3650."),
        (GOOD + "days = 1.5\n", "line 4: days = 1.5: input should be a valid integer"),
        (GOOD + 'also = ["a b"]\n', "line 4: also = 'a b': 'a b' is neither the name of a host nor an IP address."),
        (GOOD.replace('"x"', '""'), "line 1: name = '': give one line of 1 to 64 bytes."),
        (GOOD.replace('"x"', '"a\\nb"'), "give one line of 1 to 64 bytes."),
        (GOOD.replace("h:1", "h"), "line 2: server = 'h': write host:port"),
        (GOOD.replace("h:1", "h:0"), "write host:port"),
        (GOOD.replace("h:1", "h:65536"), "write host:port"),
        (GOOD.replace("h:1", "::1:80"), "write host:port"),
        (GOOD.replace("h:1", "1.2.3.400:80"), "'1.2.3.400' is neither the name of a host nor an IP address."),
        (GOOD.replace('"a"', '"../a"'), "line 3: sites = '../a': write at most 64 letters, digits,"),
        (GOOD.replace('"a"', '".."'), "sites = '..': write at most"),
        (GOOD.replace('"a"', '".a"'), "sites = '.a': write at most"),
        (GOOD.replace('"a"', '"a/b"'), "sites = 'a/b': write at most"),
        (GOOD.replace('"a"', '"-a"'), "sites = '-a': write at most"),
        (GOOD.replace('"a"', '"é"'), "sites = 'é': write at most"),
        (GOOD.replace('"a"', '""'), "sites = '': write at most"),
        (GOOD.replace('"a"', f'"{"a" * 65}"'), "write at most 64 letters"),
        (GOOD.replace('"a"', '"Server"'), "sites = 'Server': the names server and authority are taken."),
        (GOOD.replace('"a"', '"authority"'), "the names server and authority are taken."),
        (GOOD.replace('"a"', '"clinic", "Clinic"'), "line 3: sites = 'Clinic': 'clinic' is there already."),
        (GOOD.replace('"a"', "5"), "sites.0 = 5: input should be a valid string."),
        ("name = \n", "line 1: "),
    ],
)  # fmt: skip
def test_a_mistake_in_federation_toml_is_named(text, said, tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=re.escape(said)) as fault:
        read_federation(path)
    assert str(fault.value).startswith(f"{path}: ")
    assert "\n" not in str(fault.value)


def test_a_federation_toml_is_read(tmp_path):
    (tmp_path / "f.toml").write_text(GOOD + 'days = 30\nalso = ["LOCALHOST", "h"]\n')
    found = read_federation(tmp_path / "f.toml")
    assert (found.name, found.server, found.sites, found.days) == ("x", "h:1", ("a",), 30)
    assert found.hosts == ("h", "localhost")


def test_a_federation_toml_that_is_not_there_is_explained(tmp_path):
    with pytest.raises(SettingsError, match=r"there is no such file. Write these lines into it: name = "):
        read_federation(tmp_path / "f.toml")


# --- again, and broken off


def test_provision_again_makes_new_sites_only_and_replaces_no_byte_of_the_others(kits):
    before = contents(kits)
    again = settings("clinic-a", "clinic-b", "clinic-c", also=("10.0.0.5", "localhost"))
    outcomes = {each.name: each.done for each in provision(again, kits)}
    assert outcomes == {
        "authority": "kept", "server": "kept", "clinic-a": "kept", "clinic-b": "kept", "clinic-c": "made"
    }  # fmt: skip
    after = contents(kits)
    assert {name for name in before if after[name] != before[name]} == {"server/nodes.json"}
    assert [node.name for node in nodes_of(kits)] == ["clinic-a", "clinic-b", "clinic-c"]
    assert read_kit(kits / "clinic-c").node_id == nodes_of(kits)[2].id


def test_a_site_that_was_revoked_or_whose_kit_was_taken_away_gets_no_new_key(kits):
    revoke("clinic-a", kits / "server")
    shutil.rmtree(kits / "clinic-b")
    before = contents(kits)
    outcomes = {each.name: each for each in provision(settings(also=("10.0.0.5", "localhost")), kits)}
    assert outcomes["clinic-a"].done == outcomes["clinic-b"].done == "kept"
    assert "revoked" in outcomes["clinic-a"].text
    assert contents(kits) == before


def test_a_first_provision_that_is_killed_at_any_step_leaves_no_kits_at_all(tmp_path):
    steps = 0
    while dies_at(steps, lambda: make_kits(tmp_path / "kits", "clinic-a")):
        found = os.listdir(tmp_path)
        if "kits" in found:  # killed after the rename
            assert read_kit(tmp_path / "kits" / "clinic-a").node_id == nodes_of(tmp_path / "kits")[0].id
            shutil.rmtree(tmp_path / "kits")
        steps += 1
    assert steps > 30
    assert os.listdir(tmp_path) == ["kits"]
    read_kit(tmp_path / "kits" / "server")


def test_a_later_provision_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path, made):
    wanted, steps, killed = settings("clinic-a", "clinic-b", "clinic-c", also=("10.0.0.5", "localhost")), 0, True
    while killed:
        kits = tmp_path / f"kits{steps}"
        shutil.copytree(made, kits)
        killed = dies_at(steps, lambda kits=kits: provision(wanted, kits))
        key = (kits / "clinic-c" / "key.pem").read_bytes() if (kits / "clinic-c").exists() else None
        assert [node.name for node in nodes_of(kits)][:2] == ["clinic-a", "clinic-b"]
        provision(wanted, kits)
        kit = read_kit(kits / "clinic-c", "node")
        assert key in (None, kit.key)
        assert AdmittedNodes(kits / "server" / "nodes.json").reason(kit.node_id) == ""
        assert {path.name for path in kits.iterdir()} == {"authority", "server", "clinic-a", "clinic-b", "clinic-c"}
        steps += 1
    assert steps > 15


def test_a_folder_that_provision_did_not_make_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="`potluck provision` did not make it"):
        make_kits(tmp_path)
    assert contents(tmp_path) == {"notes": b"mine"}


def test_an_empty_folder_is_used_but_not_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "kits").mkdir()
    monkeypatch.chdir(tmp_path / "kits")
    with pytest.raises(SettingsError, match="--to names the current folder"):
        make_kits(tmp_path / "kits")
    monkeypatch.chdir(tmp_path)
    make_kits(tmp_path / "kits")
    read_kit(tmp_path / "kits" / "server")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "others"}, "belongs to the federation 'two clinics', not to 'others'"),
        ({"also": ("10.0.0.6",)}, "its certificate is not valid for 10.0.0.6. Run: potluck nodes renew "),
        ({"server": "localhost:1"}, "kit.toml says that the server is potluck.example.org:9443, the settings say"),
        ({"sites": ("Clinic-A",)}, "site 'Clinic-A': there is a 'clinic-a' already"),
    ],
)
def test_settings_that_no_longer_fit_the_kits_are_refused_before_anything_is_made(changes, said, kits):
    before = contents(kits)
    with pytest.raises(SettingsError, match=re.escape(said)):
        provision(settings(**changes), kits)
    assert contents(kits) == before


def test_a_folder_in_the_place_of_a_new_kit_is_refused(kits):
    (kits / "clinic-c").mkdir()
    with pytest.raises(InputError, match="clinic-c is there, but is no kit of this federation"):
        provision(settings("clinic-c"), kits)
    shutil.rmtree(kits / "clinic-c")
    shutil.copytree(kits / "clinic-a", kits / "clinic-c")
    with pytest.raises(InputError, match=r"clinic-c: this kit is for another name or key. Move it away"):
        provision(settings("clinic-c"), kits)


def test_an_authoritys_key_that_others_may_read_is_refused(kits):
    (kits / "authority" / "ca.key").chmod(0o640)
    with pytest.raises(InputError, match=r"ca.key: others may use this private key"):
        provision(settings("clinic-c"), kits)


def test_an_expired_authority_signs_nothing(tmp_path):
    kits = make_kits(tmp_path / "kits", now=long_ago(3700))
    with pytest.raises(InputError, match=r"the authority's certificate expired on .* Make a new federation"):
        provision(settings("clinic-c"), kits)
    assert not (kits / "clinic-c").exists()


# --- sites with a key of their own


def test_a_site_makes_its_own_key_and_is_admitted_without_it(kits, tmp_path):
    public = make_site_key(tmp_path / "clinic-d", "clinic-d")
    assert public == tmp_path / "clinic-d" / "clinic-d.pub"
    assert stat.S_IMODE((tmp_path / "clinic-d" / "key.pem").stat().st_mode) == 0o600
    provision(settings(), kits, {"clinic-d": read_site_key(public)})
    assert {path.name for path in (kits / "clinic-d").iterdir()} == {"kit.toml", "ca.pem", "cert.pem", "README.txt"}
    assert "Put these files beside your key.pem" in (kits / "clinic-d" / "README.txt").read_text()
    with pytest.raises(InputError, match=r"this kit has no key.pem. If the site made its own key, put it beside"):
        read_kit(kits / "clinic-d")
    shutil.copytree(kits / "clinic-d", tmp_path / "clinic-d", dirs_exist_ok=True)
    kit = read_kit(tmp_path / "clinic-d", "node")
    assert AdmittedNodes(kits / "server" / "nodes.json").name(kit.node_id) == "clinic-d"


def test_a_site_with_its_own_key_may_be_there_from_the_start(tmp_path):
    own = public_key(make_key())
    provision(settings("clinic-a", "clinic-d"), tmp_path / "kits", {"clinic-d": own})
    assert not (tmp_path / "kits" / "clinic-d" / "key.pem").exists()
    assert [node.name for node in nodes_of(tmp_path / "kits")] == ["clinic-a", "clinic-d"]
    before = contents(tmp_path / "kits")
    provision(settings("clinic-a", "clinic-d"), tmp_path / "kits", {"clinic-d": own})
    assert contents(tmp_path / "kits") == before


def test_a_sites_key_is_never_replaced_but_its_public_half_is_written_again(tmp_path):
    public = make_site_key(tmp_path / "d", "d")
    key, text = (tmp_path / "d" / "key.pem").read_bytes(), public.read_bytes()
    with pytest.raises(InputError, match=r"key.pem: it is there already, and no key is ever replaced"):
        make_site_key(tmp_path / "d", "d")
    public.unlink()
    make_site_key(tmp_path / "d", "d")
    assert (public.read_bytes(), (tmp_path / "d" / "key.pem").read_bytes()) == (text, key)
    assert len(os.listdir(tmp_path / "d")) == 2


def test_a_name_stays_with_its_key(kits):
    known = public_key((kits / "clinic-a" / "key.pem").read_bytes())
    with pytest.raises(SettingsError, match=r"there is a node 'clinic-a' with another key .* such as 'clinic-a-2'"):
        provision(settings(), kits, {"clinic-a": public_key(make_key())})
    with pytest.raises(SettingsError, match="this key is there already, under the name 'clinic-a'"):
        provision(settings(), kits, {"clinic-c": known})
    fresh = public_key(make_key())
    with pytest.raises(SettingsError, match="two of the public keys are the same"):
        provision(settings(), kits, {"clinic-c": fresh, "clinic-d": fresh})
    with pytest.raises(SettingsError, match=r"'../x': write at most 64 letters"):
        provision(settings(), kits, {"../x": fresh})
    with pytest.raises(SettingsError, match="'a b': write at most 64 letters"):
        make_site_key(kits, "a b")


SECRET = ec.generate_private_key(ec.SECP384R1())
PKCS8 = serialization.PrivateFormat.PKCS8
OPENSSH = serialization.PrivateFormat.OpenSSH
PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
PASSWORD = serialization.BestAvailableEncryption(b"secret")


@pytest.mark.parametrize(
    "raw",
    [
        SECRET.private_bytes(PEM, PKCS8, serialization.NoEncryption()),
        SECRET.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()),
        SECRET.private_bytes(PEM, OPENSSH, serialization.NoEncryption()),
        SECRET.private_bytes(PEM, PKCS8, PASSWORD),
        SECRET.private_bytes(DER, PKCS8, serialization.NoEncryption()),
        SECRET.private_bytes(DER, PKCS8, PASSWORD),
        pem_of(SECRET) + SECRET.private_bytes(PEM, PKCS8, serialization.NoEncryption()),
    ],
    ids=["pkcs8", "openssl", "openssh", "password", "der", "der-password", "both"],
)
def test_a_private_key_in_place_of_a_public_one_is_refused_loudly_and_not_repeated(raw, tmp_path):
    (tmp_path / "d.pub").write_bytes(raw)
    with pytest.raises(InputError, match=r"d.pub: THIS IS A PRIVATE KEY. It must never leave its site.") as fault:
        read_site_key(tmp_path / "d.pub")
    assert not any(line in str(fault.value) for line in raw.decode("latin-1").splitlines() if len(line) > 5)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "this is no public key in PEM"),
        (b"\x00\xff" * 100, "this is no public key in PEM"),
        (
            SECRET.public_key().public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo),
            "no public key in PEM",
        ),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "this is no public key in PEM"),
        (pem_of(ec.generate_private_key(ec.SECP256R1())), "another kind of key. Potluck takes EC keys on the curve"),
        (pem_of(rsa.generate_private_key(65537, 2048)), "another kind of key. Potluck takes EC keys on the curve"),
        (b"-----BEGIN CERTIFICATE-----\n", "this is a certificate, not a public key"),
    ],
    ids=["empty", "noise", "der", "damaged", "p256", "rsa", "certificate"],
)
def test_only_public_keys_of_the_right_kind_are_taken(raw, said, tmp_path):
    (tmp_path / "d.pub").write_bytes(raw)
    with pytest.raises(InputError, match=said):
        read_site_key(tmp_path / "d.pub")


# --- reading a kit


def test_a_kit_is_read(made):
    kit = read_kit(made / "clinic-a", "node")
    assert (kit.kind, kit.federation, kit.name) == ("node", "two clinics", "clinic-a")
    assert (kit.address, kit.folder) == ("potluck.example.org:9443", made / "clinic-a")
    assert kit.expires == NOW + timedelta(days=365)
    files = contents(made / "clinic-a")
    assert (kit.ca, kit.cert, kit.key) == (files["ca.pem"], files["cert.pem"], files["key.pem"])
    assert read_kit(made / "server", "server").name == "server"


def test_a_kit_does_not_show_its_key(made):
    kit = read_kit(made / "clinic-a")
    secret = kit.key.decode().splitlines()[1]
    assert secret not in repr(kit) + str(kit) + f"{kit}"
    assert "PRIVATE" not in repr(kit)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_a_missing_file_is_named(name, kits):
    (kits / "clinic-a" / name).unlink()
    with pytest.raises(InputError, match=f"clinic-a: this kit has no {name}."):
        read_kit(kits / "clinic-a")


def test_a_folder_without_kit_toml_is_no_kit(tmp_path):
    with pytest.raises(InputError, match=r"this is no kit, it has no kit.toml"):
        read_kit(tmp_path / "nowhere")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o700])
def test_a_key_that_is_not_for_its_owner_alone_is_refused_with_the_command_to_run(mode, kits):
    path = kits / "clinic-a" / "key.pem"
    path.chmod(mode)
    with pytest.raises(InputError) as fault:
        read_kit(kits / "clinic-a")
    said = str(fault.value)
    assert said == f"{path}: others may use this private key (its mode is {mode:04o}). Run: chmod 600 {path}"
    path.chmod(0o400)
    read_kit(kits / "clinic-a")


def test_a_key_that_does_not_fit_is_refused(kits):
    shutil.copy(kits / "clinic-b" / "key.pem", kits / "clinic-a" / "key.pem")
    with pytest.raises(InputError, match=r"key.pem: this key does not fit the certificate"):
        read_kit(kits / "clinic-a")


@pytest.mark.parametrize(
    "raw",
    [
        b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
        SECRET.private_bytes(PEM, PKCS8, PASSWORD),
        rsa.generate_private_key(65537, 2048).private_bytes(PEM, PKCS8, serialization.NoEncryption()),
    ],
    ids=["damaged", "password", "rsa"],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_repeated(raw, kits):
    (kits / "clinic-a" / "key.pem").write_bytes(raw)
    with pytest.raises(InputError, match=r"key.pem: this is ") as fault:
        read_kit(kits / "clinic-a")
    assert raw.decode().splitlines()[1] not in str(fault.value)


def test_a_certificate_of_another_authority_is_refused(kits, tmp_path):
    others = make_kits(tmp_path / "others")
    shutil.copy(others / "clinic-a" / "ca.pem", kits / "clinic-a" / "ca.pem")
    with pytest.raises(InputError, match=r"cert.pem: this certificate was not signed by this federation's authority"):
        read_kit(kits / "clinic-a")


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem"])
def test_a_file_that_is_no_certificate_is_named(name, kits):
    (kits / "clinic-a" / name).write_text("hello")
    with pytest.raises(InputError, match=f"{name}: this is no certificate in PEM"):
        read_kit(kits / "clinic-a")


def test_a_certificate_for_another_name_is_refused(kits):
    settings_file = kits / "clinic-a" / "kit.toml"
    settings_file.write_text(settings_file.read_text().replace("clinic-a", "clinic-b"))
    with pytest.raises(
        InputError, match=r"this certificate is for node 'clinic-a' of 'two clinics'; kit.toml says node 'c"
    ):
        read_kit(kits / "clinic-a")


def test_a_nodes_certificate_does_not_make_a_server(kits):
    settings_file = kits / "clinic-a" / "kit.toml"
    settings_file.write_text(settings_file.read_text().replace('"node"', '"server"'))
    with pytest.raises(InputError, match="this certificate is for node 'clinic-a'"):
        read_kit(kits / "clinic-a", "server")


def test_an_expired_kit_says_since_when(tmp_path):
    kits = make_kits(tmp_path / "kits", now=long_ago(400))
    with pytest.raises(InputError, match=f"cert.pem: this certificate expired on {long_ago(35):%Y-%m-%d %H:%M} UTC"):
        read_kit(kits / "clinic-a")


def test_an_expired_authority_is_told_as_such(tmp_path):
    kits = make_kits(tmp_path / "kits", now=long_ago(3700))
    with pytest.raises(InputError, match=r"ca.pem: this certificate expired on .* Make a new federation"):
        read_kit(kits / "clinic-a")


def test_a_kit_from_the_future_says_that_the_clock_may_be_wrong(tmp_path):
    kits = make_kits(tmp_path / "kits", now=NOW + timedelta(days=3))
    with pytest.raises(InputError, match=r"valid from .* this machine's clock says .* Is the clock right\?"):
        read_kit(kits / "clinic-a")
    make_kits(tmp_path / "soon", now=NOW + timedelta(hours=20))
    read_kit(tmp_path / "soon" / "clinic-a")


def test_the_kit_of_the_other_side_is_refused(made):
    with pytest.raises(InputError, match="this is the kit of node 'clinic-a'; the server's is needed here"):
        read_kit(made / "clinic-a", "server")
    with pytest.raises(InputError, match="this is the server's kit; a node's is needed here"):
        read_kit(made / "server", "node")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "node"', 'kind = "nod"', "line 1: kind = 'nod': input should be 'server' or 'node'"),
        ('kind = "node"\n', "", "'kind' is missing"),
        ("address =", "adress =", "'address' is missing"),
        (":9443", "", "line 4: address = 'potluck.example.org': write host:port"),
        ("name =", 'port = "1"\nname =', "has no setting 'port'"),
    ],
)
def test_a_mistake_in_kit_toml_is_named(old, new, said, kits):
    path = kits / "clinic-a" / "kit.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SettingsError, match=re.escape(said)):
        read_kit(kits / "clinic-a")


def test_a_pipe_or_a_folder_in_the_place_of_a_file_makes_nobody_wait(kits):
    path = kits / "clinic-a" / "cert.pem"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"cert.pem: this is no regular file"):
        read_kit(kits / "clinic-a")
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=r"cert.pem: this is (a folder|no regular file)"):
        read_kit(kits / "clinic-a")


# --- the admitted nodes


def test_admitted_nodes_are_read_again_when_the_file_changes(kits):
    admitted = AdmittedNodes(kits / "server" / "nodes.json")
    node = read_kit(kits / "clinic-a").node_id
    assert (admitted.reason(node), admitted.name(node)) == ("", "clinic-a")
    assert (admitted.reason("0" * 32), admitted.name("0" * 32)) == ("not admitted", "")
    revoke("clinic-a", kits / "server")
    assert (admitted.reason(node), admitted.name(node)) == ("revoked", "clinic-a")
    admit("clinic-a", kits / "server")
    assert admitted.reason(node) == ""
    assert admitted.notes == []


def test_a_node_whose_certificate_expired_is_not_admitted(tmp_path):
    kits = make_kits(tmp_path / "kits", now=long_ago(400))
    admitted = AdmittedNodes(kits / "server" / "nodes.json")
    assert admitted.reason(nodes_of(kits)[0].id) == f"expired on {long_ago(35).isoformat()}"


@pytest.mark.parametrize("damage", ["cut", "gone", "swapped"])
def test_if_the_list_is_damaged_while_a_server_runs_the_last_good_one_counts_with_one_note(damage, kits):
    path = kits / "server" / "nodes.json"
    revoke("clinic-b", kits / "server")
    good = path.read_bytes()
    admitted = AdmittedNodes(path)
    first, second = (node.id for node in nodes_of(kits))
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(good[:-40] if damage == "cut" else b"[]")
    for _ in range(3):
        assert [admitted.reason(first), admitted.reason(second)] == ["", "revoked"]
    (note,) = admitted.notes
    assert note.startswith(f"the last good list of nodes counts: {path}: the list of nodes is ")
    path.write_bytes(good.replace(b'"admitted"', b'"revoked"'))
    assert admitted.reason(first) == "revoked"
    assert len(admitted.notes) == 1


def test_many_threads_may_ask_while_the_list_changes(kits):
    path = kits / "server" / "nodes.json"
    admitted, (first, second) = AdmittedNodes(path), (node.id for node in nodes_of(kits))
    seen, done = set(), threading.Event()

    def ask():
        while not done.is_set():
            seen.add((admitted.reason(first), admitted.reason(second)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        revoke("clinic-a", kits / "server")
        admit("clinic-a", kits / "server")
    done.set()
    for thread in threads:
        thread.join()
    assert seen <= {("", ""), ("revoked", "")}
    assert admitted.notes == []
    assert admitted.reason(first) == ""


def test_revocations_by_several_processes_at_once_are_all_kept(tmp_path):
    kits = make_kits(tmp_path / "kits", *(f"clinic-{n}" for n in range(6)))
    children = []
    for number in range(6):
        if (pid := os.fork()) == 0:
            try:
                revoke(f"clinic-{number}", kits / "server")
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert {node.status for node in nodes_of(kits)} == {"revoked"}


GOOD_ROW = {
    "id": "a" * 32, "name": "a", "status": "admitted", "since": "2026-01-01T00:00:00+00:00",
    "expires": "2027-01-01T00:00:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "it is not the JSON that Potluck wrote"),
        (b"\xff", "it is not the JSON that Potluck wrote"),
        (b"[" * 100_000, "it is not the JSON that Potluck wrote"),
        (b"[]", "it is not the JSON that Potluck wrote"),
        (b"{}", "it is not the JSON that Potluck wrote"),
        (b'{"nodes": {}}', "it holds something else"),
        (b'{"nodes": [], "more": 1}', "it holds something else"),
        ([5], "each node has the texts expires, id, name, since, status"),
        ([{**GOOD_ROW, "name": 5}], "each node has the texts"),
        ([{**GOOD_ROW, "more": "x"}], "each node has the texts"),
        ([{**GOOD_ROW, "status": "maybe"}], "status 'maybe' is neither admitted nor revoked"),
        ([{**GOOD_ROW, "id": "../x"}], "'../x' is no id of a node"),
        ([{**GOOD_ROW, "since": "today"}], "Invalid isoformat string"),
        ([{**GOOD_ROW, "expires": "2027-01-01"}], "expires '2027-01-01' has no time zone"),
        ([GOOD_ROW, {**GOOD_ROW, "name": "b"}], f"it names {'a' * 32} twice"),
        ([GOOD_ROW, {**GOOD_ROW, "id": "b" * 32, "name": "A"}], "it names a twice"),
    ],
)
def test_a_damaged_list_of_nodes_is_refused_and_left_as_it_is(raw, said, kits):
    path = kits / "server" / "nodes.json"
    raw = raw if isinstance(raw, bytes) else json.dumps({"nodes": raw}).encode()
    path.write_bytes(raw)
    for work in (lambda: AdmittedNodes(path), lambda: revoke("clinic-a", kits / "server")):
        with pytest.raises(DamagedRecord, match=re.escape(said)) as fault:
            work()
        assert str(fault.value).endswith("Restore it from a backup.")
        assert "\n" not in str(fault.value)
    assert path.read_bytes() == raw


def test_a_missing_list_of_nodes_is_damage_and_provision_does_not_begin_a_new_one(kits):
    (kits / "server" / "nodes.json").unlink()
    for work in (
        lambda: AdmittedNodes(kits / "server" / "nodes.json"),
        lambda: provision(settings("clinic-c", also=("localhost",)), kits),
    ):
        with pytest.raises(DamagedRecord, match="the list of nodes is missing"):
            work()
    assert not (kits / "clinic-c").exists()


def test_a_change_keeps_the_mode_of_the_list(kits):
    path = kits / "server" / "nodes.json"
    path.chmod(0o640)
    before = os.umask(0o077)
    try:
        revoke("clinic-a", kits / "server")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert {each.name for each in path.parent.iterdir() if each.name.startswith(".")} == set()


def test_a_node_is_found_by_name_id_or_the_start_of_its_id(kits):
    first, second = nodes_of(kits)
    for wanted in (first.name, first.id, first.id[:8], first.id[:12].upper()):
        assert find_node((first, second), wanted) == first
    assert find_node((first, second), first.id[:7]) is None
    assert find_node((first, second), "") is None
    twin = type(second)(first.id[:8] + "0" * 24, "twin", *("admitted", second.since, second.expires))
    with pytest.raises(SettingsError, match="the ids of several nodes begin with"):
        find_node((first, twin), first.id[:8])


def test_an_unknown_node_is_answered_with_the_nearest_name(kits):
    with pytest.raises(SettingsError, match=r"there is no node 'clinc-a'. Did you mean 'clinic-a'\?"):
        revoke("clinc-a", kits / "server")
    with pytest.raises(SettingsError, match=r"there is no node 'xyz'. There are: clinic-a, clinic-b\."):
        admit("xyz", kits / "server")
    (kits / "server" / "nodes.json").write_bytes(pack_nodes(()))
    with pytest.raises(SettingsError, match=r"There is none yet\."):
        revoke("clinic-a", kits / "server")


def test_the_list_of_nodes_is_the_servers(made):
    for work in (lambda: revoke("clinic-a", made / "clinic-b"), lambda: admit("clinic-a", made / "clinic-b")):
        with pytest.raises(InputError, match="this is the kit of node 'clinic-b'; the server's is needed"):
            work()


def test_a_certificate_file_is_admitted_on_a_server_that_did_not_know_it(kits, tmp_path):
    shutil.copytree(kits / "server", tmp_path / "elsewhere")
    provision(settings("clinic-c"), kits)
    node = admit(str(kits / "clinic-c" / "cert.pem"), tmp_path / "elsewhere")
    assert node == read_kit(kits / "clinic-c").node_id
    assert AdmittedNodes(tmp_path / "elsewhere" / "nodes.json").reason(node) == ""


def test_certificates_that_must_not_be_admitted_are_refused(kits, tmp_path):
    server = kits / "server"
    before = contents(kits)
    others = make_kits(tmp_path / "others")
    with pytest.raises(InputError, match="was not signed by this federation's authority"):
        admit_certificate(others / "clinic-a" / "cert.pem", server)
    with pytest.raises(InputError, match="this is not the certificate of a node"):
        admit_certificate(server / "cert.pem", server)
    with pytest.raises(InputError, match="this is not the certificate of a node"):
        admit_certificate(server / "ca.pem", server)
    with pytest.raises(InputError, match=r"key.pem: this is no certificate in PEM"):
        admit_certificate(kits / "clinic-a" / "key.pem", server)
    with pytest.raises(InputError, match="there is no such file"):
        admit("nowhere.pem", server)
    assert contents(kits) == before
    old = make_kits(tmp_path / "old", now=long_ago(400))
    with pytest.raises(InputError, match="this certificate expired on"):
        admit_certificate(old / "clinic-a" / "cert.pem", old / "server")


# --- new certificates


def test_a_renewed_certificate_has_the_same_key_and_the_server_knows_the_new_date(tmp_path):
    kits = make_kits(tmp_path / "kits", now=long_ago(400))
    before = contents(kits)
    found = renew(kits / "clinic-a", kits / "authority", days=90, server=kits / "server", now=NOW)
    assert found.expires == NOW + timedelta(days=90)
    kit = read_kit(kits / "clinic-a")
    assert AdmittedNodes(kits / "server" / "nodes.json").reason(kit.node_id) == ""
    changed = {name for name, raw in contents(kits).items() if raw != before[name]}
    assert changed == {"clinic-a/cert.pem", "server/nodes.json"}


def test_a_certificate_is_renewed_where_the_authority_is_without_the_key(kits):
    (kits / "clinic-a" / "key.pem").unlink()
    serial = certificate(kits / "clinic-a").serial_number
    renew(kits / "clinic-a", kits / "authority")
    assert certificate(kits / "clinic-a").serial_number != serial


def test_the_servers_certificate_is_renewed_with_its_names_and_further_ones(kits):
    renew(kits / "server", kits / "authority", also=["10.0.0.6", "LOCALHOST"])
    kit = read_kit(kits / "server", "server")
    names = extension(x509.load_pem_x509_certificate(kit.cert), x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["potluck.example.org", "10.0.0.5", "localhost", "10.0.0.6"]


def test_a_renewal_that_would_be_of_no_use_is_refused_before_anything_changes(kits, tmp_path):
    revoke("clinic-a", kits / "server")
    others, before = make_kits(tmp_path / "others"), contents(kits)
    for fault, said, options in (
        (
            SettingsError,
            "node 'clinic-a' is revoked; a new certificate would not let it in",
            {"server": kits / "server"},
        ),
        (SettingsError, "--also h: only the server's certificate has addresses", {"also": ["h"]}),
        (SettingsError, "--days 0: give 1 to 3650", {"days": 0}),
        (InputError, "this is the kit of node 'clinic-b'", {"server": kits / "clinic-b"}),
    ):
        with pytest.raises(fault, match=re.escape(said)):
            renew(kits / "clinic-a", kits / "authority", **options)
    with pytest.raises(InputError, match="was not signed by this federation's authority"):
        renew(kits / "clinic-a", others / "authority")
    with pytest.raises(SettingsError, match="--also a b: 'a b' is neither"):
        renew(kits / "server", kits / "authority", also=["a b"])
    assert contents(kits) == before


def test_a_key_is_replaced_by_a_new_site_and_a_revocation(kits):
    provision(settings("clinic-a", "clinic-b", "clinic-a-2"), kits)
    revoke("clinic-a", kits / "server")
    assert [(node.name, node.status) for node in nodes_of(kits)] == [
        ("clinic-a", "revoked"), ("clinic-b", "admitted"), ("clinic-a-2", "admitted")
    ]  # fmt: skip


def test_times_in_the_list_are_those_of_the_last_change(kits):
    before = nodes_of(kits)[0]
    start = datetime.now(UTC).replace(microsecond=0)
    revoke("clinic-a", kits / "server")
    after = nodes_of(kits)[0]
    assert start <= datetime.fromisoformat(after.since) <= datetime.now(UTC)
    revoke("clinic-a", kits / "server")
    assert nodes_of(kits)[0] == after
    assert (before.id, before.name, before.expires) == (after.id, after.name, after.expires)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="file/kits: cannot make the folder: File exists"):
        make_kits(tmp_path / "file" / "kits" / "kits")


def test_a_full_disk_ends_with_an_error_and_leaves_nothing(tmp_path):
    if (pid := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (740, 740))  # a key and ca.pem fit, a node's certificate does not
        try:
            make_kits(tmp_path / "kits")
        except FolderError as fault:
            os._exit(int("cert.pem: cannot write" in str(fault)))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert os.listdir(tmp_path) == []
