"""Outages of the API server, etcd and PostgreSQL, and a suspended Penstock.

Penstock recovers without help, and all gangs end normally.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
from penstock.paths import paths_of
from penstock.store.embedded import EmbeddedPostgres
from tests.kubernetes.faults import (
    UNLIMITED,
    api_of,
    audited,
    bare_gang,
    check_bound_once,
    check_next_gang,
    clean_namespace,
    create,
    credential_of,
    delete_lease,
    foreign_pod,
    job_gang,
    new_namespace,
    phases,
    pods,
    restart,
    wait_phases,
)
from tests.kubernetes.site import Replica, Site, simulated_site, wait_for
from tests.store.servers import Server, fresh_database, kill_server, started_server

pytestmark = pytest.mark.slow

TAKE_OVER_S = 15 + 5  # the lease, and the longest request of who had it
MARGIN_S = 15  # looks at the lease are two seconds apart, and the machine may be busy


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with simulated_site(DevSettings(nodes=3, cpu=4), audit_every="500ms") as made:
        yield made


@pytest.fixture(scope="module")
def started(site: Site) -> Replica:
    return site.replica("penstock").start()


@pytest.fixture
def replica(started: Replica) -> Replica:
    if not started.is_alive():
        restart(started)
    return started.wait_ready()


def cluster_of(site: Site) -> DevCluster:
    assert site.cluster is not None
    return site.cluster


def three_gangs(site: Site, namespace: str) -> None:
    """A gang that runs, a gang that waits for it, and a gang whose last pod is missing."""
    create(site, namespace, *bare_gang("runs", run="4s"))
    wait_phases(site, namespace, "runs", Running=3)
    create(site, namespace, job_gang("waits"))
    # A Job controller that gets no answer to the creation of a pod creates another one.
    wait_for(lambda: len(pods(site, namespace, "waits")) == 3, "the pods of the Job")
    create(site, namespace, *bare_gang("assembles")[:2])


def all_end(site: Site, namespace: str) -> None:
    create(site, namespace, bare_gang("assembles")[2])
    wait_phases(site, namespace, Succeeded=9, limit_s=120)
    check_bound_once(site, namespace)


# The API server and etcd


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_a_component_is_killed_and_restarted_at_once(site: Site, replica: Replica, part: str) -> None:
    with clean_namespace(site, replica) as namespace:
        three_gangs(site, namespace)
        cluster_of(site).kill_component(part)
        cluster_of(site).start_component(part)
        wait_api(site)
        all_end(site, namespace)
        site.wait_consistent(replica)


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_a_component_is_down_until_the_lease_expires(site: Site, replica: Replica, part: str) -> None:
    """Penstock loses leadership, and becomes leader again when the API server is back."""
    with clean_namespace(site, replica) as namespace:
        three_gangs(site, namespace)
        cluster_of(site).kill_component(part)
        wait_for(lambda: not replica.is_ready(), "Penstock to stand by", 40.0)
        cluster_of(site).start_component(part)
        wait_api(site)
        replica.wait_ready(60)
        all_end(site, namespace)
        site.wait_consistent(replica)


def wait_api(site: Site) -> None:
    def answers() -> bool:
        with contextlib.suppress(Exception):
            return bool(api_of(site).get("/readyz")) and bool(api_of(site).get("/api/v1/nodes"))
        return False

    wait_for(answers, "the API server to answer", 60.0)


@pytest.mark.parametrize("kind", ["pods", "job"])
def test_a_gang_is_ended_after_an_outage_of_the_api_server(site: Site, replica: Replica, kind: str) -> None:
    with clean_namespace(site, replica) as namespace:
        made = bare_gang("gang", run=UNLIMITED) if kind == "pods" else [job_gang("gang", run=UNLIMITED)]
        create(site, namespace, *made)
        wait_phases(site, namespace, Running=3)
        (job,) = replica.jobs()
        cluster_of(site).kill_component("kube-apiserver")
        assert replica.call("cancel", job["id"]).returncode == 0
        time.sleep(1.0)  # By now it has tried to end the gang.
        cluster_of(site).start_component("kube-apiserver")
        wait_phases(site, namespace, Running=0, limit_s=120)  # The Job controller needs time to recover, too.
        check_next_gang(site, namespace)
        site.wait_consistent(replica)


def test_missed_watch_events_and_a_restarted_api_server(site: Site, replica: Replica) -> None:
    """Penstock is suspended during many changes; a restarted API server has no earlier resource versions."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("gone", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        create(site, namespace, *bare_gang("waits"))
        assert replica.process is not None
        replica.process.send_signal(signal.SIGSTOP)
        path = f"/api/v1/namespaces/{namespace}/pods"
        for index in range(3):
            api_of(site).delete(f"{path}/gone-{index}", {"gracePeriodSeconds": 0})
        for number in range(60):
            create(site, namespace, foreign_pod(f"passing-{number}", cpu="10m"))
            api_of(site).delete(f"{path}/passing-{number}", {"gracePeriodSeconds": 0})
        create(site, namespace, foreign_pod("stays", node="node-0", cpu="1"))
        cluster_of(site).kill_component("kube-apiserver")
        cluster_of(site).start_component("kube-apiserver")
        replica.process.send_signal(signal.SIGCONT)
        wait_phases(site, namespace, "waits", Succeeded=3)
        site.wait_consistent(replica)


# PostgreSQL


