"""Where one pod is, how far it has come, and what it uses, as facts.

Reads nothing but the pod. Which group it belongs to is decided in `grouping`.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.errors import BadRequest
from penstock.kube.types import ObjectMeta, PartialPod, Pod
from penstock.podspec.controllers import controller_ref_of
from penstock.podspec.exclusion_keys import host_port_keys
from penstock.podspec.keys import JOB_ANNOTATION
from penstock.podspec.pod_resources import PODS, ResourceList, pod_usage
from penstock.podspec.timestamps import epoch_seconds
from penstock.protocol.facts import EndCause, ExternalUsageSet, MemberStatus, Phase

__all__ = [
    "decode_partial_pod",
    "external_usage_of",
    "full_name",
    "is_bound_by_us",
    "is_kubelet_rejection",
    "is_terminal",
    "member_status_of",
    "usage_of",
]

_TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})
_KUBELET_REJECTIONS: Final = frozenset(
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
_ALWAYS_PRESENT: Final = ("DaemonSet", "Node")  # owners whose pods come back on the same node
_EXIT_UNKNOWN: Final = 1
_EXIT_MASK: Final = 0xFF  # exit codes as in wait(2); some runtimes report -1, and Windows has 32 bits


def full_name(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def is_terminal(pod: Pod) -> bool:
    """Whether the pod has stopped for good."""
    return pod.status.phase in _TERMINAL_PHASES


def is_bound_by_us(pod: Pod) -> bool:
    """Whether the pod is on a node and carries the annotation that our binding leaves."""
    return bool(pod.spec.node_name) and JOB_ANNOTATION in (pod.metadata.annotations or {})


def is_kubelet_rejection(reason: str) -> bool:
    """Whether a pod has failed because its kubelet did not admit it."""
    return reason in _KUBELET_REJECTIONS or reason.startswith("OutOf")


def decode_partial_pod(raw: bytes, before: Pod | None) -> Pod | None:
    """A pod that cannot be decoded as a whole: as it was known before, with its present node and phase.

    None if not even that can be decoded, or if the pod waits and its requests are not known.
    """
    try:
        partial = msgspec.json.decode(raw, type=PartialPod)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if before is None and not partial.spec.node_name:
        return None
    before = before or Pod()
    spec = replace(before.spec, scheduler_name=partial.spec.scheduler_name, node_name=partial.spec.node_name)
    status = replace(before.status, phase=partial.status.phase)
    return Pod(metadata=partial.metadata, spec=spec, status=status)


def usage_of(pod: Pod) -> ResourceList:
    """What a pod uses on its node; one pod and nothing else if its quantities cannot be read."""
    try:
        return pod_usage(pod)
    except BadRequest:
        return ((PODS, 1),)


def external_usage_of(pod: Pod) -> ExternalUsageSet:
    """The usage of a pod that is on a node and was not bound by us."""
    owner = controller_ref_of(pod.metadata)
    standing = owner is not None and owner.kind in _ALWAYS_PRESENT
    return ExternalUsageSet(
        pod.metadata.uid,
        pod.spec.node_name,
        usage_of(pod),
        standing,
        full_name(pod.metadata),
        host_port_keys(pod),
        pod.metadata.namespace,
    )


def member_status_of(pod: Pod, now: float) -> MemberStatus:
    """The status of a pod that we have bound, or tried to bind."""
    uid, node, status = pod.metadata.uid, pod.spec.node_name, pod.status
    if not node:
        return MemberStatus(uid, Phase.WAITING, now)
    if not is_terminal(pod):
        started_at = now if status.start_time is None else epoch_seconds(status.start_time)
        phase = Phase.RUNNING if status.phase == "Running" else Phase.PLACED
        return MemberStatus(
            uid, phase, started_at, node, usage=usage_of(pod), has_owner=True, brings=host_port_keys(pod)
        )
    exits = [
        container.state.terminated
        for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if container.state.terminated is not None
    ]
    ends = [epoch_seconds(one.finished_at) for one in exits if one.finished_at is not None]
    ended_at = max(ends, default=now)
    if status.phase == "Succeeded":
        return MemberStatus(uid, Phase.ENDED, ended_at, node)
    worst = max((one.exit_code & _EXIT_MASK for one in exits), default=0) or _EXIT_UNKNOWN
    message = status.reason or next((one.reason for one in exits if one.exit_code), "")
    started = bool(exits) or not is_kubelet_rejection(status.reason)
    if pod.metadata.deletion_timestamp is not None:
        # The kubelet stops the containers of a deleted pod, which then fails, before the pod goes.
        return MemberStatus(uid, Phase.ENDED, ended_at, node, worst << 8, EndCause.GONE, "", started)
    cause = EndCause.OTHER if message else EndCause.EXITED
    return MemberStatus(uid, Phase.ENDED, ended_at, node, worst << 8, cause, message, started)
