"""To which work a pod belongs, how large that is, and what it wants: from labels, annotations and owners.

A pod names its group by one of many keys (ours, and those of the forerunners), as a label or an annotation,
on itself, on the object that made it, or on the one above that. Without a name, pods with one maker (a Job, a
ReplicaSet, a Deployment through its ReplicaSets, a StatefulSet that makes all of its pods at once) are a
group. How many must be there: an explicit size counts first, then a PodGroup, then what the maker wants, then
one. A StatefulSet that makes one pod after the other has single pods: a group would wait for itself for ever.

A `GroupMembership` is what one pod says; `workload_fact` makes one `WorkloadSet` of what all pods of a work
say. What cannot be honoured is a problem, a sentence for people; a pod with a problem is not scheduled.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import ceil, isfinite
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import (
    BatchJob,
    Condition,
    Deployment,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodTemplateSpec,
    ReplicaSet,
    StatefulSet,
)
from penstock.model.duration import parse_duration
from penstock.podspec.settings import TranslationSettings
from penstock.protocol.facts import Requeue, WorkloadSet

__all__ = [
    "CONTROLLER_KINDS",
    "DEADLINE_ASKED_ANNOTATION",
    "DEADLINE_SET_ANNOTATION",
    "DOMAIN",
    "JOB_ANNOTATION",
    "Controller",
    "GroupMembership",
    "controller_of",
    "controller_ref_of",
    "is_known_controller",
    "membership_of",
    "seconds_of",
    "workload_fact",
    "workload_of_group",
]

DOMAIN: Final = "penstock.dev"
JOB_ANNOTATION: Final = f"{DOMAIN}/job"  # on a pod that we have bound: the id of its job
DEADLINE_SET_ANNOTATION: Final = f"{DOMAIN}/deadline-set"  # on a Job: the deadline that we have set
DEADLINE_ASKED_ANNOTATION: Final = f"{DOMAIN}/deadline-asked"  # the one of its owner, where there was one
CONTROLLER_KINDS: Final = {
    "Job": "batch",
    "ReplicaSet": "apps",
    "StatefulSet": "apps",
    "Deployment": "apps",
}

_NAME_KEYS: Final = (
    f"{DOMAIN}/group",
    "fluence.flux-framework.org/group",
    "fluence.flux-framework.org/pod-group",
    "fluxnetes.group-name",
    "scheduling.x-k8s.io/pod-group",
    "fluence.pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "fluxqueue.pod-group",
)
_SIZE_KEYS: Final = (
    f"{DOMAIN}/group-size",
    "fluence.flux-framework.org/group-size",
    "fluxnetes.group-size",
    "fluence.group-size",
    "fluxqueue.group-size",
)
_POD_GROUP_KEYS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_OTHER_KEYS: Final = tuple(
    f"{DOMAIN}/{name}"
    for name in ("queue", "limit", "begin", "requeue", "within", "distinct-nodes", "urgency")
)
_KEYS: Final = frozenset((*_NAME_KEYS, *_SIZE_KEYS, *_OTHER_KEYS))
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
_NAME_MAX: Final = 253  # characters, as of any name
_SIZE_MAX: Final = 1 << 16
_SPAN_MAX_S: Final = 10 * 366 * 86_400  # beyond ten years nobody plans
_TIME_MAX: Final = 253_402_300_799  # the last second that has a date
_URGENCY_MAX: Final = 31
_REQUEUES: Final = tuple(policy.value for policy in Requeue)
_TRUTHS: Final = ("true", "false")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_OVER: Final = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})


@dataclass(frozen=True, slots=True)
class Controller:
    """An object whose controller makes pods, or makes such objects."""

    kind: str
    namespace: str
    name: str
    uid: str
    said: Mapping[str, str]  # those of its labels and annotations that are for us
    above: OwnerReference | None = None  # the object that made it
    template: PodTemplateSpec | None = None
    wants: int = 0  # pods at a time, as things are
    is_over: bool = False
    is_ordered: bool = False  # makes a pod only when the one before is ready
    started_at: float | None = None  # of a Job
    deadline_s: int | None = None  # of a Job, by its owner: from then on, waiting included
    deadline_set_s: int | None = None  # of a Job: what stands there instead, by us


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """What one pod says of the work that it belongs to."""

    workload: str
    name: str
    namespace: str
    size: int | None = None  # told explicitly
    pod_group: str = ""  # "NAMESPACE/NAME" of the PodGroup that may say the size
    is_native: bool = False  # that PodGroup is Kubernetes' own
    needs_pod_group: bool = False  # nothing else says how large the group is
    is_single: bool = False  # the pod is a work of its own
    controllers: tuple[Controller, ...] = ()  # the direct one first
    index: int = 0
    queue: str = ""
    limit_s: int | None = None  # our own limit, from the start of the group
    deadline_s: int | None = None  # the pod's own, from its start on the node
    begin_at: float | None = None
    requeue: Requeue = Requeue.NEVER
    within: str = ""
    distinct_nodes: bool = False
    urgency: int = 16
    priority: int = 0
    created_at: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def controller(self) -> Controller | None:
        """The one that decides how many there are."""
        return self.controllers[0] if self.controllers else None

    def kind(self) -> Hashable:
        """Of pods that are equal in this, one speaks for all."""
        return (
            self.size,
            self.pod_group,
            self.is_native,
            tuple(controller.uid for controller in self.controllers),
            self.queue,
            self.limit_s,
            self.deadline_s,
            self.begin_at,
            self.requeue,
            self.within,
            self.distinct_nodes,
            self.urgency,
            self.priority,
            self.created_at,
        )


def controller_ref_of(metadata: ObjectMeta) -> OwnerReference | None:
    return next((owner for owner in metadata.owner_references if owner.controller), None)


@lru_cache(maxsize=8192)
def seconds_of(text: str) -> float:
    """A time of the API, in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def controller_of(found: BatchJob | ReplicaSet | StatefulSet | Deployment) -> Controller:
    metadata = found.metadata
    kind = "Job" if isinstance(found, BatchJob) else type(found).__name__
    shared = (
        kind,
        metadata.namespace,
        metadata.name,
        metadata.uid,
        _said(metadata),
        controller_ref_of(metadata),
    )
    is_gone = metadata.deletion_timestamp is not None
    if isinstance(found, Deployment):
        return Controller(*shared, is_over=is_gone)
    spec = found.spec
    if not isinstance(found, BatchJob):
        replicas = 1 if found.spec.replicas is None else found.spec.replicas
        is_ordered = isinstance(found, StatefulSet) and found.spec.pod_management_policy != "Parallel"
        return Controller(*shared, spec.template, replicas, is_gone, is_ordered)
    conditions: tuple[Condition, ...] = found.status.conditions or ()
    is_over = any(one.type in _OVER and one.status == "True" for one in conditions)
    at_a_time = 1 if found.spec.parallelism is None else found.spec.parallelism
    if found.spec.completions is not None:
        at_a_time = min(at_a_time, max(found.spec.completions - found.status.succeeded, 0))
    started_at = found.status.start_time
    deadline_s, deadline_set_s = _deadlines(found)
    return Controller(
        *shared,
        spec.template,
        0 if found.spec.suspend else at_a_time,
        is_over or is_gone,
        started_at=None if started_at is None else seconds_of(started_at),
        deadline_s=deadline_s,
        deadline_set_s=deadline_set_s,
    )


