"""Why a pod of ours cannot be scheduled, as the reason and the message of its `PodScheduled` condition.

The reasons are documented for users in docs/how-to/schedule-pods.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "GROUP_INADMISSIBLE",
    "INTERNAL_ERROR",
    "INVALID_SPEC",
    "LIMIT_EXCEEDED",
    "OWNER_NOT_FOUND",
    "OWNER_NOT_SYNCED",
    "POD_GROUP_NOT_FOUND",
    "UNSUPPORTED_SPEC",
    "VOLUME_NOT_READY",
    "PodProblem",
]

INVALID_SPEC: Final = "InvalidSpec"  # a label, an annotation or a quantity cannot be read
UNSUPPORTED_SPEC: Final = "UnsupportedSpec"  # the pod requires something that Penstock cannot guarantee
LIMIT_EXCEEDED: Final = "LimitExceeded"  # its group or its namespace has more of something than is allowed
VOLUME_NOT_READY: Final = "VolumeNotReady"  # a claim or its volume is missing or not bound
POD_GROUP_NOT_FOUND: Final = "PodGroupNotFound"
OWNER_NOT_SYNCED: Final = "OwnerNotSynced"  # the pod's controller has not been read yet
OWNER_NOT_FOUND: Final = "OwnerNotFound"  # the pod's controller does not exist
GROUP_INADMISSIBLE: Final = "GroupInadmissible"  # the job of the pod's group has ended

INTERNAL_ERROR: Final = "InternalError"  # reading the pod or its group has failed unexpectedly


@dataclass(frozen=True, slots=True)
class PodProblem:
    reason: str  # in CamelCase
    message: str
