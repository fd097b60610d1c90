"""Penstock crashes at every failpoint while it schedules a gang on a real API server, and is restarted.

After each crash the gang must end normally, every pod must have been bound exactly once, a gang that needs
the whole cluster must be able to start, and the auditor must find no differences.
"""

from __future__ import annotations

import pytest

import penstock.backends.kube.executor
import penstock.instance.steps
import penstock.store.transactions
from penstock.failpoints import REGISTRY
from tests.kubernetes.faults import (
    UNLIMITED,
    Failpoints,
    api_of,
    bare_gang,
    check_bound_once,
    check_next_gang,
    clean_namespace,
    create,
    job_gang,
    new_namespace,
    pods,
    replica_set_gang,
    restart,
    wait_phases,
)
from tests.kubernetes.site import Replica, Site, wait_for
from tests.store.servers import fresh_database, started_server

pytestmark = pytest.mark.slow

BINDING = tuple(f"kube.bind.{when}" for when in ("before", "after"))
WORKING = (
    *("store.record.before", "store.record.after", "instance.act.before", "instance.act.after"),
    *BINDING,
)
NTH = tuple(f"{point}:{nth}" for point in BINDING for nth in (2, 3))
RECORDS = ("store.record.before:3", "store.record.after:5", "store.record.before:7")
STARTING = tuple(
    f"store.{name}.{when}" for name in ("claim_cluster", "take_over", "prune") for when in ("before", "after")
)
EVICTING = ("kube.evict.before", "kube.evict.after")
ENDING = ("kube.end.before", "kube.end.after")
MIGRATING = ("store.migrate.before", "store.migrate.after")


def restart_armed(replica: Replica, armed: str) -> None:
    """Restarts Penstock with a failpoint at which it crashes, for example at the nth pass."""
    replica.kill()
    restart(replica, PENSTOCK_FAILPOINTS=armed)


def test_every_failpoint_has_a_test() -> None:
    modules = (penstock.backends.kube.executor, penstock.instance.steps, penstock.store.transactions)
    assert all(modules)
    here = {name for name in REGISTRY if name.startswith(("store.", "instance.", "kube."))}
    assert sorted((*WORKING, *STARTING, *EVICTING, *ENDING, *MIGRATING)) == sorted(here)


@pytest.mark.parametrize("point", WORKING)
def test_crash_while_binding(site: Site, replica: Replica, failpoints: Failpoints, point: str) -> None:
    with clean_namespace(site, replica) as namespace:
        failpoints.arm(point)
        create(site, namespace, *bare_gang("gang"))
        replica.wait_dead()
        restart(replica)
        wait_phases(site, namespace, Succeeded=3)
        check_next_gang(site, namespace)
        check_bound_once(site, namespace)
        site.wait_consistent(replica)


@pytest.mark.parametrize("point", [*NTH, *RECORDS])
def test_crash_at_the_nth_pass_of_a_failpoint(site: Site, replica: Replica, point: str) -> None:
    with clean_namespace(site, replica) as namespace:
        restart_armed(replica, point)
        if not point.startswith("store."):
            replica.wait_ready()
        create(site, namespace, job_gang("gang"))
        replica.wait_dead()
        restart(replica)
        wait_phases(site, namespace, Succeeded=3)
        check_next_gang(site, namespace)
        check_bound_once(site, namespace)
        site.wait_consistent(replica)


@pytest.mark.parametrize("point", STARTING)
def test_crash_while_recovering(site: Site, replica: Replica, point: str) -> None:
    """One gang runs during the crash, another waits for its resources."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("first", run="2s"))
        wait_phases(site, namespace, Running=3)
        create(site, namespace, *bare_gang("second"))
        restart_armed(replica, point)
        replica.wait_dead()
        restart(replica)
        wait_phases(site, namespace, Succeeded=6)
        check_bound_once(site, namespace)
        site.wait_consistent(replica)


@pytest.mark.parametrize("point", EVICTING)
def test_crash_while_evicting(site: Site, replica: Replica, failpoints: Failpoints, point: str) -> None:
    """A group that is requeued as a whole when one of its members fails."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, replica_set_gang("gang", requeue="always"))
        wait_phases(site, namespace, Running=3)
        before = {pod["metadata"]["uid"] for pod in pods(site, namespace)}
        failpoints.arm(point)
        fail(site, pods(site, namespace)[0])
        replica.wait_dead()
        restart(replica)
        wait_for(lambda: len(running(site, namespace) - before) == 3, "another gang to run")
        assert not running(site, namespace) & before
        site.wait_consistent(replica)
        check_bound_once(site, namespace)


def running(site: Site, namespace: str) -> set[str]:
    found = pods(site, namespace)
    return {pod["metadata"]["uid"] for pod in found if pod["status"]["phase"] == "Running"}


def fail(site: Site, pod: dict[str, object]) -> None:
    """Sets the status of a pod to Failed, as its kubelet would."""
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
    body = {"status": {"phase": "Failed", "reason": "Error"}}
    api_of(site).request("PATCH", path, body, "application/merge-patch+json")


@pytest.mark.parametrize("kind", ["pods", "job"])
@pytest.mark.parametrize("point", ENDING)
def test_crash_while_ending_a_job(
    site: Site, replica: Replica, failpoints: Failpoints, point: str, kind: str
) -> None:
    with clean_namespace(site, replica) as namespace:
        made = bare_gang("gang", run=UNLIMITED) if kind == "pods" else [job_gang("gang", run=UNLIMITED)]
        create(site, namespace, *made)
        wait_phases(site, namespace, Running=3)
        (job,) = replica.jobs()
        failpoints.arm(point)
        replica.call(
            "cancel", job["id"]
        )  # The command is recorded before it is answered, so the answer may be lost.
        replica.wait_dead()
        restart(replica)
        wait_for(lambda: not running(site, namespace), "the gang to end")
        check_next_gang(site, namespace)
        site.wait_consistent(replica)


@pytest.mark.parametrize("point", MIGRATING)
def test_crash_while_creating_the_schema(site: Site, replica: Replica, point: str) -> None:
    replica.kill()
    with started_server() as server, new_namespace(site) as namespace:
        other = site.replica(f"migrating-{point}", "--database", fresh_database(server))
        create(site, namespace, *bare_gang("gang"))
        restart(other, PENSTOCK_FAILPOINTS=point)
        other.wait_dead()
        restart(other)
        wait_phases(site, namespace, Succeeded=3)
        check_bound_once(site, namespace)
        site.wait_consistent(other)
        other.stop()
