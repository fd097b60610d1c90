"""Jobspecs: RFC 14 (up to version 9999) and RFC 25 (version 1).

One grammar serves both; version 1 is the smaller language. The `summary` of an error has the wording of Flux,
which scripts of Flux users look for; `where`, `found` and `expected` add details.

Text that is not YAML or JSON raises `BadDocument`, so that a caller can distinguish it from a bad jobspec.
Resource types are not checked, because the graph determines which types exist. Tasks are checked
syntactically; that a task names an existing slot is not checked.

Thousands of jobs can have the same text, so the results for small texts are cached.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from penstock.errors import BadRequest
from penstock.model.constraint import Constraint, parse_constraint
from penstock.model.document import Mapping, Node, Scalar, Sequence, child, located, parse_document, shown

__all__ = ["UINT_MAX", "BadJobspec", "Count", "Jobspec", "Resource", "Task", "parse_jobspec"]

UINT_MAX = 2**32 - 1

_VERSION_MAX = 9999
_DEPTH_MAX = 32
_RESOURCES_MAX = 10_000
_DOCUMENT_DEPTH_MAX = 128  # Above the depth limits of resources and constraints.
_CACHED_TEXTS_MAX = 64  # A parsed text takes about seven times its size.
_CACHED_SIZE_MAX = 16 << 10
_UINT = re.compile(r"0|[1-9][0-9]{0,9}")
_FLOAT = re.compile(r"[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]{1,4})?|\.[0-9]+(?:[eE][+-]?[0-9]{1,4})?")
_NUMBER_LENGTH_MAX = 64

# By operator: the key with a minimum, the minimum, and the message of Flux.
_COUNT_RULES = {
    "+": (("operand", 1, "\"operand\" must be greater than zero for addition '+'"),),
    "*": (("operand", 2, "\"operand\" must be greater than one for multiplication '*'"),),
    "^": (
        ("operand", 2, "\"operand\" must be greater than one for exponentiation '^'"),
        ("min", 2, "\"min\" must be greater than one for exponentiation '^'"),
    ),
}


class BadJobspec(BadRequest):
    """The document is not a valid jobspec."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of resources: `min`, then in steps of `operator` and `operand` up to `max`."""

    min: int
    max: int
    operator: str = "+"
    operand: int = 1

    def pick(self, available: int) -> int:
        """The largest valid count up to `available`; 0 if there is none."""
        limit = min(available, self.max)
        if self.min > limit:
            return 0
        if self.operator == "+":
            step = max(self.operand, 1)
            return self.min + (limit - self.min) // step * step
        if self.operand < 2 or self.min < 1 or (self.operator == "^" and self.min < 2):
            return self.min
        current = self.min
        if self.operator == "*":
            while current * self.operand <= limit:
                current *= self.operand
            return current
        # A power is at least 2^(bits * operand): do not compute it if it is far beyond the limit.
        while (current.bit_length() - 1) * self.operand < limit.bit_length():
            power: int = current**self.operand
            if power > limit:
                break
            current = power
        return current


@dataclass(frozen=True, slots=True)
class Resource:
    type: str
    count: Count
    unit: str = ""
    exclusive: bool | None = None  # None: not given, which differs from false.
    with_: tuple[Resource, ...] = ()
    label: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    command: tuple[str, ...]
    slot: str
    count: tuple[tuple[str, str], ...] = ()
    distribution: str = ""
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Jobspec:
    version: int
    resources: tuple[Resource, ...]
    tasks: tuple[Task, ...]
    duration_s: float = 0.0  # 0: no limit.
    queue: str = ""
    cwd: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    constraint: Constraint | None = None
    attributes: Mapping | None = (
        None  # The whole `attributes` mapping, for callers that interpret more of it.
    )


def parse_jobspec(text: str | bytes) -> Jobspec:
    """Raises `BadDocument` for invalid YAML or JSON, `BadJobspec` or `BadConstraint` otherwise."""
    return _parse_once(text) if len(text) <= _CACHED_SIZE_MAX else _parse(text)


