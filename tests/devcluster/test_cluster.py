"""A cluster as a whole: its nodes, its rules, its faults, and that nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.devcluster.api import Api, ApiRefused
from penstock.devcluster.cluster import DevCluster, KubectlFailed
from penstock.devcluster.settings import DevSettings, NodeShape
from penstock.errors import BadRequest, Conflict, Unavailable
from tests.clusters import cluster_fixture, needs_controlplane, pod, running_cluster, wait_for

cluster = cluster_fixture(DevSettings(nodes=3, zones=2, gpus=2))

PODS = "/api/v1/namespaces/default/pods"


def processes_of(directory: Path) -> list[int]:
    """Who has the directory on its command line, and is not dead."""
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
    offers = nodes[0]["status"]["allocatable"]
    assert (offers["cpu"], offers["memory"], offers["pods"], offers["nvidia.com/gpu"]) == (
        "8",
        "32Gi",
        "110",
        "2",
    )


def test_rbac_holds_for_penstock(cluster: DevCluster) -> None:
    penstock = Api(cluster.penstock_kubeconfig)
    with pytest.raises(ApiRefused, match="system:serviceaccount:penstock-system:penstock") as refused:
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
    wait_for(lambda: can_list_nodes(penstock), "the role to hold")
    groups = cluster.kubectl("--kubeconfig", str(cluster.penstock_kubeconfig), "auth", "whoami", "-o", "json")
    assert "system:serviceaccounts:penstock-system" in json.loads(groups)["status"]["userInfo"]["groups"]


def can_list_nodes(api: Api) -> bool:
    try:
        return bool(api.get("/api/v1/nodes")["items"])
    except ApiRefused:
        return False


def test_every_request_is_in_the_audit_log(cluster: DevCluster) -> None:
    cluster.api.get("/api/v1/namespaces/kube-public")

    def is_there() -> bool:
        events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
        asked = [one for one in events if one["requestURI"] == "/api/v1/namespaces/kube-public"]
        return any((one["user"]["username"], one["level"]) == ("admin", "Metadata") for one in asked)

    wait_for(is_there, "the audit log")


def test_nodes_can_be_added_in_another_shape(cluster: DevCluster) -> None:
    (name,) = cluster.add_nodes(1, shape=NodeShape(cpu="64", gpus=8), labels={"pool": "big"}, prefix="big")
    node = cluster.api.get(f"/api/v1/nodes/{name}")
    assert (name, node["status"]["capacity"]["nvidia.com/gpu"]) == ("big-3", "8")
    assert node["metadata"]["labels"]["pool"] == "big"


def test_kubectl_tells_what_it_said(cluster: DevCluster) -> None:
    cluster.kubectl("apply", "-f", "-", input=pod("by-kubectl"))
    assert "by-kubectl" in cluster.kubectl("get", "pods", "-o", "name")
    with pytest.raises(KubectlFailed, match="not found") as failed:
        cluster.kubectl("get", "pod", "nobody")
    assert failed.value.code == 1


def test_a_silent_node_starts_nothing_until_it_is_woken(cluster: DevCluster) -> None:
    cluster.silence_node("node-2")
    cluster.api.post(PODS, json.loads(pod("on-silent", nodeName="node-2")))
    cluster.api.post(PODS, json.loads(pod("elsewhere", "sleep", "2", nodeName="node-1")))
    wait_for(lambda: phase_of(cluster, "elsewhere") == "Succeeded", "the other pod")
    assert phase_of(cluster, "on-silent") == "Pending"
    cluster.wake_node("node-2")
    wait_for(lambda: phase_of(cluster, "on-silent") == "Running", "the pod")


def test_kubelets_that_were_away_go_on_at_once(cluster: DevCluster) -> None:
    cluster.kill_part("kwok")
    cluster.api.post(PODS, json.loads(pod("in-between", "sleep", "1")))
    cluster.start_part("kwok")
    wait_for(lambda: phase_of(cluster, "in-between") == "Succeeded", "the pod", 20)


def test_a_store_and_a_server_that_were_killed_come_back_with_their_data(cluster: DevCluster) -> None:
    cluster.api.post(PODS, json.loads(pod("kept")))
    wait_for(lambda: phase_of(cluster, "kept") == "Running", "the pod to run")
    before = cluster.server
    for part in ("kube-apiserver", "etcd"):
        cluster.kill_part(part)
        assert cluster.part(part).exit_code == -signal.SIGKILL
    with pytest.raises(Unavailable):
        cluster.api.get("/readyz")
    cluster.start_part("etcd")
    cluster.start_part("kube-apiserver")
    assert (cluster.server, phase_of(cluster, "kept")) == (before, "Running")
    cluster.api.post(PODS, json.loads(pod("after", "sleep", "1")))
    wait_for(lambda: phase_of(cluster, "after") == "Succeeded", "a pod after that", 60)


def test_a_server_that_is_asked_to_stop_does_so_by_itself(cluster: DevCluster) -> None:
    cluster.stop_part("kube-apiserver")
    assert cluster.part("kube-apiserver").exit_code == 0
    cluster.start_part("kube-apiserver")
    assert len(cluster.api.get("/api/v1/nodes")["items"]) >= 3


def test_unknown_parts_and_a_second_start_are_refused(cluster: DevCluster) -> None:
    with pytest.raises(BadRequest, match="kubelet"):
        cluster.kill_part("kubelet")
    with pytest.raises(Unavailable, match="kwok runs already"):
        cluster.start_part("kwok")
    with pytest.raises(Conflict, match="started already"):
        cluster.start()


def test_native_gangs_and_manifests_and_a_stop_that_leaves_nothing(tmp_path: Path) -> None:
    manifest = tmp_path / "thing.yaml"
    manifest.write_text("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: penstock-system\n")
    settings = DevSettings(nodes=1, native_gang=True, scheduler=False, apply=(manifest,))
    with running_cluster(settings) as gang:
        groups = gang.api.get("/apis/scheduling.k8s.io/v1alpha2")["resources"]
        assert {"podgroups", "workloads"} <= {one["name"] for one in groups}
        assert gang.api.get("/api/v1/namespaces/penstock-system")["kind"] == "Namespace"
        with pytest.raises(Unavailable, match="never started"):
            gang.part("kube-scheduler")
        assert len(processes_of(gang.directory)) == 5  # the guardian, and four parts
    assert processes_of(gang.directory) == []
    assert not gang.directory.exists()
    gang.stop()  # again


OWNER = """
import sys, threading
from pathlib import Path
from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
cluster = DevCluster(Path(sys.argv[1]), DevSettings(nodes=1, scheduler=False))
starter = threading.Thread(target=cluster.start)  # which ends before the cluster does
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
    wait_for(lambda: not processes_of(directory) and not directory.exists(), "everything to be gone", 20)


def test_nothing_is_left_when_the_reaper_is_killed() -> None:
    with running_cluster(DevSettings(nodes=0, scheduler=False)) as cluster:
        (reaper,) = (pid for pid in processes_of(cluster.directory) if b"reaper" in cmdline(pid))
        os.kill(reaper, signal.SIGKILL)
        wait_for(lambda: processes_of(cluster.directory) in ([], [reaper]), "the parts to die", 10)
        with pytest.raises(Unavailable, match="guardian"):
            cluster.part("etcd")
        cluster.stop()
        assert not cluster.directory.exists()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
