"""Node constraints: RFC 31, extended by node affinity and tolerations of Kubernetes.

A constraint is a small tree of values. `properties`, `hostlist`, `ranks`, `and`, `or` and `not` are the
operators of the RFC and have a text form. `Value` (node selectors and node affinity), `Tolerates` (taints)
and `HostIn` (a computed set of host names) are built in code only.

The taints of a node are encoded in one property, under a name that no label can have, so that every code path
that carries properties carries taints. A node without taints does not have the property.

An operator without operands matches every node, so `not` without operands matches none. A property is matched
by name; only `Value` and `Tolerates` use its value.
"""

from __future__ import annotations

import collections.abc
import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, Protocol, TypeAlias

from penstock.errors import BadRequest
from penstock.model import document
from penstock.model.hostlist import BadHostlist, parse_hostlist
from penstock.model.idset import BadIdset, parse_idset
from penstock.model.rset import PROPERTY_FORBIDDEN

__all__ = [
    "CORDON_KEY",
    "FORBIDDING_EFFECTS",
    "TAINTS_PROPERTY",
    "And",
    "BadConstraint",
    "Constraint",
    "HostIn",
    "Hostlist",
    "Not",
    "Or",
    "Properties",
    "Ranks",
    "Subject",
    "Taint",
    "Tolerates",
    "Toleration",
    "TolerationOperator",
    "Value",
    "ValueOperator",
    "decode_taints",
    "encode_taints",
    "matches",
    "parse_constraint",
    "untolerated_taints",
]

TAINTS_PROPERTY = "penstock:taints"  # The colon cannot occur in a label key.
FORBIDDING_EFFECTS = frozenset(["NoSchedule", "NoExecute"])  # Other effects are preferences.

CORDON_KEY = "node.kubernetes.io/unschedulable"
# Taints that Kubernetes sets by itself, while a node is in a certain condition.
_TEMPORARY_KEYS = frozenset(
    [
        CORDON_KEY,
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
    ]
)
_DEPTH_MAX = 32
_HOSTS_MAX = 1 << 16
_RANKS_MAX = 1 << 20
_NAME_SHOWN_MAX = 256
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")  # The length limit of a label value; leading zeros are valid.
_INTEGER_MAX = 2**63 - 1
_OPERATORS = "properties, hostlist, ranks, and, or, not"
_ESCAPES = {ord(character): f"%{ord(character):02X}" for character in "%=:,"}
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


class BadConstraint(BadRequest):
    """The document is not a valid RFC 31 constraint."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The node must have all of the properties, and none of those that begin with `^`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hostlist:
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ranks:
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True if at least one operand is false."""

    operands: tuple[Constraint, ...]


class ValueOperator(enum.Enum):
    """The operators of a Kubernetes node selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Value:
    """Compares the value of one property. `GT` and `LT` take exactly one value, an integer."""

    key: str
    operator: ValueOperator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostIn:
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    @property
    def is_temporary(self) -> bool:
        return self.key in _TEMPORARY_KEYS

    def __str__(self) -> str:
        """In the syntax of `kubectl taint`."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class TolerationOperator(enum.Enum):
    EQUAL = "Equal"
    EXISTS = "Exists"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Tolerates taints with this key, value (`EQUAL`) and effect.

    An empty effect matches every effect. An empty key matches every key, with `EXISTS` only.
    """

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Tolerates:
    """True if each `NoSchedule` or `NoExecute` taint of the node is tolerated."""

    tolerations: tuple[Toleration, ...] = ()


Constraint: TypeAlias = Properties | Hostlist | Ranks | And | Or | Not | Value | Tolerates | HostIn


class Subject(Protocol):
    """The interface of a node that a constraint is matched against."""

    @property
    def name(self) -> str: ...

    @property
    def rank(self) -> int: ...

    @property
    def properties(self) -> collections.abc.Mapping[str, str]: ...


def matches(constraint: Constraint, subject: Subject, *, ideal: bool = False) -> bool:
    """Whether a node matches; with `ideal`, whether it would without temporary taints."""
    match constraint:
        case Properties(names=names):
            held = subject.properties
            return all((name[1:] not in held) if name[:1] == "^" else (name in held) for name in names)
        case Hostlist(hosts=hosts):
            return subject.name in hosts
        case HostIn(names=members):
            return subject.name in members
        case Ranks(ranks=ranks):
            return subject.rank in ranks
        case And(operands=operands):
            return all(matches(operand, subject, ideal=ideal) for operand in operands)
        case Or(operands=operands):
            return not operands or any(matches(operand, subject, ideal=ideal) for operand in operands)
        case Not(operands=operands):
            # What does not match now cannot be excluded for ever either.
            return not all(matches(operand, subject) for operand in operands)
        case Value():
            return _value_matches(constraint, subject.properties.get(constraint.key))
        case Tolerates(tolerations=tolerations):
            tainted = subject.properties.get(TAINTS_PROPERTY)
            return tainted is None or not _untolerated(tolerations, tainted, ideal)


def _value_matches(test: Value, held: str | None) -> bool:
    match test.operator:
        case ValueOperator.IN:
            return held is not None and held in test.values
        case ValueOperator.NOT_IN:
            return held is None or held not in test.values
        case ValueOperator.EXISTS:
            return held is not None
        case ValueOperator.DOES_NOT_EXIST:
            return held is None
        case ValueOperator.GT | ValueOperator.LT:
            left = _integer(held)
            right = _integer(test.values[0]) if len(test.values) == 1 else None
            if left is None or right is None:
                return False
            return left > right if test.operator is ValueOperator.GT else left < right


def _integer(text: str | None) -> int | None:
    """A decimal 64-bit integer, or None. Blanks and underscores are invalid."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX else None


