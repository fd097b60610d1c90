"""The unchanged examples of Fluence and Fluxnetes, on clusters of the size that their authors used.

The manifests are not part of the repository; without them these tests are skipped with a message. Every file
is in one of two tables: with the result that its authors intended, or with the reason why it cannot run here.
The tests check what the authors' scripts check: which scheduler bound a pod, according to its spec and its
event, and how the pod ended. They do not check the output of containers: simulated nodes run none.

A node of a kind cluster has the capacity of the machine. Where the authors do not name the machine, a laptop
with 8 cores is assumed, or a GitHub runner (4 cores; 2 for gangs that compete). kindnet requests 100m on
every node, and the control plane node runs only its own pods.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.devcluster.settings import NodeShape
from tests.kubernetes.namespaces import Namespace, SharedCluster, job_id
from tests.kubernetes.site import Site, wait_for

SEEDS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "seed-manifests"
FOLDERS = ("fluence/examples", "fluxnetes/examples", "fluence-2026/examples")

pytestmark = pytest.mark.skipif(not SEEDS.is_dir(), reason=f"no manifests of forerunners at {SEEDS}")


class Cluster(enum.Enum):
    """Number and shape of the workers; each cluster also has a control plane node."""

    CI = (1, NodeShape(cpu="4", memory="16Gi"))  # fluence/.github, a runner of GitHub
    FLUENCE = (4, NodeShape(cpu="4", memory="16Gi"))  # fluence/examples/kind-config.yaml
    LARGE = (4, NodeShape(cpu="16", memory="64Gi"))  # the same on a server, for pods of 12 cores
    LAPTOP = (2, NodeShape(cpu="8", memory="16Gi"))  # fluxnetes/examples and fluence-2026/deploy, a laptop
    SMALL = (2, NodeShape(cpu="2", memory="7Gi"))  # fluence-2026/deploy, an older runner of GitHub


class End(enum.Enum):
    RUNS = "all of its pods run"
    COMPLETES = "its Job completes"
    DEADLINE = "its pod is ended at its deadline"
    NEVER = "none of its pods starts, and they are told why"
    BESIDE = "as the others of its folder, in a test of their own"


@dataclass(frozen=True)
class Meant:
    cluster: Cluster
    scheduler: str
    pods: int
    end: End


MEANT = {
    "fluence/examples/simple_example/default-scheduler-pod.yaml": Meant(
        Cluster.CI, "default-scheduler", 1, End.RUNS
    ),
    "fluence/examples/simple_example/fluence-scheduler-pod.yaml": Meant(Cluster.CI, "fluence", 1, End.RUNS),
    "fluence/examples/test_example/default-job.yaml": Meant(
        Cluster.CI, "default-scheduler", 1, End.COMPLETES
    ),
    "fluence/examples/test_example/fluence-job.yaml": Meant(Cluster.CI, "fluence", 1, End.COMPLETES),
    "fluence/examples/test_example/fluence-sized-job.yaml": Meant(Cluster.CI, "fluence", 3, End.COMPLETES),
    "fluence/examples/simple_example/fluence-deployment.yaml": Meant(Cluster.FLUENCE, "fluence", 3, End.RUNS),
    "fluence/examples/simple_example/fluence-replicaset.yaml": Meant(Cluster.FLUENCE, "fluence", 3, End.RUNS),
    "fluence/examples/simple_example/fluence-statefulset.yaml": Meant(
        Cluster.FLUENCE, "fluence", 3, End.RUNS
    ),
    "fluence/examples/indexed-jobs/job1.yaml": Meant(Cluster.FLUENCE, "fluence", 5, End.BESIDE),
    "fluence/examples/indexed-jobs/job2.yaml": Meant(Cluster.FLUENCE, "fluence", 5, End.BESIDE),
    "fluence/examples/pod-group-jobs/job1.yaml": Meant(Cluster.FLUENCE, "fluence", 4, End.BESIDE),
    "fluence/examples/pod-group-jobs/job2.yaml": Meant(Cluster.FLUENCE, "fluence", 4, End.BESIDE),
    "fluence/examples/pi/pi-job-default.yaml": Meant(Cluster.LARGE, "default-scheduler", 4, End.COMPLETES),
    "fluence/examples/pi/pi-job-fluence.yaml": Meant(Cluster.LARGE, "fluence", 4, End.COMPLETES),
    "fluxnetes/examples/pod.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 1, End.DEADLINE),
    "fluxnetes/examples/job-deadline.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 1, End.DEADLINE),
    "fluxnetes/examples/job.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 1, End.COMPLETES),
    "fluxnetes/examples/job-10.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 10, End.COMPLETES),
    "fluxnetes/examples/job-unsatisfiable.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 10, End.NEVER),
    "fluxnetes/examples/batch/job1.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 1, End.BESIDE),
    "fluxnetes/examples/batch/job2.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 2, End.BESIDE),
    "fluxnetes/examples/batch/job3.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 2, End.BESIDE),
    "fluxnetes/examples/batch/job4.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 2, End.BESIDE),
    "fluxnetes/examples/batch/job5.yaml": Meant(Cluster.LAPTOP, "fluxnetes", 1, End.BESIDE),
    "fluence-2026/examples/podgroup.yaml": Meant(Cluster.LAPTOP, "fluence", 2, End.RUNS),
    "fluence-2026/examples/test/e2e/gang/single-podgroup.yaml": Meant(Cluster.SMALL, "fluence", 1, End.RUNS),
    "fluence-2026/examples/test/e2e/gang/multi-gang.yaml": Meant(Cluster.SMALL, "fluence", 2, End.RUNS),
    "fluence-2026/examples/test/e2e/gang/multi-gang-contention.yaml": Meant(
        Cluster.SMALL, "fluence", 4, End.BESIDE
    ),
    "fluence-2026/examples/test/e2e/gang/multi-gang-requeue.yaml": Meant(
        Cluster.SMALL, "fluence", 4, End.BESIDE
    ),
}

_MPI = "an MPIJob needs the MPI operator (and has macros to be filled in)"
_MINI = "a MiniCluster needs the Flux operator"
_CLUSTER = "says how to make a cluster; no object"
_INSTALL = "installs the forerunner of 2022 itself"
_QPU = "needs the forerunner's device plugin, and its webhook"
_JOBSPEC = "input of the forerunner's unit tests; no object"
CANNOT = {
    "fluence/examples/amg/amg_mpijob.yaml": _MPI,
    "fluence/examples/amg/amg_mpijob_efa.yaml": _MPI,
    "fluence/examples/amg/oc_amg_mpijob.yaml": _MPI,
    "fluence/examples/lammps/lammps_mpijob.yaml": _MPI,
    "fluence/examples/lammps/lammps_mpijob_efa.yaml": _MPI,
    "fluence/examples/lammps/oc_lammps_mpijob.yaml": _MPI,
    "fluence/examples/pod-group/lammps/lammps2.yaml": _MINI,
    "fluence/examples/pod-group/lammps/lammps4-2.yaml": _MINI,
    "fluence/examples/pod-group/lammps/lammps4-3.yaml": _MINI,
    "fluence/examples/pod-group/lammps/lammps4.yaml": _MINI,
    "fluence/examples/pod-group/lammps/lammps5.yaml": _MINI,
    "fluence/examples/pod-group/lammps/lammps6.yaml": _MINI,
    "fluence/examples/kind-config.yaml": _CLUSTER,
    "fluence/examples/kube_setup/eks-efa-cluster-config.yaml": _CLUSTER,
    "fluxnetes/examples/kind-config.yaml": _CLUSTER,
    "fluence/examples/kube_setup/fluence_setup/01_fluence-rbac.yaml": _INSTALL,
    "fluence/examples/kube_setup/fluence_setup/02_fluence-configmap.yaml": _INSTALL,
    "fluence/examples/kube_setup/fluence_setup/03_podgroup-crd.yaml": _INSTALL,
    "fluence/examples/kube_setup/fluence_setup/04_scheduler-plugin.yaml": _INSTALL,
    "fluence-2026/examples/quantum-pod.yaml": _QPU,
    "fluence-2026/examples/test/e2e/quantum-pod-mock-2.yaml": _QPU,
    "fluence-2026/examples/test/e2e/quantum/quantum-gang-pods.yaml": _QPU,
    "fluence-2026/examples/test/e2e/quantum/quantum-pod-mock.yaml": _QPU,
    "fluence-2026/examples/test/cluster.jgf": _JOBSPEC,
    "fluence-2026/examples/test/jobspec-cpu.yaml": _JOBSPEC,
    "fluence-2026/examples/test/jobspec-qpu.yaml": _JOBSPEC,
}
ALONE = sorted(
    (name for name, meant in MEANT.items() if meant.end is not End.BESIDE),
    key=lambda name: list(Cluster).index(MEANT[name].cluster),
)


def test_every_manifest_is_listed() -> None:
    there = {
        str(path.relative_to(SEEDS)) for top in FOLDERS for path in (SEEDS / top).rglob("*") if path.is_file()
    }
    assert there == MEANT.keys() | CANNOT.keys()
    assert not MEANT.keys() & CANNOT.keys()


@pytest.fixture(scope="module")
def site(shared_cluster: SharedCluster) -> Iterator[Site]:
    """A cluster with Kubernetes' own gang scheduling and with kindnet."""
    made = shared_cluster.site(native_gang=True)
    made.apply(KINDNET, "kube-system")
    yield made
    made.kubectl("delete", "daemonset", "kindnet", "-n", "kube-system")
    pods = ("delete", "pods", "-l", "app=kindnet", "-n", "kube-system", "--force", "--grace-period=0")
    made.kubectl(*pods, check=False)


