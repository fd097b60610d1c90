"""Kubeconfigs, service accounts, exec plugins, TLS, and credentials that are rotated."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.errors import BadRequest
from penstock.kube.access import Access, find_access, from_kubeconfig, in_cluster
from penstock.kube.client import KubeClient
from penstock.kube.credentials import ExecCommand, ExecPlugin, StaticToken, TokenFile
from penstock.kube.errors import Unauthorized, Unreachable
from penstock.kube.tls import TlsConfig
from tests.kube.certificates import Authority, common_name
from tests.kube.fake_api import status
from tests.kube.raw_server import QUICK, Request, ResponseWriter, raw_server

V1 = "client.authentication.k8s.io/v1"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(cluster: dict[str, Any], user: dict[str, Any] | None = None, **context: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "preferences": {},
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def rejected(path: Path, content: Any, context: str = "") -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        from_kubeconfig(write(path, content), context)
    return caught.value


SERVER = {"server": "https://example:6443/"}


class TestKubeconfig:
    def test_paths_are_relative_to_the_file(self, tmp_path: Path) -> None:
        cluster = {**SERVER, "certificate-authority": "pki/ca.crt", "tls-server-name": "kube"}
        user = {"client-certificate": "/abs/me.crt", "client-key": "me.key"}
        access = from_kubeconfig(write(tmp_path / "config", config(cluster, user, namespace="batch")))
        assert access.server == "https://example:6443"
        assert access.namespace == "batch"
        assert access.tls == TlsConfig(
            ca_file=tmp_path / "pki/ca.crt",
            certificate_file=Path("/abs/me.crt"),
            key_file=tmp_path / "me.key",
            server_name="kube",
        )

    def test_scalars_are_strings_and_null_is_absent(self, tmp_path: Path) -> None:
        text = (
            "current-context: 123\n"
            "contexts: [{name: 123, context: {cluster: 2024-01-01, user: yes, namespace: null}}]\n"
            "clusters: [{name: 2024-01-01, cluster: {server: 'http://h', insecure-skip-tls-verify: true}}]\n"
            "users: [{name: yes, user: {token: 0123, exec: ~}}]\n"
        )
        access = from_kubeconfig(write(tmp_path / "config", text))
        assert not access.tls.verify
        assert access.namespace == "default"
        assert asyncio.run(access.credential.identity()).token == "0123"

    def test_files_are_merged_and_the_first_definition_wins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sub").mkdir()
        one = write(
            tmp_path / "one", {"contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}]}
        )
        other = config({**SERVER, "certificate-authority": "ca"}, {"token": "t"}, namespace="of the second")
        two = write(tmp_path / "sub" / "two", other)
        missing = tmp_path / "missing"
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, ["", missing, one, two])))
        access = from_kubeconfig(None)
        assert access.server == "https://example:6443"
        assert access.tls.ca_file == tmp_path / "sub" / "ca"
        assert access.namespace == "default"
        assert isinstance(access.credential, StaticToken)

    def test_the_first_file_defines_context_and_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = config(SERVER, {"token": "mine"})
        there = {"cluster": "c", "user": "u", "namespace": "of the second"}
        two = {
            **config({"server": "https://other:6443"}, {"token": "not mine"}),
            "current-context": "there",
            "contexts": [{"name": "there", "context": there}],
        }
        files = [write(tmp_path / "one", one), write(tmp_path / "two", two)]
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
        access = find_access()
        assert (access.server, access.namespace) == ("https://example:6443", "default")
        assert asyncio.run(access.credential.identity()).token == "mine"
        assert find_access(context="there").namespace == "of the second"

    def test_a_token_file_takes_precedence_over_a_token(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("of the file")
        user = {"token": "stale", "tokenFile": "token"}
        access = from_kubeconfig(write(tmp_path / "config", config(SERVER, user)))
        assert asyncio.run(access.credential.identity()).token == "of the file"

    def test_the_home_directory_is_the_default(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(BadRequest, match="no kubeconfig found"):
            find_access(None, "")
        (tmp_path / ".kube").mkdir()
        write(tmp_path / ".kube" / "config", config(SERVER))
        assert find_access(None, "").server == "https://example:6443"

    def test_impersonation_headers(self, tmp_path: Path) -> None:
        user = {"token": "t", "as": "jane", "as-groups": ["a", "b"]}
        access = from_kubeconfig(write(tmp_path / "config", config(SERVER, user)))
        groups = [("Impersonate-Group", "a"), ("Impersonate-Group", "b")]
        assert list(access.headers) == [("Impersonate-User", "jane"), *groups]

    @pytest.mark.parametrize(
        ("change", "where", "text"),
        [
            ({"users": [{"name": "u", "user": {"username": "a", "password": "b"}}]}, "users[u]", "password"),
            (
                {"users": [{"name": "u", "user": {"auth-provider": {"name": "oidc"}}}]},
                "users[u].user.auth-provider",
                "found oidc",
            ),
            ({"users": [{"name": "u", "user": {"client-key": "x"}}]}, "users[u].user", "only a key"),
            (
                {"users": [{"name": "u", "user": {"client-key-data": "?", "client-certificate": "x"}}]},
                "users[u].user.client-key-data",
                "invalid base64",
            ),
            (
                {"users": [{"name": "u", "user": {"exec": {"command": "x", "apiVersion": "v0"}}}]},
                "users[u].user.exec.apiVersion",
                "found v0",
            ),
            (
                {
                    "users": [
                        {
                            "name": "u",
                            "user": {"exec": {"command": "x", "apiVersion": V1, "interactiveMode": "Always"}},
                        }
                    ]
                },
                "interactiveMode",
                "terminal",
            ),
            (
                {"users": [{"name": "u", "user": {"exec": {"command": "x"}}}]},
                "users[0].user.exec",
                "apiVersion",
            ),
            ({"clusters": [{"name": "c", "cluster": {}}]}, "clusters[c].cluster.server", "found nothing"),
            ({"clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}]}, "server", "found ftp://x"),
            (
                {"clusters": [{"name": "c", "cluster": {**SERVER, "proxy-url": "socks5://x"}}]},
                "proxy-url",
                "socks5",
            ),
            (
                {
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {
                                **SERVER,
                                "insecure-skip-tls-verify": True,
                                "certificate-authority": "x",
                            },
                        }
                    ]
                },
                "insecure-skip-tls-verify",
                "only one of certificate-authority and insecure-skip-tls-verify",
            ),
            ({"clusters": "none"}, "clusters", "array"),
            ({"clusters": []}, "contexts[here].cluster", "found c"),
            ({"users": []}, "contexts[here].user", "found u"),
            ({"current-context": "gone"}, "", "expected one of here"),
            ({"current-context": ""}, "", "no current-context"),
            ({"kind": "Pod"}, "kind", "found Pod"),
        ],
    )
    def test_invalid_entries_are_rejected_with_their_path(
        self, tmp_path: Path, change: dict[str, Any], where: str, text: str
    ) -> None:
        error = rejected(tmp_path / "config", {**config(SERVER), **change})
        assert error.where.startswith(str(tmp_path / "config"))
        assert where in error.where
        assert text in str(error)

    @pytest.mark.parametrize("text", ["a: [", "[]", "\x00", "a: &a [*a]\nclusters: *a"])
    def test_a_file_that_is_not_a_kubeconfig(self, tmp_path: Path, text: str) -> None:
        assert str(tmp_path) in rejected(tmp_path / "config", text).where

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="no such file"):
            from_kubeconfig(tmp_path / "no")
        with pytest.raises(BadRequest, match="cannot read the file"):
            from_kubeconfig(tmp_path)


class TestInCluster:
    def account(self, root: Path) -> Path:
        (root / "token").write_text("first\n")
        (root / "ca.crt").write_text("")
        (root / "namespace").write_text("batch")
        return root

    def test_the_service_account_is_used(self, tmp_path: Path) -> None:
        variables = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
        access = in_cluster(self.account(tmp_path), variables)
        assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "batch")
        assert asyncio.run(access.credential.identity()).token == "first"

    def test_a_missing_variable_or_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="KUBERNETES_SERVICE_HOST"):
            in_cluster(tmp_path, {})
        with pytest.raises(BadRequest, match="token"):
            in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    def test_a_changed_token_file_is_read_again(self, tmp_path: Path) -> None:
        credential = TokenFile(tmp_path / "token")
        with pytest.raises(Unreachable, match="cannot read the token"):
            asyncio.run(credential.identity())
        for token in ("first", "second one"):
            (tmp_path / "token").write_text(token)
            assert asyncio.run(credential.identity()).token == token
        (tmp_path / "token").write_text("")  # In the middle of a write.
        assert asyncio.run(credential.identity()).token == "second one"

    def test_a_replaced_token_of_the_same_length_is_noticed(self, tmp_path: Path) -> None:
        credential = TokenFile(tmp_path / "token")
        for token in ("first", "other"):
            (tmp_path / "new").write_text(token)
            (tmp_path / "new").rename(tmp_path / "token")
            assert asyncio.run(credential.identity()).token == token

    def test_a_rejected_token_is_read_again_although_its_file_looks_unchanged(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("first")
        before = file.stat()
        credential = TokenFile(file)
        first = asyncio.run(credential.identity())
        file.write_text("other")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert credential.invalidate(first)
        assert asyncio.run(credential.identity()).token == "other"

    def test_a_rotated_token_is_used(self, tmp_path: Path) -> None:
        """Rotates as the kubelet does: creates a directory and replaces a symbolic link by rename."""

        async def scenario() -> None:
            valid = "first"

            async def handler(request: Request, response: ResponseWriter) -> None:
                if request.headers.get("authorization") == f"Bearer {valid}":
                    response.send(200, {"gitVersion": "v1.36.3"})
                else:
                    response.send(401, status(401, "Unauthorized"))

            for name in ("first", "second"):
                (tmp_path / name).mkdir()
                (tmp_path / name / "token").write_text(name)
            (tmp_path / "data").symlink_to("first")
            async with raw_server(handler) as server:
                access = Access(server.url, credential=TokenFile(tmp_path / "data" / "token"))
                async with KubeClient(access, retries=QUICK) as client:
                    assert (await client.get("/version", dict[str, str]))["gitVersion"] == "v1.36.3"
                    valid = "second"
                    with pytest.raises(Unauthorized):
                        await client.get("/version", dict[str, str])
                    (tmp_path / "new").symlink_to("second")
                    (tmp_path / "new").rename(tmp_path / "data")
                    await client.get("/version", dict[str, str])
                    (tmp_path / "data").unlink()  # The last token stays in use.
                    await client.get("/version", dict[str, str])

        asyncio.run(scenario())


PLUGIN = """
import json, os, pathlib, sys
here = pathlib.Path(sys.argv[1])
count = int((here / "count").read_text()) + 1 if (here / "count").exists() else 1
(here / "count").write_text(str(count))
(here / "info").write_text(os.environ["KUBERNETES_EXEC_INFO"])
exec((here / "body").read_text())
"""
PRINT_TOKEN = """
status = {"token": f"token-{count}", **json.loads(os.environ.get("MORE", "{}"))}
print(json.dumps({"apiVersion": os.environ["VERSION"], "kind": "ExecCredential", "status": status}))
"""


class Plugin:
    def __init__(self, directory: Path, body: str = PRINT_TOKEN) -> None:
        self.directory = directory
        (directory / "plugin.py").write_text(PLUGIN)
        (directory / "body").write_text(body)

    def exec_config(self, version: str = V1, **more: Any) -> dict[str, Any]:
        env = [{"name": "VERSION", "value": version}, {"name": "MORE", "value": json.dumps(more)}]
        args = ["plugin.py", str(self.directory)]
        args[0] = str(self.directory / args[0])
        return {"apiVersion": version, "command": sys.executable, "args": args, "env": env}

    def credential(self, **more: Any) -> ExecPlugin:
        found = self.exec_config(**more)
        env = tuple((entry["name"], entry["value"]) for entry in found["env"])
        command = ExecCommand(
            V1, found["command"], tuple(found["args"]), env, "Install it.", where="users[u]"
        )
        return ExecPlugin(command, timeout_s=5.0)

    @property
    def runs(self) -> int:
        return int((self.directory / "count").read_text())


class TestPlugin:
    @pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
    def test_the_plugin_token_is_used_and_renewed_after_a_401(self, tmp_path: Path, version: str) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            valid = "token-1"

            async def handler(request: Request, response: ResponseWriter) -> None:
                if request.headers.get("authorization") == f"Bearer {valid}":
                    response.send(201, {"gitVersion": "v1"})
                else:
                    response.send(401, status(401, "Unauthorized"))

            async with raw_server(handler) as server:
                user = {"exec": {**plugin.exec_config(version), "provideClusterInfo": True}}
                access = from_kubeconfig(write(tmp_path / "config", config({"server": server.url}, user)))
                async with KubeClient(access, retries=QUICK) as client:
                    await asyncio.gather(*(client.get("/version", dict[str, str]) for _ in range(5)))
                    assert plugin.runs == 1
                    valid = "token-2"
                    await asyncio.gather(*(client.create("/x", {}) for _ in range(5)))
                    assert plugin.runs == 2, "several 401 responses run the plugin once"
                    valid = "none"
                    with pytest.raises(Unauthorized):
                        await client.get("/version", dict[str, str])
                    assert plugin.runs == 3
                info = json.loads((tmp_path / "info").read_text())
                assert info["apiVersion"] == version
                assert info["spec"] == {"interactive": False, "cluster": {"server": server.url}}

        asyncio.run(scenario())

    def test_a_late_401_for_an_old_token_does_not_invalidate_the_new_one(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            credential = plugin.credential()
            old = await credential.identity()
            assert credential.invalidate(old)
            new = await credential.identity()
            assert credential.invalidate(old)
            assert await credential.identity() is new
            assert plugin.runs == 2

        asyncio.run(scenario())

    def test_a_plugin_path_is_relative_to_the_kubeconfig(self, tmp_path: Path) -> None:
        plugin = Plugin(tmp_path)
        exec_config = plugin.exec_config()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(exec_config["command"])
        user = {"exec": {**exec_config, "command": "bin/python"}}
        access = from_kubeconfig(write(tmp_path / "config", config(SERVER, user)))
        assert asyncio.run(access.credential.identity()).token == "token-1"

    def test_a_token_is_renewed_before_it_expires(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            now = datetime.now(UTC)
            plugin = Plugin(tmp_path)
            ends = (now + timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
            offset_s = 0.0
            credential = plugin.credential(expirationTimestamp=ends)
            credential._wall_clock = lambda: now.timestamp() + offset_s
            assert (await credential.identity()).token == "token-1"
            offset_s = 80.0
            assert (await credential.identity()).token == "token-1"
            offset_s = 95.0
            assert (await credential.identity()).token == "token-2"

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ("sys.exit('please log in')", "exited with 1: please log in"),
            ("print('hello')", "did not print an ExecCredential"),
            ("print('{}')", "printed no kind of no version"),
            (
                PRINT_TOKEN.replace('os.environ["VERSION"]', '"x/v9"'),
                f"of x/v9, expected ExecCredential of {V1}",
            ),
            (PRINT_TOKEN.replace("token-{count}", ""), "neither a token nor a certificate"),
            (
                PRINT_TOKEN.replace('"token":', '"clientCertificateData":'),
                "printed a certificate without a key",
            ),
            (PRINT_TOKEN.replace('"token"', '"expirationTimestamp": "soon", "token"'), "expected RFC 3339"),
        ],
    )
    def test_errors_of_the_plugin_are_reported(self, tmp_path: Path, body: str, text: str) -> None:
        with pytest.raises(Unreachable) as caught:
            asyncio.run(Plugin(tmp_path, body).credential().identity())
        assert text in str(caught.value)
        assert "users[u]" in str(caught.value)

    def test_a_plugin_that_is_not_installed(self) -> None:
        command = ExecCommand(V1, "no-such-plugin", install_hint="Get it from the shop.")
        with pytest.raises(Unreachable, match=r"no-such-plugin cannot be executed.*Get it from the shop"):
            asyncio.run(ExecPlugin(command).identity())

    def test_a_plugin_that_hangs_is_killed(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            plugin = Plugin(
                tmp_path, "(here / 'pid').write_text(str(os.getpid())); import time; time.sleep(60)"
            )
            credential = plugin.credential()
            credential._timeout_s = 1.0
            with pytest.raises(Unreachable, match="took longer than 1 s"):
                await credential.identity()
            for _ in range(100):
                await asyncio.sleep(0.01)
                if not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists():
                    return
            raise AssertionError("the plugin is still running")

        asyncio.run(scenario())


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
