"""What both sides take from gRPC and from the library for certificates. No other file imports these."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from potluck.core import ResourceError, one_line
from potluck.engines.remote import frames

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when imported; else it writes lines of its own to stderr
MISSING = "a federation over gRPC needs packages that are not installed: pip install 'potluck[deploy]'"
try:
    import grpc
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError:
    raise ResourceError(MISSING) from None

__all__ = ["CODES", "FETCH", "OPTIONS", "POST", "SERVICE", "credentials_of", "fault_of", "fingerprint", "grpc", "x509"]

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


def credentials_of(make: Callable[[], Any]) -> Any:
    """Credentials of the library, whose errors do not say much."""
    try:
        return make()
    except Exception as fault:
        raise ResourceError(f"the certificates or the key cannot be used: {one_line(str(fault))}") from None


def fingerprint(certificate: x509.Certificate) -> str:
    """The id of the key of a certificate: the first 32 hex digits of the SHA-256 of its SubjectPublicKeyInfo."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()[:32]


def fault_of(ca: bytes, cert: bytes) -> str:
    """What is wrong with a node's own certificate; empty if nothing is. A server that refuses it does not say."""
    try:
        authority, own = x509.load_pem_x509_certificate(ca), x509.load_pem_x509_certificate(cert)
    except ValueError as fault:
        return f"its certificates cannot be read: {one_line(str(fault))}"
    if own.not_valid_after_utc < datetime.now(UTC):
        return f"its certificate expired on {own.not_valid_after_utc:%Y-%m-%d}"
    try:
        own.verify_directly_issued_by(authority)
    except Exception:
        return "its certificate is not from the authority of this federation"
    return ""
