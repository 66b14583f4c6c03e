"""Keys, shared secrets, streams of mask bytes, signatures. Nothing else in secure aggregation imports `cryptography`.

X25519 for key agreement, HKDF (RFC 5869) to derive keys, ChaCha20 as the stream, ChaCha20-Poly1305 for shares,
Ed25519 for signatures.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core import ResourceError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
except ImportError:
    raise ResourceError("[secure] needs the package cryptography: pip install 'potluck[secure]'") from None

KEY = 32
"""Bytes of a key, of a seed, and of a public key."""
SIGNATURE = 64
TAG = 16
"""Bytes that encryption adds to a text."""
PIECE = 1 << 20
"""Bytes of a mask that are made at once, so that they are still in the cache when they are added."""

Bytes = NDArray[np.uint8]


class Forged(ValueError):
    """Bytes that are not from whom they should be, or were changed on the way."""


def expand(key: bytes, *info: object) -> bytes:
    """A key derived from another one, for this purpose: HKDF-Expand, one block."""
    return hmac.digest(key, repr(tuple(str(part) for part in info)).encode() + b"\x01", "sha256")


def extract(secret: bytes, *info: object) -> bytes:
    """A key derived from a shared secret, for this purpose: HKDF."""
    return expand(hmac.digest(b"potluck", secret, "sha256"), *info)


def public_key(private: bytes) -> bytes:
    """The public key for key agreement that belongs to a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(eq=False)
class Agreements:
    """The secrets that were agreed on in one session. Those of the last session are forgotten when another begins."""

    session: str = ""
    _loaded: dict[bytes, X25519PrivateKey] = field(default_factory=dict, repr=False)
    _agreed: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict, repr=False)

    def begin(self, session: str) -> None:
        """Forgets everything, if this is another session."""
        if session != self.session:
            self.session = session
            self._loaded.clear()
            self._agreed.clear()

    def agree(self, private: bytes, public: bytes) -> bytes:
        """The secret that two sides share: each has its own private key and the other's public one."""
        if (private, public) not in self._agreed:
            own = self._loaded.get(private) or X25519PrivateKey.from_private_bytes(private)
            self._loaded[private] = own
            try:
                self._agreed[private, public] = own.exchange(X25519PublicKey.from_public_bytes(public))
            except ValueError:
                raise Forged("a public key that nobody can agree on a secret with") from None
        return self._agreed[private, public]

    def __len__(self) -> int:
        return len(self._loaded) + len(self._agreed)

    def __reduce__(self) -> tuple[type[Agreements], tuple[()]]:
        """Secrets go to no other process."""
        return Agreements, ()


def signing_key(private: bytes) -> bytes:
    """The public key that verifies what this private one signs."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, text: bytes) -> bytes:
    """The signature of a text."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(text)


@lru_cache(maxsize=4096)  # all that it holds is public
def check(public: bytes, text: bytes, signature: bytes) -> None:
    """Raises `Forged` unless the owner of this key signed the text."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        raise Forged("a signature that does not fit") from None


def encrypt(key: bytes, text: bytes, about: bytes) -> bytes:
    """A text that only the owner of the key can read; each key is used once. `about` is signed with it."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def decrypt(key: bytes, text: bytes, about: bytes) -> bytes:
    """The text that `encrypt` was given; raises `Forged` if it was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), text, about)
    except (InvalidTag, ValueError):
        raise Forged("a share that was changed, or is for somebody else") from None


def add_mask(values: NDArray[Any], key: bytes, number: int, negative: bool = False) -> None:
    """Adds the stream of this key and number to whole numbers in a ring, or subtracts it."""
    stream = Cipher(ChaCha20(key, bytes(4) + number.to_bytes(12, "little")), mode=None).encryptor()
    step = PIECE // values.itemsize
    zeros, made = _zeros(), np.empty(PIECE, np.uint8)
    for start in range(0, len(values), step):
        part = values[start : start + step]
        stream.update_into(zeros[: part.nbytes], made.data)
        mask = made[: part.nbytes].view(values.dtype)
        np.subtract(part, mask, out=part) if negative else np.add(part, mask, out=part)


@lru_cache(maxsize=1)
def _zeros() -> memoryview:
    return memoryview(bytes(PIECE))


def digest(*parts: bytes) -> bytes:
    """A hash of several texts, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()
