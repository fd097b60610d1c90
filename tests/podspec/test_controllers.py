"""The registry of controller kinds, and objects read with its rows."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from penstock.errors import BadRequest
from penstock.kube.types import OwnerReference, UnstructuredObject
from penstock.podspec.controller_kinds import (
    CONTROLLER_KINDS,
    ControllerKind,
    CountField,
    CountIndexes,
    CountMin,
    CountProduct,
    PodSetPath,
    TerminalState,
    find_controller_kind,
    require_controller_kind,
)
from penstock.podspec.controllers import Controller, controller_of, is_known_controller

TEMPLATE = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"penstock.dev/limit": "1h"}},
    "spec": {
        "schedulerName": "penstock",
        "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}],
    },
}

# Complete objects, as the API server returns them.
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "train",
        "namespace": "default",
        "uid": "u1",
        "labels": {"penstock.dev/queue": "night", "team": "a"},
        "creationTimestamp": "2030-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "parallelism": 4,
        "completions": 6,
        "completionMode": "Indexed",
        "backoffLimit": 6,
        "suspend": False,
        "activeDeadlineSeconds": 600,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}},
        "template": TEMPLATE,
    },
    "status": {
        "active": 2,
        "succeeded": 3,
        "completedIndexes": "0-2",
        "failedIndexes": "",
        "startTime": "2030-01-01T00:00:10Z",
        "conditions": [{"type": "Complete", "status": "False"}],
    },
}
REPLICAS = {"replicas": 3, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
REPLICA_SET = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "metadata": {
        "name": "web-1",
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u2", "controller": True}
        ],
    },
    "spec": REPLICAS,
    "status": {"replicas": 3, "readyReplicas": 1},
}
STATEFUL_SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "db"},
    "spec": {**REPLICAS, "serviceName": "db", "podManagementPolicy": "OrderedReady"},
    "status": {"replicas": 1},
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "uid": "u2"},
    "spec": {**REPLICAS, "strategy": {"type": "RollingUpdate"}},
    "status": {"conditions": [{"type": "Available", "status": "True"}]},
}
OBJECTS = {"Job": JOB, "ReplicaSet": REPLICA_SET, "StatefulSet": STATEFUL_SET, "Deployment": DEPLOYMENT}


def read(raw: dict[str, Any], kind: ControllerKind | None = None) -> Controller:
    found = msgspec.json.decode(msgspec.json.encode(raw), type=UnstructuredObject)
    return controller_of(kind or require_controller_kind(found.api_version, found.kind), found)


def changed(raw: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy of an object with another value at a path."""
    copy = msgspec.json.decode(msgspec.json.encode(raw))
    *names, last = path.split(".")
    inner = copy
    for name in names:
        inner = inner[name]
    inner[last] = value
    return copy


# The rows


def test_a_job_is_read_whole() -> None:
    found = read(JOB)
    assert (found.kind.name, found.namespace, found.name, found.uid) == ("Job", "default", "train", "u1")
    assert found.keys == {"penstock.dev/queue": "night"}
    (pod_set,) = found.pod_sets
    assert (pod_set.count, pod_set.template.spec.scheduler_name) == (3, "penstock")
    assert pod_set.template.metadata.labels == {"app": "x"}
    assert (found.started_at, found.deadline_s, found.deadline_set_s) == (1_893_456_010.0, 600, None)
    assert (found.is_suspended, found.is_finished, found.creates_in_order) == (False, False, False)


def test_a_replica_set_and_a_stateful_set_are_read_whole() -> None:
    found = read(REPLICA_SET)
    assert (found.desired_pods, found.creates_in_order, found.is_finished) == (3, False, False)
    assert found.owner is not None
    assert (found.owner.kind, found.owner.uid) == ("Deployment", "u2")
    found = read(STATEFUL_SET)
    assert (found.desired_pods, found.creates_in_order) == (3, True)
    assert not read(changed(STATEFUL_SET, "spec.podManagementPolicy", "Parallel")).creates_in_order


