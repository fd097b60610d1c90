"""Sizes of groups without a name or with a PodGroup, and urgencies that release a group."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kube.types import Pod
from penstock.podspec.grouping import PodGroupTerms, workload_fact
from tests.backends.kube_objects import as_controller, job, owned_by, pod, stateful_set
from tests.podspec.test_grouping import SETTINGS, declared, fact, membership

# Sizes


def sized(size: int, owner: list[dict[str, Any]] | None = None, name: str = "a") -> Pod:
    return pod(name, owner=owner, annotations={"penstock.dev/group-size": str(size)})


def test_pods_with_a_size_and_without_a_group_are_the_group_of_their_controller_of_any_kind() -> None:
    ray = owned_by("RayCluster", "ray", api_version="ray.io/v1")
    head, worker = (membership(sized(4, ray, name)) for name in ("head", "worker"))
    assert head.workload == worker.workload == "default/raycluster/ray/uid-ray"
    assert (head.name, head.is_single, head.problems) == ("ray", False, ())
    found = fact(head, worker)
    assert (found.size, found.is_gang, found.desired) == (4, True, None)
    # Another cluster of that name, and pods without a size, are no part of the group.
    assert membership(sized(4, owned_by("RayCluster", "ray", "uid-later"))).workload != head.workload
    assert membership(pod(owner=ray)).is_single


def test_a_named_group_of_a_controller_of_any_kind_is_declared_by_its_pods() -> None:
    ray = owned_by("RayCluster", "ray", api_version="ray.io/v1")
    keys = {"penstock.dev/group": "ring", "penstock.dev/group-size": "3"}
    found = membership(pod(owner=ray, annotations=keys))
    assert (found.workload, fact(found).size, found.problems) == ("default/group/ring", 3, ())


@pytest.mark.parametrize("name", [{}, {"penstock.dev/group": ""}])
def test_a_pod_without_group_and_controller_cannot_need_others(name: dict[str, str]) -> None:
    keys = {**name, "fluence.group-size": "4"}
    (problem,) = membership(pod(annotations=keys)).problems
    assert problem == (
        "fluence.group-size is 4, but the pod has no controller and names no group, so nothing says which "
        "pods belong to it; set penstock.dev/group on all of them"
    )
    assert membership(sized(1)).problems == ()
    native = pod(annotations=keys, spec={"schedulingGroup": {"podGroupName": "ring"}})
    assert membership(native).problems == ()


def test_pods_that_a_stateful_set_creates_in_order_cannot_wait_for_each_other() -> None:
    ordered = as_controller(stateful_set(wants=3))
    (problem,) = membership(sized(3), ordered).problems
    assert problem.startswith("penstock.dev/group-size is 3, but StatefulSet db creates a pod only when")
    assert problem.endswith("set its podManagementPolicy to Parallel")
    assert membership(sized(1), ordered).problems == ()
    parallel = membership(sized(3), as_controller(stateful_set(wants=3, parallel=True)))
    assert (parallel.problems, fact(parallel).size) == ((), 3)


def test_an_invalid_group_name_is_the_only_problem_of_a_pod_with_a_size() -> None:
    (problem,) = declared(**{"group": "x" * 300, "group-size": "4"}).problems
    assert problem.startswith("invalid penstock.dev/group on the pod")


def test_a_pod_group_says_how_long_its_pods_wait_for_the_others() -> None:
    found = membership(pod(labels={"scheduling.x-k8s.io/pod-group": "ring"}))
    for timeout_s, expected in ((10.0, 10.0), (7200.0, 7200.0), (None, SETTINGS.assembly_timeout_s)):
        terms = {"default/ring": PodGroupTerms(3, timeout_s)}
        assert workload_fact([found], terms, SETTINGS).assembly_timeout_s == expected


# Urgency


@pytest.mark.parametrize(
    ("on_pod", "on_job", "expected"),
    [("0", "", 0), ("0", "16", 16), ("0", "0", 0), ("", "0", 0), ("16", "0", 16), ("4", "20", 4)],
)
def test_a_held_pod_is_released_by_its_annotation_or_that_of_its_job(
    on_pod: str, on_job: str, expected: int
) -> None:
    key = "penstock.dev/urgency"
    found = membership(pod(annotations={key: on_pod}), as_controller(job(annotations={key: on_job})))
    assert found.urgency == expected


def test_one_released_pod_releases_its_group() -> None:
    held, released = declared(urgency="0"), declared(urgency="16")
    assert fact(held, held).urgency == 0
    assert fact(held, released).urgency == 16