@lru_cache(maxsize=_CACHED_TEXTS_MAX)
def _parse_once(text: str | bytes) -> Jobspec:
    return _parse(text)


def _parse(text: str | bytes) -> Jobspec:
    root = parse_document(text, depth_max=_DOCUMENT_DEPTH_MAX)
    if not isinstance(root, Mapping):
        _fail("Top level of jobspec is not a mapping", "jobspec", root, "a mapping")
    sections: list[Node] = []
    for key, word in (
        ("version", "version"),
        ("resources", "resource"),  # Flux uses the singular in its message.
        ("tasks", "tasks"),
        ("attributes", "attributes"),
    ):
        section = root.get(key)
        if section is None:
            _fail(f'Missing key "{word}" in top level mapping', "jobspec", root, f'a key "{key}"')
        sections.append(section)
    if len(root.items) != 4:
        _fail(
            "Top mapping in jobspec must have exactly four entries",
            "jobspec",
            root,
            "version, resources, tasks and attributes",
        )
    version, resources, tasks, attributes = sections
    version_number = _version(version)
    system = _system(attributes)
    return Jobspec(
        version=version_number,
        duration_s=_duration_s(system),
        queue=_system_string(system, "queue"),
        cwd=_system_string(system, "cwd"),
        environment=_environment(system),
        constraint=_constraint(system),
        attributes=attributes if isinstance(attributes, Mapping) else None,
        resources=_Resources().read(resources, "resources", 1),
        tasks=_tasks(tasks),
    )


def _version(node: Node) -> int:
    version = _uint(node, "version", '"version" must be an unsigned integer')
    if not 1 <= version <= _VERSION_MAX:
        _fail(
            f'Only jobspec "version" 1-{_VERSION_MAX} is supported', "version", node, f"1 to {_VERSION_MAX}"
        )
    return version


# Attributes


def _system(attributes: Node) -> Mapping | None:
    """`attributes.system`, or None if it is absent."""
    if isinstance(attributes, Scalar) and attributes.is_null:
        return None
    if not isinstance(attributes, Mapping):
        _fail('"attributes" is not a map', "attributes", attributes, "a mapping or null")
    for key, node in attributes.items:
        if key not in ("user", "system"):
            _fail('Unknown key in "attributes"', child("attributes", key), node, "only user and system")
    system = attributes.get("system")
    if system is not None and not isinstance(system, Mapping):
        _fail('"system" in "attributes" is not a map', "attributes.system", system, "a mapping")
    return system


def _duration_s(system: Mapping | None) -> float:
    node = None if system is None else system.get("duration")
    if node is None:
        return 0.0
    where, expected = "attributes.system.duration", "a finite number of seconds, 0 or more"
    summary = 'Value of "duration" must be a finite number that is not negative'
    if not isinstance(node, Scalar) or len(node.text) > _NUMBER_LENGTH_MAX:
        _fail(summary, where, node, expected)
    if _FLOAT.fullmatch(node.text) is None or math.isinf(float(node.text)):
        _fail(summary, where, node, expected)
    return float(node.text)


def _system_string(system: Mapping | None, key: str) -> str:
    node = None if system is None else system.get(key)
    if node is None:
        return ""
    return _string(node, f"attributes.system.{key}", f'Value of "{key}" must be a scalar')


def _environment(system: Mapping | None) -> tuple[tuple[str, str], ...]:
    node = None if system is None else system.get("environment")
    if node is None:
        return ()
    where = "attributes.system.environment"
    if not isinstance(node, Mapping):
        _fail('"environment" is not a map', where, node, "a mapping of names to values")
    return _string_pairs(node, where, 'Value in "environment" must be a scalar')


def _constraint(system: Mapping | None) -> Constraint | None:
    node = None if system is None else system.get("constraints")
    return None if node is None else parse_constraint(node, "attributes.system.constraints")


# Resources


