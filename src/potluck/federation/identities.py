"""Who a node is in secure sums: its admitted key signs, and every other node checks the certificate for itself.

The server passes proofs on, and cannot make one. A server that admits nodes of its own can still invent them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from potluck.core import Reply, SettingsError, Task, Weight, Zoo
from potluck.federation import authority
from potluck.federation.authority import Certificate, Unusable
from potluck.federation.kits import Kit
from potluck.secure.client import SecureClient, request_of
from potluck.secure.crypto import KEY, Forged
from potluck.secure.protocol import Identities, SumPlan, UnsafeRequest, Uploads
from potluck.secure.settings import Secure, canonical

LENGTH = 2
"""Bytes of the certificate's length, at the start of a proof."""


@dataclass(frozen=True, eq=False)
class KitIdentities:
    """The identities of a federation with kits. The server's can check, and neither sign nor make secrets."""

    ca: bytes = field(repr=False)
    """The authority's certificate, as PEM."""
    node: str = ""
    """The id of this node; empty: the server."""
    cert: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    begun: set[str] = field(default_factory=set, repr=False)
    """The sessions that this process has made keys for: no other keys are made for them."""
    secret: bytes = field(default_factory=lambda: os.urandom(KEY), repr=False)
    """Never written, never sent."""

    @classmethod
    def of(cls, kit: Kit) -> KitIdentities:
        """The identities as the owner of this kit has them."""
        return cls(kit.ca, kit.node_id, kit.cert, kit.key) if kit.kind == "node" else cls(kit.ca)

    def sign(self, client: str, text: bytes) -> bytes:
        """A proof: the node's certificate, and its signature."""
        self._refuse_others(client)
        cert = authority.to_der(self.cert)
        return len(cert).to_bytes(LENGTH) + cert + authority.sign(self.key, text)

    def check(self, client: str, text: bytes, proof: bytes) -> None:
        """Raises `Forged` unless a node with this id, which the federation's authority certified, signed the text."""
        try:
            found = _checked(self.ca, text, proof)
            authority.check_dates(found, datetime.now(UTC))
        except Unusable as fault:
            raise Forged(f"the keys of {client[:8]}: {fault}") from None
        if found.roles != ("node",):
            raise Forged(f"the keys of {client[:8]}: its certificate is not a node's")
        if found.node_id != client:
            raise Forged(f"the keys of {client[:8]}: they are signed by another node, {found.node_id[:8]}")

    def root(self, client: str) -> bytes:
        self._refuse_others(client)
        return self.secret

    def renewed(self, session: str) -> KitIdentities:
        """The same node with a new secret, for a session that it has made no keys for."""
        if session in self.begun:
            raise UnsafeRequest("it was asked for keys of the same secure sum twice")
        self.begun.add(session)
        return replace(self, secret=os.urandom(KEY))

    def _refuse_others(self, client: str) -> None:
        if not self.node or client != self.node:
            raise UnsafeRequest("only a node itself has its secrets")


@lru_cache(maxsize=4096)  # a proof is checked in three phases
def _checked(ca: bytes, text: bytes, proof: bytes) -> Certificate:
    """The certificate in a proof, if the authority issued it, and if its key signed the text."""
    end = LENGTH + int.from_bytes(proof[:LENGTH])
    found = _issued(ca, proof[LENGTH:end])
    authority.check_signature(found, text, proof[end:])
    return found


@lru_cache(maxsize=4096)  # a node shows the same certificate in every round
def _issued(ca: bytes, cert: bytes) -> Certificate:
    found = authority.read_der(cert)
    authority.check_issuer(found, authority.read_certificate(ca))
    return found


@dataclass
class NodeSecureClient(SecureClient):
    """A node's side of secure sums: one at a time, each with a secret of its own.

    With the keys of a new sum, the secret of the last one is gone: nobody can open that one in another way later. A
    node that was started again has no secret of sums that were under way, and says so. In a sum, a node shares its
    masks under one plan, uploads once, and signs and opens one list of uploads, whatever the server asks for.
    """

    session: str = ""
    """The sum that is under way."""
    plan: bytes = b""
    """Under which plan it shared its masks: the members, the blocks with their holders, and the neighbours' keys."""
    uploaded: str = ""
    """What it was told when it uploaded, as a hash; empty: it has not."""

    def keys(self, client: str, request: Mapping[str, Any]) -> Reply:
        assert isinstance(self.identities, KitIdentities)
        session = str(request["session"])
        self.identities = self.identities.renewed(session)
        self.session, self.plan, self.uploaded = session, b"", ""
        self.agreed.clear()
        return super().keys(client, request)

    def shares(self, client: str, request: Mapping[str, Any]) -> Reply:
        self._refuse_other_sums(request)
        if self.plan and self.plan != _plan(request):
            raise UnsafeRequest("it was asked to share its masks under two plans")
        reply = super().shares(client, request)
        self.plan = _plan(request)
        return reply

    def upload(self, task: Task, reply: Reply, weight: Weight, zoo: Zoo) -> Reply:
        request = request_of(task)
        self._refuse_other_sums(request)
        self._refuse_other_plans(request)
        if self.uploaded:
            raise UnsafeRequest("it was asked for two uploads of one secure sum")
        masked = super().upload(task, reply, weight, zoo)
        self.uploaded = self._uploads(request)
        return masked

    def agree(self, client: str, request: Mapping[str, Any]) -> Reply:
        self._refuse_other_uploads(client, request)
        return super().agree(client, request)

    def open(self, client: str, request: Mapping[str, Any]) -> Reply:
        self._refuse_other_uploads(client, request)
        return super().open(client, request)

    def _uploads(self, request: Mapping[str, Any]) -> str:
        return Uploads.read(request, SumPlan.read(request), self.settings.min_holders).hash

    def _refuse_other_uploads(self, client: str, request: Mapping[str, Any]) -> None:
        """Refuses to open what this node was told otherwise of when it uploaded."""
        self._refuse_other_sums(request)
        self._refuse_other_plans(request)
        if self.uploaded and (self.uploaded != self._uploads(request) or client not in request["uploaded"]):
            raise UnsafeRequest("it uploaded, and is told now that it did not, or not to this sum")

    def _refuse_other_sums(self, request: Mapping[str, Any]) -> None:
        if not self.session or request.get("session") != self.session:
            raise UnsafeRequest("it has no keys of this secure sum: it was started again, or another sum began")

    def _refuse_other_plans(self, request: Mapping[str, Any]) -> None:
        if not self.plan or self.plan != _plan(request):
            raise UnsafeRequest("it has not shared its masks under this plan")


def _plan(request: Mapping[str, Any]) -> bytes:
    return canonical([request.get(name) for name in ("members", "blocks", "peers")])


def make_client(settings: Secure, identities: Identities | None) -> SecureClient:
    """What one side of a federation needs for secure sums. Without keys there are none."""
    if identities is None:
        raise SettingsError("[secure] needs the keys of a kit: nodes prove with them who they are.")
    kind = NodeSecureClient if isinstance(identities, KitIdentities) and identities.node else SecureClient
    return kind(settings, identities)
