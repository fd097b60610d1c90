"""Objects that create pods, read with the row of their kind: Jobs, ReplicaSets, StatefulSets, Deployments.

`controller_of` turns any object of a registered kind into a `Controller`: its pod sets, its time limit,
whether it has finished. It raises `BadRequest`, with the location in the object, for what it cannot read.

A Job has one deadline, which its owner can set and which Penstock sets to enforce `penstock.dev/limit`. An
annotation notes the deadline that Penstock has set and the one that it replaced, so that both stay known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.errors import BadRequest
from penstock.kube.types import Condition, ObjectMeta, OwnerReference, PodTemplateSpec, UnstructuredObject
from penstock.podspec.controller_kinds import (
    ControllerKind,
    PodSetPath,
    TerminalState,
    field_at,
    find_controller_kind,
    indexes_at,
    values_at,
)
from penstock.podspec.keys import (
    DEADLINE_ORIGINAL_ANNOTATION,
    DEADLINE_SET_ANNOTATION,
    scheduling_keys,
    unknown_keys,
)
from penstock.podspec.timestamps import epoch_seconds

__all__ = ["Controller", "PodSet", "controller_of", "controller_ref_of", "is_known_controller"]

_DIGITS: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one template, and how many of them run at the same time."""

    template: PodTemplateSpec
    count: int


@dataclass(frozen=True, slots=True)
class Controller:
    """An object that creates pods, itself or through its children."""

    kind: ControllerKind
    namespace: str
    name: str
    uid: str
    keys: Mapping[str, str]  # its labels and annotations that are for Penstock
    owner: OwnerReference | None = None  # the controller of this object
    pod_sets: tuple[PodSet, ...] = ()
    is_suspended: bool = False
    is_deleted: bool = False  # deletion has been requested
    terminal_state: TerminalState | None = None
    creates_in_order: bool = False  # a pod is created only when the one before it is ready
    started_at: float | None = None
    deadline_s: int | None = None  # as its owner wants it: seconds from `started_at`, queueing included
    deadline_set_s: int | None = None  # what Penstock has set in its place
    final_indexes: tuple[tuple[int, int], ...] = ()  # sorted ranges: they get no further pod
    unknown_keys: tuple[str, ...] = ()  # labels and annotations that have no effect

    @property
    def desired_pods(self) -> int:
        """How many pods it wants to run at the same time, as things are."""
        return 0 if self.is_suspended else sum(one.count for one in self.pod_sets)

    @property
    def is_finished(self) -> bool:
        """It creates no more pods."""
        return self.is_deleted or self.terminal_state is not None


def controller_ref_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The ownerReference with `controller: true`."""
    return next((owner for owner in metadata.owner_references if owner.controller), None)


def is_known_controller(owner: OwnerReference) -> bool:
    """Whether an owner is of a registered kind. Other API groups have kinds of the same names."""
    return find_controller_kind(owner.api_version, owner.kind) is not None


def controller_of(kind: ControllerKind, found: UnstructuredObject) -> Controller:
    metadata = found.metadata
    root = {"spec": found.spec, "status": found.status}
    deadline_s, deadline_set_s = _deadlines(kind, root, metadata.annotations or {})
    return Controller(
        kind=kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        keys=scheduling_keys(metadata),
        owner=controller_ref_of(metadata),
        pod_sets=tuple(pod_set for path in kind.pod_sets for pod_set in _pod_sets(path, root)),
        is_suspended=bool(kind.suspend and field_at(root, kind.suspend, bool, "true or false")),
        is_deleted=metadata.deletion_timestamp is not None,
        terminal_state=_terminal_state(kind, root),
        creates_in_order=_creates_in_order(kind, root),
        started_at=_started_at(kind, root),
        deadline_s=deadline_s,
        deadline_set_s=deadline_set_s,
        final_indexes=tuple(sorted(one for path in kind.final_indexes for one in indexes_at(root, path))),
        unknown_keys=unknown_keys(metadata),
    )


def _pod_sets(path: PodSetPath, root: Mapping[str, object]) -> list[PodSet]:
    pod_sets: list[PodSet] = []
    for where, element in values_at(root, path.each):
        raw = field_at(element, path.template, dict, "a pod template", where)
        try:
            template = PodTemplateSpec() if raw is None else msgspec.convert(raw, PodTemplateSpec)
        except msgspec.ValidationError as error:
            place = f"{where}.{path.template}" if where else path.template
            raise BadRequest("malformed pod template", where=place, found=str(error)) from error
        count = path.count.of(element, where)
        pod_sets.append(PodSet(template, 1 if count is None else count))
    return pod_sets


def _terminal_state(kind: ControllerKind, root: Mapping[str, object]) -> TerminalState | None:
    if not kind.terminal:
        return None
    if kind.phase:
        return kind.terminal.get(field_at(root, kind.phase, str, "a text") or "")
    raw = field_at(root, kind.conditions, list, "a list of conditions")
    try:
        conditions = msgspec.convert(raw or [], tuple[Condition, ...])
    except msgspec.ValidationError as error:
        raise BadRequest("malformed conditions", where=kind.conditions, found=str(error)) from error
    states = (kind.terminal.get(one.type) for one in conditions if one.status == "True")
    return next((state for state in states if state is not None), None)


def _creates_in_order(kind: ControllerKind, root: Mapping[str, object]) -> bool:
    if kind.parallel_if is None:
        return False
    path, value = kind.parallel_if
    return field_at(root, path, str, "a text") != value


def _started_at(kind: ControllerKind, root: Mapping[str, object]) -> float | None:
    text = field_at(root, kind.started_at, str, "a timestamp") if kind.started_at else None
    try:
        return None if text is None else epoch_seconds(text)
    except ValueError as error:
        raise BadRequest(
            "malformed field", where=kind.started_at, found=repr(text), expected="a timestamp (RFC 3339)"
        ) from error


def _deadlines(
    kind: ControllerKind, root: Mapping[str, object], annotations: Mapping[str, str]
) -> tuple[int | None, int | None]:
    """The deadline that the owner wants, and the one that Penstock has set."""
    current = field_at(root, kind.time_limit, int, "seconds") if kind.time_limit else None
    if current is None or annotations.get(DEADLINE_SET_ANNOTATION) != str(current):
        return current, None
    original = annotations.get(DEADLINE_ORIGINAL_ANNOTATION, "")
    return int(original) if _DIGITS.fullmatch(original) else None, current
