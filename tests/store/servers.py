"""PostgreSQL servers for tests, each below a directory that the lent account can reach."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.paths import InstancePaths
from penstock.store.embedded import EmbeddedPostgres

__all__ = ["Server", "fresh_database", "kill_server", "own_places", "started_server", "wait_until"]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Server:
    paths: InstancePaths
    embedded: EmbeddedPostgres
    url: str


@contextmanager
def own_places() -> Iterator[InstancePaths]:
    """Places of an instance of its own, removed afterwards. pytest's directories are closed for `nobody`."""
    above = Path(tempfile.mkdtemp(prefix="penstock-"))
    above.chmod(0o711)
    try:
        yield InstancePaths(above / "state", above / "run")
    finally:
        shutil.rmtree(above, ignore_errors=True)


@contextmanager
def started_server() -> Iterator[Server]:
    """A server of its own, ended and removed afterwards."""
    with own_places() as paths:
        embedded = EmbeddedPostgres(paths)
        try:
            yield Server(paths, embedded, embedded.start())
        finally:
            _drop(embedded)


def _drop(embedded: EmbeddedPostgres) -> None:
    """Ends a server whose data nobody needs: writing them down in order takes seconds."""
    pid = embedded.pid()
    if pid is not None:
        os.kill(pid, signal.SIGQUIT)
        wait_until(lambda: embedded.pid() is None)


def fresh_database(server: Server) -> str:
    """An empty database on the server; returns how to connect to it."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return make_conninfo(server.url, dbname=name)


def kill_server(server: Server) -> None:
    """Kills the postmaster with SIGKILL, and waits until it and its children are gone."""
    pid = server.embedded.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.embedded.pid() is None)


def wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
