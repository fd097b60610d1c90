"""A development cluster: nodes, RBAC, audit log, component faults and cleanup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.devcluster.client import StatusError, SyncClient
from penstock.devcluster.cluster import DevCluster, KubectlFailed
from penstock.devcluster.settings import DevSettings, NodeShape
from penstock.errors import BadRequest, Conflict, Unavailable
from tests.clusters import cluster_fixture, needs_controlplane, pod, running_cluster, wait_for

cluster = cluster_fixture(DevSettings(nodes=3, zones=2, gpus=2))

PODS = "/api/v1/namespaces/default/pods"


def processes_of(directory: Path) -> list[int]:
    """The live processes with the directory on their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in words and int(name) != os.getpid():
            found.append(int(name))
    return found


def phase_of(cluster: DevCluster, name: str) -> str:
    return str(cluster.api.get(f"{PODS}/{name}")["status"]["phase"])


def test_nodes_are_ready_and_free_of_taints(cluster: DevCluster) -> None:
    nodes = cluster.api.get("/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-0", "node-1", "node-2"]
    assert all("taints" not in node["spec"] for node in nodes)
    conditions = [{one["type"]: one["status"] for one in node["status"]["conditions"]} for node in nodes]
    assert [one["Ready"] for one in conditions] == ["True"] * 3
    assert [node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes] == [
        "zone-0",
        "zone-1",
        "zone-0",
    ]
    allocatable = nodes[0]["status"]["allocatable"]
    shown = [allocatable[name] for name in ("cpu", "memory", "pods", "nvidia.com/gpu")]
    assert shown == ["8", "32Gi", "110", "2"]


def test_rbac_applies_to_penstock(cluster: DevCluster) -> None:
    penstock = SyncClient(cluster.penstock_kubeconfig)
    with pytest.raises(StatusError, match="system:serviceaccount:penstock-system:penstock") as refused:
        penstock.get("/api/v1/secrets")
    assert refused.value.status == 403
    cluster.kubectl("create", "clusterrole", "looks", "--verb=list", "--resource=nodes")
    cluster.kubectl(
        "create",
        "clusterrolebinding",
        "looks",
        "--clusterrole=looks",
        "--serviceaccount=penstock-system:penstock",
    )
    wait_for(lambda: can_list_nodes(penstock), "the role to apply")
    groups = cluster.kubectl("--kubeconfig", str(cluster.penstock_kubeconfig), "auth", "whoami", "-o", "json")
    assert "system:serviceaccounts:penstock-system" in json.loads(groups)["status"]["userInfo"]["groups"]


def can_list_nodes(api: SyncClient) -> bool:
    try:
        return bool(api.get("/api/v1/nodes")["items"])
    except StatusError:
        return False


def test_every_request_is_in_the_audit_log(cluster: DevCluster) -> None:
    cluster.api.get("/api/v1/namespaces/kube-public")

    def is_logged() -> bool:
        events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
        ours = [event for event in events if event["requestURI"] == "/api/v1/namespaces/kube-public"]
        return any((event["user"]["username"], event["level"]) == ("admin", "Metadata") for event in ours)

    wait_for(is_logged, "the audit log")


def test_nodes_with_another_shape_can_be_added(cluster: DevCluster) -> None:
    (name,) = cluster.add_nodes(1, shape=NodeShape(cpu="64", gpus=8), labels={"pool": "big"}, prefix="big")
    node = cluster.api.get(f"/api/v1/nodes/{name}")
    assert (name, node["status"]["capacity"]["nvidia.com/gpu"]) == ("big-3", "8")
    assert node["metadata"]["labels"]["pool"] == "big"


def test_kubectl_returns_its_output_or_raises_its_error(cluster: DevCluster) -> None:
    cluster.kubectl("apply", "-f", "-", input=pod("by-kubectl"))
    assert "by-kubectl" in cluster.kubectl("get", "pods", "-o", "name")
    with pytest.raises(KubectlFailed, match="not found") as failed:
        cluster.kubectl("get", "pod", "nobody")
    assert failed.value.code == 1


def test_a_node_without_kubelet_starts_no_pod_until_the_kubelet_is_back(cluster: DevCluster) -> None:
    cluster.stop_kubelet("node-2")
    cluster.api.post(PODS, json.loads(pod("no-kubelet", nodeName="node-2")))
    cluster.api.post(PODS, json.loads(pod("elsewhere", "sleep", "2", nodeName="node-1")))
    wait_for(lambda: phase_of(cluster, "elsewhere") == "Succeeded", "the other pod")
    assert phase_of(cluster, "no-kubelet") == "Pending"
    cluster.start_kubelet("node-2")
    wait_for(lambda: phase_of(cluster, "no-kubelet") == "Running", "the pod")


