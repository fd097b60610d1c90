"""Which group a pod belongs to, how large the group is, and how it is to be scheduled.

A pod names its group by a label or an annotation, on itself, on its controller, or on that object's
controller; the nearest one counts. Controllers are those of registered kinds: other owners, such as a
RayCluster, are not read, and what is meant for Penstock has to be on their pods. Without a name, the pods of
one controller are a group: of a Job, a ReplicaSet, a Deployment (through its ReplicaSets), a StatefulSet with
`podManagementPolicy: Parallel`, and of an owner of any other kind if they have an explicit size.
The size of a group is, in this order: an explicit size, the size in a PodGroup, the number of pods that its
controllers want, one. Pods of a ReplicaSet or a Deployment do not need each other: their group needs one
pod to start, unless it has a name or a size, or its pods name a scheduler that made every Deployment a gang.
A StatefulSet that creates pods in order has groups of one pod: a larger group could never assemble, since the
second pod is created only when the first one is ready. A size that could never be reached is a problem: of
such a StatefulSet, and of a pod that has neither a group nor a controller.

A `GroupMembership` is what one pod declares. `workload_fact` combines the declarations of all pods of a
group into one `WorkloadSet`. A value that cannot be read, or that the queue does not allow, is a problem, in
words for the user; a pod that has one is not scheduled. The queue of a group is that of its oldest pod, and
its rules hold for the whole group, whatever queues the other pods name.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, isfinite
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import OwnerReference, Pod
from penstock.model.duration import format_duration, parse_duration
from penstock.model.job import URGENCY_DEFAULT
from penstock.model.queue_rules import QueueRules
from penstock.model.text import find_control
from penstock.podspec.controllers import Controller, controller_ref_of, is_known_controller
from penstock.podspec.keys import DOMAIN, GROUP_NAME_KEYS, GROUP_SIZE_KEYS, POD_GROUP_KEYS, scheduling_keys
from penstock.podspec.settings import TranslationSettings
from penstock.podspec.timestamps import epoch_seconds
from penstock.protocol.facts import Requeue, WorkloadSet

__all__ = ["GroupMembership", "PodGroupTerms", "membership_of", "workload_fact", "workload_of_group"]

_INDEX_LABELS: Final = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
_NAME_MAX: Final = 253  # characters, as for any name in Kubernetes
_LIMIT_MAX_S: Final = 10 * 366 * 86_400
_TIME_MAX: Final = 253_402_300_799  # the last second of the year 9999
_REQUEUES: Final = tuple(policy.value for policy in Requeue)
_GANG_SCHEDULERS: Final = frozenset({"fluence", "FluxionScheduler"})  # made every Deployment a gang
_BOOLEANS: Final = ("true", "false")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class PodGroupTerms:
    """What a PodGroup says about its pods."""

    size: int  # how many of them start together
    assembly_timeout_s: float | None = None  # how long they wait for the others; None: as configured


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """What one pod declares about its group."""

    workload: str
    name: str
    namespace: str
    size: int | None = None  # only if it is given explicitly
    pod_group: str = ""  # "NAMESPACE/NAME" of the PodGroup that may give the size
    is_native: bool = False  # that PodGroup is of scheduling.k8s.io, not of the coscheduling plugin
    needs_pod_group: bool = False  # nothing but the PodGroup gives the size
    is_single: bool = False  # the pod is a group by itself
    is_gang: bool = True  # the pods of its group need each other
    controllers: tuple[Controller, ...] = ()  # the pod's controller first, then that object's
    index: int = 0
    queue: str = ""
    limit_s: int | None = None  # of penstock.dev/limit or of the queue, from the start of the group
    deadline_s: int | None = None  # the pod's activeDeadlineSeconds, from its start on the node
    begin_at: float | None = None
    requeue: Requeue = Requeue.NEVER
    within: str = ""
    distinct_nodes: bool = False
    urgency: int = URGENCY_DEFAULT
    priority: int = 0
    created_at: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def controller(self) -> Controller | None:
        """The pod's own controller, which decides how many such pods there are."""
        return self.controllers[0] if self.controllers else None

    def equivalence_key(self) -> Hashable:
        """Pods of a group with equal keys contribute the same to its `WorkloadSet`."""
        return (
            self.size,
            self.is_gang,
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
            bool(self.problems),
        )


