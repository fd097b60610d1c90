"""One real instance for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torture.sites import Hall


@pytest.fixture(scope="session")
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    hall.close()
