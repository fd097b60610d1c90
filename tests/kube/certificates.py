"""Certificates for tests: one authority, servers and clients signed by it."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class KeyPair:
    certificate: bytes
    key: bytes


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1",)) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = _builder(_name(name), self._name, key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return KeyPair(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def server_context(self, directory: Path, *, hosts: tuple[str, ...] = ("127.0.0.1",)) -> ssl.SSLContext:
        """Requests a client certificate, and accepts clients without one."""
        pair = self.issue("server", hosts=hosts)
        file = directory / "server.pem"
        file.write_bytes(pair.certificate + pair.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.load_verify_locations(cadata=self.pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


def common_name(peer: object) -> str:
    """The common name in a client certificate, in the form of `getpeercert`."""
    assert isinstance(peer, dict)
    return str(peer["subject"][0][0][1])


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
