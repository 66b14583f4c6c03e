"""Certificates for tests: an authority, and certificates that it signs."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from potluck.engines.remote.grpc_library import fingerprint


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM, and the authority that signed it."""

    ca: bytes
    cert: bytes
    key: bytes

    @property
    def id(self):
        return fingerprint(x509.load_pem_x509_certificate(self.cert))


def _pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@lru_cache
def _key(name):
    """A key is costly; one for each name is enough."""
    return ec.generate_private_key(ec.SECP384R1())


def _signed(name, key, issuer, signer, start, days, *extensions):
    made = x509.CertificateBuilder().subject_name(_name(name)).issuer_name(_name(issuer)).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(start).not_valid_after(start + timedelta(days=days))
    for extension in extensions:
        made = made.add_extension(extension, critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


@lru_cache
def authority(name="authority"):
    """(certificate, key) of an authority."""
    key = _key(("authority", name))
    start = datetime.now(UTC) - timedelta(days=30)
    return _signed(name, key, name, key, start, 90, x509.BasicConstraints(ca=True, path_length=0)), key


@lru_cache
def identity(name, by="authority", expired=False, host=""):
    """Who is called so, signed by this authority; for a server with its address."""
    ca, signer = authority(by)
    key = _key(name)
    start = datetime.now(UTC) - timedelta(days=20)
    names = [x509.IPAddress(ip_address(host))] if host else [x509.DNSName(name)]
    extensions = (x509.SubjectAlternativeName(names), x509.BasicConstraints(ca=False, path_length=None))
    cert = _signed(name, key, by, signer, start, 10 if expired else 60, *extensions)
    return Identity(ca, cert, _pem(key))