KINDNET = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "kindnet"},
    "spec": {
        "selector": {"matchLabels": {"app": "kindnet"}},
        "template": {
            "metadata": {"labels": {"app": "kindnet"}},
            "spec": {
                "hostNetwork": True,
                "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
                "containers": [
                    {
                        "name": "kindnet",
                        "image": "kindnet",
                        "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}},
                    }
                ],
            },
        },
    },
}


def namespace_on(shared_cluster: SharedCluster, site: Site, cluster: Cluster) -> Any:
    count, shape = cluster.value
    names = {*shared_cluster.ensure_nodes(count, shape, control_plane=True)}
    wait_for(lambda: names <= _nodes_of_kindnet(site), "kindnet on every node", 60)
    return shared_cluster.namespace(shared_cluster.penstock())


def _nodes_of_kindnet(site: Site) -> set[str]:
    assert site.cluster is not None
    found = site.cluster.api.get("/api/v1/namespaces/kube-system/pods?labelSelector=app%3Dkindnet")["items"]
    return {pod["spec"].get("nodeName", "") for pod in found if pod["status"]["phase"] == "Running"}


@pytest.mark.parametrize("name", ALONE)
def test_a_manifest_ends_as_its_authors_intended(
    shared_cluster: SharedCluster, site: Site, name: str
) -> None:
    meant = MEANT[name]
    with namespace_on(shared_cluster, site, meant.cluster) as namespace:
        site.apply(SEEDS / name, namespace.name)
        if meant.end is End.NEVER:
            wait_for(lambda: len(namespace.pods()) == meant.pods, "all pods to be there")
            namespace.wait_reason("", "Unschedulable", "it can never run here")
            assert namespace.bound() == []
            return
        wait_for(lambda: _have_come_to(namespace, meant), f"{meant.end.value}: {name}", 60)
        assert_scheduled_by(namespace, meant.scheduler)