def encode_taints(taints: collections.abc.Iterable[Taint]) -> str:
    """Taints as a property value: `key=value:effect,...`, the same text for equal sets."""
    texts = {
        f"{taint.key.translate(_ESCAPES)}={taint.value.translate(_ESCAPES)}:{taint.effect.translate(_ESCAPES)}"
        for taint in taints
    }
    return ",".join(sorted(texts))


@lru_cache(maxsize=4096)
def decode_taints(text: str) -> tuple[Taint, ...]:
    """The inverse of `encode_taints`, without duplicates."""
    return tuple(_taint(part) for part in text.split(",")) if text else ()


def _taint(text: str) -> Taint:
    key, _, rest = text.partition("=")
    value, _, effect = rest.partition(":")
    return Taint(_plain(key), _plain(value), _plain(effect))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text) if "%" in text else text


def untolerated_taints(constraint: Tolerates, subject: Subject, *, ideal: bool = False) -> list[Taint]:
    """The taints that keep a member with these tolerations off a node."""
    return _untolerated(constraint.tolerations, subject.properties.get(TAINTS_PROPERTY, ""), ideal)


def _untolerated(tolerations: tuple[Toleration, ...], tainted: str, ideal: bool) -> list[Taint]:
    return [
        taint
        for taint in decode_taints(tainted)
        if taint.effect in FORBIDDING_EFFECTS
        and not (ideal and taint.is_temporary)
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator is TolerationOperator.EXISTS:
        return not toleration.key or toleration.key == taint.key
    return bool(toleration.key) and toleration.key == taint.key and toleration.value == taint.value


def parse_constraint(node: document.Node, where: str = "constraints") -> Constraint | None:
    """Parses a document tree. None for an empty mapping, which constrains nothing."""
    return _Reader().read(node, where, 1)


class _Reader:
    """Parses one constraint. The limits on hosts and ranks apply to the whole tree."""

    def __init__(self) -> None:
        self._hosts_left = _HOSTS_MAX
        self._ranks_left = _RANKS_MAX

    def read(self, node: document.Node, where: str, depth: int) -> Constraint | None:
        if depth > _DEPTH_MAX:
            _fail("constraint is nested too deeply", where, node, f"a depth of at most {_DEPTH_MAX}")
        if not isinstance(node, document.Mapping):
            _fail("constraint is not a mapping", where, node, f"a mapping with one of {_OPERATORS}")
        if not node.items:
            return None
        if len(node.items) > 1:
            _fail("constraint has more than one operator", where, node, f"exactly one of {_OPERATORS}")
        operator, operands = node.items[0]
        if operator not in _OPERATORS.split(", "):
            _fail(
                f"unknown constraint operator: {operator[:_NAME_SHOWN_MAX]}",
                where,
                node,
                f"one of {_OPERATORS}",
            )
        where = f"{where}.{operator}"
        if not isinstance(operands, document.Sequence):
            _fail(f"{operator} value must be a sequence", where, operands, "a sequence")
        match operator:
            case "properties":
                return Properties(self._properties(operands, where))
            case "hostlist":
                return Hostlist(self._hosts(operands, where))
            case "ranks":
                return Ranks(self._ranks(operands, where))
        inner = tuple(
            self.read(entry, f"{where}[{index}]", depth + 1) or And(())
            for index, entry in enumerate(operands.items)
        )
        if operator == "not":
            return Not(inner)
        return And(inner) if operator == "and" else Or(inner)

    def _properties(self, operands: document.Sequence, where: str) -> tuple[str, ...]:
        names: list[str] = []
        for index, entry in enumerate(operands.items):
            place = f"{where}[{index}]"
            if not isinstance(entry, document.Scalar) or not entry.quoted:
                _fail("non-string property specified", place, entry, "a quoted string")
            bare = entry.text.removeprefix("^")
            if not bare or not PROPERTY_FORBIDDEN.isdisjoint(bare):
                forbidden = " ".join(sorted(PROPERTY_FORBIDDEN))
                _fail(
                    f"{entry.text[:_NAME_SHOWN_MAX]} is invalid",
                    place,
                    entry,
                    f"a name without any of {forbidden}",
                )
            names.append(entry.text)
        return tuple(names)

    def _hosts(self, operands: document.Sequence, where: str) -> frozenset[str]:
        hosts: set[str] = set()
        for index, entry in enumerate(operands.items):
            place = f"{where}[{index}]"
            try:
                part = parse_hostlist(_text(entry, place, "a hostlist"), hosts_max=self._hosts_left)
            except BadHostlist as error:
                _fail_part("bad hostlist", place, entry, error)
            self._hosts_left -= len(part)
            hosts.update(part)
        return frozenset(hosts)

    def _ranks(self, operands: document.Sequence, where: str) -> frozenset[int]:
        ranks: set[int] = set()
        for index, entry in enumerate(operands.items):
            place = f"{where}[{index}]"
            try:
                part = parse_idset(_text(entry, place, "an idset"), ids_max=self._ranks_left)
            except BadIdset as error:
                _fail_part("bad idset", place, entry, error)
            self._ranks_left -= len(part)
            ranks.update(part)
        return frozenset(ranks)


def _text(node: document.Node, where: str, expected: str) -> str:
    if not isinstance(node, document.Scalar) or node.is_null:
        _fail(f"not {expected}", where, node, f"{expected} as a string")
    return node.text


def _fail_part(what: str, where: str, node: document.Node, error: BadRequest) -> NoReturn:
    raise BadConstraint(
        f"{what}: {error.summary}",
        where=document.located(where, node),
        found=error.found,
        expected=error.expected,
    ) from error


def _fail(summary: str, where: str, node: document.Node, expected: str) -> NoReturn:
    raise BadConstraint(
        summary, where=document.located(where, node), found=document.shown(node), expected=expected
    )
