"""One embedded server for all tests of a worker; each test has a database of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers import Server, fresh_database, started_server

from penstock.store.memory import MemoryStore, MemoryTables
from penstock.store.port import Store
from penstock.store.postgres import PostgresStore

Instances = Callable[[], Store]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with started_server() as server:
        yield server


@pytest.fixture(scope="session")
def mortal_server() -> Iterator[Server]:
    with started_server() as server:
        yield server


@pytest.fixture
def mortal(mortal_server: Server) -> Server:
    """A server that tests may stop and kill; it runs when a test begins."""
    mortal_server.embedded.start()
    return mortal_server


@pytest.fixture(params=["memory", "postgres"])
def instance(request: pytest.FixtureRequest) -> Instances:
    """Makes stores that all remember the same things, as several instances on one database would."""
    if request.param == "memory":
        tables = MemoryTables()
        return lambda: MemoryStore(tables)
    url = fresh_database(request.getfixturevalue("server"))
    return lambda: PostgresStore(url)