def _deadlines(job: BatchJob) -> tuple[int | None, int | None]:
    """The deadline that the owner of a Job wants, and the one that stands there by us."""
    stands, notes = job.spec.active_deadline_seconds, job.metadata.annotations or {}
    if stands is None or notes.get(DEADLINE_SET_ANNOTATION) != str(stands):
        return stands, None
    asked = notes.get(DEADLINE_ASKED_ANNOTATION, "")
    return int(asked) if _DIGITS.fullmatch(asked) else None, stands


def _said(metadata: ObjectMeta) -> Mapping[str, str]:
    """What is for us; an annotation counts more than a label, as it can say more."""
    said: dict[str, str] = {}
    for source in (metadata.labels, metadata.annotations):
        if source:
            said.update((key, value) for key, value in source.items() if key in _KEYS)
    return said


def membership_of(
    pod: Pod, controllers: Sequence[Controller], settings: TranslationSettings
) -> GroupMembership:
    """`controllers` are those that are known: the one that made the pod, and the one above that."""
    sources = [_said(pod.metadata), *(controller.said for controller in controllers)]
    problems: list[str] = []
    read = _Reader(sources, problems)
    size = read.number(_SIZE_KEYS, 1, _SIZE_MAX)
    name = read.name(_NAME_KEYS)
    namespace = pod.metadata.namespace
    native = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else ""
    workload, shown, is_single = _workload(pod, controllers, name or "", native, size)
    created = pod.metadata.creation_timestamp
    created_at = 0.0 if created is None else seconds_of(created)
    limit_s = read.duration(f"{DOMAIN}/limit")
    owner = controller_ref_of(pod.metadata)
    if limit_s is not None and owner is not None and not _is_job(owner):
        problems.append(
            f"{DOMAIN}/limit cannot be kept for pods of a {owner.kind}, which would be made again; "
            "it is for Jobs and for pods without an owner"
        )
    return GroupMembership(
        workload=workload,
        name=shown,
        namespace=namespace,
        size=size,
        pod_group=f"{namespace}/{native or name}" if native or name else "",
        is_native=bool(native),
        is_single=is_single,
        needs_pod_group=bool(native) or (size is None and not controllers and _is_of_pod_group(sources)),
        controllers=tuple(controllers),
        index=_index(pod),
        queue=read.choice(f"{DOMAIN}/queue", settings.queues) or "",
        limit_s=limit_s,
        deadline_s=pod.spec.active_deadline_seconds,
        begin_at=read.time(f"{DOMAIN}/begin", created_at),
        requeue=Requeue(read.choice(f"{DOMAIN}/requeue", _REQUEUES) or Requeue.NEVER),
        within=read.choice(
            f"{DOMAIN}/within", (topology_level.kind for topology_level in settings.topology_levels)
        )
        or "",
        distinct_nodes=read.choice(f"{DOMAIN}/distinct-nodes", _TRUTHS) == "true",
        urgency=_or_default(read.number((f"{DOMAIN}/urgency",), 0, _URGENCY_MAX)),
        priority=pod.spec.priority or 0,
        created_at=created_at,
        problems=tuple(problems),
    )


