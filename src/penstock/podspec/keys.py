"""Label and annotation keys that Penstock reads and writes.

Keys of Fluence, Fluxnetes, fluxqueue and the coscheduling plugin are accepted besides those of `DOMAIN`.
Each list is in order of precedence. A key of `DOMAIN` that is not known is most likely misspelled, and would
have no effect without anybody noticing: its owner is warned.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from penstock.kube.types import ObjectMeta

__all__ = [
    "DEADLINE_ORIGINAL_ANNOTATION",
    "DEADLINE_SET_ANNOTATION",
    "DOMAIN",
    "GROUP_NAME_KEYS",
    "GROUP_SIZE_KEYS",
    "JOB_ANNOTATION",
    "POD_GROUP_KEYS",
    "describe_unknown_key",
    "scheduling_keys",
    "unknown_keys",
]

DOMAIN: Final = "penstock.dev"
JOB_ANNOTATION: Final = f"{DOMAIN}/job"  # on a pod that Penstock has bound: the id of its job
DEADLINE_SET_ANNOTATION: Final = f"{DOMAIN}/deadline-set"  # on a Job: the deadline that Penstock has set
DEADLINE_ORIGINAL_ANNOTATION: Final = f"{DOMAIN}/deadline-original"  # the deadline it replaced, if any

GROUP_NAME_KEYS: Final = (
    f"{DOMAIN}/group",
    "fluence.flux-framework.org/group",
    "fluence.flux-framework.org/pod-group",
    "fluxnetes.group-name",
    "scheduling.x-k8s.io/pod-group",
    "fluence.pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "fluxqueue.pod-group",
)
GROUP_SIZE_KEYS: Final = (
    f"{DOMAIN}/group-size",
    "fluence.flux-framework.org/group-size",
    "fluxnetes.group-size",
    "fluence.group-size",
    "fluxqueue.group-size",
)
POD_GROUP_KEYS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")

_OTHER_KEYS: Final = tuple(
    f"{DOMAIN}/{name}"
    for name in ("queue", "limit", "begin", "requeue", "within", "distinct-nodes", "urgency")
)
_SCHEDULING_KEYS: Final = frozenset((*GROUP_NAME_KEYS, *GROUP_SIZE_KEYS, *_OTHER_KEYS))
_PREFIX: Final = f"{DOMAIN}/"
_USER_KEYS: Final = tuple(sorted(key for key in _SCHEDULING_KEYS if key.startswith(_PREFIX)))
_SIMULATION_KEYS: Final = tuple(f"{DOMAIN}/sim-{name}" for name in ("run", "exit", "refuse"))
_KNOWN_KEYS: Final = frozenset(
    (
        *_USER_KEYS,
        *_SIMULATION_KEYS,
        JOB_ANNOTATION,
        DEADLINE_SET_ANNOTATION,
        DEADLINE_ORIGINAL_ANNOTATION,
    )
)


def scheduling_keys(metadata: ObjectMeta) -> Mapping[str, str]:
    """The labels and annotations of an object that are for Penstock; an annotation overrides a label."""
    found: dict[str, str] = {}
    for source in (metadata.labels, metadata.annotations):
        if source:
            found.update((key, value) for key, value in source.items() if key in _SCHEDULING_KEYS)
    return found


def unknown_keys(metadata: ObjectMeta) -> tuple[str, ...]:
    """Labels and annotations of an object that are meant for Penstock and mean nothing to it."""
    found = {
        key
        for source in (metadata.labels, metadata.annotations)
        for key in source or ()
        if key.startswith(_PREFIX) and key not in _KNOWN_KEYS
    }
    return tuple(sorted(found))


def describe_unknown_key(key: str) -> str:
    """What is wrong with an unknown key, and which one was probably meant."""
    names = [known.removeprefix(_PREFIX) for known in _USER_KEYS]
    closest = difflib.get_close_matches(key.removeprefix(_PREFIX).lower(), names, n=1)
    if closest:
        return f"unknown key {key} has no effect; did you mean {_PREFIX}{closest[0]}?"
    return f"unknown key {key} has no effect; known are {', '.join(_USER_KEYS)}"