class _Resources:
    """Parses the resource tree. The limit on resources applies to the whole tree."""

    def __init__(self) -> None:
        self._count = 0

    def read(self, node: Node, where: str, level: int) -> tuple[Resource, ...]:
        if not isinstance(node, Sequence):
            _fail('"resources" is not a sequence', where, node, "a sequence of resources")
        if level > _DEPTH_MAX and node.items:
            _fail("resources are nested too deeply", where, node, f"a depth of at most {_DEPTH_MAX}")
        self._count += len(node.items)
        if self._count > _RESOURCES_MAX:
            _fail("too many resources", where, node, f"at most {_RESOURCES_MAX} in a jobspec")
        return tuple(
            self._resource(entry, f"{where}[{index}]", level) for index, entry in enumerate(node.items)
        )

    def _resource(self, node: Node, where: str, level: int) -> Resource:
        if not isinstance(node, Mapping):
            _fail("resource is not a mapping", where, node, "a mapping with type and count")
        type_ = self._required(node, "type", where)
        type_name = _string(type_, f"{where}.type", 'Value of "type" must be a scalar')
        if not type_name:
            _fail('Value of "type" must not be empty', f"{where}.type", type_, "the name of a type")
        count = _count(self._required(node, "count", where), f"{where}.count")
        unit = _optional(node, "unit", where)
        exclusive = self._exclusive(node.get("exclusive"), f"{where}.exclusive")
        inner = node.get("with")
        with_ = () if inner is None else self.read(inner, f"{where}.with", level + 1)
        label = _optional(node, "label", where)
        if type_name == "slot" and not label:
            _fail("All slots must be labeled", where, node, 'a key "label"')
        id_ = _optional(node, "id", where)
        known = ("type", "count", "unit", "exclusive", "with", "label", "id")
        _check_keys(node, known, where, "Unrecognized key in resource mapping")
        return Resource(type_name, count, unit, exclusive, with_, label, id_)

    def _required(self, node: Mapping, key: str, where: str) -> Node:
        value = node.get(key)
        if value is None:
            _fail(f'Key "{key}" missing from resource', where, node, f'a key "{key}"')
        return value

    def _exclusive(self, node: Node | None, where: str) -> bool | None:
        if node is None:
            return None
        text = _string(node, where, 'Value of "exclusive" must be a scalar')
        if text not in ("true", "false"):
            _fail('Value of "exclusive" must be either "true" or "false"', where, node, "true or false")
        return text == "true"


def _count(node: Node, where: str) -> Count:
    if isinstance(node, Scalar) and not node.is_null:
        exact = _uint(node, where, 'Value of "count" must be an unsigned integer')
        return Count(exact, exact)
    if not isinstance(node, Mapping):
        _fail("count is not a mapping", where, node, "a whole number, or a mapping with min")
    smallest = node.get("min")
    if smallest is None:
        _fail('Key "min" missing from count', where, node, 'a key "min"')
    least = _bound(smallest, "min", where)
    rest = [(key, node.get(key)) for key in ("max", "operator", "operand")]
    given = [(key, value) for key, value in rest if value is not None]
    if given and len(given) < 3:
        _fail(
            'All or none of "max", "operator", and "operand" must be specified',
            where,
            node,
            "min alone, or all four",
        )
    _check_keys(node, ("min", "max", "operator", "operand"), where, "Unrecognized key in count mapping")
    if not given:
        if least < 1:
            _fail('"min" must be greater than zero', f"{where}.min", smallest, "at least 1")
        return Count(least, UINT_MAX)
    (_, largest), (_, operator), (_, operand) = given
    count = Count(
        least,
        _bound(largest, "max", where),
        _string(operator, f"{where}.operator", 'Value of "operator" must be a scalar'),
        _bound(operand, "operand", where),
    )
    _check_count(count, node, where)
    return count


def _bound(node: Node, key: str, where: str) -> int:
    _string(node, f"{where}.{key}", f'Value of "{key}" must be a scalar')
    return _uint(node, f"{where}.{key}", f'Value of "{key}" must be an unsigned integer')