def _have_come_to(namespace: Namespace, meant: Meant) -> bool:
    pods = namespace.pods()
    phases = [pod["status"]["phase"] for pod in pods]
    match meant.end:
        case End.RUNS:
            return phases == ["Running"] * meant.pods
        case End.COMPLETES:
            return phases == ["Succeeded"] * meant.pods and _jobs_are_complete(namespace)
        case End.DEADLINE:
            return any(pod["status"].get("reason") == "DeadlineExceeded" for pod in pods)
    raise AssertionError(meant.end)


def _jobs_are_complete(namespace: Namespace) -> bool:
    assert namespace.site.cluster is not None
    jobs = namespace.site.cluster.api.get(f"/apis/batch/v1/namespaces/{namespace.name}/jobs")["items"]
    return all(namespace.job_condition(job["metadata"]["name"], "Complete") for job in jobs)


def assert_scheduled_by(namespace: Namespace, scheduler: str) -> None:
    """Like the authors' test.sh: the pods name the scheduler, and their events come from it."""
    placed = [pod for pod in namespace.pods() if pod["spec"].get("nodeName")]
    assert placed
    assert {pod["spec"]["schedulerName"] for pod in placed} == {scheduler}
    for pod in placed:
        wait_for(lambda name=pod["metadata"]["name"]: _tellers(namespace, name) == {scheduler}, "its event")
        assert bool(job_id(pod)) == (scheduler != "default-scheduler")
        assert not pod["spec"]["nodeName"].startswith("control-plane")


def _tellers(namespace: Namespace, pod: str) -> set[str]:
    assert namespace.site.cluster is not None
    found = namespace.site.cluster.api.get(f"/api/v1/namespaces/{namespace.name}/events")["items"]
    return {
        event.get("reportingComponent") or event.get("source", {}).get("component", "")
        for event in found
        if event["involvedObject"]["name"] == pod
        and "Scheduled" in event["reason"]
        and event["type"] == "Normal"
    }