def test_kubelets_continue_at_once_after_a_restart_of_kwok(cluster: DevCluster) -> None:
    cluster.kill_component("kwok")
    cluster.api.post(PODS, json.loads(pod("in-between", "sleep", "1")))
    cluster.start_component("kwok")
    wait_for(lambda: phase_of(cluster, "in-between") == "Succeeded", "the pod", 20)


def test_killed_etcd_and_api_server_restart_with_their_data(cluster: DevCluster) -> None:
    cluster.api.post(PODS, json.loads(pod("kept")))
    wait_for(lambda: phase_of(cluster, "kept") == "Running", "the pod to run")
    before = cluster.server
    for name in ("kube-apiserver", "etcd"):
        cluster.kill_component(name)
        assert cluster.component(name).exit_code == -signal.SIGKILL
    with pytest.raises(Unavailable):
        cluster.api.get("/readyz")
    cluster.start_component("etcd")
    cluster.start_component("kube-apiserver")
    assert (cluster.server, phase_of(cluster, "kept")) == (before, "Running")
    cluster.api.post(PODS, json.loads(pod("after", "sleep", "1")))
    wait_for(lambda: phase_of(cluster, "after") == "Succeeded", "a pod after that", 60)


def test_the_api_server_exits_by_itself_on_sigterm(cluster: DevCluster) -> None:
    cluster.stop_component("kube-apiserver")
    assert cluster.component("kube-apiserver").exit_code == 0
    cluster.start_component("kube-apiserver")
    assert len(cluster.api.get("/api/v1/nodes")["items"]) >= 3


def test_an_unknown_component_and_a_second_start_are_rejected(cluster: DevCluster) -> None:
    with pytest.raises(BadRequest, match="kubelet"):
        cluster.kill_component("kubelet")
    with pytest.raises(Unavailable, match="kwok is already running"):
        cluster.start_component("kwok")
    with pytest.raises(Conflict, match="already started"):
        cluster.start()


def test_native_gangs_manifests_and_a_stop_that_leaves_nothing(tmp_path: Path) -> None:
    manifest = tmp_path / "thing.yaml"
    manifest.write_text("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: penstock-system\n")
    settings = DevSettings(nodes=1, native_gang=True, scheduler=False, apply=(manifest,))
    with running_cluster(settings) as gang:
        groups = gang.api.get("/apis/scheduling.k8s.io/v1alpha2")["resources"]
        assert {"podgroups", "workloads"} <= {one["name"] for one in groups}
        assert gang.api.get("/api/v1/namespaces/penstock-system")["kind"] == "Namespace"
        with pytest.raises(Unavailable, match="never started"):
            gang.component("kube-scheduler")
        assert len(processes_of(gang.directory)) == 5  # the reaper and four components
    assert processes_of(gang.directory) == []
    assert not gang.directory.exists()
    gang.stop()  # A second stop is harmless.


OWNER = """
import sys, threading
from pathlib import Path
from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
cluster = DevCluster(Path(sys.argv[1]), DevSettings(nodes=1, scheduler=False))
starter = threading.Thread(target=cluster.start)  # This thread ends before the cluster.
starter.start()
starter.join()
print("ready", flush=True)
threading.Event().wait()
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    needs_controlplane()
    directory = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    owner = subprocess.Popen([sys.executable, "-c", OWNER, directory], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    assert len(processes_of(directory)) >= 5
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_for(
        lambda: not processes_of(directory) and not directory.exists(),
        "all processes and files to be removed",
        20,
    )


def test_nothing_is_left_when_the_reaper_is_killed() -> None:
    with running_cluster(DevSettings(nodes=0, scheduler=False)) as cluster:
        (reaper,) = (pid for pid in processes_of(cluster.directory) if b"reaper" in cmdline(pid))
        os.kill(reaper, signal.SIGKILL)
        wait_for(lambda: processes_of(cluster.directory) in ([], [reaper]), "the components to exit", 10)
        with pytest.raises(Unavailable, match="reaper"):
            cluster.component("etcd")
        cluster.stop()
        assert not cluster.directory.exists()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