def is_known_controller(owner: OwnerReference) -> bool:
    """Whether an owner is of a kind whose pods are a group. Others have kinds of the same names."""
    return CONTROLLER_KINDS.get(owner.kind) == owner.api_version.partition("/")[0]


def _is_job(owner: OwnerReference) -> bool:
    return owner.kind == "Job" and is_known_controller(owner)


def _is_of_pod_group(sources: Sequence[Mapping[str, str]]) -> bool:
    """Whether the group is named by the key of a PodGroup: then there is one, or will be."""
    return any(key in source for source in sources for key in _POD_GROUP_KEYS)


def _or_default(urgency: int | None) -> int:
    return 16 if urgency is None else urgency


def _workload(
    pod: Pod, controllers: Sequence[Controller], name: str, native: str, size: int | None
) -> tuple[str, str, bool]:
    """The key of the work, its name for people, and whether it is that of one pod alone."""
    namespace = pod.metadata.namespace
    if native:
        return workload_of_group(f"{namespace}/{native}", is_native=True), native, False
    if name:
        return workload_of_group(f"{namespace}/{name}", is_native=False), name, False
    if controllers and (size is not None or not controllers[0].is_ordered):
        top = controllers[-1]
        return f"{namespace}/{top.kind.lower()}/{top.name}/{top.uid}", top.name, False
    return f"{namespace}/pod/{pod.metadata.uid}", pod.metadata.name, True


def workload_of_group(pod_group: str, *, is_native: bool) -> str:
    """The work of a group that has a name: "NAMESPACE/NAME", as a PodGroup is named."""
    namespace, _, name = pod_group.partition("/")
    return f"{namespace}/{'podgroup' if is_native else 'group'}/{name}"


def _index(pod: Pod) -> int:
    labels = pod.metadata.labels or {}
    for key in (_INDEX, _POD_INDEX):
        found = labels.get(key, "")
        if _DIGITS.fullmatch(found):
            return int(found)
    return 0


