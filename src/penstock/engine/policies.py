"""How the matcher chooses among candidates that would all do.

A policy gives every candidate a score and says whether high or low scores are better. The named
policies are those of Fluxion; all but `pack` and `spread` are short for the grammar of custom ones
(`policy=high node_centric=true ...`). Equal scores keep the order in which they were found.

`first` looks at children by what is free below them, most first, and stops as soon as it has
enough. What is free is read off the bookings, so the policy has no memory of its own: an engine
that was restarted, or whose job was cancelled, decides alike. (`SearchOrder` is the seam through
which the `resource-query` face keeps Fluxion's memory; nothing else may.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.engine.graph import Vertex
from penstock.engine.vertex_state import TimeView, Window, expected_free_below
from penstock.errors import BadRequest

__all__ = [
    "NAMED_POLICIES",
    "NODE_FACTOR",
    "BadPolicy",
    "MostFreeOrder",
    "Policy",
    "SearchOrder",
    "Usage",
    "parse_policy",
]

_IDLE: Final = 1 << 62
NODE_FACTOR: Final = 10_000  # a node's part of a score is at least so many times its number and two


class BadPolicy(BadRequest):
    """Neither the name of a policy nor a custom one."""


class Usage(enum.Enum):
    """Order by how full a node is; beside Fluxion's policies."""

    IGNORED = ""
    PACK = "pack"  # the fullest node that fits
    SPREAD = "spread"  # the emptiest


@dataclass(frozen=True, slots=True)
class Policy:
    high_first: bool = False
    node_centric: bool = False
    node_exclusive: bool = False
    stop_on_first: bool = False
    usage: Usage = Usage.IGNORED

    def node_score(self, node: Vertex) -> int:
        """What the score of everything below a node gets from it."""
        if not self.node_centric:
            return 0
        return (node.id + 2) * NODE_FACTOR + abs(node.uniq_id % NODE_FACTOR - 1)


NAMED_POLICIES: Final[dict[str, Policy]] = {
    "first": Policy(high_first=True, node_centric=True, stop_on_first=True),
    "firstnodex": Policy(high_first=True, node_centric=True, node_exclusive=True, stop_on_first=True),
    "high": Policy(high_first=True),
    "low": Policy(),
    "hinode": Policy(high_first=True, node_centric=True),
    "lonode": Policy(node_centric=True),
    "hinodex": Policy(high_first=True, node_centric=True, node_exclusive=True),
    "lonodex": Policy(node_centric=True, node_exclusive=True),
    "pack": Policy(usage=Usage.PACK),
    "spread": Policy(usage=Usage.SPREAD),
}

_FLAGS: Final = ("node_centric", "node_exclusive", "stop_on_1_matches")


def parse_policy(text: str) -> Policy:
    """A name, or `policy=low|high` with flags, separated by single blanks."""
    named = NAMED_POLICIES.get(text)
    if named is not None:
        return named
    direction = ""
    flags: dict[str, bool] = {}
    for setting in text.split(" "):
        key, _, value = setting.partition("=")
        if key == "policy" and value in ("low", "high"):
            # Told twice, high wins: it is what the grammar's readers look for first.
            direction = "high" if "high" in (value, direction) else value
        elif key in _FLAGS and value in ("true", "false"):
            flags.setdefault(key, value == "true")
        else:
            raise BadPolicy(
                f"invalid policy option: {key}",
                where="match policy",
                found=repr(text),
                expected=f"{', '.join(NAMED_POLICIES)}; or policy=low|high, {', '.join(_FLAGS)} =true|false",
            )
    if not direction:
        raise BadPolicy(
            "a custom policy needs a direction",
            where="match policy",
            found=repr(text),
            expected="policy=low or policy=high",
        )
    return Policy(
        high_first=direction == "high",
        node_centric=flags.get("node_centric", False),
        node_exclusive=flags.get("node_exclusive", False),
        stop_on_first=flags.get("stop_on_1_matches", False),
    )


class SearchOrder(Protocol):
    """What a search looks at, and in which order."""

    is_stable: bool  # equal keys stay in the order in which they were found

    def ordered(self, children: list[Vertex], now: int) -> list[Vertex]:
        """The children of a vertex, as `first` looks at them."""

    def instants(self, times: list[int], root: Vertex, needs: dict[str, int]) -> Iterable[int]:
        """The instants at which a start may be tried, of all at which something begins or ends."""

    def ranking(self, keys: list[int]) -> list[int]:
        """Positions in ascending order of their keys; the order of equal keys is the point."""


class MostFreeOrder:
    """Untouched children first, then the ones with most free; the youngest first among equals."""

    is_stable = True

    def instants(self, times: list[int], root: Vertex, needs: dict[str, int]) -> Iterable[int]:  # noqa: ARG002
        return times

    def ranking(self, keys: list[int]) -> list[int]:
        return sorted(range(len(keys)), key=lambda place: keys[place])

    def ordered(self, children: list[Vertex], now: int) -> list[Vertex]:
        window = Window(now, now + 1, now, TimeView.NOW)
        return sorted(children, key=lambda child: (self._weight(child, window), child.uniq_id), reverse=True)

    def _weight(self, child: Vertex, window: Window) -> int:
        if child.state is None or not child.state.bookings or not child.totals:
            return _IDLE
        last = next(reversed(child.totals))
        return expected_free_below(child, last, window)
