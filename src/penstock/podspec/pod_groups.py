"""The phase of a PodGroup of the coscheduling plugin, from the pods of its group.

The phases and their meaning are those of the plugin's own controller. A group that has finished or failed
stays so while its pods are deleted one by one; failed pods that a controller has replaced do not count.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from penstock.kube.types import Pod, PodGroupStatus

__all__ = ["PodCounts", "PodProgress", "pod_group_status", "pod_progress"]


class PodProgress(enum.Enum):
    WAITING = "waiting"  # on no node, or not running there yet
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_PROGRESS = {
    "Running": PodProgress.RUNNING,
    "Succeeded": PodProgress.SUCCEEDED,
    "Failed": PodProgress.FAILED,
}


def pod_progress(pod: Pod) -> PodProgress:
    return _PROGRESS.get(pod.status.phase, PodProgress.WAITING)


@dataclass(frozen=True, slots=True)
class PodCounts:
    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


def pod_group_status(before: str, least: int, pods: PodCounts) -> PodGroupStatus:
    """`before` is the present phase, `least` the `minMember` of the PodGroup."""
    phase = _phase(before, max(least, 1), pods)
    return PodGroupStatus(phase=phase, running=pods.running, succeeded=pods.succeeded, failed=pods.failed)


def _phase(before: str, least: int, pods: PodCounts) -> str:
    live = pods.waiting + pods.running
    if not live and pods.succeeded >= least:
        return "Finished"
    if not live and pods.failed:
        return "Failed"
    if not live:
        return before if before in ("Finished", "Failed") else "Pending"
    if pods.running + pods.succeeded >= least:
        return "Running"
    if live + pods.succeeded >= least:
        return "Scheduling"
    if pods.failed:
        return "Failed"
    return "Running" if before == "Running" and pods.running else "Pending"
