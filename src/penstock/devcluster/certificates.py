"""The PKI of a development cluster: two certificate authorities, certificates and kubeconfigs.

One CA signs the API server's certificate and those of its clients. A second CA signs etcd's certificate and
that of the API server as etcd's only client, so that no user of the cluster can bypass the API server. Keys
are elliptic-curve keys (generated in a millisecond) with mode 0600. Penstock's client certificate has the
user name and groups of its ServiceAccount in a real cluster, so the same RBAC rules apply.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["FRONT_PROXY", "Credentials", "make_credentials"]

FRONT_PROXY: Final = "front-proxy"

_NAMESPACE: Final = "penstock-system"
_PENSTOCK: Final = f"system:serviceaccount:{_NAMESPACE}:penstock"
_ACCOUNTS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{_NAMESPACE}")
_USERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "admin": ("admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kwok": ("kwok", ("system:masters",)),
    "penstock": (_PENSTOCK, _ACCOUNTS),
}
_VALIDITY: Final = datetime.timedelta(days=365)
_CLOCK_SKEW: Final = datetime.timedelta(hours=1)
_SERVICE_ADDRESS: Final = "10.96.0.1"  # the first of the service range: the kubernetes Service


@dataclass(frozen=True, slots=True)
class Credentials:
    """The files of the PKI in one directory: `<name>.crt`, `<name>.key`, `<user>.kubeconfig`."""

    directory: Path

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user}.kubeconfig"


class _Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self.certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, name: str, groups: tuple[str, ...] = (), *, serves: bool = False) -> tuple[bytes, bytes]:
        """A client certificate and its key; with `serves`, also valid for a server on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(subject, self._name, key.public_key()).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if serves:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            addresses = [x509.IPAddress(ipaddress.ip_address(a)) for a in ("127.0.0.1", _SERVICE_ADDRESS)]
            hosts = [x509.DNSName(h) for h in ("localhost", "kubernetes", "kubernetes.default.svc")]
            builder = builder.add_extension(x509.SubjectAlternativeName([*addresses, *hosts]), critical=False)
        signed = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False).sign(
            self._key, hashes.SHA256()
        )
        return signed.public_bytes(serialization.Encoding.PEM), _private(key)


def make_credentials(directory: Path, server: str) -> Credentials:
    """Writes all certificates, keys and kubeconfigs for the API server at the URL `server`."""
    credentials = Credentials(directory)
    directory.mkdir(mode=0o700)
    users = _Authority("penstock development cluster")
    etcd = _Authority("penstock development cluster: etcd")
    for name, authority in (("ca", users), ("etcd-ca", etcd)):
        _write(credentials.certificate(name), authority.certificate.public_bytes(serialization.Encoding.PEM))
    issued = {
        "kube-apiserver": users.issue("kube-apiserver", serves=True),
        FRONT_PROXY: users.issue(FRONT_PROXY),
        "etcd": etcd.issue("etcd", serves=True),
        "etcd-client": etcd.issue("kube-apiserver"),
    }
    for name, (certificate, key) in issued.items():
        _write(credentials.certificate(name), certificate)
        _write(credentials.key(name), key)
    for user, (name, groups) in _USERS.items():
        certificate, key = users.issue(name, groups)
        _write(credentials.kubeconfig(user), _kubeconfig(server, users.certificate, user, certificate, key))
    accounts = ec.generate_private_key(ec.SECP256R1())
    _write(credentials.key("service-accounts"), _private(accounts))
    public = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(credentials.directory / "service-accounts.pub", public)
    return credentials


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _kubeconfig(server: str, authority: x509.Certificate, user: str, certificate: bytes, key: bytes) -> bytes:
    trusted = authority.public_bytes(serialization.Encoding.PEM)
    name = "penstock-dev"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(trusted)}}
        ],
        "users": [
            {
                "name": user,
                "user": {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)},
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
