"""To which work a pod belongs, how large that is, and what it wants."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kube.types import Pod
from penstock.podspec.controllers import Controller
from penstock.podspec.grouping import GroupMembership, membership_of, workload_fact
from penstock.podspec.settings import TranslationSettings
from penstock.protocol.facts import Requeue, WorkloadSet
from tests.backends.kube_objects import (
    as_controller,
    deployment,
    job,
    owned_by,
    pod,
    replica_set,
    stateful_set,
    template,
)

SETTINGS = TranslationSettings(queues=("default", "night"))
NAMES = [
    "penstock.dev/group",
    "fluence.flux-framework.org/group",
    "fluence.flux-framework.org/pod-group",
    "fluxnetes.group-name",
    "scheduling.x-k8s.io/pod-group",
    "fluence.pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "fluxqueue.pod-group",
]
SIZES = [
    "penstock.dev/group-size",
    "fluence.flux-framework.org/group-size",
    "fluxnetes.group-size",
    "fluence.group-size",
    "fluxqueue.group-size",
]


def membership(one: Pod, *controllers: Controller) -> GroupMembership:
    return membership_of(one, controllers, SETTINGS)


def said(**notes: str) -> GroupMembership:
    return membership(pod(notes={f"penstock.dev/{key}": value for key, value in notes.items()}))


def fact(*members: GroupMembership, settings: TranslationSettings = SETTINGS, **groups: int) -> WorkloadSet:
    return workload_fact(members, {f"default/{name}": size for name, size in groups.items()}, settings)


# Names


@pytest.mark.parametrize("key", NAMES)
@pytest.mark.parametrize("place", ["labels", "notes"])
@pytest.mark.parametrize("on", ["pod", "maker", "above"])
def test_every_key_names_the_group_wherever_it_stands(key: str, place: str, on: str) -> None:
    keys: dict[str, Any] = {place: {key: "ring"}}
    made = pod(owner=owned_by("ReplicaSet", "web-1"), **(keys if on == "pod" else {}))
    controller = replica_set(deployment="web", **(keys if on == "maker" else {}))
    above = deployment(**(keys if on == "above" else {}))
    found = membership(made, as_controller(controller), as_controller(above))
    assert (found.workload, found.name) == ("default/group/ring", "ring")
    assert found.pod_group == "default/ring"


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("place", ["labels", "notes"])
@pytest.mark.parametrize("on", ["pod", "maker", "above"])
def test_every_key_says_the_size_wherever_it_stands(key: str, place: str, on: str) -> None:
    keys: dict[str, Any] = {place: {key: "7"}}
    made = pod(owner=owned_by("ReplicaSet", "web-1"), **(keys if on == "pod" else {}))
    controller = replica_set(deployment="web", **(keys if on == "maker" else {}))
    above = deployment(**(keys if on == "above" else {}))
    assert fact(membership(made, as_controller(controller), as_controller(above))).size == 7


def test_the_nearest_counts_and_an_annotation_more_than_a_label() -> None:
    key = "penstock.dev/group"
    controller = as_controller(job(labels={key: "far"}))
    assert membership(pod(labels={key: "near"}), controller).name == "near"
    assert membership(pod(labels={key: "label"}, notes={key: "note"}), controller).name == "note"
    assert membership(pod(labels={key: ""}), controller).name == "far"


def test_a_forerunners_key_on_the_pod_counts_more_than_ours_on_its_maker() -> None:
    controller = as_controller(job(labels={"penstock.dev/group": "ours"}))
    assert membership(pod(labels={"fluxnetes.group-name": "theirs"}), controller).name == "theirs"


def test_without_a_name_pods_of_one_maker_are_a_group() -> None:
    assert membership(pod(), as_controller(job())).workload == "default/job/train/uid-train"
    found = membership(pod(), as_controller(replica_set(deployment="web")), as_controller(deployment()))
    assert found.workload == "default/deployment/web/uid-web"
    assert (
        membership(pod(), as_controller(stateful_set(parallel=True))).workload
        == "default/statefulset/db/uid-db"
    )
    assert membership(pod("solo")).workload == "default/pod/uid-solo"


def test_a_stateful_set_that_makes_one_after_the_other_has_single_pods() -> None:
    controller = as_controller(stateful_set(wants=3))
    found = membership(pod("db-0"), controller)
    assert (found.workload, found.is_single) == ("default/pod/uid-db-0", True)
    assert fact(found).size == 1
    named = membership(pod("db-0", labels={"penstock.dev/group": "ring"}), controller)
    assert (named.workload, fact(named).size) == ("default/group/ring", 1)


def test_a_stateful_set_that_is_told_its_size_is_a_group_all_the_same() -> None:
    found = membership(
        pod("db-0", labels={"penstock.dev/group-size": "3"}), as_controller(stateful_set(wants=3))
    )
    assert (found.workload, found.is_single) == ("default/statefulset/db/uid-db", False)
    assert fact(found).size == 3


# Sizes


def test_an_explicit_size_counts_before_a_pod_group_and_that_before_the_maker() -> None:
    controller = as_controller(job(wants=5))
    named = {"scheduling.x-k8s.io/pod-group": "ring"}
    told = membership(pod(labels={**named, "penstock.dev/group-size": "2"}), controller)
    grouped = membership(pod(labels=named), controller)
    assert fact(told, ring=3).size == 2
    assert fact(grouped, ring=3).size == 3
    assert fact(grouped).size == 5
    assert fact(membership(pod(labels=named))).size == 1
    assert fact(grouped, ring=0).size == 1


def test_makers_of_one_group_want_together() -> None:
    named = {"penstock.dev/group": "ring"}
    launcher = membership(pod("l", labels=named), as_controller(job("launcher", wants=1)))
    workers = [
        membership(pod(f"w{i}", labels=named), as_controller(job("workers", wants=4))) for i in range(4)
    ]
    assert fact(launcher, *workers).size == 5


@pytest.mark.parametrize(
    ("made", "wants"),
    [
        (job(wants=4), 4),
        (job(wants=4, succeeded=3), 1),
        (job(wants=4, suspend=True), 0),
        (job(wants=4, completions=None), 4),
        (job(parallelism=None, completions=None), 1),
        (replica_set(wants=3), 3),
        (stateful_set(wants=3), 3),
    ],
)
def test_what_a_maker_wants_at_a_time(made: Any, wants: int) -> None:
    assert as_controller(made).desired_pods == wants


@pytest.mark.parametrize("condition", ["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"])
def test_a_job_is_over_as_soon_as_its_end_is_decided(condition: str) -> None:
    assert as_controller(job(over=condition)).is_finished
    assert not as_controller(job(over="Suspended")).is_finished


def test_a_pod_needs_its_pod_group_where_nothing_else_says_the_size() -> None:
    named = {"scheduling.x-k8s.io/pod-group": "ring"}
    assert membership(pod(labels=named)).needs_pod_group
    assert not membership(pod(labels=named), as_controller(job())).needs_pod_group
    assert not membership(pod(labels={**named, "penstock.dev/group-size": "2"})).needs_pod_group
    assert not membership(pod(labels={"penstock.dev/group": "ring"})).needs_pod_group


def test_a_pod_group_of_kubernetes_own_names_its_group() -> None:
    spec = {"schedulingGroup": {"podGroupName": "native"}}
    found = membership(pod(spec=spec, labels={"penstock.dev/group": "other"}), as_controller(job()))
    assert (found.workload, found.is_native) == ("default/podgroup/native", True)
    assert (found.pod_group, found.needs_pod_group) == ("default/native", True)


# What cannot be understood


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("group-size", "0", "a number from 1 to 65536"),
        ("group-size", "many", "a number from 1 to 65536"),
        ("group-size", "65537", "a number from 1 to 65536"),
        ("group-size", "٣", "a number from 1 to 65536"),
        ("group", "g" * 254, "a name of at most 253 characters"),
        ("queue", "nihgt", "one of default, night"),
        ("requeue", "sometimes", "one of never, node-failure, always"),
        ("within", "planet", "one of region, zone"),
        ("distinct-nodes", "yes", "one of true, false"),
        ("urgency", "32", "a number from 0 to 31"),
        ("limit", "soon", "a duration such as 90s"),
        ("limit", "0", "a duration such as 90s"),
        ("limit", "inf", "of at most ten years"),
        ("limit", "1e300d", "of at most ten years"),
        ("begin", "tomorrow", "seconds since the epoch, 2030-01-31T12:00:00Z, or +10m"),
        ("begin", "2030-01-31T12:00:00", "seconds since the epoch"),
        ("begin", "+inf", "seconds since the epoch"),
        ("begin", "+1e300d", "seconds since the epoch"),
        ("begin", "9" * 18, "seconds since the epoch"),
    ],
)
def test_what_is_not_understood_is_named_with_what_would_be_right(
    key: str, value: str, expected: str
) -> None:
    problems = membership(pod(notes={f"penstock.dev/{key}": value})).problems
    assert len(problems) == 1
    assert problems[0].startswith(f"invalid penstock.dev/{key} on the pod: found {value[:80]!r}, expected ")
    assert expected in problems[0]


def test_a_bad_value_on_a_controller_names_the_controller() -> None:
    found = membership(pod(), as_controller(job("train", labels={"penstock.dev/group-size": "x"})))
    expected = "invalid penstock.dev/group-size on Job train: found 'x', expected a number from 1 to 65536"
    assert found.problems == (expected,)


def test_all_problems_are_told_at_once() -> None:
    assert len(said(queue="x", urgency="x", begin="x").problems) == 3


def test_what_is_said_is_taken() -> None:
    found = said(queue="night", requeue="node-failure", within="zone", urgency="31")
    assert (found.queue, found.within, found.urgency) == ("night", "zone", 31)
    assert found.requeue is Requeue.NODE_FAILURE
    assert said(**{"distinct-nodes": "true"}).distinct_nodes
    assert not said(**{"distinct-nodes": "false"}).distinct_nodes
    plain = membership(pod())
    assert (plain.queue, plain.urgency, plain.requeue, plain.problems) == ("", 16, Requeue.NEVER, ())


# Limits, deadlines, begin


@pytest.mark.parametrize(
    ("owner", "is_enforceable"),
    [
        (None, True),
        (owned_by("Job", "train"), True),
        (owned_by("ReplicaSet", "web-1"), False),
        (owned_by("StatefulSet", "db"), False),
        (owned_by("DaemonSet", "d", api_version="apps/v1"), False),
        (owned_by("Job", "v", api_version="batch.volcano.sh/v1alpha1"), False),
    ],
)
def test_a_limit_of_ours_is_for_jobs_and_for_pods_without_an_owner(owner: Any, is_enforceable: bool) -> None:
    found = membership(pod(owner=owner, notes={"penstock.dev/limit": "90"}))
    assert found.limit_s == 90
    assert (not found.problems) is is_enforceable
    if not is_enforceable:
        assert found.problems[0].startswith("penstock.dev/limit cannot be enforced for pods of a ")


def test_the_longest_limit_counts_and_is_kept_by_us() -> None:
    workload = fact(said(limit="90.5s"), said(limit="2m"), membership(pod()))
    assert (workload.limit_s, workload.enforced_by_backend) == (120, False)
    assert fact(said(limit="90.5s")).limit_s == 91


def test_deadlines_of_pods_count_if_all_have_one() -> None:
    short, long = (membership(pod(spec={"activeDeadlineSeconds": s})) for s in (60, 90))
    assert (fact(short, long).limit_s, fact(short, long).enforced_by_backend) == (90, True)
    assert fact(short, membership(pod())).limit_s is None
    assert fact(membership(pod()), settings=TranslationSettings(limit_default_s=500)).limit_s == 500
    assert fact(short, said(limit="10")).limit_s == 10


def test_the_deadline_of_a_job_is_an_instant() -> None:
    early = membership(pod("a"), as_controller(job("a", started=1000.0, activeDeadlineSeconds=60)))
    late = membership(pod("b"), as_controller(job("b", started=1000.0, activeDeadlineSeconds=90)))
    assert fact(early, late).deadline_at == 1060.0
    assert fact(membership(pod(), as_controller(job(activeDeadlineSeconds=60)))).deadline_at is None


@pytest.mark.parametrize(
    ("stands", "notes", "expected"),
    [
        (60, {"penstock.dev/deadline-set": "60"}, None),
        (60, {"penstock.dev/deadline-set": "60", "penstock.dev/deadline-original": "900"}, 1900.0),
        (30, {"penstock.dev/deadline-set": "60", "penstock.dev/deadline-original": "900"}, 1030.0),
        (60, {"penstock.dev/deadline-set": "60", "penstock.dev/deadline-original": "soon"}, None),
    ],
)
def test_a_deadline_that_we_have_set_says_nothing_of_what_the_owner_wants(
    stands: int, notes: dict[str, str], expected: float | None
) -> None:
    made = as_controller(job(started=1000.0, activeDeadlineSeconds=stands, notes=notes))
    assert fact(membership(pod(), made)).deadline_at == expected


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1900000000", 1.9e9),
        ("2030-01-31T12:00:00Z", 1896091200.0),
        ("2030-01-31T12:00:00+01:00", 1896087600.0),
        ("+10m", 1600.0),
    ],
)
def test_begin_times(text: str, at: float) -> None:
    found = membership(pod(created=1000.0, notes={"penstock.dev/begin": text}))
    assert (found.begin_at, found.problems) == (at, ())
    assert fact(found, membership(pod())).begin_at == at


def test_a_group_begins_when_all_of_its_pods_may() -> None:
    assert fact(said(begin="1900000000"), said(begin="1900000600")).begin_at == 1_900_000_600.0


def test_a_group_is_as_its_first_pod_says_and_as_urgent_as_any() -> None:
    later = membership(pod("b", created=20.0, notes={"penstock.dev/queue": "night"}, spec={"priority": 5}))
    first = membership(pod("a", created=10.0, notes={"penstock.dev/urgency": "20"}))
    workload = fact(later, first)
    assert (workload.queue, workload.name, workload.owner) == ("", "a", "default")
    assert (workload.urgency, workload.class_value) == (20, 5)
    assert workload.assembly_timeout_s == SETTINGS.assembly_timeout_s


@pytest.mark.parametrize("key", ["batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"])
def test_the_index_of_a_pod(key: str) -> None:
    assert membership(pod(labels={key: "12"})).index == 12
    assert membership(pod(labels={key: "x"})).index == 0


def test_a_template_is_read_like_a_pod() -> None:
    controller = as_controller(job(of=template(labels={"penstock.dev/group": "ring"})))
    (pod_set,) = controller.pod_sets
    assert pod_set.template.metadata.labels == {"penstock.dev/group": "ring"}
