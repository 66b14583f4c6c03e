"""What both sides take from gRPC and from the library for certificates. No other file imports these."""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime

from potluck.core import ResourceError, one_line
from potluck.engines.remote import frames

# Both are read when it is imported. It would write lines of its own to stderr; and in a process that was forked, as the
# pool's are, it would start its threads again, and abort when their files are closed.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
MISSING = "a federation over gRPC needs packages that are not installed: pip install 'potluck[deploy]'"
try:
    import grpc
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
except ImportError:
    raise ResourceError(MISSING) from None

__all__ = [
    "CODES",
    "FETCH",
    "OPTIONS",
    "POST",
    "SERVICE",
    "check_pems",
    "fault_of",
    "fingerprint",
    "grpc",
    "plain",
    "x509",
]

SERVICE, FETCH, POST = "potluck.Federation", "Fetch", "Post"
CODES = grpc.StatusCode
OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", frames.FRAME + 1_024),
    ("grpc.max_send_message_length", frames.FRAME + 1_024),
    ("grpc.enable_retries", 0),
)
"""A side that hears nothing for ten seconds asks, and gives up ten seconds later."""


def check_pems(ca: bytes, cert: bytes, key: bytes) -> None:
    """An error if these cannot be used; the library's own says little, and later."""
    try:
        x509.load_pem_x509_certificates(ca)
        own = x509.load_pem_x509_certificate(cert)
    except ValueError:
        raise ResourceError("the certificate, or that of the authority, is not a PEM file that can be read") from None
    try:
        fits = load_pem_private_key(key, None).public_key() == own.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ResourceError("the key is not a PEM file that can be read without a password") from None
    if not fits:
        raise ResourceError("the key does not belong to the certificate")


_PLAIN = (
    ("certificate has expired", "its certificate has expired, or the clock of this machine is wrong"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not from the authority of this federation"),
    ("Hostname Verification", "its certificate is for another host name"),
    ("Socket closed", "it closed the connection; perhaps it does not trust this node's certificate"),
)


def plain(details: str) -> str:
    """Why there is no connection, in words for people; the library's own where we have none."""
    cause = details.rpartition("last error: ")[2]
    own = next((words for mark, words in _PLAIN if mark in cause), "")
    return own or one_line(re.sub(r"^[A-Z]+: (ipv[46]:\S+: )?", "", cause))


def fingerprint(certificate: x509.Certificate) -> str:
    """The id of the key of a certificate: the first 32 hex digits of the SHA-256 of its SubjectPublicKeyInfo."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()[:32]


def fault_of(ca: bytes, cert: bytes) -> str:
    """What is wrong with a node's own certificate; empty if nothing is. A server that refuses it does not say."""
    authorities, own = x509.load_pem_x509_certificates(ca), x509.load_pem_x509_certificate(cert)
    if own.not_valid_after_utc < datetime.now(UTC):
        return f"its certificate expired on {own.not_valid_after_utc:%Y-%m-%d}"
    if not any(_issued(own, authority) for authority in authorities):
        return "its certificate is not from the authority of this federation"
    return ""


def _issued(own: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