class _Reader:
    """Reads what is said, nearest first; what cannot be understood becomes a problem."""

    def __init__(self, sources: Sequence[Mapping[str, str]], problems: list[str]) -> None:
        self._sources = [source for source in sources if source]
        self._problems = problems

    def text(self, keys: Iterable[str]) -> str | None:
        found = self._found(keys)
        return None if found is None else found[1]

    def name(self, keys: Iterable[str]) -> str | None:
        found = self._found(keys)
        if found is None or len(found[1]) <= _NAME_MAX:
            return None if found is None else found[1]
        self._complain(*found, f"a name of at most {_NAME_MAX} characters")
        return None

    def _found(self, keys: Iterable[str]) -> tuple[str, str] | None:
        for source in self._sources:
            for key in keys:
                value = source.get(key)
                if value:
                    return key, value
        return None

    def number(self, keys: Iterable[str], least: int, most: int) -> int | None:
        found = self._found(keys)
        if found is None:
            return None
        key, text = found
        if _DIGITS.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        self._complain(key, text, f"a number from {least} to {most}")
        return None

    def choice(self, key: str, allowed: Iterable[str]) -> str | None:
        found = self.text((key,))
        if found is None:
            return None
        choices = list(allowed)
        if found in choices:
            return found
        self._complain(key, found, "one of " + ", ".join(choices))
        return None

    def duration(self, key: str) -> int | None:
        found = self.text((key,))
        if found is None:
            return None
        try:
            seconds = parse_duration(found)
        except BadRequest:
            seconds = 0.0
        if 0.0 < seconds <= _SPAN_MAX_S:
            return ceil(seconds)
        self._complain(key, found, "a duration such as 90s, 30m or 2h, of at most ten years")
        return None

    def time(self, key: str, created_at: float) -> float | None:
        """Seconds since the epoch, a time with its zone, or `+` and a duration from the pod's creation."""
        found = self.text((key,))
        if found is None:
            return None
        try:
            at = _time_of(found, created_at)
        except (BadRequest, ValueError, OverflowError):
            at = None
        if at is not None and isfinite(at) and at <= _TIME_MAX:
            return at
        self._complain(key, found, "seconds since the epoch, 2030-01-31T12:00:00Z, or +10m")
        return None

    def _complain(self, key: str, found: str, expected: str) -> None:
        self._problems.append(f"{key} is {found[:80]!r}, expected {expected}")


def _time_of(text: str, created_at: float) -> float | None:
    """None for a date without a zone, which is another instant for everybody."""
    if text.startswith("+"):
        return created_at + parse_duration(text[1:])
    if _DIGITS.fullmatch(text):
        return float(text)
    at = datetime.fromisoformat(text)
    return None if at.tzinfo is None else at.timestamp()


def workload_fact(
    members: Sequence[GroupMembership], group_sizes: Mapping[str, int], settings: TranslationSettings
) -> WorkloadSet:
    """What the pods of a work say together. `group_sizes` has the PodGroups that are there.

    It does not matter how many say the same: one of each kind will do.
    """
    first = min(members, key=lambda one: (one.created_at, one.queue, one.within, one.requeue.value))
    own_limits = [one.limit_s for one in members if one.limit_s is not None]
    deadlines = [one.deadline_s for one in members if one.deadline_s is not None]
    limit_s = settings.limit_default_s
    if own_limits:
        limit_s = max(own_limits)
    elif len(deadlines) == len(members):
        limit_s = max(deadlines)
    begins = [one.begin_at for one in members if one.begin_at is not None]
    ends = [
        controller.started_at + controller.deadline_s
        for one in members
        for controller in one.controllers[:1]
        if controller.started_at is not None and controller.deadline_s is not None
    ]
    return WorkloadSet(
        workload=first.workload,
        name=first.name,
        size=_size(members, group_sizes),
        assembly_timeout_s=settings.assembly_timeout_s,
        begin_at=max(begins) if begins else None,
        limit_s=limit_s,
        deadline_at=min(ends) if ends else None,
        enforced_by_backend=not own_limits,
        class_value=max(one.priority for one in members),
        urgency=max(one.urgency for one in members),
        queue=first.queue,
        distinct_nodes=any(one.distinct_nodes for one in members),
        within=first.within,
        requeue=first.requeue,
        owner=first.namespace,
    )


def _size(members: Sequence[GroupMembership], group_sizes: Mapping[str, int]) -> int:
    """Explicit, else the PodGroup's, else what the makers want together, else one."""
    told = [one.size for one in members if one.size is not None]
    if told:
        return max(told)
    grouped = [group_sizes[one.pod_group] for one in members if one.pod_group in group_sizes]
    if grouped:
        return max(*grouped, 1)
    controllers = {one.controller.uid: one.controller for one in members if one.controller is not None}
    return max(sum(controller.wants for controller in controllers.values() if not controller.is_ordered), 1)
