"""The registry of controller kinds: one row of JSON paths per kind whose pods form a group.

A row says, as data, where an object of its kind has its pod templates and how many pods it runs of each,
where it can be suspended, where its time limit and its start time are, and which conditions or phases are
terminal. `penstock.podspec.controllers` reads any object with its row; to support another kind, add a row.

A path is a list of names joined by dots. `[]` after a name stands for every element of a list, `*` for
every value of a map: `spec.replicatedJobs[]`, `spec.mpiReplicaSpecs.*`. The paths of a `PodSetPath` are
relative to each value that its `each` path leads to, so that a template and its count come from the same
element.

A count is an expression over integer fields. A field that is absent and has no default is *unset*:
`CountMin` ignores it, and what is computed from it is unset as well. A count that is unset as a whole is
one pod.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from penstock.errors import BadRequest
from penstock.model.idset import parse_ranges

__all__ = [
    "CONTROLLER_KINDS",
    "ControllerKind",
    "CountDifference",
    "CountField",
    "CountIndexes",
    "CountMin",
    "CountProduct",
    "CountSum",
    "PodCount",
    "PodSetPath",
    "TerminalState",
    "field_at",
    "find_controller_kind",
    "indexes_at",
    "require_controller_kind",
    "values_at",
]

T = TypeVar("T")
JsonObject = Mapping[str, object]


class TerminalState(enum.Enum):
    """How the run of a controller's pods has ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class PodCount(Protocol):
    """A number of pods, computed from an element of the object; None: unset."""

    def of(self, element: JsonObject, where: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class CountField:
    path: str
    default: int | None = None

    def of(self, element: JsonObject, where: str) -> int | None:
        found = field_at(element, self.path, int, "an integer", where)
        return self.default if found is None else found


@dataclass(frozen=True, slots=True)
class CountIndexes:
    """How many indexes a text such as `1,3-5` has."""

    path: str

    def of(self, element: JsonObject, where: str) -> int | None:
        found = indexes_at(element, self.path, where)
        return sum(high - low + 1 for low, high in found) if found else None


@dataclass(frozen=True, slots=True)
class CountSum:
    """The sum of what is set."""

    operands: tuple[PodCount, ...]

    def of(self, element: JsonObject, where: str) -> int | None:
        found = [operand.of(element, where) for operand in self.operands]
        return sum(count for count in found if count is not None)


@dataclass(frozen=True, slots=True)
class CountMin:
    operands: tuple[PodCount, ...]

    def of(self, element: JsonObject, where: str) -> int | None:
        found = [operand.of(element, where) for operand in self.operands]
        return min((count for count in found if count is not None), default=None)


@dataclass(frozen=True, slots=True)
class CountProduct:
    operands: tuple[PodCount, ...]

    def of(self, element: JsonObject, where: str) -> int | None:
        product = 1
        for operand in self.operands:
            count = operand.of(element, where)
            if count is None:
                return None
            product *= count
        return product


@dataclass(frozen=True, slots=True)
class CountDifference:
    """What is left of a total; never negative."""

    total: PodCount
    done: PodCount

    def of(self, element: JsonObject, where: str) -> int | None:
        total, done = self.total.of(element, where), self.done.of(element, where)
        return None if total is None else max(total - (done or 0), 0)


@dataclass(frozen=True, slots=True)
class PodSetPath:
    """Pods of one template."""

    template: str
    count: PodCount = CountProduct(())  # by default one pod
    each: str = ""  # what `template` and `count` are relative to; empty: the object


@dataclass(frozen=True, slots=True)
class ControllerKind:
    """How to read one kind of object. An empty path: the kind has no such field."""

    name: str
    api_version: str
    plural: str  # the name in URLs
    pod_sets: tuple[PodSetPath, ...] = ()
    children: tuple[str, ...] = ()  # kinds through which it creates its pods; empty: it creates them itself
    suspend: str = ""  # a boolean: while it is true, no pods are created
    time_limit: str = ""  # seconds from the start
    started_at: str = ""
    conditions: str = "status.conditions"
    phase: str = ""  # a text that can be a key of `terminal`, for kinds that have no conditions
    terminal: Mapping[str, TerminalState] = field(default_factory=lambda: MappingProxyType({}))
    parallel_if: tuple[str, str] | None = None  # a path, and the value without which pods come in order
    final_indexes: tuple[str, ...] = ()  # texts with the indexes that get no further pod
    is_gang: bool = True  # False: its pods do not need each other, unless somebody says so

    @property
    def group(self) -> str:
        """The API group, which distinguishes kinds of the same name."""
        return self.api_version.partition("/")[0]


_REPLICAS: Final = PodSetPath("spec.template", CountField("spec.replicas", default=1))

CONTROLLER_KINDS: Final = (
    ControllerKind(
        name="Job",
        api_version="batch/v1",
        plural="jobs",
        pod_sets=(
            PodSetPath(
                "spec.template",
                CountMin(
                    (
                        CountField("spec.parallelism", default=1),
                        CountDifference(
                            CountField("spec.completions"),
                            # An index that has failed too often is not tried again (backoffLimitPerIndex).
                            CountSum((CountField("status.succeeded"), CountIndexes("status.failedIndexes"))),
                        ),
                    )
                ),
            ),
        ),
        suspend="spec.suspend",
        time_limit="spec.activeDeadlineSeconds",
        started_at="status.startTime",
        final_indexes=("status.completedIndexes", "status.failedIndexes"),
        terminal=MappingProxyType(
            {
                "Complete": TerminalState.SUCCEEDED,
                "SuccessCriteriaMet": TerminalState.SUCCEEDED,
                "Failed": TerminalState.FAILED,
                "FailureTarget": TerminalState.FAILED,
            }
        ),
    ),
    ControllerKind(
        name="ReplicaSet", api_version="apps/v1", plural="replicasets", pod_sets=(_REPLICAS,), is_gang=False
    ),
    ControllerKind(
        name="StatefulSet",
        api_version="apps/v1",
        plural="statefulsets",
        pod_sets=(_REPLICAS,),
        parallel_if=("spec.podManagementPolicy", "Parallel"),
    ),
    ControllerKind(name="Deployment", api_version="apps/v1", plural="deployments", children=("ReplicaSet",)),
)

_BY_NAME: Final = {(kind.group, kind.name): kind for kind in CONTROLLER_KINDS}


def find_controller_kind(api_version: str, name: str) -> ControllerKind | None:
    """The row of a kind in any version of its API group; None for a kind that is not registered."""
    return _BY_NAME.get((api_version.partition("/")[0], name))


def require_controller_kind(api_version: str, name: str) -> ControllerKind:
    """As `find_controller_kind`, for an object that a user has named."""
    kind = find_controller_kind(api_version, name)
    if kind is None:
        known = ", ".join(f"{one.name} ({one.api_version})" for one in CONTROLLER_KINDS)
        raise BadRequest(
            "unsupported kind", where="kind", found=f"{name or '?'} ({api_version or '?'})", expected=known
        )
    return kind


# Paths

_EACH_ELEMENT: Final = "[]"
_EACH_VALUE: Final = "*"


def values_at(root: JsonObject, path: str) -> Iterator[tuple[str, JsonObject]]:
    """Every object that a path with `[]` and `*` leads to, with its location. Absent fields lead nowhere."""
    found: list[tuple[str, object]] = [("", root)]
    for step in _steps(path):
        found = [inner for where, value in found for inner in _inner(value, step, where)]
    for where, value in found:
        yield where, _object(value, where)


def field_at(root: JsonObject, path: str, of_type: type[T], expected: str, where: str = "") -> T | None:
    """One field. Absent, null or below an absent object: None; of another type: a `BadRequest`."""
    value: object = root
    for name in path.split("."):
        if value is None:
            return None
        value = _object(value, where).get(name)
        where = _joined(where, name)
    if value is None:
        return None
    if isinstance(value, of_type) and isinstance(value, bool) == (of_type is bool):
        return value  # To Python a boolean is an integer as well; to the API it is not.
    raise _malformed(where, value, expected)


def indexes_at(root: JsonObject, path: str, where: str = "") -> tuple[tuple[int, int], ...]:
    """The ranges of indexes in a text such as `1,3-5`; none if it is absent."""
    text = field_at(root, path, str, "a text", where)
    try:
        return parse_ranges(text or "")
    except BadRequest as error:
        raise _malformed(_joined(where, path), text, "indexes such as 1,3-5") from error


@lru_cache(maxsize=256)
def _steps(path: str) -> tuple[str, ...]:
    steps: list[str] = []
    for name in path.split(".") if path else ():
        steps.append(name.removesuffix(_EACH_ELEMENT))
        if name.endswith(_EACH_ELEMENT):
            steps.append(_EACH_ELEMENT)
    return tuple(steps)


def _inner(value: object, step: str, where: str) -> Iterator[tuple[str, object]]:
    if step == _EACH_ELEMENT:
        if not isinstance(value, list):
            raise _malformed(where, value, "a list")
        for index, element in enumerate(value):
            yield f"{where}[{index}]", element
    elif step == _EACH_VALUE:
        for name, element in _object(value, where).items():
            yield _joined(where, name), element
    else:
        found = _object(value, where).get(step)
        if found is not None:
            yield _joined(where, step), found


def _object(value: object, where: str) -> JsonObject:
    if not isinstance(value, Mapping):
        raise _malformed(where, value, "an object")
    return value


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _malformed(where: str, value: object, expected: str) -> BadRequest:
    return BadRequest("malformed field", where=where, found=repr(value), expected=expected)
