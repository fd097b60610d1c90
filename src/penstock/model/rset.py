"""Resource sets: R version 1 (RFC 20), the resources of an allocation or of an instance.

R groups ranks with the same children as idsets: `{"rank": "0-3", "children": {"core": "0-7"}}`. The groups
are kept in their order, because users see it. Hosts are one list in ascending order of ranks.

A few bytes of an idset can denote millions of ids, so the parser has two limits: on the ids that it expands
(equal texts are expanded once), and on the resources that the whole set describes. The keys `scheduling` and
`attributes`, which a scheduler writes for itself, are ignored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import NoReturn

from penstock.errors import BadRequest
from penstock.model.document import Mapping, Node, Scalar, Sequence, child, parse_json, shown
from penstock.model.hostlist import BadHostlist, encode_hostlist, parse_hostlist
from penstock.model.idset import BadIdset, encode_idset, parse_idset

__all__ = [
    "PROPERTY_FORBIDDEN",
    "BadResourceSet",
    "RankGroup",
    "ResourceSet",
    "encode_rset",
    "parse_rset",
    "rank_hosts",
]

PROPERTY_FORBIDDEN = frozenset("!&'\"^`|()")

_SIZE_MAX = 64 << 20
_NODES_MAX = 5_000_000
_RANKS_MAX = 1 << 20
_IDS_MAX = 1 << 22
_RESOURCES_MAX = 1 << 24
_NUMBER_LENGTH_MAX = 64


class BadResourceSet(BadRequest):
    """The document is JSON, but not a resource set of version 1."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks with the same children: type and ids, in the order given."""

    ranks: tuple[int, ...]
    children: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class ResourceSet:
    groups: tuple[RankGroup, ...]
    nodelist: tuple[str, ...]  # Empty, or one host for each rank in ascending order.
    starttime: float
    expiration: float  # 0: none.
    properties: tuple[tuple[str, tuple[int, ...]], ...]
    nslots: int | None  # None: the resources of an instance, not of an allocation.


def parse_rset(text: str | bytes) -> ResourceSet:
    """Raises `BadDocument` for invalid JSON and `BadResourceSet` for an invalid R."""
    root = parse_json(text, size_max=_SIZE_MAX, nodes_max=_NODES_MAX)
    if not isinstance(root, Mapping):
        _fail("R is not an object", "R", root, "an object with version and execution")
    version = root.get("version")
    if not (isinstance(version, Scalar) and not version.quoted and version.text == "1"):
        _fail("unsupported version of R", "version", version, "1")
    execution = root.get("execution")
    if not isinstance(execution, Mapping):
        _fail("execution is not an object", "execution", execution, "an object with R_lite")
    ids = _Ids()
    groups = _groups(execution.get("R_lite"), ids)
    ranks = {rank for group in groups for rank in group.ranks}
    nslots = execution.get("nslots")
    return ResourceSet(
        groups=groups,
        nodelist=_nodelist(execution.get("nodelist"), len(ranks)),
        starttime=_seconds(execution.get("starttime"), "execution.starttime"),
        expiration=_seconds(execution.get("expiration"), "execution.expiration"),
        properties=_properties(execution.get("properties"), ranks, ids),
        nslots=None if nslots is None else _count(nslots, "execution.nslots"),
    )


def encode_rset(rset: ResourceSet) -> str:
    """One line of JSON. Keys of an absent nodelist, properties or nslots are omitted."""
    execution: dict[str, object] = {
        "R_lite": [
            {
                "rank": encode_idset(group.ranks),
                "children": {name: encode_idset(ids) for name, ids in group.children},
            }
            for group in rset.groups
        ]
    }
    if rset.nodelist:
        execution["nodelist"] = [encode_hostlist(rset.nodelist)]
    if rset.properties:
        execution["properties"] = {name: encode_idset(ranks) for name, ranks in rset.properties}
    if rset.nslots is not None:
        execution["nslots"] = rset.nslots
    execution["starttime"] = _plain_number(rset.starttime)
    execution["expiration"] = _plain_number(rset.expiration)
    return json.dumps({"version": 1, "execution": execution}, ensure_ascii=False, allow_nan=False)


def rank_hosts(rset: ResourceSet) -> dict[int, str]:
    """The host of each rank; empty without a nodelist."""
    ranks = sorted({rank for group in rset.groups for rank in group.ranks})
    return dict(zip(ranks, rset.nodelist, strict=True)) if rset.nodelist else {}


