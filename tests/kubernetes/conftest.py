"""One cluster at a time, shared by all test modules in this directory, and a namespace per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.devcluster.settings import DevSettings, NodeShape
from tests.kubernetes.faults import Failpoints, restart
from tests.kubernetes.namespaces import Namespace, SharedCluster
from tests.kubernetes.site import Replica, Site, simulated_site

_SHARED = SharedCluster()
FOUR_CORES = NodeShape(cpu="4", memory="16Gi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a parallel run one worker runs the shared cluster, another the clusters of the fault tests."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            has_own_cluster = any(word in item.path.name for word in ("faults", "readme"))
            item.add_marker(pytest.mark.xdist_group("faults" if has_own_cluster else "gangs"))


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    yield _SHARED
    _SHARED.close()


def pytest_runtest_setup(item: pytest.Function) -> None:
    """Stops the shared cluster before a test that starts its own."""
    if "shared_cluster" not in item.fixturenames and not hasattr(item.module, "SharedCluster"):
        _SHARED.close()


@pytest.fixture
def namespace(shared_cluster: SharedCluster) -> Iterator[Namespace]:
    """A namespace in a cluster of four nodes with four cores each in two zones, and a default Penstock."""
    shared_cluster.site()
    shared_cluster.ensure_nodes(4, FOUR_CORES)
    with shared_cluster.namespace(shared_cluster.penstock()) as created:
        yield created


# For fault tests: one cluster per module, with a Penstock that can be killed at failpoints.


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with simulated_site(DevSettings(nodes=3, cpu=4), audit_every="500ms") as created:
        yield created


@pytest.fixture(scope="module")
def failpoints(site: Site) -> Failpoints:
    failpoints = Failpoints(site.directory / "failpoints")
    failpoints.directory.mkdir()
    return failpoints


@pytest.fixture(scope="module")
def started(site: Site, failpoints: Failpoints) -> Replica:
    return site.replica("penstock", **failpoints.environ).start()


@pytest.fixture
def replica(started: Replica, failpoints: Failpoints) -> Replica:
    """A Penstock that is alive and leader, with no failpoint armed."""
    for armed in failpoints.directory.iterdir():
        armed.unlink()
    if not started.is_alive():
        restart(started)
    return started.wait_ready()