def test_the_embedded_database_is_killed_while_gangs_are_created(site: Site, replica: Replica) -> None:
    embedded = EmbeddedPostgres(paths_of(str(replica.state), os.environ))
    with clean_namespace(site, replica) as namespace:
        three_gangs(site, namespace)
        for _ in range(2):
            kill_embedded(embedded)
        all_end(site, namespace)
        site.wait_consistent(replica)


def kill_embedded(embedded: EmbeddedPostgres) -> None:
    """Kills the database and returns when Penstock has restarted it."""
    pid = embedded.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: embedded.pid() not in (None, pid), "another server")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started_server() as made:
        yield made


@pytest.fixture(scope="module")
def pair(site: Site, server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Replica, Replica]:
    """Two replicas with one database and different credentials, so that each request shows its sender."""
    database = fresh_database(server)
    token = site.kubectl("create", "token", "penstock", "-n", "penstock-system").strip()
    config = yaml.safe_load(site.penstock_kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    by_token = Path(tmp_path_factory.mktemp("token")) / "kubeconfig"
    by_token.write_text(yaml.safe_dump(config))
    by_token.chmod(0o600)
    one = site.replica("one", "--database", database)
    two = site.replica("two", "--database", database, "--kubeconfig", str(by_token))
    return one, two


@pytest.fixture
def leader(pair: tuple[Replica, Replica], started: Replica, site: Site) -> tuple[Replica, Replica]:
    """The leader and the standby. No other Penstock runs."""
    if started.is_alive():
        started.stop()
    if not any(one.is_alive() and one.is_ready() for one in pair):
        delete_lease(site)
    for one in pair:
        if not one.is_alive():
            one.start()
    wait_for(lambda: any(one.is_ready() for one in pair), "one of two to be in office", 60.0)
    first, second = pair
    return (first, second) if first.is_ready() else (second, first)


def test_an_external_database_is_killed_and_restarted(
    site: Site, server: Server, leader: tuple[Replica, Replica]
) -> None:
    first, _ = leader
    with clean_namespace(site, first) as namespace:
        three_gangs(site, namespace)
        kill_server(server)
        wait_for(lambda: not first.is_ready(), "the leader to notice")
        server.embedded.start()
        first.wait_ready()
        all_end(site, namespace)
        site.wait_consistent(first)


def test_a_leader_suspended_while_binding_is_fenced(site: Site, leader: tuple[Replica, Replica]) -> None:
    first, second = leader
    assert first.process is not None
    with new_namespace(site) as namespace:
        since = cluster_of(site).audit_log.stat().st_size
        create(site, namespace, *bare_gang("many", 60, cpu="100m", run=UNLIMITED))
        wait_for(lambda: _first_binding(site, since), "a binding", every_s=0.001)
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)  # Requests in flight have arrived.
        assert phases(site, namespace)["Pending"], "it stands still too late to be in the middle of anything"
        second.wait_ready(TAKE_OVER_S + MARGIN_S)
        wait_phases(site, namespace, Running=60)
        before = cluster_of(site).audit_log.stat().st_size
        first.process.send_signal(signal.SIGCONT)
        wait_for(lambda: _stands_by(first), "the old leader to stand by", 30.0)
        check_writers(site, before, first)
        check_bound_once(site, namespace)
        site.wait_consistent(second)
    wait_for(lambda: not second.jobs(), "no jobs to be left")


def _first_binding(site: Site, since: int) -> bool:
    with cluster_of(site).audit_log.open("rb") as log:
        log.seek(since)
        return b'"subresource":"binding"' in log.read()


def _is_write(request: dict[str, object]) -> bool:
    return request.get("verb") in ("create", "update", "patch", "delete")


def _stands_by(replica: Replica) -> bool:
    with contextlib.suppress(Exception):
        told = replica.client.get("/v1/status")["instance"]
        return not told["ready"] and "standing by" in str(told)
    return False


def check_writers(site: Site, since: int, fenced: Replica) -> None:
    """A fenced replica has written nothing, except for a rejected update of the lease."""
    by_token = fenced.name == "two"
    for request in audited(site, since):
        of_penstock = "penstock" in str(request["user"].get("username", ""))
        is_token = credential_of(request).startswith("JTI=")
        about = request.get("objectRef", {})
        if of_penstock and is_token is by_token and _is_write(request):
            assert about.get("resource") == "leases", request
            assert request["responseStatus"]["code"] == 409, request


def test_a_killed_leader_is_replaced_when_its_lease_expires(
    site: Site, leader: tuple[Replica, Replica]
) -> None:
    first, second = leader
    with clean_namespace(site, second) as namespace:
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        first.kill()
        create(site, namespace, *bare_gang("waits"))
        second.wait_ready(TAKE_OVER_S + MARGIN_S)
        for index in range(3):
            api_of(site).delete(f"/api/v1/namespaces/{namespace}/pods/gang-{index}")
        wait_phases(site, namespace, "waits", Succeeded=3)
        check_bound_once(site, namespace)
        site.wait_consistent(second)


def test_a_stopped_leader_is_replaced_at_once(site: Site, leader: tuple[Replica, Replica]) -> None:
    first, second = leader
    with clean_namespace(site, second) as namespace:
        create(site, namespace, *bare_gang("gang", run="2s"))
        wait_phases(site, namespace, Running=3)
        first.stop()
        second.wait_ready(10)
        wait_phases(site, namespace, Succeeded=3)
        check_next_gang(site, namespace)
        check_bound_once(site, namespace)
        site.wait_consistent(second)
