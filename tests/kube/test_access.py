"""Kubeconfigs as they are found, service accounts, plugins, and credentials that change under way."""

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
from penstock.kube.credentials import ExecCommand, ExecPlugin, FixedToken, TokenFile
from penstock.kube.errors import Unauthorized, Unreachable
from penstock.kube.tls import TlsConfig
from tests.kube.certificates import Authority, common_name
from tests.kube.fake_api import status
from tests.kube.raw_server import QUICK, Answer, Request, raw_server

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


def refused(path: Path, content: Any, context: str = "") -> BadRequest:
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

    def test_scalars_that_look_like_numbers_are_texts_and_nulls_are_nothing(self, tmp_path: Path) -> None:
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

    def test_files_are_merged_and_the_first_wins(
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
        assert isinstance(access.credential, FixedToken)

    def test_the_first_file_says_which_context_and_which_user(
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

    def test_a_token_in_a_file_counts_more_than_one_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("of the file")
        user = {"token": "stale", "tokenFile": "token"}
        access = from_kubeconfig(write(tmp_path / "config", config(SERVER, user)))
        assert asyncio.run(access.credential.identity()).token == "of the file"

    def test_the_home_directory_is_the_default(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(BadRequest, match="there is no kubeconfig"):
            find_access(None, "")
        (tmp_path / ".kube").mkdir()
        write(tmp_path / ".kube" / "config", config(SERVER))
        assert find_access(None, "").server == "https://example:6443"

    def test_impersonation_goes_with_every_request(self, tmp_path: Path) -> None:
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
            ({"users": [{"name": "u", "user": {"client-key": "x"}}]}, "users[u].user", "a key alone"),
            (
                {"users": [{"name": "u", "user": {"client-key-data": "?", "client-certificate": "x"}}]},
                "users[u].user.client-key-data",
                "not base64",
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
                "one of the two",
            ),
            ({"clusters": "none"}, "clusters", "array"),
            ({"clusters": []}, "contexts[here].cluster", "found c"),
            ({"users": []}, "contexts[here].user", "found u"),
            ({"current-context": "gone"}, "", "expected one of here"),
            ({"current-context": ""}, "", "no current-context"),
            ({"kind": "Pod"}, "kind", "found Pod"),
        ],
    )
    def test_bad_ones_are_refused_with_the_place(
        self, tmp_path: Path, change: dict[str, Any], where: str, text: str
    ) -> None:
        error = refused(tmp_path / "config", {**config(SERVER), **change})
        assert error.where.startswith(str(tmp_path / "config"))
        assert where in error.where
        assert text in str(error)

    @pytest.mark.parametrize("text", ["a: [", "[]", "\x00", "a: &a [*a]\nclusters: *a"])
    def test_what_is_no_kubeconfig_at_all(self, tmp_path: Path, text: str) -> None:
        assert str(tmp_path) in refused(tmp_path / "config", text).where

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="the file is not there"):
            from_kubeconfig(tmp_path / "no")
        with pytest.raises(BadRequest, match="cannot be read"):
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

    def test_what_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="KUBERNETES_SERVICE_HOST"):
            in_cluster(tmp_path, {})
        with pytest.raises(BadRequest, match="token"):
            in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    def test_a_new_token_is_seen_before_the_old_one_is_refused(self, tmp_path: Path) -> None:
        credential = TokenFile(tmp_path / "token")
        with pytest.raises(Unreachable, match="cannot be read"):
            asyncio.run(credential.identity())
        for token in ("first", "second one"):
            (tmp_path / "token").write_text(token)
            assert asyncio.run(credential.identity()).token == token
        (tmp_path / "token").write_text("")  # in the middle of being written
        assert asyncio.run(credential.identity()).token == "second one"

    def test_a_new_token_of_the_same_length_is_seen(self, tmp_path: Path) -> None:
        credential = TokenFile(tmp_path / "token")
        for token in ("first", "other"):
            (tmp_path / "new").write_text(token)
            (tmp_path / "new").rename(tmp_path / "token")
            assert asyncio.run(credential.identity()).token == token

    def test_a_token_that_is_refused_is_read_again_though_its_file_looks_the_same(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "token"
        file.write_text("first")
        looks = file.stat()
        credential = TokenFile(file)
        first = asyncio.run(credential.identity())
        file.write_text("other")
        os.utime(file, ns=(looks.st_atime_ns, looks.st_mtime_ns))
        assert credential.refused(first)
        assert asyncio.run(credential.identity()).token == "other"

    def test_a_token_that_rotates_is_read_again(self, tmp_path: Path) -> None:
        """As the kubelet does it: a new directory, and a symbolic link that is renamed over the old one."""

        async def scenario() -> None:
            valid = "first"

            async def handler(request: Request, answer: Answer) -> None:
                if request.headers.get("authorization") == f"Bearer {valid}":
                    answer.send(200, {"gitVersion": "v1.36.3"})
                else:
                    answer.send(401, status(401, "Unauthorized"))

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
                    (tmp_path / "data").unlink()  # the old one serves on
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
GIVES_TOKEN = """
status = {"token": f"token-{count}", **json.loads(os.environ.get("MORE", "{}"))}
print(json.dumps({"apiVersion": os.environ["VERSION"], "kind": "ExecCredential", "status": status}))
"""


class Plugin:
    def __init__(self, directory: Path, body: str = GIVES_TOKEN) -> None:
        self.directory = directory
        (directory / "plugin.py").write_text(PLUGIN)
        (directory / "body").write_text(body)

    def stanza(self, version: str = V1, **more: Any) -> dict[str, Any]:
        env = [{"name": "VERSION", "value": version}, {"name": "MORE", "value": json.dumps(more)}]
        args = ["plugin.py", str(self.directory)]
        args[0] = str(self.directory / args[0])
        return {"apiVersion": version, "command": sys.executable, "args": args, "env": env}

    def credential(self, **more: Any) -> ExecPlugin:
        found = self.stanza(**more)
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
    def test_its_token_is_used_and_renewed_after_a_401(self, tmp_path: Path, version: str) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            valid = "token-1"

            async def handler(request: Request, answer: Answer) -> None:
                if request.headers.get("authorization") == f"Bearer {valid}":
                    answer.send(201, {"gitVersion": "v1"})
                else:
                    answer.send(401, status(401, "Unauthorized"))

            async with raw_server(handler) as server:
                user = {"exec": {**plugin.stanza(version), "provideClusterInfo": True}}
                access = from_kubeconfig(write(tmp_path / "config", config({"server": server.url}, user)))
                async with KubeClient(access, retries=QUICK) as client:
                    await asyncio.gather(*(client.get("/version", dict[str, str]) for _ in range(5)))
                    assert plugin.runs == 1
                    valid = "token-2"
                    await asyncio.gather(*(client.create("/x", {}) for _ in range(5)))
                    assert plugin.runs == 2, "a burst of refusals is one reason to run it"
                    valid = "none"
                    with pytest.raises(Unauthorized):
                        await client.get("/version", dict[str, str])
                    assert plugin.runs == 3
                info = json.loads((tmp_path / "info").read_text())
                assert info["apiVersion"] == version
                assert info["spec"] == {"interactive": False, "cluster": {"server": server.url}}

        asyncio.run(scenario())

    def test_a_late_refusal_of_an_old_token_does_not_cost_the_new_one(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            credential = plugin.credential()
            old = await credential.identity()
            assert credential.refused(old)
            new = await credential.identity()
            assert credential.refused(old)
            assert await credential.identity() is new
            assert plugin.runs == 2

        asyncio.run(scenario())

    def test_one_with_a_path_is_found_beside_the_kubeconfig(self, tmp_path: Path) -> None:
        plugin = Plugin(tmp_path)
        stanza = plugin.stanza()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(stanza["command"])
        user = {"exec": {**stanza, "command": "bin/python"}}
        access = from_kubeconfig(write(tmp_path / "config", config(SERVER, user)))
        assert asyncio.run(access.credential.identity()).token == "token-1"

    def test_a_token_is_renewed_before_it_runs_out(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            now = datetime.now(UTC)
            plugin = Plugin(tmp_path)
            ends = (now + timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
            offset_s = 0.0
            credential = plugin.credential(expirationTimestamp=ends)
            credential._wall = lambda: now.timestamp() + offset_s
            assert (await credential.identity()).token == "token-1"
            offset_s = 80.0
            assert (await credential.identity()).token == "token-1"
            offset_s = 95.0
            assert (await credential.identity()).token == "token-2"

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ("sys.exit('please log in')", "ended with 1: please log in"),
            ("print('hello')", "printed no ExecCredential"),
            ("print('{}')", "printed no kind of no version"),
            (
                GIVES_TOKEN.replace('os.environ["VERSION"]', '"x/v9"'),
                f"of x/v9, expected ExecCredential of {V1}",
            ),
            (GIVES_TOKEN.replace("token-{count}", ""), "neither a token nor a certificate"),
            (GIVES_TOKEN.replace('"token":', '"clientCertificateData":'), "without its key"),
            (GIVES_TOKEN.replace('"token"', '"expirationTimestamp": "soon", "token"'), "is no time"),
        ],
    )
    def test_what_goes_wrong_is_told(self, tmp_path: Path, body: str, text: str) -> None:
        with pytest.raises(Unreachable) as caught:
            asyncio.run(Plugin(tmp_path, body).credential().identity())
        assert text in str(caught.value)
        assert "users[u]" in str(caught.value)

    def test_one_that_is_not_installed(self) -> None:
        command = ExecCommand(V1, "no-such-plugin", install_hint="Get it from the shop.")
        with pytest.raises(Unreachable, match=r"no-such-plugin cannot be run.*Get it from the shop"):
            asyncio.run(ExecPlugin(command).identity())

    def test_one_that_hangs_is_ended(self, tmp_path: Path) -> None:
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
            raise AssertionError("it lives on")

        asyncio.run(scenario())


class TestTls:
    def ask(
        self, directory: Path, authority: Authority, access_of: Any, *, hosts: Any = ("127.0.0.1",)
    ) -> Any:
        """Who the server takes us for: the name in our certificate, if we showed one."""

        async def handler(_: Request, answer: Answer) -> None:
            answer.send(200, {"gitVersion": "v1"})

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

    def test_data_of_a_kubeconfig(self, tmp_path: Path) -> None:
        authority = Authority()
        me = authority.issue("me")
        user = {"client-certificate-data": b64(me.certificate), "client-key-data": b64(me.key)}
        cluster = {"certificate-authority-data": b64(authority.pem)}
        assert self.ask(tmp_path, authority, self.access(tmp_path, cluster, user)) == "me"

    def test_a_certificate_in_a_file_and_its_key_in_the_config(self, tmp_path: Path) -> None:
        authority = Authority()
        me = authority.issue("me")
        (tmp_path / "me.crt").write_bytes(me.certificate)
        (tmp_path / "ca.crt").write_bytes(authority.pem)
        user = {"client-certificate": "me.crt", "client-key-data": b64(me.key)}
        assert (
            self.ask(tmp_path, authority, self.access(tmp_path, {"certificate-authority": "ca.crt"}, user))
            == "me"
        )

    def test_a_server_that_is_not_who_it_should_be(self, tmp_path: Path) -> None:
        authority, other = Authority(), Authority()
        cluster = {"certificate-authority-data": b64(other.pem)}
        with pytest.raises(Unreachable):
            self.ask(tmp_path, authority, self.access(tmp_path, cluster, {}))
        with pytest.raises(Unreachable):
            self.ask(tmp_path, authority, self.access(tmp_path, {}, {}))  # the authorities of the system
        cluster = {"certificate-authority-data": b64(authority.pem)}
        with pytest.raises(Unreachable):
            self.ask(tmp_path, authority, self.access(tmp_path, cluster, {}), hosts=("kube",))
        named = {**cluster, "tls-server-name": "kube"}
        assert self.ask(tmp_path, authority, self.access(tmp_path, named, {}), hosts=("kube",)) is None
        unverified = {"insecure-skip-tls-verify": True}
        assert self.ask(tmp_path, authority, self.access(tmp_path, unverified, {}), hosts=("kube",)) is None

    def test_a_certificate_of_a_plugin(self, tmp_path: Path) -> None:
        authority = Authority()
        me = authority.issue("from-plugin")
        plugin = Plugin(tmp_path, GIVES_TOKEN.replace('"token": f"token-{count}", ', ""))
        more = {"clientCertificateData": me.certificate.decode(), "clientKeyData": me.key.decode()}
        cluster = {"certificate-authority-data": b64(authority.pem)}
        user = {"exec": plugin.stanza(**more)}
        assert self.ask(tmp_path, authority, self.access(tmp_path, cluster, user)) == "from-plugin"

    def test_certificates_that_rotate_are_used_for_new_connections(self, tmp_path: Path) -> None:
        async def handler(_: Request, answer: Answer) -> None:
            answer.send(200, {"gitVersion": "v1"})

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
                    files["me.key"].write_text("half a")  # a rotation under way
                    seconds = 4.0
                    await client.get("/version", dict[str, str])
                    assert server.connections == 2

        asyncio.run(scenario())

    def test_material_that_cannot_be_used_is_told_with_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_text("nothing")
        access = Access("https://127.0.0.1:1", TlsConfig(ca_file=tmp_path / "ca.crt"))

        async def scenario() -> None:
            async with KubeClient(access, retries=QUICK) as client:
                await client.get("/version", dict[str, str])

        with pytest.raises(Unreachable, match=r"ca\.crt"):
            asyncio.run(scenario())

    def test_keys_are_not_left_behind_or_shown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        authority = Authority()
        me = authority.issue("me")
        (tmp_path / "server").mkdir(mode=stat.S_IRWXU)
        tls = TlsConfig(ca_data=authority.pem, certificate_data=me.certificate, key_data=me.key)
        access = Access("https://example", tls, FixedToken("secret-token"))
        assert self.ask(tmp_path / "server", authority, lambda url: Access(url, tls)) == "me"
        assert [path.name for path in tmp_path.iterdir()] == ["server"]
        assert "PRIVATE" not in repr(access)
        assert "secret-token" not in repr(access)
