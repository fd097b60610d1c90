"""Which URLs and tokens the commands accept for an instance on TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.client import client_of
from penstock.cli.server_address import find_server
from penstock.errors import BadRequest

TOKEN = {"PENSTOCK_TOKEN": "t0ken"}


@pytest.mark.parametrize(
    ("url", "host", "port", "is_tls"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", 8080, False),
        ("http://localhost:8080/", "localhost", 8080, False),
        ("http://[::1]:8080", "::1", 8080, False),
        ("https://login.example:8443", "login.example", 8443, True),
        ("https://192.0.2.1", "192.0.2.1", 443, True),
    ],
)
def test_a_url_is_split(url: str, host: str, port: int, is_tls: bool) -> None:
    found = find_server(url, TOKEN)
    assert found is not None
    assert (found.host, found.port, found.is_tls, found.token) == (host, port, is_tls, "t0ken")
    assert find_server(None, {**TOKEN, "PENSTOCK_SERVER": url}) == found


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://192.0.2.1:80", "the token would be readable on the network"),
        ("http://login.example:80", "the token would be readable on the network"),
        ("127.0.0.1:8080", "not the URL of an instance"),
        ("ftp://127.0.0.1", "not the URL of an instance"),
        ("https://", "not the URL of an instance"),
        ("https://h:99999", "not the URL of an instance"),
        ("https://h/path", "not the URL of an instance"),
        ("https://u:p@h", "not the URL of an instance"),
    ],
)
def test_any_other_url_is_refused(url: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        find_server(url, TOKEN)


def test_the_token_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    url, file = "https://h", tmp_path / "token"
    file.write_text("of-the-file\n")
    found = find_server(url, {"PENSTOCK_TOKEN_FILE": str(file)})
    assert found is not None
    assert found.token == "of-the-file"
    for environ in ({}, {"PENSTOCK_TOKEN": " "}, {"PENSTOCK_TOKEN": "a\r\nb"}):
        with pytest.raises(BadRequest, match="an instance on TCP needs its token"):
            find_server(url, environ)
    with pytest.raises(BadRequest, match="cannot read"):
        find_server(url, {"PENSTOCK_TOKEN_FILE": str(tmp_path / "none")})


def test_a_state_directory_and_a_server_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(None, TOKEN) is None
    with pytest.raises(BadRequest, match="not allowed with --state"):
        client_of("/s", "https://h")
    monkeypatch.setenv("PENSTOCK_SERVER", "https://h")
    assert client_of("/s").server is None
