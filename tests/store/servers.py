"""PostgreSQL servers for tests, each below a directory that the account of PostgreSQL can reach."""

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

__all__ = ["Server", "fresh_database", "kill_server", "started_server", "temporary_paths", "wait_until"]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Server:
    paths: InstancePaths
    embedded: EmbeddedPostgres
    url: str


@contextmanager
def temporary_paths() -> Iterator[InstancePaths]:
    """Paths of a temporary instance, removed afterwards. Those of pytest are closed to other accounts."""
    root = Path(tempfile.mkdtemp(prefix="penstock-"))
    root.chmod(0o711)
    try:
        yield InstancePaths(root / "state", root / "run")
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def started_server() -> Iterator[Server]:
    """A temporary server, stopped and removed afterwards."""
    with temporary_paths() as paths:
        embedded = EmbeddedPostgres(paths)
        try:
            yield Server(paths, embedded, embedded.start())
        finally:
            _discard(embedded)


def _discard(embedded: EmbeddedPostgres) -> None:
    """Ends a server without a checkpoint, which would take seconds; its data are not needed."""
    pid = embedded.pid()
    if pid is not None:
        os.kill(pid, signal.SIGQUIT)
        wait_until(lambda: embedded.pid() is None)


def fresh_database(server: Server) -> str:
    """Creates an empty database on the server; returns the connection string."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return make_conninfo(server.url, dbname=name)


def kill_server(server: Server) -> None:
    """Kills the postmaster with SIGKILL, and waits until it and its children are gone."""
    pid = server.embedded.pid()
    assert pid is not None
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    os.kill(pid, signal.SIGKILL)
    # A backend that has not noticed yet would still commit.
    wait_until(lambda: server.embedded.pid() is None and not any(map(_is_postgres, children)))


def _is_postgres(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").startswith("postgres")
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {limit_s} s"
        time.sleep(0.01)