def _check_count(count: Count, node: Mapping, where: str) -> None:
    if count.min < 1:
        _fail('"min" must be greater than zero', f"{where}.min", node.get("min"), "at least 1")
    if count.max < count.min:
        summary = '"max" must be greater than or equal to "min"'
        _fail(summary, f"{where}.max", node.get("max"), f"at least {count.min}")
    rules = _COUNT_RULES.get(count.operator)
    if rules is None:
        _fail("Invalid count operator", f"{where}.operator", node.get("operator"), "one of + * ^")
    for key, least, summary in rules:
        if (count.operand if key == "operand" else count.min) < least:
            _fail(summary, f"{where}.{key}", node.get(key), f"at least {least}")


# Tasks


def _tasks(node: Node) -> tuple[Task, ...]:
    if not isinstance(node, Sequence):
        _fail('"tasks" is not a sequence', "tasks", node, "a sequence of tasks")
    return tuple(_task(entry, f"tasks[{index}]") for index, entry in enumerate(node.items))


def _task(node: Node, where: str) -> Task:
    if not isinstance(node, Mapping):
        _fail("task is not a mapping", where, node, "a mapping with command, slot and count")
    command = node.get("command")
    if command is None:
        _fail('Key "command" missing from task', where, node, 'a key "command"')
    if not isinstance(command, Sequence):
        _fail('"command" value must be a sequence', f"{where}.command", command, "a sequence of strings")
    words = tuple(
        _string(word, f"{where}.command[{index}]", '"command" value must be a sequence of scalars')
        for index, word in enumerate(command.items)
    )
    slot = node.get("slot")
    if slot is None:
        _fail('Key "slot" missing from task', where, node, 'a key "slot"')
    slot_name = _string(slot, f"{where}.slot", 'Value of task "slot" must be a YAML scalar')
    count = _task_pairs(node, "count", where)
    if node.get("count") is not None and len(count) != 1:
        summary = '"count" in task must have exactly one entry'
        _fail(summary, f"{where}.count", node.get("count"), "per_slot or total")
    distribution = _optional(node, "distribution", where)
    attributes = _task_pairs(node, "attributes", where)
    if not 3 <= len(node.items) <= 5:
        _fail(
            "impossible number of entries in task mapping",
            where,
            node,
            "command, slot, count and at most two more",
        )
    return Task(words, slot_name, count, distribution, attributes)


def _task_pairs(node: Mapping, key: str, where: str) -> tuple[tuple[str, str], ...]:
    value = node.get(key)
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        _fail(f'"{key}" in task is not a mapping', f"{where}.{key}", value, "a mapping")
    return _string_pairs(value, f"{where}.{key}", f'Value in task "{key}" must be a scalar')


# Scalars


def _string(node: Node, where: str, summary: str) -> str:
    """The text of a scalar; null is rejected."""
    if not isinstance(node, Scalar) or node.is_null:
        _fail(summary, where, node, "a scalar")
    return node.text


def _optional(node: Mapping, key: str, where: str) -> str:
    value = node.get(key)
    return "" if value is None else _string(value, f"{where}.{key}", f'Value of "{key}" must be a scalar')


def _string_pairs(node: Mapping, where: str, summary: str) -> tuple[tuple[str, str], ...]:
    """Keys and values; null is the empty text."""
    pairs: list[tuple[str, str]] = []
    for key, value in node.items:
        empty = isinstance(value, Scalar) and value.is_null
        pairs.append((key, "" if empty else _string(value, child(where, key), summary)))
    return tuple(pairs)


def _uint(node: Node, where: str, summary: str) -> int:
    """A 32-bit unsigned integer in plain decimal: no sign, no leading zero, no other base."""
    if not isinstance(node, Scalar) or _UINT.fullmatch(node.text) is None or int(node.text) > UINT_MAX:
        _fail(summary, where, node, f"a decimal number from 0 to {UINT_MAX}")
    return int(node.text)


def _check_keys(node: Mapping, known: tuple[str, ...], where: str, summary: str) -> None:
    for key, value in node.items:
        if key not in known:
            _fail(summary, child(where, key), value, f"only {', '.join(known)}")


def _fail(summary: str, where: str, node: Node | None, expected: str) -> NoReturn:
    raise BadJobspec(summary, where=located(where, node), found=shown(node), expected=expected)
