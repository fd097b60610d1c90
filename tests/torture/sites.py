"""One cluster for all tests of a worker: most deaths leave an instance that is as good as before.

A test that fails leaves one that may not be, so the next test gets another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.torture.cluster import Cluster

__all__ = ["Hall"]


class Hall:
    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    @contextmanager
    def borrowed(self) -> Iterator[Cluster]:
        """The cluster, running and idle."""
        if self._cluster is None:
            self._cluster = Cluster()
            self._cluster.start()
        try:
            yield self._cluster
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """Stops it in order, which must leave nothing behind."""
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
