"""The API on TCP, used by the commands: the token is needed, and TLS on any other address than loopback."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import re
import socket
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.e2e.instances import NODE_OPTIONS, Running, Sandbox, left_behind, temporary_sandbox, wait_until


def listening(sandbox: Sandbox, *options: str) -> tuple[Running, str]:
    """Starts an instance; returns it with the URL that `penstock start` prints."""
    out = sandbox.ok("start", *NODE_OPTIONS, *options)
    found = re.search(r"^API at (\S+), with the token in (\S+)$", out, re.MULTILINE)
    assert found is not None, out
    assert found[2] == str(sandbox.paths.token)
    return Running(sandbox.directory, sandbox.state), found[1]


def remote(server: str, token: str, **extra: str) -> dict[str, str]:
    """The environment of a user elsewhere, who has no state directory."""
    return {"PENSTOCK_STATE": "/nonexistent", "PENSTOCK_SERVER": server, "PENSTOCK_TOKEN": token, **extra}


def test_commands_use_an_instance_on_tcp() -> None:
    with temporary_sandbox() as sandbox:
        instance, url = listening(sandbox, "--listen", "127.0.0.1:0")
        token = instance.paths.token.read_text().strip()
        there = remote(url, token)
        job = instance.ok("submit", "--name=over-tcp", "env", **there).strip()
        assert "over-tcp" in instance.ok("jobs", "-a", **there)
        assert instance.ok("run", "echo", "streamed", **there) == "streamed\n"
        instance.end(job)
        assert token not in instance.output(job)  # A submitted environment is without the token.
        file = {"PENSTOCK_TOKEN": "", "PENSTOCK_TOKEN_FILE": str(instance.paths.token)}
        assert instance.ok("queue", "list", "--server", url, **file)

        wrong = instance.refused("jobs", code=2, **remote(url, "wrong"))
        assert "a bearer token is required (found another token; " in wrong
        missing = instance.refused("jobs", code=2, **remote(url, ""))
        assert "PENSTOCK_TOKEN: an instance on TCP needs its token" in missing
        assert [status_over_tcp(url, headers) for headers in HEADERS] == [401, 401, 401]
        assert status_over_tcp(url, {"Authorization": f"Bearer {token}"}) == 200

        assert instance.ok("status")  # over the Unix socket
        instance.ok("stop", **there)
        wait_until(lambda: not left_behind(sandbox), 10.0)
        assert f"no instance listens at {url}" in instance.refused("jobs", code=3, **there)

        listening(sandbox, "--listen", "127.0.0.1:0")
        assert instance.paths.token.read_text().strip() == token
        instance.ok("stop")


HEADERS = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "})


def status_over_tcp(url: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/v1/status", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_an_instance_on_the_network_speaks_tls() -> None:
    with temporary_sandbox() as sandbox:
        certificate, key = self_signed(sandbox.directory)
        options = ["--listen", "0.0.0.0:0", "--tls-cert", certificate.name, "--tls-key", key.name]
        instance, url = listening(sandbox, *options)
        url = url.replace("0.0.0.0", "127.0.0.1")
        try:
            assert url.startswith("https://")
            token = instance.paths.token.read_text().strip()
            trusted = remote(url, token, SSL_CERT_FILE=str(certificate))
            assert instance.ok("run", "echo", "encrypted", **trusted) == "encrypted\n"
            message = instance.refused("jobs", code=3, **remote(url, token))
            assert f"the certificate of {url} is not trusted: self-signed certificate; " in message
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as plain:
                plain.sendall(b"GET /v1/status HTTP/1.0\r\n\r\n")
                assert not plain.recv(100).startswith(b"HTTP/")
        finally:
            instance.ok("stop")


def self_signed(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, key_file = directory / "cert.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, key_file


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:0"], "the token would be readable on the network"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "cert.pem"], "these options need each other"),
        (["--tls-cert", "cert.pem", "--tls-key", "key.pem"], "these options need each other"),
        (["--listen", "0.0.0.0:0", "--tls-cert", "cert.pem", "--tls-key", "none.pem"], "cannot use the cert"),
        (["--listen", "0.0.0.0:0", "--tls-cert", "key.pem", "--tls-key", "cert.pem"], "cannot use the cert"),
    ],
)
def test_a_socket_that_would_disclose_the_token_is_refused(options: list[str], words: str) -> None:
    with temporary_sandbox() as sandbox:
        self_signed(sandbox.directory)
        assert words in sandbox.refused("start", *NODE_OPTIONS, *options, code=2)
        assert not (sandbox.state / "db").exists()
