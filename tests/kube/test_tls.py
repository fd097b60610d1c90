"""Verification of the server, client certificates, and their rotation."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.kube.access import Access, from_kubeconfig
from penstock.kube.client import KubeClient
from penstock.kube.credentials import StaticToken
from penstock.kube.errors import Unreachable
from penstock.kube.tls import TlsConfig
from tests.kube.certificates import Authority, common_name
from tests.kube.exec_plugin import PRINT_TOKEN, Plugin
from tests.kube.kubeconfigs import b64, config, write
from tests.kube.raw_server import QUICK, Request, ResponseWriter, raw_server


class TestTls:
    def connect(
        self, directory: Path, authority: Authority, access_of: Any, *, hosts: Any = ("127.0.0.1",)
    ) -> Any:
        """The common name of the client certificate that the server received, if any."""

        async def handler(_: Request, response: ResponseWriter) -> None:
            response.send(200, {"gitVersion": "v1"})

        async def scenario() -> Any:
            async with raw_server(handler, authority.server_context(directory, hosts=hosts)) as server:
                async with KubeClient(access_of(server.url), retries=QUICK) as client:
                    await client.get("/version", dict[str, str])
                peer = server.peers[-1]
                return common_name(peer) if peer else None

        return asyncio.run(scenario())

    def access(self, directory: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Any:
        return lambda url: from_kubeconfig(
            write(directory / "config", config({"server": url, **cluster}, user))
        )

    def test_certificates_in_the_kubeconfig(self, tmp_path: Path) -> None:
        authority = Authority()
        me = authority.issue("me")
        user = {"client-certificate-data": b64(me.certificate), "client-key-data": b64(me.key)}
        cluster = {"certificate-authority-data": b64(authority.pem)}
        assert self.connect(tmp_path, authority, self.access(tmp_path, cluster, user)) == "me"

    def test_a_certificate_file_with_a_key_in_the_kubeconfig(self, tmp_path: Path) -> None:
        authority = Authority()
        me = authority.issue("me")
        (tmp_path / "me.crt").write_bytes(me.certificate)
        (tmp_path / "ca.crt").write_bytes(authority.pem)
        user = {"client-certificate": "me.crt", "client-key-data": b64(me.key)}
        assert (
            self.connect(
                tmp_path, authority, self.access(tmp_path, {"certificate-authority": "ca.crt"}, user)
            )
            == "me"
        )

    def test_comments_of_a_ca_file_may_have_any_encoding(self, tmp_path: Path) -> None:
        authority = Authority()
        comments = ["# Universität\n".encode(), "# Société\n".encode("latin-1")]
        (tmp_path / "ca.crt").write_bytes(comments[0] + authority.pem + comments[1])
        cluster = {"certificate-authority": "ca.crt"}
        assert self.connect(tmp_path, authority, self.access(tmp_path, cluster, {})) is None

    def test_the_server_certificate_is_verified(self, tmp_path: Path) -> None:
        authority, other = Authority(), Authority()
        cluster = {"certificate-authority-data": b64(other.pem)}
        with pytest.raises(Unreachable):
            self.connect(tmp_path, authority, self.access(tmp_path, cluster, {}))
        with pytest.raises(Unreachable):
            self.connect(tmp_path, authority, self.access(tmp_path, {}, {}))  # The CAs of the system.
        cluster = {"certificate-authority-data": b64(authority.pem)}
        with pytest.raises(Unreachable):
            self.connect(tmp_path, authority, self.access(tmp_path, cluster, {}), hosts=("kube",))
        named = {**cluster, "tls-server-name": "kube"}
        assert self.connect(tmp_path, authority, self.access(tmp_path, named, {}), hosts=("kube",)) is None
        unverified = {"insecure-skip-tls-verify": True}
        assert (
            self.connect(tmp_path, authority, self.access(tmp_path, unverified, {}), hosts=("kube",)) is None
        )

    def test_a_certificate_of_a_plugin(self, tmp_path: Path) -> None:
        authority = Authority()
        me = authority.issue("from-plugin")
        plugin = Plugin(tmp_path, PRINT_TOKEN.replace('"token": f"token-{count}", ', ""))
        more = {"clientCertificateData": me.certificate.decode(), "clientKeyData": me.key.decode()}
        cluster = {"certificate-authority-data": b64(authority.pem)}
        user = {"exec": plugin.exec_config(**more)}
        assert self.connect(tmp_path, authority, self.access(tmp_path, cluster, user)) == "from-plugin"

    def test_rotated_certificates_are_used_for_new_connections(self, tmp_path: Path) -> None:
        async def handler(_: Request, response: ResponseWriter) -> None:
            response.send(200, {"gitVersion": "v1"})

        async def scenario() -> None:
            authority = Authority()
            files = {name: tmp_path / name for name in ("me.crt", "me.key")}

            def rotate(name: str) -> None:
                pair = authority.issue(name)
                files["me.crt"].write_bytes(pair.certificate)
                files["me.key"].write_bytes(pair.key)

            rotate("old")
            async with raw_server(handler, authority.server_context(tmp_path)) as server:
                tls = TlsConfig(
                    ca_data=authority.pem, certificate_file=files["me.crt"], key_file=files["me.key"]
                )
                async with KubeClient(Access(server.url, tls), retries=QUICK) as client:
                    seconds = 0.0
                    client._transport._tls._clock = lambda: seconds
                    await client.get("/version", dict[str, str])
                    rotate("new")
                    await client.get("/version", dict[str, str])
                    assert server.connections == 1
                    seconds = 2.0
                    await client.get("/version", dict[str, str])
                    assert [common_name(peer) for peer in server.peers] == ["old", "new"]
                    files["me.key"].write_text("half a")  # A rotation in progress.
                    seconds = 4.0
                    await client.get("/version", dict[str, str])
                    assert server.connections == 2

        asyncio.run(scenario())

    def test_an_unusable_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_text("nothing")
        access = Access("https://127.0.0.1:1", TlsConfig(ca_file=tmp_path / "ca.crt"))

        async def scenario() -> None:
            async with KubeClient(access, retries=QUICK) as client:
                await client.get("/version", dict[str, str])

        with pytest.raises(Unreachable, match=r"ca\.crt"):
            asyncio.run(scenario())

    def test_keys_are_not_left_on_disk_or_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        authority = Authority()
        me = authority.issue("me")
        (tmp_path / "server").mkdir(mode=stat.S_IRWXU)
        tls = TlsConfig(ca_data=authority.pem, certificate_data=me.certificate, key_data=me.key)
        access = Access("https://example", tls, StaticToken("secret-token"))
        assert self.connect(tmp_path / "server", authority, lambda url: Access(url, tls)) == "me"
        assert [path.name for path in tmp_path.iterdir()] == ["server"]
        assert "PRIVATE" not in repr(access)
        assert "secret-token" not in repr(access)
