"""Proxies between Penstock and the API server, from a kubeconfig or from the environment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadRequest
from penstock.kube.access import from_kubeconfig, in_cluster
from penstock.kube.client import KubeClient
from penstock.kube.errors import Unreachable
from penstock.kube.proxy import proxy_of_environment
from tests.kube.certificates import Authority
from tests.kube.kubeconfigs import b64, config, write
from tests.kube.proxy_server import ProxyProcess
from tests.kube.raw_server import QUICK, Request, ResponseWriter, raw_server

VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
PASSWORD = "me:secret"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def requests_through_proxy(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    tls: bool = True,
    environ: dict[str, str] | None = None,
    cluster: dict[str, Any] | None = None,
    password: str = PASSWORD,
) -> list[str]:
    """Reads from and writes to a server named api.test, and returns what a real proxy saw of it.

    `{proxy}` in the values is replaced by host and port of the proxy.
    """
    authority = Authority()
    context = authority.server_context(directory, hosts=("api.test",)) if tls else None

    async def handler(_: Request, response: ResponseWriter) -> None:
        response.send(200, {"gitVersion": "v1"})

    async def scenario() -> list[str]:
        async with raw_server(handler, context) as server:
            proxy = ProxyProcess(server.port, password)
            try:
                address = f"127.0.0.1:{proxy.port}"
                for name, value in (environ or {}).items():
                    monkeypatch.setenv(name, value.format(proxy=address))
                entry = {"server": f"{'https' if tls else 'http'}://api.test:6443"}
                entry |= {"certificate-authority-data": b64(authority.pem)} if tls else {}
                entry |= {name: value.format(proxy=address) for name, value in (cluster or {}).items()}
                access = from_kubeconfig(write(directory / "config", config(entry, {"token": "t"})))
                async with KubeClient(access, retries=QUICK) as client:
                    await client.get("/version", dict[str, str])
                    await client.create("/x", {})
                assert [request.verb for request in server.requests] == ["GET", "POST"]
                assert all(one.headers["authorization"] == "Bearer t" for one in server.requests)
            finally:
                seen = proxy.stop()
            return seen

    return asyncio.run(scenario())


def test_https_proxy_is_used_with_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HTTPS_PROXY": "http://me:secret@{proxy}", "NO_PROXY": "10.0.0.0/8,.other.test"}
    seen = requests_through_proxy(tmp_path, monkeypatch, environ=environ)
    assert seen == ["CONNECT api.test:6443"], "one tunnel for both requests"


def test_the_proxy_of_the_kubeconfig_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"}
    cluster = {"proxy-url": "http://me:secret@{proxy}"}
    seen = requests_through_proxy(tmp_path, monkeypatch, environ=environ, cluster=cluster)
    assert seen == ["CONNECT api.test:6443"]


def test_http_proxy_is_used_for_a_server_without_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"http_proxy": "{proxy}", "HTTPS_PROXY": "http://127.0.0.1:9"}
    seen = requests_through_proxy(tmp_path, monkeypatch, tls=False, environ=environ, password="")
    assert seen[0] == "GET http://api.test:6443/version"


def test_a_proxy_that_refuses_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HTTPS_PROXY": "http://me:wrong@{proxy}"}
    with pytest.raises(Unreachable, match=r"the proxy 127\.0\.0\.1:\d+ refused it: 407") as caught:
        requests_through_proxy(tmp_path, monkeypatch, environ=environ)
    assert "wrong" not in str(caught.value)


def test_a_proxy_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HTTPS_PROXY": "http://me:secret@127.0.0.1:9"}
    with pytest.raises(Unreachable, match=r"cannot connect to the proxy 127\.0\.0\.1:9") as caught:
        requests_through_proxy(tmp_path, monkeypatch, environ=environ)
    assert "secret" not in str(caught.value)


def test_the_service_account_of_a_pod_uses_the_proxy_too(tmp_path: Path) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x")
    variables = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HTTPS_PROXY": "proxy:3128"}
    assert in_cluster(tmp_path, variables).proxy == "http://proxy:3128"
    assert in_cluster(tmp_path, {**variables, "NO_PROXY": "10.96.0.0/12"}).proxy == ""


@pytest.mark.parametrize(
    ("server", "excluded", "is_direct"),
    [
        ("https://api.test:6443", "", False),
        ("https://api.test:6443", "*", True),
        ("https://api.test:6443", "test", True),
        ("https://api.test:6443", "other, api.test", True),
        ("https://api.test:6443", ".api.test", False),
        ("https://a.api.test:6443", "*.api.test", True),
        ("https://a.API.test:6443", "api.TEST", True),
        ("https://myapi.test:6443", "api.test", False),
        ("https://api.test:6443", "api.test:6443", True),
        ("https://api.test:6443", "api.test:443", False),
        ("https://api.test", "api.test:443", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", True),
        ("https://10.1.2.3:6443", "10.1.2.3:443", False),
        ("https://11.1.2.3:6443", "10.0.0.0/8,10.1.2.3,nonsense/99", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "fd00::1", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://localhost:6443", "", True),
        ("https://[::1]:6443", "", True),
    ],
)
def test_no_proxy_excludes_servers(server: str, excluded: str, is_direct: bool) -> None:
    variables = {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": excluded}
    assert proxy_of_environment(server, variables) == ("" if is_direct else "http://proxy:3128")


@pytest.mark.parametrize("proxy", ["socks5://me:secret@proxy:1080", "http://", "http://proxy:none"])
def test_an_unsupported_proxy_is_named_with_its_variable(proxy: str) -> None:
    with pytest.raises(BadRequest) as caught:
        proxy_of_environment("https://api.test", {"https_proxy": proxy})
    assert caught.value.where == "https_proxy"
    assert "http://host:port" in str(caught.value)
    assert "secret" not in str(caught.value)
