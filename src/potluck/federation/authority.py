"""Keys and X.509 certificates of a federation, as PEM. Nothing else here imports the package cryptography.

A node's id is the fingerprint of its public key: the first 32 hex digits of SHA-256 over the DER SubjectPublicKeyInfo.
Private keys appear in no error and in no repr.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from potluck.core import ResourceError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ResourceError("a federation needs the package cryptography: pip install 'potluck[deploy]'") from None

AUTHORITY_DAYS = 3650
BACKDATED = timedelta(days=1)
"""Certificates are valid from one day before they are made, because clocks differ."""

Role = Literal["server", "node"]
_PURPOSES = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "node": ExtendedKeyUsageOID.CLIENT_AUTH}


class Unusable(Exception):
    """A key or certificate that cannot be used; the text says why, and names no file."""


@dataclass(frozen=True)
class Authority:
    """The private certificate authority of a federation."""

    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Certificate:
    """What a certificate says."""

    name: str
    federation: str
    node_id: str
    """The fingerprint of its public key."""
    roles: tuple[str, ...]
    hosts: tuple[str, ...]
    """The names and addresses of a server."""
    begins: datetime
    expires: datetime
    pem: bytes = field(repr=False)


def make_key() -> bytes:
    """A new private key on the curve SECP384R1."""
    return ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_key(key: bytes) -> bytes:
    """The public key of a private key, as PEM SubjectPublicKeyInfo."""
    return _public_pem(_private(key).public_key())


def read_public_key(raw: bytes) -> bytes:
    """The public key in these bytes; refuses everything else, above all a private key."""
    if b"PRIVATE KEY" in raw.upper() or _is_private_der(raw):
        raise Unusable(
            "THIS IS A PRIVATE KEY. It must never leave its site. Delete this copy, make a new key at the site "
            "(`potluck nodes new-key`), and send only the file that ends in .pub."
        )
    if b"BEGIN CERTIFICATE" in raw:
        raise Unusable("this is a certificate, not a public key. Give the .pub file of `potluck nodes new-key`.")
    try:
        found = serialization.load_pem_public_key(raw)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unusable("this is no public key in PEM (-----BEGIN PUBLIC KEY-----).") from None
    if not isinstance(found, ec.EllipticCurvePublicKey) or not isinstance(found.curve, ec.SECP384R1):
        raise Unusable("this is another kind of key. Potluck takes EC keys on the curve SECP384R1.")
    return _public_pem(found)


def fingerprint(public: bytes) -> str:
    """The node id of a public key in PEM."""
    found = serialization.load_pem_public_key(public)
    der = found.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()[:32]


def make_authority(federation: str, now: datetime) -> Authority:
    """A new certificate authority, valid for ten years; it can sign nodes and servers, but no other authority."""
    key = make_key()
    public, subject = _private(key).public_key(), _subject(federation, "authority")
    built = (
        _builder(subject, subject, public, now, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(_private(key), hashes.SHA384())
    )
    return Authority(built.public_bytes(serialization.Encoding.PEM), key)


def issue(
    authority: Authority, public: bytes, name: str, role: Role, days: int, now: datetime, hosts: Iterable[str] = ()
) -> bytes:
    """A certificate for a public key; it ends no later than the authority's own."""
    issuer, signer = _certificate(authority.cert), _private(authority.key)
    ends = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    if ends <= now:
        raise Unusable(f"the authority's certificate expired on {_when(ends)}. Make a new federation.")
    subject, key = _subject(_attribute(issuer, NameOID.ORGANIZATION_NAME), name), _loaded_public(public)
    built = (
        _builder(subject, issuer.subject, key, now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([_PURPOSES[role]]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names := [_general_name(host) for host in dict.fromkeys(hosts)]:
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return built.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def read_certificate(pem: bytes) -> Certificate:
    """What a certificate in PEM says; whether it can be believed, `check_issuer` tells."""
    found = _certificate(pem)
    try:
        return Certificate(
            _attribute(found, NameOID.COMMON_NAME),
            _attribute(found, NameOID.ORGANIZATION_NAME),
            fingerprint(_public_pem(found.public_key())),
            tuple(role for role, purpose in _PURPOSES.items() if purpose in _purposes(found)),
            _hosts(found),
            found.not_valid_before_utc,
            found.not_valid_after_utc,
            pem,
        )
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension):
        raise Unusable("this certificate is damaged, or not one of Potluck's.") from None


def to_der(pem: bytes) -> bytes:
    """A certificate as DER, which is shorter."""
    return _certificate(pem).public_bytes(serialization.Encoding.DER)


def read_der(raw: bytes) -> Certificate:
    """What a certificate in DER says."""
    try:
        return read_certificate(x509.load_der_x509_certificate(raw).public_bytes(serialization.Encoding.PEM))
    except Unusable:
        raise
    except Exception:  # the library has many kinds of errors for what strangers send
        raise Unusable("this is no certificate in DER.") from None


def sign(key: bytes, text: bytes) -> bytes:
    """The signature of a text with a private key."""
    return _private(key).sign(text, ec.ECDSA(hashes.SHA384()))


def check_signature(found: Certificate, text: bytes, signature: bytes) -> None:
    """Raises an error unless the owner of this certificate signed the text."""
    try:
        _loaded_public(certified_key(found)).verify(signature, text, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        raise Unusable("this signature does not fit.") from None


def certified_key(found: Certificate) -> bytes:
    """The public key of a certificate."""
    return _public_pem(_certificate(found.pem).public_key())


def check_issuer(found: Certificate, issuer: Certificate) -> None:
    """Raises an error unless this authority signed the certificate."""
    try:
        _certificate(found.pem).verify_directly_issued_by(_certificate(issuer.pem))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise Unusable("this certificate was not signed by this federation's authority (ca.pem).") from None


def check_key(key: bytes, found: Certificate) -> None:
    """Raises an error unless this private key belongs to the certificate."""
    if public_key(key) != certified_key(found):
        raise Unusable("this key does not fit the certificate beside it. Put the key back with which it was made.")


def check_dates(found: Certificate, now: datetime) -> None:
    """Raises an error if a certificate has expired or is not valid yet."""
    if now > found.expires:
        remedy = "Renew it: potluck nodes renew." if found.roles else "Make a new federation."
        raise Unusable(f"this certificate expired on {_when(found.expires)}. {remedy}")
    if now < found.begins:
        raise Unusable(
            f"this certificate is valid from {_when(found.begins)} on, and this machine's clock says {_when(now)}. "
            "Is the clock right?"
        )


def _when(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
    )


def _subject(federation: str, name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _attribute(found: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    values = found.subject.get_attributes_for_oid(oid)
    if len(values) != 1:
        raise Unusable("this certificate is not one of Potluck's: it needs one name and one federation.")
    return str(values[0].value)


def _purposes(found: x509.Certificate) -> list[x509.ObjectIdentifier]:
    try:
        return list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return []


def _hosts(found: x509.Certificate) -> tuple[str, ...]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise Unusable("this is no certificate in PEM.") from None


def _private(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # not told on: its text may quote the file
        raise Unusable("this is no private key in PEM without a password.") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(found.curve, ec.SECP384R1):
        raise Unusable("this is another kind of key. Potluck takes EC keys on the curve SECP384R1.")
    return found


def _is_private_der(raw: bytes) -> bool:
    try:
        serialization.load_der_private_key(raw, None)
    except TypeError:  # it has a password
        return True
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _loaded_public(public: bytes) -> ec.EllipticCurvePublicKey:
    found = serialization.load_pem_public_key(public)
    assert isinstance(found, ec.EllipticCurvePublicKey)
    return found


def _public_pem(found: object) -> bytes:
    if not isinstance(found, ec.EllipticCurvePublicKey) or not isinstance(found.curve, ec.SECP384R1):
        raise Unusable("its key is of another kind. Potluck takes EC keys on the curve SECP384R1.")
    return found.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
