"""Access from kubeconfigs and from service accounts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadRequest
from penstock.kube.access import find_access, from_kubeconfig, in_cluster
from penstock.kube.credentials import Anonymous, StaticToken
from penstock.kube.tls import TlsConfig
from tests.kube.exec_plugin import V1
from tests.kube.kubeconfigs import SERVER, config, write


def rejected(path: Path, content: Any, context: str = "") -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        from_kubeconfig(write(path, content), context)
    return caught.value


class TestKubeconfig:
    def test_paths_are_relative_to_the_file(self, tmp_path: Path) -> None:
        cluster = {**SERVER, "certificate-authority": "pki/ca.crt", "tls-server-name": "kube"}
        user = {"client-certificate": "/abs/me.crt", "client-key": "me.key"}
        access = from_kubeconfig(write(tmp_path / "config", config(cluster, user)))
        assert access.server == "https://example:6443"
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
        assert asyncio.run(access.credential.identity()).token == "0123"

    def test_files_are_merged_and_the_first_definition_wins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sub").mkdir()
        one = write(
            tmp_path / "one", {"contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}]}
        )
        other = config({**SERVER, "certificate-authority": "ca"}, {"token": "t"})
        other["contexts"][0]["context"]["user"] = "nobody"  # Not used: the first file defines the context.
        two = write(tmp_path / "sub" / "two", other)
        missing = tmp_path / "missing"
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, ["", missing, one, two])))
        access = from_kubeconfig(None)
        assert access.server == "https://example:6443"
        assert access.tls.ca_file == tmp_path / "sub" / "ca"
        assert isinstance(access.credential, StaticToken)

    def test_the_first_file_defines_context_and_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = config(SERVER, {"token": "mine"})
        there = {"cluster": "c"}
        two = {
            **config({"server": "https://other:6443"}, {"token": "not mine"}),
            "current-context": "there",
            "contexts": [{"name": "there", "context": there}],
        }
        files = [write(tmp_path / "one", one), write(tmp_path / "two", two)]
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
        access = find_access()
        assert access.server == "https://example:6443"
        assert asyncio.run(access.credential.identity()).token == "mine"
        assert isinstance(find_access(context="there").credential, Anonymous)

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
        return root

    def test_the_service_account_is_used(self, tmp_path: Path) -> None:
        variables = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
        access = in_cluster(self.account(tmp_path), variables)
        assert access.server == "https://[fd00::1]:6443"
        assert asyncio.run(access.credential.identity()).token == "first"

    def test_a_missing_variable_or_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="KUBERNETES_SERVICE_HOST"):
            in_cluster(tmp_path, {})
        with pytest.raises(BadRequest, match="token"):
            in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