def membership_of(
    pod: Pod, controllers: Sequence[Controller], settings: TranslationSettings
) -> GroupMembership:
    """`controllers`: the pod's controller and that object's, as far as they are known."""
    problems: list[str] = []
    read = _KeyReader(scheduling_keys(pod.metadata), controllers, problems)
    size = read.number(GROUP_SIZE_KEYS, 1, settings.group_size_max)
    name = read.name(GROUP_NAME_KEYS)
    namespace = pod.metadata.namespace
    native = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else ""
    if find_control(native):
        problems.append(f"invalid spec.schedulingGroup.podGroupName: found {native[:80]!r}")
        native = ""
    workload, display_name, is_single = _workload(pod, controllers, name or "", native, size)
    if size is not None and not native and not read.is_set(GROUP_NAME_KEYS):
        _check_size(pod, controllers, size, read.key_of(GROUP_SIZE_KEYS), problems)
    created = pod.metadata.creation_timestamp
    created_at = 0.0 if created is None else epoch_seconds(created)
    queue = read.queue(f"{DOMAIN}/queue", namespace, settings)
    rules = settings.queue(queue)
    limit_s = _limit(pod, read, rules, problems)
    urgency = read.urgency(f"{DOMAIN}/urgency", rules)
    return GroupMembership(
        workload=workload,
        name=display_name,
        namespace=namespace,
        size=size,
        pod_group=f"{namespace}/{native or name}" if native or name else "",
        is_native=bool(native),
        is_single=is_single,
        is_gang=_is_gang(pod, controllers, name or native, size),
        needs_pod_group=bool(native) or (size is None and not controllers and read.has(POD_GROUP_KEYS)),
        controllers=tuple(controllers),
        index=_index(pod),
        queue=queue,
        limit_s=limit_s,
        deadline_s=pod.spec.active_deadline_seconds,
        begin_at=read.time(f"{DOMAIN}/begin", created_at),
        requeue=Requeue(read.choice(f"{DOMAIN}/requeue", _REQUEUES) or Requeue.NEVER),
        within=read.choice(f"{DOMAIN}/within", (one.name for one in settings.topology_levels)) or "",
        distinct_nodes=read.choice(f"{DOMAIN}/distinct-nodes", _BOOLEANS) == "true",
        urgency=rules.urgency_default if urgency is None else urgency,
        priority=pod.spec.priority or 0,
        created_at=created_at,
        problems=tuple(problems),
    )


def _check_size(
    pod: Pod, controllers: Sequence[Controller], size: int, key: str, problems: list[str]
) -> None:
    """Reports a size that the pods of a group without a name can never reach."""
    if size == 1:
        return
    if controllers and controllers[0].creates_in_order:
        owner = f"{controllers[0].kind.name} {controllers[0].name}"
        problems.append(
            f"{key} is {size}, but {owner} creates a pod only when the one before it is ready, so {size} "
            "pods never wait together; set its podManagementPolicy to Parallel"
        )
    elif controller_ref_of(pod.metadata) is None and not controllers:
        problems.append(
            f"{key} is {size}, but the pod has no controller and names no group, so nothing says which pods "
            f"belong to it; set {GROUP_NAME_KEYS[0]} on all of them"
        )


