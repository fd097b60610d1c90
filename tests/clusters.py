"""Real control planes for tests: one cluster per test module, removed afterwards.

A module declares `cluster = cluster_fixture(DevSettings(nodes=3))`, and its tests take the fixture `cluster`.
If the control plane is not built, these tests are skipped with a message; with
`PENSTOCK_REQUIRE_CONTROLPLANE=1` they fail instead. Each worker of a parallel run starts its own cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.devcluster.binaries import Binaries, BinariesMissing, find_binaries
from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings

__all__ = ["REQUIRE_VARIABLE", "cluster_fixture", "needs_controlplane", "pod", "running_cluster", "wait_for"]

REQUIRE_VARIABLE = "PENSTOCK_REQUIRE_CONTROLPLANE"


def needs_controlplane() -> Binaries:
    """The programs of the control plane. Without them it skips the test, or fails it if they are required."""
    try:
        return find_binaries()
    except BinariesMissing as missing:
        reason = f"SKIPPED because the control plane is not built: run make controlplane ({missing})"
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            pytest.fail(reason.replace("SKIPPED", "FAILED", 1), pytrace=False)
        pytest.skip(reason)


@contextmanager
def running_cluster(settings: DevSettings | None = None) -> Iterator[DevCluster]:
    """A cluster in a temporary directory."""
    binaries = needs_controlplane()
    directory = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    try:
        with DevCluster(directory, settings, binaries=binaries) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cluster_fixture(settings: DevSettings | None = None) -> Callable[..., Iterator[DevCluster]]:
    """A fixture with module scope; assign it to a name in the test module."""

    @pytest.fixture(scope="module")
    def cluster() -> Iterator[DevCluster]:
        with running_cluster(settings) as running:
            yield running

    return cluster


def wait_for(is_reached: Callable[[], bool], goal: str, limit_s: float = 30.0) -> None:
    """Polls a condition ten times a second; fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not is_reached():
        assert time.monotonic() < deadline, f"timed out after {limit_s:g} s waiting for {goal}"
        time.sleep(0.1)


def pod(
    name: str,
    *command: str,
    annotations: dict[str, str] | None = None,
    namespace: str = "default",
    **spec: Any,
) -> str:
    """A pod with restartPolicy Never, as JSON for `kubectl apply -f -`."""
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        **({"command": list(command)} if command else {}),
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
            "spec": {"restartPolicy": "Never", "containers": [container], **spec},
        }
    )
