from __future__ import annotations

import asyncio
import http.client
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.api.identity import AuthenticationMethod, Caller
from penstock.errors import BadRequest, Conflict
from penstock.web.app import create_app
from penstock.web.server import listen_tcp, make_socket, read_token, serve
from penstock.web.streams import EventStream
from tests.web.canned import Canned, ask, served


def test_the_socket_has_mode_0600_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with make_socket(tmp_path / "s"):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    make_socket(tmp_path / "s").close()
    assert (tmp_path / "s").exists()
    with served(Canned(), tmp_path / "s"):
        assert ask(tmp_path / "s", "GET", "/v1/status")[0] == 200
    assert not (tmp_path / "s").exists()


def test_a_socket_with_a_server_is_not_replaced(tmp_path: Path) -> None:
    with served(Canned(), tmp_path / "s"):
        with pytest.raises(Conflict, match="another instance is listening"):
            make_socket(tmp_path / "s")
        assert ask(tmp_path / "s", "GET", "/v1/status")[0] == 200


def test_a_file_at_the_path_of_the_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(Conflict, match="not a socket"):
        make_socket(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "mine"


def test_a_socket_path_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="too long"):
        make_socket(tmp_path / ("x" * 120))


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("address", ["example.org:80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", ":80"])
def test_an_invalid_address_is_refused(address: str, has_tls: bool) -> None:
    with pytest.raises(BadRequest):
        listen_tcp(address, has_tls=has_tls)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_an_address_on_the_network_needs_tls(address: str) -> None:
    with pytest.raises(BadRequest, match="the token would be readable on the network"):
        listen_tcp(address)


def test_a_token_is_made_once_and_a_readable_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)  # The remains of a crash, or of a full disk.
    token = read_token(file)
    assert len(token) > 40
    assert (read_token(file), stat.S_IMODE(file.stat().st_mode)) == (token, 0o600)
    file.chmod(0o644)
    with pytest.raises(Conflict, match="chmod 600"):
        read_token(file)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Conflict, match="cannot read"):
        read_token(file)


def test_tcp_needs_the_token_and_the_unix_socket_does_not(tmp_path: Path) -> None:
    token = read_token(tmp_path / "token")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert read_token(tmp_path / "token") == token
    tcp = listen_tcp("127.0.0.1:0")
    port = tcp.getsockname()[1]
    service = Canned()
    with served(service, tmp_path / "s", tcp=tcp, token=token):
        assert ask(tmp_path / "s", "GET", "/v1/status")[0] == 200
        assert over_tcp(port, {}) == 401
        assert over_tcp(port, {"Authorization": "Bearer wrong"}) == 401
        assert over_tcp(port, {"Authorization": f"Basic {token}"}) == 401
        assert over_tcp(port, {"Authorization": f"Bearer {token}"}) == 200
    assert service.callers == [
        Caller("alice", AuthenticationMethod.UNIX_SOCKET),
        Caller("alice", AuthenticationMethod.BEARER_TOKEN),
    ]


def over_tcp(port: int, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/v1/status", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_tcp_socket_without_a_token_is_rejected(tmp_path: Path) -> None:
    with listen_tcp("127.0.0.1:0") as tcp, pytest.raises(BadRequest, match="token"):
        asyncio.run(serve(create_app(Canned()), [tcp]))
    del tmp_path


def test_the_server_stops_while_a_stream_is_open(tmp_path: Path) -> None:
    service = Canned()
    service.endless = True
    with served(service, tmp_path / "s"):
        reader = socket.socket(socket.AF_UNIX)
        reader.connect(str(tmp_path / "s"))
        reader.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in reader.recv(100)
    assert service.closed.is_set()
    reader.close()


def test_comments_keep_an_idle_stream_alive() -> None:
    sent: list[bytes] = []

    async def scenario() -> None:
        enough = asyncio.Event()

        async def frames() -> Any:
            yield "a", "1", {"x": 1}
            await asyncio.sleep(3600)

        async def receive() -> dict[str, object]:
            await enough.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sum(body.startswith(b": still here") for body in sent) == 2:
                enough.set()

        await EventStream(frames(), keep_alive_s=0.01)({}, receive, send)

    asyncio.run(scenario())
    assert b'event: a\nid: 1\ndata: {"x":1}\n\n' in sent
    assert sent.count(b": still here\n\n") == 2