def _limit(pod: Pod, read: _KeyReader, rules: QueueRules, problems: list[str]) -> int | None:
    """The limit that Penstock enforces: the pod's own, else that of the queue.

    A pod whose `activeDeadlineSeconds` are within the limit of the queue needs no other one.
    """
    owner = controller_ref_of(pod.metadata)
    is_enforceable = owner is None or _is_job(owner)
    most_s, deadline_s = rules.duration_max_s, pod.spec.active_deadline_seconds
    allowed = "" if most_s is None else f"at most {format_duration(most_s)} in queue {rules.name}"
    found = len(problems)
    limit_s = read.duration(f"{DOMAIN}/limit", most_s, allowed)
    if limit_s is not None and not is_enforceable:
        problems.append(
            f"{DOMAIN}/limit cannot be enforced for pods of a {owner.kind if owner else ''}, which replaces "
            "pods that end; set it only on Jobs and on pods without a controller"
        )
    if limit_s is not None or most_s is None or len(problems) > found:
        return limit_s
    if not is_enforceable:
        problems.append(
            f"queue {rules.name} limits the run time to {format_duration(most_s)}, which cannot be enforced "
            f"for pods of a {owner.kind if owner else ''}, which replaces pods that end; use another queue"
        )
    elif deadline_s is not None and deadline_s > most_s:
        problems.append(f"invalid activeDeadlineSeconds of the pod: found {deadline_s}, expected {allowed}")
    return most_s if deadline_s is None or deadline_s > most_s else None


def _is_gang(pod: Pod, controllers: Sequence[Controller], group: str, size: int | None) -> bool:
    """Whether the pods of a group need each other to start."""
    is_asked_for = bool(group) or size is not None or pod.spec.scheduler_name in _GANG_SCHEDULERS
    return is_asked_for or not controllers or controllers[0].kind.is_gang


def _is_job(owner: OwnerReference) -> bool:
    return owner.kind == "Job" and is_known_controller(owner)


def _workload(
    pod: Pod, controllers: Sequence[Controller], name: str, native: str, size: int | None
) -> tuple[str, str, bool]:
    """The key of the workload, its name for users, and whether it consists of this pod alone."""
    namespace = pod.metadata.namespace
    if native:
        return workload_of_group(f"{namespace}/{native}", is_native=True), native, False
    if name:
        return workload_of_group(f"{namespace}/{name}", is_native=False), name, False
    if controllers and (size is not None or not controllers[0].creates_in_order):
        top = controllers[-1]
        return f"{namespace}/{top.kind.name.lower()}/{top.name}/{top.uid}", top.name, False
    owner = controller_ref_of(pod.metadata)
    if owner is not None and size is not None and not is_known_controller(owner):
        return f"{namespace}/{owner.kind.lower()}/{owner.name}/{owner.uid}", owner.name, False
    return f"{namespace}/pod/{pod.metadata.uid}", pod.metadata.name, True


def workload_of_group(pod_group: str, *, is_native: bool) -> str:
    """The key of the workload of a named group; `pod_group` is "NAMESPACE/NAME"."""
    namespace, _, name = pod_group.partition("/")
    return f"{namespace}/{'podgroup' if is_native else 'group'}/{name}"


def _index(pod: Pod) -> int:
    labels = pod.metadata.labels or {}
    for key in _INDEX_LABELS:
        found = labels.get(key, "")
        if _DIGITS.fullmatch(found):
            return int(found)
    return 0


_Source = tuple[Controller | None, Mapping[str, str]]  # None: the pod
_Found = tuple[Controller | None, str, str]  # the object that has a key with a value (None: the pod), both


