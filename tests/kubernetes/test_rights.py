"""Penstock's requests in the audit log of the API server: only those that scheduling needs.

The log also contains the requests of the tests that ran before on the same control plane.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kubernetes.conftest import FOUR_CORES
from tests.kubernetes.manifests import bare_pod, job, native_group, pod_group
from tests.kubernetes.namespaces import Namespace, SharedCluster
from tests.kubernetes.site import ROOT, wait_for

USER = "system:serviceaccount:penstock-system:penstock"
READS = {"get", "list", "watch"}
WRITES = {  # (verb, group, resource with its subresource)
    ("create", "", "pods/binding"),
    ("patch", "", "pods/status"),
    ("create", "", "pods/eviction"),
    ("delete", "", "pods"),
    ("create", "events.k8s.io", "events"),
    ("patch", "batch", "jobs"),
    ("patch", "scheduling.k8s.io", "podgroups/status"),
    ("patch", "scheduling.x-k8s.io", "podgroups/status"),
    ("create", "coordination.k8s.io", "leases"),
    ("update", "coordination.k8s.io", "leases"),
}
GETS = {  # one by one; all else is only listed and watched
    ("", "pods"),
    ("", "namespaces"),
    ("batch", "jobs"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("apps", "deployments"),
    ("coordination.k8s.io", "leases"),
}


@pytest.fixture
def namespace(shared_cluster: SharedCluster) -> Iterator[Namespace]:
    shared_cluster.site(native_gang=True)
    shared_cluster.ensure_nodes(4, FOUR_CORES)
    with shared_cluster.namespace(shared_cluster.penstock()) as made:
        yield made


def requests(namespace: Namespace) -> list[dict[str, Any]]:
    assert namespace.site.cluster is not None
    lines = namespace.site.cluster.audit_log.read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines if USER in line]
    return [one for one in found if one["user"]["username"] == USER]


def target(request: dict[str, Any]) -> tuple[str, str, str]:
    what = request.get("objectRef", {})
    resource = what.get("resource", request["requestURI"])
    if what.get("subresource"):
        resource += "/" + what["subresource"]
    return request["verb"], what.get("apiGroup", ""), resource


def test_penstock_sends_only_requests_that_its_role_allows(namespace: Namespace) -> None:
    namespace.create(native_group("team", 2), job("team", 2, schedulingGroup={"podGroupName": "team"}))
    namespace.create(pod_group("red", 1), bare_pod("red", labels={"scheduling.x-k8s.io/pod-group": "red"}))
    namespace.create(job("limited", 1, annotations={"penstock.dev/limit": "2s"}))
    namespace.create(bare_pod("bare", annotations={"penstock.dev/limit": "2s"}), bare_pod("huge", "64"))
    namespace.wait_bound("team", 2)
    namespace.wait_reason("huge", "never")
    wait_for(lambda: namespace.job_condition("limited", "Failed"), "the Job to end at its limit")
    namespace.wait_gone("bare")
    told = {one for one in WRITES if one[2] == "podgroups/status"}
    wait_for(lambda: told <= {target(one) for one in requests(namespace)}, "all to be told")
    done = requests(namespace)
    refused = {(*target(one), one["requestURI"]) for one in done if one["responseStatus"].get("code") == 403}
    assert refused == set()
    writes = {target(one) for one in done if one["verb"] not in READS}
    assert writes <= WRITES
    assert writes >= WRITES - {("create", "", "pods/eviction")}
    assert {
        one["objectRef"]["name"] for one in done if target(one)[2] == "leases" and one["verb"] != "create"
    } == {"penstock"}
    read = {target(one)[2] for one in done if one["verb"] in READS}
    assert "secrets" not in read
    assert {target(one)[1:] for one in done if one["verb"] == "get"} <= GETS


def test_the_roles_list_every_permission_explicitly() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text("utf-8")))
    rules = [rule for one in documents if one["kind"] in ("ClusterRole", "Role") for rule in one["rules"]]
    assert rules
    granted = {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert not [one for one in granted if "*" in "".join(one)]
    assert not [one for one in granted if "secrets" in one[2] or "configmaps" in one[2]]
    assert {one for one in granted if one[0] not in READS} == WRITES
    assert {one[1:] for one in granted if one[0] == "get"} == GETS
    assert all("nonResourceURLs" not in rule for rule in rules)
