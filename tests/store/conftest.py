"""One embedded server per test worker; each test has its own database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers import Server, fresh_database, started_server

from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
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
    """A server that a test may stop and kill; it runs when the test starts."""
    mortal_server.embedded.start()
    return mortal_server


@pytest.fixture(params=["memory", "postgres"])
def instance(request: pytest.FixtureRequest) -> Instances:
    """A factory of stores that share their state, like several instances on one database."""
    if request.param == "memory":
        tables = MemoryTables()
        return lambda: MemoryStore(tables)
    url = fresh_database(request.getfixturevalue("server"))
    return lambda: PostgresStore(url)
