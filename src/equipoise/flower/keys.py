"""Certificates and keys for a federation on one machine: an authority that signs once, a server, and a key per node.

For trying out and for tests. In a consortium every site makes its own key, and nobody else ever sees it; the guide says
how.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from equipoise import files

_DAYS = 30


@dataclass(frozen=True)
class Keys:
    """Where they are."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server(self) -> Path:
        return self.folder / "server.key"

    def node(self, name: str) -> Path:
        """A node's private key; the public one beside it ends in .pub."""
        return self.folder / name

    def public(self, name: str) -> Path:
        return self.folder / f"{name}.pub"


def make(folder: Path, nodes: list[str]) -> Keys:
    """New keys for a server on loopback and for these nodes; only this user can read them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    keys, now = Keys(files.make_folder(folder)), datetime.now(UTC)
    folder.chmod(0o700)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey, *, signs: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("a federation on one machine"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )
        if signs:
            made = made.add_extension(x509.KeyUsage(*[False] * 5, True, True, False, False), critical=True)
        else:
            here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            made = made.add_extension(x509.SubjectAlternativeName(here), critical=False)
        return bytes(made.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))

    files.write_atomic(keys.authority, certificate("a federation on one machine", authority, signs=True))
    files.write_atomic(keys.certificate, certificate("localhost", server, signs=False))
    files.write_atomic(keys.server, server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for one in nodes:
        make_node_key(keys, one)
    return keys


def make_node_key(keys: Keys, name: str) -> None:
    """What `ssh-keygen -t ecdsa -b 384` makes."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    files.write_atomic(keys.node(name), secret)
    files.write_atomic(keys.public(name), key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