def test_two_indexed_jobs_run_at_the_same_time(shared_cluster: SharedCluster, site: Site) -> None:
    with namespace_on(shared_cluster, site, Cluster.FLUENCE) as namespace:
        for number in (1, 2):
            site.apply(SEEDS / f"fluence/examples/indexed-jobs/job{number}.yaml", namespace.name)
        wait_for(lambda: len(namespace.bound()) == 10, "all ten pods to run")
        assert len({job_id(pod) for pod in namespace.bound()}) == 2
        wait_for(lambda: _jobs_are_complete(namespace), "both to complete", 60)
        assert_scheduled_by(namespace, "fluence")


def test_two_competing_groups_do_not_deadlock(shared_cluster: SharedCluster, site: Site) -> None:
    """Two groups of four pods with three cores each, on four nodes with four cores."""
    with namespace_on(shared_cluster, site, Cluster.FLUENCE) as namespace:
        for number in (1, 2):
            site.apply(SEEDS / f"fluence/examples/pod-group-jobs/job{number}.yaml", namespace.name)
        wait_for(lambda: len(namespace.bound()) == 4, "one of them to run", every_s=0.05)
        winner, loser = ("job-0", "job-1") if namespace.bound("job-0") else ("job-1", "job-0")
        assert len(namespace.bound(winner)) == 4
        namespace.wait_any_reason(loser)
        assert namespace.bound(loser) == []
        namespace.delete("Job", winner)
        namespace.wait_bound(loser, 4)
        assert_scheduled_by(namespace, "fluence")


def test_a_batch_of_jobs_completes(shared_cluster: SharedCluster, site: Site) -> None:
    with namespace_on(shared_cluster, site, Cluster.LAPTOP) as namespace:
        site.kubectl("apply", "-n", namespace.name, "-f", str(SEEDS / "fluxnetes/examples/batch"))
        pods = sum(meant.pods for name, meant in MEANT.items() if "/batch/" in name)
        wait_for(
            lambda: len(namespace.pods()) == pods and _jobs_are_complete(namespace), "all to complete", 60
        )
        assert_scheduled_by(namespace, "fluxnetes")


def test_only_one_of_two_contending_gangs_runs(shared_cluster: SharedCluster, site: Site) -> None:
    """Two gangs of two pods with one core each, on two nodes with 1.9 free cores."""
    with namespace_on(shared_cluster, site, Cluster.SMALL) as namespace:
        site.apply(SEEDS / "fluence-2026/examples/test/e2e/gang/multi-gang-contention.yaml", namespace.name)
        wait_for(lambda: len(namespace.bound()) == 2, "one of them to run")
        winner, loser = ("gang-a", "gang-b") if namespace.bound("gang-a") else ("gang-b", "gang-a")
        assert len(namespace.bound(winner)) == 2
        namespace.wait_any_reason(loser)
        assert namespace.bound(loser) == []
        assert_scheduled_by(namespace, "fluence")


def test_the_pending_gang_starts_when_the_other_completes(shared_cluster: SharedCluster, site: Site) -> None:
    with namespace_on(shared_cluster, site, Cluster.SMALL) as namespace:
        site.apply(SEEDS / "fluence-2026/examples/test/e2e/gang/multi-gang-requeue.yaml", namespace.name)
        wait_for(lambda: len(namespace.bound()) == 2, "one of them to run", every_s=0.05)
        assert len({job_id(pod) for pod in namespace.bound()}) == 1
        wait_for(lambda: _jobs_are_complete(namespace), "both to complete", 75)
        assert_scheduled_by(namespace, "fluence")


def test_a_tainted_worker_is_never_used(shared_cluster: SharedCluster, site: Site) -> None:
    """A Fluence gang with the taint of its script: both pods are bound to the other worker."""
    with namespace_on(shared_cluster, site, Cluster.LAPTOP) as namespace:
        blocked, other = shared_cluster.ensure_nodes(*Cluster.LAPTOP.value, control_plane=True)
        site.kubectl("taint", "node", blocked, "fluence-e2e=blocked:NoSchedule")
        try:
            site.apply(SEEDS / "fluence-2026/examples/test/e2e/gang/multi-gang.yaml", namespace.name)
            namespace.wait_bound("gang3", 2)
            assert set(namespace.nodes_of("gang3")) == {other}
        finally:
            site.kubectl("taint", "node", blocked, "fluence-e2e-")


def test_the_state_is_consistent_at_the_end(shared_cluster: SharedCluster, site: Site) -> None:
    site.wait_consistent(shared_cluster.penstock())