class _Ids:
    """Parses idsets within the limits of one R."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}
        self._left = _IDS_MAX
        self.resources = 0

    def read(self, node: Node | None, where: str) -> tuple[int, ...]:
        if not isinstance(node, Scalar) or not node.quoted:
            _fail("idset is not a string", where, node, 'an idset such as "0-3"')
        known = self._known.get(node.text)
        if known is not None:
            return known
        try:
            ids = parse_idset(node.text, ids_max=min(self._left, _RANKS_MAX))
        except BadIdset as error:
            raise BadResourceSet(
                f"bad idset: {error.summary}", where=where, found=error.found, expected=error.expected
            ) from error
        self._left -= len(ids)
        self._known[node.text] = ids
        return ids

    def count_resources(self, resources: int, where: str) -> None:
        self.resources += resources
        if self.resources > _RESOURCES_MAX:
            raise BadResourceSet(
                "R describes too many resources",
                where=where,
                found=f"at least {self.resources}",
                expected=f"at most {_RESOURCES_MAX}",
            )


def _groups(node: Node | None, ids: _Ids) -> tuple[RankGroup, ...]:
    if not isinstance(node, Sequence):
        _fail("R_lite is not an array", "execution.R_lite", node, "an array of ranks with children")
    groups: list[RankGroup] = []
    seen: set[int] = set()
    for index, entry in enumerate(node.items):
        where = f"execution.R_lite[{index}]"
        if not isinstance(entry, Mapping):
            _fail("R_lite entry is not an object", where, entry, "an object with rank and children")
        ranks = ids.read(entry.get("rank"), f"{where}.rank")
        if not ranks:
            _fail("R_lite entry without ranks", f"{where}.rank", entry.get("rank"), "at least one rank")
        if not seen.isdisjoint(ranks):
            twice = min(seen.intersection(ranks))
            raise BadResourceSet(
                "rank occurs twice", where=f"{where}.rank", found=str(twice), expected="every rank once"
            )
        seen.update(ranks)
        children = _children(entry.get("children"), f"{where}.children", ids)
        ids.count_resources(len(ranks) * (1 + sum(len(held) for _, held in children)), where)
        groups.append(RankGroup(ranks, children))
    return tuple(groups)


def _children(node: Node | None, where: str, ids: _Ids) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if not isinstance(node, Mapping):
        _fail("children is not an object", where, node, "types with idsets")
    children: list[tuple[str, tuple[int, ...]]] = []
    for name, entry in node.items:
        if not name:
            _fail("resource type without a name", where, node, "types with idsets")
        children.append((name, ids.read(entry, child(where, name))))
    return tuple(children)


def _nodelist(node: Node | None, ranks: int) -> tuple[str, ...]:
    if node is None:
        return ()
    where = "execution.nodelist"
    if not isinstance(node, Sequence):
        _fail("nodelist is not an array", where, node, "an array of hostlists")
    hosts: list[str] = []
    for index, entry in enumerate(node.items):
        if not isinstance(entry, Scalar) or not entry.quoted:
            _fail("hostlist is not a string", f"{where}[{index}]", entry, 'a hostlist such as "node[0-3]"')
        try:
            hosts.extend(parse_hostlist(entry.text, hosts_max=max(ranks - len(hosts), 0)))
        except BadHostlist as error:
            raise BadResourceSet(
                f"bad hostlist: {error.summary}",
                where=f"{where}[{index}]",
                found=error.found,
                expected=f"{ranks} hosts, one for each rank; {error.expected}",
            ) from error
    if hosts and len(hosts) != ranks:
        raise BadResourceSet(
            "nodelist does not fit the ranks",
            where=where,
            found=f"{len(hosts)} hosts",
            expected=f"{ranks} hosts, one for each rank",
        )
    return tuple(hosts)


def _properties(node: Node | None, ranks: set[int], ids: _Ids) -> tuple[tuple[str, tuple[int, ...]], ...]:
    if node is None:
        return ()
    if not isinstance(node, Mapping):
        _fail("properties is not an object", "execution.properties", node, "names with idsets of ranks")
    properties: list[tuple[str, tuple[int, ...]]] = []
    for name, entry in node.items:
        where = child("execution.properties", name)
        if not name or not PROPERTY_FORBIDDEN.isdisjoint(name):
            raise BadResourceSet(
                "bad property name",
                where=where,
                found=repr(name),
                expected="a name without any of " + " ".join(sorted(PROPERTY_FORBIDDEN)),
            )
        holders = ids.read(entry, where)
        if not ranks.issuperset(holders):
            _fail("property of a rank that R does not have", where, entry, "ranks of R_lite")
        properties.append((name, holders))
    return tuple(properties)


def _seconds(node: Node | None, where: str) -> float:
    if node is None:
        return 0.0
    expected = "a finite number of at least 0"
    if not isinstance(node, Scalar) or node.quoted or node.is_null or len(node.text) > _NUMBER_LENGTH_MAX:
        _fail("time is not a number", where, node, expected)
    if node.text in ("true", "false"):
        _fail("time is not a number", where, node, expected)
    value = float(node.text)
    if not 0.0 <= value < math.inf:
        _fail("time out of range", where, node, expected)
    return value


def _count(node: Node, where: str) -> int:
    if not isinstance(node, Scalar) or node.quoted or len(node.text) > 18 or not node.text.isdecimal():
        _fail("count is not a whole number", where, node, "a whole number of at least 0")
    return int(node.text)


def _plain_number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _fail(summary: str, where: str, node: Node | None, expected: str) -> NoReturn:
    raise BadResourceSet(summary, where=where, found=shown(node), expected=expected)
