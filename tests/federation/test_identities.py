"""Proofs of who a node is: only its own key, certified by this federation's authority and valid today, makes one."""

from datetime import timedelta

import pytest
from cryptography.x509 import load_pem_x509_certificate
from kit_life import NOW, make_kits

from potluck.federation import authority
from potluck.federation.identities import KitIdentities
from potluck.federation.kits import read_kit
from potluck.secure.client import UnsafeRequest
from potluck.secure.crypto import Forged

TEXT = b"these are my keys"


class Site:
    """A key with a certificate."""

    def __init__(self, made, role="node", days=30, now=NOW):
        self.key = authority.make_key()
        self.cert = authority.issue(made, authority.public_key(self.key), "site", role, days, now)
        self.id = authority.read_certificate(self.cert).node_id
        self.identities = KitIdentities(made.cert, self.id, self.cert, self.key)

    def proof(self, text=TEXT):
        return self.identities.sign(self.id, text)


@pytest.fixture(scope="module")
def made():
    return authority.make_authority("clinics", NOW - timedelta(days=90))


@pytest.fixture(scope="module")
def peer(made):
    return Site(made)


def checkers(made):
    """A peer's identities and the server's."""
    return [Site(made).identities, KitIdentities(made.cert)]


def test_a_nodes_own_proof_is_taken_by_peers_and_server(made, peer):
    for each in checkers(made):
        each.check(peer.id, TEXT, peer.proof())


@pytest.mark.parametrize("side", [0, 1])
def test_a_proof_of_another_node_is_refused(made, peer, side):
    other = Site(made)
    with pytest.raises(Forged, match=f"^the keys of {peer.id[:8]}: they are signed by another node, {other.id[:8]}$"):
        checkers(made)[side].check(peer.id, TEXT, other.proof())


@pytest.mark.parametrize("side", [0, 1])
def test_a_proof_under_another_authority_is_refused(made, side):
    """Also under one with the same name."""
    foreign = Site(authority.make_authority("clinics", NOW))
    with pytest.raises(Forged, match="was not signed by this federation's authority"):
        checkers(made)[side].check(foreign.id, TEXT, foreign.proof())


@pytest.mark.parametrize("side", [0, 1])
def test_an_expired_certificate_is_refused_and_one_that_is_not_valid_yet(made, side):
    late, early = Site(made, days=5, now=NOW - timedelta(days=30)), Site(made, now=NOW + timedelta(days=9))
    with pytest.raises(Forged, match=f"^the keys of {late.id[:8]}: this certificate expired on"):
        checkers(made)[side].check(late.id, TEXT, late.proof())
    with pytest.raises(Forged, match="this certificate is valid from"):
        checkers(made)[side].check(early.id, TEXT, early.proof())


@pytest.mark.parametrize("side", [0, 1])
def test_a_servers_certificate_is_no_nodes(made, side):
    server = Site(made, role="server")
    with pytest.raises(Forged, match="its certificate is not a node's"):
        checkers(made)[side].check(server.id, TEXT, server.proof())


def test_another_text_or_any_changed_byte_is_refused(made, peer):
    check, proof = KitIdentities(made.cert).check, peer.proof()
    with pytest.raises(Forged, match="this signature does not fit"):
        check(peer.id, b"other keys", proof)
    # How many bits of the authority's signature are spare: nobody signs this byte, and nothing follows from it.
    spare = 2 + int.from_bytes(proof[:2]) - len(load_pem_x509_certificate(peer.cert).signature) - 1
    assert proof[spare] == 0
    for at in range(len(proof)):
        if at == spare:
            continue
        with pytest.raises(Forged):
            check(peer.id, TEXT, proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :])
    for cut in (b"", b"\xff", b"\xff\xff", proof[:40], proof[:-1], proof + b"\0"):
        with pytest.raises(Forged):
            check(peer.id, TEXT, cut)


def test_a_certificate_with_the_key_of_another_does_not_help(made, peer):
    thief = KitIdentities(made.cert, peer.id, peer.cert, authority.make_key())
    with pytest.raises(Forged, match="this signature does not fit"):
        KitIdentities(made.cert).check(peer.id, TEXT, thief.sign(peer.id, TEXT))


def test_a_certificate_that_expires_after_its_proof_was_checked_is_refused_then(made, monkeypatch):
    """What was checked is remembered; the date is not."""
    from potluck.federation import identities

    site, check = Site(made), KitIdentities(made.cert).check
    proof = site.proof()
    check(site.id, TEXT, proof)

    class Later(identities.datetime):
        @classmethod
        def now(cls, zone=None):
            return NOW + timedelta(days=31)

    monkeypatch.setattr(identities, "datetime", Later)
    with pytest.raises(Forged, match="expired"):
        check(site.id, TEXT, proof)


def test_the_server_and_other_nodes_have_no_secrets_of_a_node(tmp_path):
    kits = make_kits(tmp_path / "kits")
    server, node = (KitIdentities.of(read_kit(kits / name)) for name in ("server", "clinic-a"))
    for identities, client in ((server, node.node), (server, ""), (node, server.node), (node, "another")):
        with pytest.raises(UnsafeRequest):
            identities.sign(client, TEXT)
        with pytest.raises(UnsafeRequest):
            identities.root(client)


def test_secrets_are_new_with_every_start_and_every_sum_and_are_in_no_repr(peer, made):
    again = KitIdentities(made.cert, peer.id, peer.cert, peer.key)
    sums = [again.renewed(session) for session in ("one", "two")]
    roots = {each.root(peer.id) for each in (peer.identities, again, *sums)}
    assert len(roots) == 4
    assert {len(root) for root in roots} == {32}
    with pytest.raises(UnsafeRequest, match="twice"):
        sums[-1].renewed("one")
    for each in (again, *sums):
        assert "PRIVATE" not in repr(each)
        assert repr(each.root(peer.id)) not in repr(each)
