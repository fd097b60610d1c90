"""One cluster at a time for all modules here, and a namespace per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.devcluster.settings import DevSettings, NodeShape
from tests.kubernetes.faults import Points, revive
from tests.kubernetes.namespaces import Lab, Room
from tests.kubernetes.site import Replica, Site, simulated_site

_LAB = Lab()
FOUR_CORES = NodeShape(cpu="4", memory="16Gi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a parallel run one worker has the clusters of the gangs, another those of the faults."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            anti_affinity = any(word in item.path.name for word in ("faults", "readme"))
            item.add_marker(pytest.mark.xdist_group("faults" if anti_affinity else "gangs"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    yield _LAB
    _LAB.close()


def pytest_runtest_setup(item: pytest.Function) -> None:
    """Tests that start clusters of their own find none of ours beside them."""
    if "lab" not in item.fixturenames and not hasattr(item.module, "Lab"):
        _LAB.close()


@pytest.fixture
def room(lab: Lab) -> Iterator[Room]:
    """Four nodes with four cores each, in two zones in turn, and a Penstock as it is without options."""
    lab.site()
    lab.have_nodes(4, FOUR_CORES)
    with lab.room(lab.penstock()) as made:
        yield made


# For tests of faults: a cluster per module, and a Penstock in it that can be made to die.


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with simulated_site(DevSettings(nodes=3, cpu=4), audit_every="500ms") as made:
        yield made


@pytest.fixture(scope="module")
def points(site: Site) -> Points:
    made = Points(site.directory / "points")
    made.directory.mkdir()
    return made


@pytest.fixture(scope="module")
def started(site: Site, points: Points) -> Replica:
    return site.replica("penstock", **points.environ).start()


@pytest.fixture
def replica(started: Replica, points: Points) -> Replica:
    """Penstock as each test finds it: alive, in office, with no point armed."""
    for left in points.directory.iterdir():
        left.unlink()
    if not started.is_alive():
        revive(started)
    return started.wait_ready()