def test_a_deployment_creates_its_pods_through_replica_sets() -> None:
    found = read(DEPLOYMENT)
    assert (found.pod_sets, found.desired_pods, found.kind.children) == ((), 0, ("ReplicaSet",))


@pytest.mark.parametrize("kind", CONTROLLER_KINDS, ids=lambda kind: kind.name)
def test_every_row_is_consistent(kind: ControllerKind) -> None:
    assert find_controller_kind(kind.api_version, kind.name) is kind
    assert bool(kind.pod_sets) != bool(kind.children), "pods come from the object or from its children"
    assert all(find_controller_kind(kind.api_version, child) for child in kind.children)


@pytest.mark.parametrize("kind", CONTROLLER_KINDS, ids=lambda kind: kind.name)
def test_every_path_of_a_row_is_a_field_of_a_real_object(kind: ControllerKind) -> None:
    paths = [kind.suspend, kind.time_limit, kind.started_at, *kind.final_indexes]
    paths += [kind.conditions if kind.terminal else "", kind.parallel_if[0] if kind.parallel_if else ""]
    paths += [path for one in kind.pod_sets for path in (one.template, *count_paths(one.count))]
    for path in filter(None, paths):
        value: Any = OBJECTS[kind.name]
        for name in path.split("."):
            value = value[name]
        assert value is not None


def count_paths(count: Any) -> list[str]:
    if isinstance(count, CountField | CountIndexes):
        return [count.path]
    operands = count.operands if hasattr(count, "operands") else (count.total, count.done)
    return [path for operand in operands for path in count_paths(operand)]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.parallelism", None, 1),
        ("spec.parallelism", 2, 2),
        ("spec.completions", None, 4),
        ("spec.completions", 2, 0),
        ("status.succeeded", None, 4),
        ("spec.suspend", True, 0),
        ("spec.suspend", None, 3),
        ("status", {}, 4),
        ("status.failedIndexes", "0,3-4", 0),
        ("status.failedIndexes", "7", 2),
        ("status.failedIndexes", "", 3),
    ],
)
def test_a_job_wants_what_is_left_of_its_completions(path: str, value: object, expected: int) -> None:
    assert read(changed(JOB, path, value)).desired_pods == expected


def test_indexes_that_have_completed_or_failed_get_no_further_pod() -> None:
    assert read(changed(JOB, "status.failedIndexes", "4-5")).final_indexes == ((0, 2), (4, 5))
    with pytest.raises(BadRequest, match=r"status\.failedIndexes.*indexes such as 1,3-5"):
        read(changed(JOB, "status.failedIndexes", "5-4"))


@pytest.mark.parametrize(
    ("condition", "state"),
    [
        ("Complete", TerminalState.SUCCEEDED),
        ("SuccessCriteriaMet", TerminalState.SUCCEEDED),
        ("Failed", TerminalState.FAILED),
        ("FailureTarget", TerminalState.FAILED),
        ("Suspended", None),
    ],
)
def test_terminal_conditions(condition: str, state: TerminalState | None) -> None:
    found = read(changed(JOB, "status.conditions", [{"type": condition, "status": "True"}]))
    assert (found.terminal_state, found.is_finished) == (state, state is not None)
    unmet = read(changed(JOB, "status.conditions", [{"type": condition, "status": "Unknown"}]))
    assert unmet.terminal_state is None


@pytest.mark.parametrize("raw", OBJECTS.values(), ids=OBJECTS)
def test_a_deleted_object_creates_no_more_pods(raw: dict[str, Any]) -> None:
    assert read(changed(raw, "metadata.deletionTimestamp", "2030-01-01T00:00:00Z")).is_finished


@pytest.mark.parametrize("raw", OBJECTS.values(), ids=OBJECTS)
def test_an_object_without_spec_and_status_is_read(raw: dict[str, Any]) -> None:
    bare = {key: value for key, value in raw.items() if key not in ("spec", "status")}
    assert read(bare).desired_pods == (0 if raw is DEPLOYMENT else 1)