class _KeyReader:
    """Reads keys of the pod first, then of its controllers. A value that cannot be read becomes a problem."""

    def __init__(
        self, pod_keys: Mapping[str, str], controllers: Sequence[Controller], problems: list[str]
    ) -> None:
        sources = [(None, pod_keys), *((controller, controller.keys) for controller in controllers)]
        self._sources: list[_Source] = [source for source in sources if source[1]]
        self._problems = problems

    def has(self, keys: Iterable[str]) -> bool:
        return any(key in values for _, values in self._sources for key in keys)

    def is_set(self, keys: Iterable[str]) -> bool:
        """Whether one of the keys has a value, valid or not."""
        return self._find(keys) is not None

    def key_of(self, keys: Iterable[str]) -> str:
        """The one of the keys that counts; "" if none has a value."""
        found = self._find(keys)
        return found[1] if found is not None else ""

    def name(self, keys: Iterable[str]) -> str | None:
        found = self._find(keys)
        if found is None:
            return None
        if len(found[2]) <= _NAME_MAX and not find_control(found[2]):
            return found[2]
        self._reject(*found, f"a name of at most {_NAME_MAX} characters, all of them printable")
        return None

    def number(self, keys: Iterable[str], least: int, most: int, context: str = "") -> int | None:
        found = self._find(keys)
        return None if found is None else self._number(found, least, most, context)

    def urgency(self, key: str, rules: QueueRules) -> int | None:
        """The nearest one; a 0 only if no controller has another, so that a Job can be released."""
        urgency: int | None = None
        for found in self._found((key,)):
            urgency = self._number(found, 0, rules.urgency_max, f" in queue {rules.name}")
            if urgency != 0:
                break
        return urgency

    def _number(self, found: _Found, least: int, most: int, context: str) -> int | None:
        if _DIGITS.fullmatch(found[2]) and least <= int(found[2]) <= most:
            return int(found[2])
        self._reject(*found, f"a number from {least} to {most}{context}")
        return None

    def choice(self, key: str, allowed: Iterable[str]) -> str | None:
        found = self._find((key,))
        if found is None:
            return None
        choices = list(allowed)
        if found[2] in choices:
            return found[2]
        self._reject(*found, "one of " + ", ".join(choices))
        return None

    def queue(self, key: str, namespace: str, settings: TranslationSettings) -> str:
        """The queue that is named, else the default one of the namespace; "" is the default one of all."""
        admitting = [one.name for one in settings.queues if one.admits(namespace)]
        found = self._find((key,))
        name = settings.default_queue(namespace) if found is None else found[2]
        if (name or settings.queues[0].name) in admitting:
            return name
        is_known = any(one.name == name for one in settings.queues)
        refusal = f"queue {name or settings.queues[0].name} does not admit namespace {namespace}"
        expected = f"one of {', '.join(admitting)}"
        if not admitting:
            expected = f"none: no queue admits namespace {namespace}"
        if found is None:
            self._problems.append(f"the default {refusal}; {key}: found nothing, expected {expected}")
        else:
            self._reject(*found, f"{expected} ({refusal})" if is_known and admitting else expected)
        return ""

    def duration(self, key: str, most_s: int | None, allowed: str) -> int | None:
        """`allowed`: `most_s` in words."""
        found = self._find((key,))
        if found is None:
            return None
        try:
            seconds = parse_duration(found[2])
        except BadRequest:
            seconds = 0.0
        if 0.0 < seconds <= _LIMIT_MAX_S:
            if most_s is None or ceil(seconds) <= most_s:
                return ceil(seconds)
            self._reject(*found, allowed)
            return None
        self._reject(*found, "a duration such as 90s, 30m or 2h, of at most ten years")
        return None

    def time(self, key: str, created_at: float) -> float | None:
        """Seconds since the epoch, a time with its zone, or `+` and a duration from the pod's creation."""
        found = self._find((key,))
        if found is None:
            return None
        try:
            at = _parse_time(found[2], created_at)
        except (BadRequest, ValueError, OverflowError):
            at = None
        if at is not None and isfinite(at) and at <= _TIME_MAX:
            return at
        self._reject(*found, "seconds since the epoch, 2030-01-31T12:00:00Z, or +10m")
        return None

    def _find(self, keys: Iterable[str]) -> _Found | None:
        return next(self._found(keys), None)

    def _found(self, keys: Iterable[str]) -> Iterator[_Found]:
        """All values of the keys, the nearest first."""
        for controller, values in self._sources:
            for key in keys:
                value = values.get(key)
                if value:
                    yield controller, key, value

    def _reject(self, controller: Controller | None, key: str, value: str, expected: str) -> None:
        where = "the pod" if controller is None else f"{controller.kind.name} {controller.name}"
        self._problems.append(f"invalid {key} on {where}: found {value[:80]!r}, expected {expected}")


