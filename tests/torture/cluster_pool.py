"""One cluster that the tests of a worker share, because most kills leave a healthy instance.

A failed test may leave a broken one, so the next test gets another cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.torture.cluster import Cluster

__all__ = ["ClusterPool"]


class ClusterPool:
    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    @contextmanager
    def acquire(self) -> Iterator[Cluster]:
        """Yields the cluster, running and idle."""
        if self._cluster is None:
            self._cluster = Cluster()
            self._cluster.start()
        try:
            yield self._cluster
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """Shuts the cluster down, which must leave no process."""
        if self._cluster is not None:
            try:
                self._cluster.stop()
            finally:
                self._drop()

    def _drop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.destroy()
            cluster.remove()
