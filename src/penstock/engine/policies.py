"""Match policies: the choice among candidates that all satisfy a request.

A policy scores every candidate and prefers either high or low scores. The named policies are those of
Fluxion, plus `pack` and `spread`; all but these two abbreviate the grammar of custom policies (`policy=high
node_centric=true ...`). Candidates with equal scores keep the order in which they were found.

`first` visits children in descending order of the free units below them and stops as soon as it has enough.
Free units are computed from the bookings, so the policy keeps no state: an engine decides the same after a
restart or after a cancelled job. (`SearchOrder` is the seam through which `resource-query` reproduces
Fluxion's stateful order; nothing else may use it.)
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
NODE_FACTOR: Final = 10_000  # weight of (node id + 2) in a score


class BadPolicy(BadRequest):
    """Neither a named policy nor a valid custom policy."""


class Usage(enum.Enum):
    """Whether nodes are ranked by usage. Fluxion has no such policies."""

    IGNORED = ""
    PACK = "pack"  # the fullest suitable node first
    SPREAD = "spread"  # the emptiest suitable node first


@dataclass(frozen=True, slots=True)
class Policy:
    high_first: bool = False
    node_centric: bool = False
    node_exclusive: bool = False
    stop_on_first: bool = False
    usage: Usage = Usage.IGNORED

    def node_score(self, node: Vertex) -> int:
        """What a node adds to the score of everything below it."""
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
    """Parses a name, or `policy=low|high` with flags, separated by single blanks."""
    named = NAMED_POLICIES.get(text)
    if named is not None:
        return named
    direction = ""
    flags: dict[str, bool] = {}
    for setting in text.split(" "):
        key, _, value = setting.partition("=")
        if key == "policy" and value in ("low", "high"):
            # Given twice, high wins: Fluxion's parser looks for it first.
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
            "a custom policy needs policy=low or policy=high",
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
    """The order in which a search visits children, instants and candidates."""

    is_stable: bool  # equal keys keep the order in which they were found
    reweighted: set[
        int
    ]  # vertices (indexes) whose weight has changed without a booking; the reader clears it

    def copy(self) -> SearchOrder:
        """An order that goes on as this one, independently, for a copy of the engine."""

    def ordered(self, children: Iterable[Vertex], now: int) -> list[Vertex]:
        """The children of a vertex, in the order in which `first` visits them."""

    def weight(self, child: Vertex, now: int) -> int:
        """The weight by which `ordered` visits children, the highest first; then by `uniq_id`."""

    def instants(self, times: list[int], root: Vertex, needs: dict[str, int]) -> Iterable[int]:
        """The instants to try for a start, out of those at which a booking begins or ends."""

    def ranking(self, keys: list[int]) -> list[int]:
        """Positions in ascending order of their keys. Implementations differ in the order of equal keys."""

    def keeps_ties(self, count: int) -> bool:
        """Whether a ranking of so many keys keeps the order of equal ones."""

    def lowest(self, keys: list[int], count: int) -> list[int]:
        """The first positions of `ranking`."""


class MostFreeOrder:
    """Children without bookings first, then those with most free; among equals the highest `uniq_id`."""

    is_stable = True

    def __init__(self) -> None:
        self.reweighted: set[int] = set()  # stays empty: a weight follows from the bookings

    def copy(self) -> MostFreeOrder:
        return self  # It keeps no state.

    def instants(self, times: list[int], root: Vertex, needs: dict[str, int]) -> Iterable[int]:  # noqa: ARG002
        return times

    def ranking(self, keys: list[int]) -> list[int]:
        return sorted(range(len(keys)), key=lambda place: keys[place])

    def keeps_ties(self, count: int) -> bool:  # noqa: ARG002
        return True

    def lowest(self, keys: list[int], count: int) -> list[int]:
        return self.ranking(keys)[:count]

    def ordered(self, children: Iterable[Vertex], now: int) -> list[Vertex]:
        return sorted(children, key=lambda child: (self.weight(child, now), child.uniq_id), reverse=True)

    def weight(self, child: Vertex, now: int) -> int:
        window = Window(now, now + 1, now, TimeView.NOW)
        if child.state is None or not child.state.bookings or not child.totals:
            return _IDLE
        last = next(reversed(child.totals))
        return expected_free_below(child, last, window)
