"""One real cluster for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torture.cluster_pool import ClusterPool


@pytest.fixture(scope="session")
def cluster_pool() -> Iterator[ClusterPool]:
    cluster_pool = ClusterPool()
    yield cluster_pool
    cluster_pool.close()
