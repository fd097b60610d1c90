"""The group of a pod, its size, and how it is to be scheduled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.kube.types import Pod
from penstock.model.queue_rules import QueueRules
from penstock.podspec.controllers import Controller
from penstock.podspec.grouping import GroupMembership, PodGroupTerms, membership_of, workload_fact
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

SETTINGS = TranslationSettings(
    queues=(QueueRules("default", urgency_max=31), QueueRules("night", urgency_max=31))
)
TENANTS = TranslationSettings(
    queues=(
        QueueRules("default", ("*",)),
        QueueRules("gold", ("gold-*", "default"), urgency_max=20),
        QueueRules("scraps", ("team-?",), urgency_max=4),
    ),
    default_queues=(("gold-9*", "gold"), ("team-*", "scraps")),
)
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


def declared(**annotations: str) -> GroupMembership:
    return membership(pod(annotations={f"penstock.dev/{key}": value for key, value in annotations.items()}))


def fact(*members: GroupMembership, settings: TranslationSettings = SETTINGS, **groups: int) -> WorkloadSet:
    terms = {f"default/{name}": PodGroupTerms(size) for name, size in groups.items()}
    return workload_fact(members, terms, settings)


# Names


@pytest.mark.parametrize("key", NAMES)
@pytest.mark.parametrize("source", ["labels", "annotations"])
@pytest.mark.parametrize("on", ["pod", "maker", "above"])
def test_every_name_key_is_read_on_every_object(key: str, source: str, on: str) -> None:
    keys: dict[str, Any] = {source: {key: "ring"}}
    made = pod(owner=owned_by("ReplicaSet", "web-1"), **(keys if on == "pod" else {}))
    controller = replica_set(deployment="web", **(keys if on == "maker" else {}))
    above = deployment(**(keys if on == "above" else {}))
    found = membership(made, as_controller(controller), as_controller(above))
    assert (found.workload, found.name) == ("default/group/ring", "ring")
    assert found.pod_group == "default/ring"


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("source", ["labels", "annotations"])
@pytest.mark.parametrize("on", ["pod", "maker", "above"])
def test_every_size_key_is_read_on_every_object(key: str, source: str, on: str) -> None:
    keys: dict[str, Any] = {source: {key: "7"}}
    made = pod(owner=owned_by("ReplicaSet", "web-1"), **(keys if on == "pod" else {}))
    controller = replica_set(deployment="web", **(keys if on == "maker" else {}))
    above = deployment(**(keys if on == "above" else {}))
    assert fact(membership(made, as_controller(controller), as_controller(above))).size == 7


def test_the_nearest_object_counts_and_an_annotation_overrides_a_label() -> None:
    key = "penstock.dev/group"
    controller = as_controller(job(labels={key: "far"}))
    assert membership(pod(labels={key: "near"}), controller).name == "near"
    assert membership(pod(labels={key: "label"}, annotations={key: "note"}), controller).name == "note"
    assert membership(pod(labels={key: ""}), controller).name == "far"


def test_any_key_on_the_pod_overrides_keys_of_its_controller() -> None:
    controller = as_controller(job(labels={"penstock.dev/group": "ours"}))
    assert membership(pod(labels={"fluxnetes.group-name": "theirs"}), controller).name == "theirs"


def test_without_a_name_the_pods_of_one_controller_are_a_group() -> None:
    assert membership(pod(), as_controller(job())).workload == "default/job/train/uid-train"
    found = membership(pod(), as_controller(replica_set(deployment="web")), as_controller(deployment()))
    assert found.workload == "default/deployment/web/uid-web"
    assert (
        membership(pod(), as_controller(stateful_set(parallel=True))).workload
        == "default/statefulset/db/uid-db"
    )
    assert membership(pod("solo")).workload == "default/pod/uid-solo"


def test_replicas_need_one_pod_to_start_unless_somebody_makes_them_a_gang() -> None:
    above = as_controller(replica_set(wants=5, deployment="web")), as_controller(deployment())
    alone = fact(membership(pod(owner=owned_by("ReplicaSet", "web-1")), *above))
    assert (alone.size, alone.desired, alone.is_gang) == (1, 5, False)
    for keys in ({"penstock.dev/group": "g"}, {"penstock.dev/group-size": "5"}):
        found = fact(membership(pod(annotations=keys), *above))
        assert (found.size, found.is_gang) == (5, True)
    in_pod_group = membership(pod(labels={"scheduling.x-k8s.io/pod-group": "g"}), *above)
    assert (fact(in_pod_group).size, in_pod_group.is_gang) == (5, True)
    job_of_five = fact(membership(pod(), as_controller(job(wants=5))))
    assert (job_of_five.size, job_of_five.is_gang) == (5, True)


@pytest.mark.parametrize("name", ["fluence", "FluxionScheduler"])
def test_replicas_are_a_gang_under_the_names_of_schedulers_that_made_them_one(name: str) -> None:
    made = pod()
    made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, scheduler_name=name))
    found = fact(membership(made, as_controller(replica_set(wants=3))))
    assert (found.size, found.is_gang) == (3, True)


def test_pods_of_an_ordered_stateful_set_are_single() -> None:
    controller = as_controller(stateful_set(wants=3))
    found = membership(pod("db-0"), controller)
    assert (found.workload, found.is_single) == ("default/pod/uid-db-0", True)
    assert fact(found).size == 1
    named = membership(pod("db-0", labels={"penstock.dev/group": "ring"}), controller)
    assert (named.workload, fact(named).size) == ("default/group/ring", 1)


# Sizes


def test_an_explicit_size_overrides_a_pod_group_which_overrides_the_controller() -> None:
    controller = as_controller(job(wants=5))
    named = {"scheduling.x-k8s.io/pod-group": "ring"}
    explicit = membership(pod(labels={**named, "penstock.dev/group-size": "2"}), controller)
    grouped = membership(pod(labels=named), controller)
    assert fact(explicit, ring=3).size == 2
    assert fact(grouped, ring=3).size == 3
    assert fact(grouped).size == 5
    assert fact(membership(pod(labels=named))).size == 1
    assert fact(grouped, ring=0).size == 1


def test_the_controllers_of_one_group_add_up() -> None:
    named = {"penstock.dev/group": "ring"}
    launcher = membership(pod("l", labels=named), as_controller(job("launcher", wants=1)))
    workers = [
        membership(pod(f"w{i}", labels=named), as_controller(job("workers", wants=4))) for i in range(4)
    ]
    assert fact(launcher, *workers).size == 5


def test_the_members_that_controllers_keep_are_those_of_unfinished_ones() -> None:
    named = {"penstock.dev/group": "ring"}
    bare = membership(pod("b", labels=named))
    launcher = membership(pod("l", labels=named), as_controller(job("launcher", wants=1)))
    failed = membership(pod("w", labels=named), as_controller(job("workers", wants=4, over="Failed")))
    workers = membership(pod("w", labels=named), as_controller(job("workers", wants=4, succeeded=1)))
    assert fact(bare).desired is None
    assert fact(bare, launcher).desired == 1
    assert fact(launcher, failed).desired == 1
    assert fact(launcher, workers).desired == 4
    gone = workload_fact([launcher], {}, SETTINGS, [launcher, workers])
    assert gone.desired == 4  # All pods of the other controller have ended.


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
def test_desired_pods_of_a_controller(made: Any, wants: int) -> None:
    assert as_controller(made).desired_pods == wants


@pytest.mark.parametrize("condition", ["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"])
def test_a_job_is_finished_as_soon_as_its_end_is_decided(condition: str) -> None:
    assert as_controller(job(over=condition)).is_finished
    assert not as_controller(job(over="Suspended")).is_finished


def test_a_pod_needs_its_pod_group_if_nothing_else_gives_the_size() -> None:
    named = {"scheduling.x-k8s.io/pod-group": "ring"}
    assert membership(pod(labels=named)).needs_pod_group
    assert not membership(pod(labels=named), as_controller(job())).needs_pod_group
    assert not membership(pod(labels={**named, "penstock.dev/group-size": "2"})).needs_pod_group
    assert not membership(pod(labels={"penstock.dev/group": "ring"})).needs_pod_group


def test_a_native_pod_group_names_the_group() -> None:
    spec = {"schedulingGroup": {"podGroupName": "native"}}
    found = membership(pod(spec=spec, labels={"penstock.dev/group": "other"}), as_controller(job()))
    assert (found.workload, found.is_native) == ("default/podgroup/native", True)
    assert (found.pod_group, found.needs_pod_group) == ("default/native", True)


# Invalid values


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("group-size", "0", "a number from 1 to 16384"),
        ("group-size", "many", "a number from 1 to 16384"),
        ("group-size", "16385", "a number from 1 to 16384"),
        ("group-size", "٣", "a number from 1 to 16384"),
        ("group", "g" * 254, "a name of at most 253 characters"),
        ("group", "a\x00b", "all of them printable"),
        ("group", "two\nlines", "all of them printable"),
        ("queue", "default\x00", "one of default, night"),
        ("queue", "nihgt", "one of default, night"),
        ("requeue", "sometimes", "one of never, node-failure, always"),
        ("within", "planet", "one of region, zone"),
        ("distinct-nodes", "yes", "one of true, false"),
        ("urgency", "32", "a number from 0 to 31 in queue default"),
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
def test_an_invalid_value_is_reported_with_what_is_valid(key: str, value: str, expected: str) -> None:
    problems = membership(pod(annotations={f"penstock.dev/{key}": value})).problems
    assert len(problems) == 1
    assert problems[0].startswith(f"invalid penstock.dev/{key} on the pod: found {value[:80]!r}, expected ")
    assert expected in problems[0]


def test_a_bad_value_on_a_controller_names_the_controller() -> None:
    found = membership(pod(), as_controller(job("train", labels={"penstock.dev/group-size": "x"})))
    expected = "invalid penstock.dev/group-size on Job train: found 'x', expected a number from 1 to 16384"
    assert found.problems == (expected,)


def test_all_problems_are_reported_at_once() -> None:
    assert len(declared(queue="x", urgency="x", begin="x").problems) == 3


def test_valid_values_are_read() -> None:
    found = declared(queue="night", requeue="node-failure", within="zone", urgency="31")
    assert (found.queue, found.within, found.urgency) == ("night", "zone", 31)
    assert found.requeue is Requeue.NODE_FAILURE
    assert declared(**{"distinct-nodes": "true"}).distinct_nodes
    assert not declared(**{"distinct-nodes": "false"}).distinct_nodes
    plain = membership(pod())
    assert (plain.queue, plain.urgency, plain.requeue, plain.problems) == ("", 16, Requeue.NEVER, ())


# Queues


def tenant(namespace: str, **annotations: str) -> GroupMembership:
    keys = {f"penstock.dev/{key}": value for key, value in annotations.items()}
    return membership_of(pod(namespace=namespace, annotations=keys), (), TENANTS)


@pytest.mark.parametrize(
    ("namespace", "queue", "found", "problem"),
    [
        ("gold-1", "", "", ""),
        ("gold-1", "gold", "gold", ""),
        ("gold-99", "", "gold", ""),
        ("gold-99", "default", "default", ""),
        ("team-a", "", "scraps", ""),
        ("other", "gold", "", "invalid penstock.dev/queue on the pod: found 'gold', expected one of default "
         "(queue gold does not admit namespace other)"),
        ("other", "glod", "", "invalid penstock.dev/queue on the pod: found 'glod', expected one of default"),
        ("team-long", "", "", "the default queue scraps does not admit namespace team-long; "
         "penstock.dev/queue: found nothing, expected one of default"),
    ],
)  # fmt: skip
def test_a_queue_admits_pods_of_its_namespaces(namespace: str, queue: str, found: str, problem: str) -> None:
    declared = tenant(namespace, queue=queue)
    assert (declared.queue, "; ".join(declared.problems)) == (found, problem)


def test_a_namespace_without_any_queue_is_told_so() -> None:
    settings = TranslationSettings(queues=(QueueRules("gold", ("gold-*",)),))
    (problem,) = membership_of(pod(), (), settings).problems
    assert problem.endswith("expected none: no queue admits namespace default")


@pytest.mark.parametrize(
    ("namespace", "queue", "urgency", "found"),
    [
        ("default", "", "16", 16),
        ("default", "", "17", None),
        ("default", "", "31", None),
        ("default", "gold", "20", 20),
        ("default", "gold", "21", None),
        ("team-a", "", "", 4),
        ("team-a", "", "0", 0),
        ("team-a", "", "5", None),
    ],
)
def test_an_urgency_is_at_most_that_of_the_queue(
    namespace: str, queue: str, urgency: str, found: int | None
) -> None:
    declared = tenant(namespace, queue=queue, urgency=urgency)
    rules = TENANTS.queue(declared.queue)
    assert declared.urgency == (rules.urgency_default if found is None else found)
    if found is None:
        (problem,) = declared.problems
        assert problem.endswith(f"expected a number from 0 to {rules.urgency_max} in queue {rules.name}")
    else:
        assert declared.problems == ()


def test_the_rules_of_the_groups_queue_hold_for_all_of_its_pods() -> None:
    first = membership_of(pod("a", created=10.0), (), TENANTS)
    annotations = {"penstock.dev/queue": "gold", "penstock.dev/urgency": "20"}
    second = membership_of(pod("b", created=20.0, annotations=annotations), (), TENANTS)
    assert second.problems == ()
    workload = fact(first, second, settings=TENANTS)
    assert (workload.queue, workload.urgency) == ("", 16)


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
def test_a_limit_is_for_jobs_and_for_pods_without_a_controller(owner: Any, is_enforceable: bool) -> None:
    found = membership(pod(owner=owner, annotations={"penstock.dev/limit": "90"}))
    assert found.limit_s == 90
    assert (not found.problems) is is_enforceable
    if not is_enforceable:
        assert found.problems[0].startswith("penstock.dev/limit cannot be enforced for pods of a ")


SHORT = TranslationSettings(
    queues=(QueueRules("short", duration_max_s=3600), QueueRules("long")), limit_default_s=86_400
)


def limited(name: str = "a", **made: Any) -> GroupMembership:
    return membership_of(pod(name, **made), (), SHORT)


@pytest.mark.parametrize(
    ("spec", "annotations", "limit", "problem"),
    [
        ({}, {}, (3600, False), ""),
        ({}, {"penstock.dev/limit": "1h"}, (3600, False), ""),
        ({}, {"penstock.dev/limit": "90"}, (90, False), ""),
        ({}, {"penstock.dev/limit": "3601"}, (3600, False),
         "invalid penstock.dev/limit on the pod: found '3601', expected at most 1h in queue short"),
        ({"activeDeadlineSeconds": 60}, {}, (60, True), ""),
        ({"activeDeadlineSeconds": 7200}, {}, (3600, False),
         "invalid activeDeadlineSeconds of the pod: found 7200, expected at most 1h in queue short"),
        ({}, {"penstock.dev/queue": "long"}, (86_400, True), ""),
    ],
)  # fmt: skip
def test_the_longest_run_time_of_a_queue_is_enforced(
    spec: dict[str, Any], annotations: dict[str, str], limit: tuple[int, bool], problem: str
) -> None:
    found = limited(spec=spec, annotations=annotations)
    workload = fact(found, settings=SHORT)
    assert (workload.limit_s, workload.enforced_by_backend) == limit
    assert "; ".join(found.problems) == problem


def test_a_run_time_that_cannot_be_enforced_keeps_a_pod_out_of_the_queue() -> None:
    owner = owned_by("ReplicaSet", "web-1")
    (problem,) = limited(owner=owner).problems
    assert problem == (
        "queue short limits the run time to 1h, which cannot be enforced for pods of a ReplicaSet, which "
        "replaces pods that end; use another queue"
    )
    assert not limited(owner=owner, annotations={"penstock.dev/queue": "long"}).problems
    assert not limited(owner=owned_by("Job", "train")).problems


def test_pods_that_name_another_queue_do_not_prolong_their_group() -> None:
    first = limited("a", created=10.0, spec={"activeDeadlineSeconds": 60})
    other = {"penstock.dev/queue": "long", "penstock.dev/limit": "2h"}
    for keys in (other, {"penstock.dev/queue": "long"}):
        second = limited("b", created=20.0, annotations=keys)
        workload = fact(first, second, settings=SHORT)
        assert (workload.queue, workload.limit_s, workload.enforced_by_backend) == ("", 3600, False)


def test_the_longest_limit_counts_and_the_scheduler_enforces_it() -> None:
    workload = fact(declared(limit="90.5s"), declared(limit="2m"), membership(pod()))
    assert (workload.limit_s, workload.enforced_by_backend) == (120, False)
    assert fact(declared(limit="90.5s")).limit_s == 91


def test_deadlines_of_pods_count_if_all_have_one() -> None:
    short, long = (membership(pod(spec={"activeDeadlineSeconds": s})) for s in (60, 90))
    assert (fact(short, long).limit_s, fact(short, long).enforced_by_backend) == (90, True)
    assert fact(short, membership(pod())).limit_s is None
    assert fact(membership(pod()), settings=TranslationSettings(limit_default_s=500)).limit_s == 500
    assert fact(short, declared(limit="10")).limit_s == 10


def test_the_deadline_of_a_job_is_an_instant() -> None:
    early = membership(pod("a"), as_controller(job("a", started=1000.0, activeDeadlineSeconds=60)))
    late = membership(pod("b"), as_controller(job("b", started=1000.0, activeDeadlineSeconds=90)))
    assert fact(early, late).deadline_at == 1060.0
    assert fact(membership(pod(), as_controller(job(activeDeadlineSeconds=60)))).deadline_at is None


@pytest.mark.parametrize(
    ("current", "annotations", "expected"),
    [
        (60, {"penstock.dev/deadline-set": "60"}, None),
        (60, {"penstock.dev/deadline-set": "60", "penstock.dev/deadline-original": "900"}, 1900.0),
        (30, {"penstock.dev/deadline-set": "60", "penstock.dev/deadline-original": "900"}, 1030.0),
        (60, {"penstock.dev/deadline-set": "60", "penstock.dev/deadline-original": "soon"}, None),
    ],
)
def test_a_deadline_that_penstock_has_set_is_not_the_owners(
    current: int, annotations: dict[str, str], expected: float | None
) -> None:
    made = as_controller(job(started=1000.0, activeDeadlineSeconds=current, annotations=annotations))
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
    found = membership(pod(created=1000.0, annotations={"penstock.dev/begin": text}))
    assert (found.begin_at, found.problems) == (at, ())
    assert fact(found, membership(pod())).begin_at == at


def test_the_latest_begin_time_counts() -> None:
    assert fact(declared(begin="1900000000"), declared(begin="1900000600")).begin_at == 1_900_000_600.0


def test_the_first_pod_decides_except_for_the_highest_urgency() -> None:
    later = membership(
        pod("b", created=20.0, annotations={"penstock.dev/queue": "night"}, spec={"priority": 5})
    )
    first = membership(pod("a", created=10.0, annotations={"penstock.dev/urgency": "20"}))
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