# Unknown and malformed objects


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("batch.volcano.sh/v1alpha1", "Job"), ("apps/v1", "DaemonSet"), ("v1", "Pod"), ("", "")],
)
def test_an_unknown_kind_is_a_bad_request_that_names_the_known_ones(api_version: str, kind: str) -> None:
    assert find_controller_kind(api_version, kind) is None
    assert not is_known_controller(OwnerReference(api_version=api_version, kind=kind))
    with pytest.raises(BadRequest, match=r"kind: unsupported kind .*expected Job \(batch/v1\), ReplicaSet"):
        require_controller_kind(api_version, kind)


def test_another_version_of_a_known_group_is_the_same_kind() -> None:
    assert find_controller_kind("batch/v1beta1", "Job") is require_controller_kind("batch/v1", "Job")


@pytest.mark.parametrize(
    ("path", "value", "where", "expected"),
    [
        ("spec.parallelism", "4", "spec.parallelism", "an integer"),
        ("spec.parallelism", True, "spec.parallelism", "an integer"),
        ("spec.completions", [6], "spec.completions", "an integer"),
        ("status.succeeded", 1.5, "status.succeeded", "an integer"),
        ("spec.suspend", "yes", "spec.suspend", "true or false"),
        ("spec.suspend", 1, "spec.suspend", "true or false"),
        ("spec.activeDeadlineSeconds", "600", "spec.activeDeadlineSeconds", "seconds"),
        ("spec.template", "none", "spec.template", "a pod template"),
        ("spec.template.spec", ["x"], "spec.template", ""),
        ("spec.template.spec.schedulerName", 7, "spec.template", ""),
        ("status.startTime", "yesterday", "status.startTime", "a timestamp"),
        ("status.startTime", 12, "status.startTime", "a timestamp"),
        ("status.conditions", {"type": "Complete"}, "status.conditions", "a list of conditions"),
        ("status.conditions", ["Complete"], "status.conditions", ""),
    ],
)
def test_a_malformed_field_is_a_bad_request_with_its_location(
    path: str, value: object, where: str, expected: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(changed(JOB, path, value))
    assert caught.value.where == where
    assert caught.value.found
    assert expected in caught.value.expected


# Kinds that are not registered: what a row can express

CONDITIONS = MappingProxyType({"Succeeded": TerminalState.SUCCEEDED, "Failed": TerminalState.FAILED})
JOB_SET_KIND = ControllerKind(
    name="JobSet",
    api_version="jobset.x-k8s.io/v1alpha2",
    plural="jobsets",
    pod_sets=(
        PodSetPath(
            each="spec.replicatedJobs[]",
            template="template.spec.template",
            count=CountProduct(
                (
                    CountField("replicas", default=1),
                    CountMin(
                        (
                            CountField("template.spec.parallelism", default=1),
                            CountField("template.spec.completions"),
                        )
                    ),
                )
            ),
        ),
    ),
    children=("Job",),
    suspend="spec.suspend",
    terminal=MappingProxyType({"Completed": TerminalState.SUCCEEDED, "Failed": TerminalState.FAILED}),
)
MPI_JOB_KIND = ControllerKind(
    name="MPIJob",
    api_version="kubeflow.org/v2beta1",
    plural="mpijobs",
    pod_sets=(
        PodSetPath(
            each="spec.mpiReplicaSpecs.*", template="template", count=CountField("replicas", default=1)
        ),
    ),
    suspend="spec.runPolicy.suspend",
    time_limit="spec.runPolicy.activeDeadlineSeconds",
    started_at="status.startTime",
    terminal=CONDITIONS,
)
RAY_JOB_KIND = ControllerKind(
    name="RayJob",
    api_version="ray.io/v1",
    plural="rayjobs",
    pod_sets=(
        PodSetPath(each="spec.rayClusterSpec.headGroupSpec", template="template"),
        PodSetPath(
            each="spec.rayClusterSpec.workerGroupSpecs[]",
            template="template",
            count=CountProduct((CountField("replicas", default=1), CountField("numOfHosts", default=1))),
        ),
    ),
    suspend="spec.suspend",
    time_limit="spec.activeDeadlineSeconds",
    phase="status.jobDeploymentStatus",
    terminal=MappingProxyType({"Complete": TerminalState.SUCCEEDED, "Failed": TerminalState.FAILED}),
)


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"role": name}}, "spec": {"schedulerName": "penstock"}}


