"""One instance for all tests of a worker; each test finds it empty."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instances import Running, running_instance

TWO_QUEUES = """
[[queues]]
name = "batch"

[[queues]]
name = "debug"
policy = "fcfs"
duration_default = "5m"
duration_max = "1h"
"""


@pytest.fixture(scope="session")
def shared() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="penstock-e2e-config-") as directory:
        config = Path(directory) / "penstock.toml"
        config.write_text(TWO_QUEUES)
        with running_instance("--config", str(config)) as instance:
            yield instance


@pytest.fixture
def instance(shared: Running) -> Running:
    shared.clear()
    return shared
