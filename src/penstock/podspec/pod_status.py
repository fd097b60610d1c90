"""What one pod shows of itself, as facts: where it is, how far it has come, what it uses. Pure.

Nothing here looks at another object. Whether a pod is ours to place, and with whom, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.errors import BadRequest
from penstock.kube.types import ObjectMeta, PartialPod, Pod
from penstock.podspec.grouping import JOB_ANNOTATION, controller_ref_of, seconds_of
from penstock.podspec.pod_resources import PODS, ResourceList, use_of
from penstock.protocol.facts import EndCause, ExternalUsageSet, MemberStatus, Phase

__all__ = [
    "GROUP_INADMISSIBLE",
    "UNRESOLVED",
    "Problem",
    "external_usage_of",
    "full_name",
    "inadmissible_message",
    "is_over",
    "is_placed_by_us",
    "is_refusal",
    "salvaged",
    "seen_of",
    "usage_of",
]

GROUP_INADMISSIBLE: Final = (
    "GroupInadmissible"  # the reason of the condition; it stands for our memory after a restart
)
UNRESOLVED: Final = "Unresolved"  # the reason of a pod whose maker has not been heard of

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})
_REFUSALS: Final = frozenset(
    {
        "NodeAffinity",
        "NodePorts",
        "TaintToleration",
        "UnexpectedAdmissionError",
        "TopologyAffinityError",
        "NodeShutdown",
        "PodFeatureUnsupported",
    }
)
_EXIT_UNKNOWN: Final = 1
_EXIT_MASK: Final = 0xFF  # as wait(2) tells it; runtimes say -1 as well, and Windows has 32 bits


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pod of ours is set aside."""

    reason: str  # one word
    text: str


def full_name(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def is_over(pod: Pod) -> bool:
    """Whether it runs no more, and never will again."""
    return pod.status.phase in _TERMINAL


def is_placed_by_us(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and JOB_ANNOTATION in (pod.metadata.annotations or {})


def is_refusal(reason: str) -> bool:
    """Whether a pod has failed because its kubelet did not take it."""
    return reason in _REFUSALS or reason.startswith("OutOf")


def inadmissible_message(pod: Pod) -> str:
    """What a pod says of a group that was given up; nothing if it was not."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.reason == GROUP_INADMISSIBLE:
            return condition.message or GROUP_INADMISSIBLE
    return ""


def salvaged(raw: bytes, before: Pod | None) -> Pod | None:
    """A pod that cannot be read as a whole: as it was known, but where it is by now.

    None: not even that, or nobody knows what it asks for and it waits.
    """
    try:
        bare = msgspec.json.decode(raw, type=PartialPod)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if before is None and not bare.spec.node_name:
        return None
    before = before or Pod()
    spec = replace(before.spec, scheduler_name=bare.spec.scheduler_name, node_name=bare.spec.node_name)
    return Pod(metadata=bare.metadata, spec=spec, status=replace(before.status, phase=bare.status.phase))


def usage_of(pod: Pod) -> ResourceList:
    """What it uses where it is. What cannot be read cannot be counted, but it is one pod."""
    try:
        return use_of(pod)
    except BadRequest:
        return ((PODS, 1),)


def external_usage_of(pod: Pod) -> ExternalUsageSet:
    """A pod that others have placed."""
    owner = controller_ref_of(pod.metadata)
    standing = owner is not None and owner.kind in ("DaemonSet", "Node")
    return ExternalUsageSet(
        pod.metadata.uid, pod.spec.node_name, usage_of(pod), standing, full_name(pod.metadata)
    )


def seen_of(pod: Pod, now: float) -> MemberStatus:
    """A pod that we have placed, or wanted to."""
    uid, node, status = pod.metadata.uid, pod.spec.node_name, pod.status
    if not node:
        return MemberStatus(uid, Phase.WAITING, now)
    if not is_over(pod):
        began = now if status.start_time is None else seconds_of(status.start_time)
        phase = Phase.RUNNING if status.phase == "Running" else Phase.PLACED
        return MemberStatus(uid, phase, began, node, usage=usage_of(pod), has_owner=True)
    exits = [
        container.state.terminated
        for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if container.state.terminated is not None
    ]
    ends = [seconds_of(one.finished_at) for one in exits if one.finished_at is not None]
    ended_at = max(ends, default=now)
    if status.phase == "Succeeded":
        return MemberStatus(uid, Phase.ENDED, ended_at, node)
    worst = max((one.exit_code & _EXIT_MASK for one in exits), default=0) or _EXIT_UNKNOWN
    message = status.reason or next((one.reason for one in exits if one.exit_code), "")
    started = not (is_refusal(status.reason) and not exits)
    cause = EndCause.OTHER if message else EndCause.EXITED
    return MemberStatus(uid, Phase.ENDED, ended_at, node, worst << 8, cause, message, started)
