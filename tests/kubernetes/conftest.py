"""One cluster at a time for all modules here, and a namespace per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.devcluster.settings import NodeShape
from tests.kubernetes.rooms import Lab, Room

_LAB = Lab()
FOUR_CORES = NodeShape(cpu="4", memory="16Gi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a parallel run one worker has the clusters of the gangs, another those of the faults."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            apart = any(word in item.path.name for word in ("faults", "readme"))
            item.add_marker(pytest.mark.xdist_group("faults" if apart else "gangs"))


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