def sets_of(controller: Controller) -> list[tuple[str, int]]:
    return [((one.template.metadata.labels or {})["role"], one.count) for one in controller.pod_sets]


def job_set(*replicated: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "set"}, "spec": {"replicatedJobs": list(replicated), **spec}}


def replicated_job(name: str, replicas: object, **spec: Any) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": replicas,
        "template": {"spec": {**spec, "template": named(name)}},
    }


def test_a_row_can_express_lists_of_templates_with_multipliers() -> None:
    raw = job_set(
        replicated_job("driver", 1),
        replicated_job("workers", 3, parallelism=4, completions=2),
        replicated_job("loaders", None, parallelism=5),
        suspend=True,
    )
    found = read(raw, JOB_SET_KIND)
    assert sets_of(found) == [("driver", 1), ("workers", 6), ("loaders", 5)]
    assert (found.is_suspended, found.desired_pods) == (True, 0)
    raw["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}
    assert read(raw, JOB_SET_KIND).terminal_state is TerminalState.SUCCEEDED


def test_a_row_can_express_maps_of_replica_specs() -> None:
    specs = {
        "Launcher": {"template": named("launcher")},
        "Worker": {"replicas": 4, "template": named("worker")},
    }
    policy = {"suspend": False, "activeDeadlineSeconds": 60}
    found = read({"spec": {"runPolicy": policy, "mpiReplicaSpecs": specs}}, MPI_JOB_KIND)
    assert sets_of(found) == [("launcher", 1), ("worker", 4)]
    assert (found.desired_pods, found.deadline_s, found.started_at) == (5, 60, None)


def test_a_row_can_express_several_pod_sets_and_terminal_phases() -> None:
    workers = [
        {"replicas": 2, "numOfHosts": 4, "template": named("gpu")},
        {"template": named("cpu")},
    ]
    cluster = {"headGroupSpec": {"template": named("head")}, "workerGroupSpecs": workers}
    raw = {"spec": {"rayClusterSpec": cluster}, "status": {"jobDeploymentStatus": "Running"}}
    found = read(raw, RAY_JOB_KIND)
    assert sets_of(found) == [("head", 1), ("gpu", 8), ("cpu", 1)]
    assert not found.is_finished
    raw["status"] = {"jobDeploymentStatus": "Failed"}
    assert read(raw, RAY_JOB_KIND).terminal_state is TerminalState.FAILED


def test_a_malformed_element_is_named_with_its_index() -> None:
    with pytest.raises(BadRequest) as caught:
        read(job_set(replicated_job("a", 1), replicated_job("b", "two")), JOB_SET_KIND)
    assert caught.value.where == "spec.replicatedJobs[1].replicas"
    with pytest.raises(BadRequest) as caught:
        read({"spec": {"replicatedJobs": {"a": 1}}}, JOB_SET_KIND)
    assert (caught.value.where, caught.value.expected) == ("spec.replicatedJobs", "a list")
    with pytest.raises(BadRequest) as caught:
        read({"spec": {"replicatedJobs": [7]}}, JOB_SET_KIND)
    assert (caught.value.where, caught.value.expected) == ("spec.replicatedJobs[0]", "an object")
    with pytest.raises(BadRequest) as caught:
        read({"spec": {"mpiReplicaSpecs": {"Worker": {"template": {"spec": 1}}}}}, MPI_JOB_KIND)
    assert caught.value.where == "spec.mpiReplicaSpecs.Worker.template"