def _parse_time(text: str, created_at: float) -> float | None:
    """None for a date without a time zone, which would be another instant on each machine."""
    if text.startswith("+"):
        return created_at + parse_duration(text[1:])
    if _DIGITS.fullmatch(text):
        return float(text)
    at = datetime.fromisoformat(text)
    return None if at.tzinfo is None else at.timestamp()


def workload_fact(
    members: Sequence[GroupMembership],
    pod_groups: Mapping[str, PodGroupTerms],
    settings: TranslationSettings,
    next_members: Sequence[GroupMembership] = (),
) -> WorkloadSet:
    """What the pods of a group declare together. `pod_groups` has the existing PodGroups.

    `next_members` stand for pods that its controllers are yet to create: all pods of one may be gone.

    One pod of each equivalence key suffices: further ones change nothing.
    """
    first = min(members, key=lambda one: (one.created_at, one.queue, one.within, one.requeue.value))
    rules = settings.queue(first.queue)
    own_limits = [one.limit_s for one in members if one.limit_s is not None]
    deadlines = [one.deadline_s for one in members if one.deadline_s is not None]
    limit_s = max(own_limits, default=None)
    if limit_s is None and len(deadlines) == len(members):
        limit_s = max(deadlines)
    is_enforced_by_us = bool(own_limits)
    if rules.duration_max_s is not None and (limit_s is None or limit_s > rules.duration_max_s):
        limit_s, is_enforced_by_us = rules.duration_max_s, True
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
        size=_size(members, pod_groups),
        assembly_timeout_s=_assembly_timeout_s(members, pod_groups, settings),
        begin_at=max(begins) if begins else None,
        limit_s=settings.limit_default_s if limit_s is None else limit_s,
        deadline_at=min(ends) if ends else None,
        enforced_by_backend=not is_enforced_by_us,
        is_limit_enforced=limit_s is not None or settings.limit_default_s is None,
        class_value=max(one.priority for one in members),
        urgency=min(max(one.urgency for one in members), rules.urgency_max),
        queue=first.queue,
        distinct_nodes=any(one.distinct_nodes for one in members),
        within=first.within,
        requeue=first.requeue,
        owner=first.namespace,
        desired=_desired([*members, *next_members]),
        final_indexes=_final_indexes([*members, *next_members]),
        is_gang=any(one.is_gang for one in members),
        keeps_limit=any(one.problems for one in members),
    )


def _desired(members: Sequence[GroupMembership]) -> int | None:
    """How many pods the controllers of a group keep; None if it has none that is known."""
    controllers = {one.controller.uid: one.controller for one in members if one.controller is not None}
    if not controllers or all(one.is_single for one in members):
        return None
    return sum(0 if one.is_finished else one.desired_pods for one in controllers.values())


def _final_indexes(members: Sequence[GroupMembership]) -> tuple[tuple[int, int], ...]:
    """Of several controllers, an index does not say which of them is meant."""
    controllers = {one.controller.uid: one.controller for one in members if one.controller is not None}
    return next(iter(controllers.values())).final_indexes if len(controllers) == 1 else ()


def _assembly_timeout_s(
    members: Sequence[GroupMembership], pod_groups: Mapping[str, PodGroupTerms], settings: TranslationSettings
) -> float:
    terms = [pod_groups[one.pod_group] for one in members if one.pod_group in pod_groups]
    timeouts_s = [one.assembly_timeout_s for one in terms if one.assembly_timeout_s is not None]
    return max(timeouts_s, default=settings.assembly_timeout_s)


def _size(members: Sequence[GroupMembership], pod_groups: Mapping[str, PodGroupTerms]) -> int:
    explicit = [one.size for one in members if one.size is not None]
    if explicit:
        return max(explicit)
    of_pod_groups = [pod_groups[one.pod_group].size for one in members if one.pod_group in pod_groups]
    if of_pod_groups:
        return max(*of_pod_groups, 1)
    if not any(one.is_gang for one in members):
        return 1
    controllers = {one.controller.uid: one.controller for one in members if one.controller is not None}
    parallel = (one for one in controllers.values() if not one.creates_in_order)
    return max(sum(one.desired_pods for one in parallel), 1)
