"""The order of nodes for the slots of a request, ahead of the match policy.

A request orders the nodes that could hold a slot by three keys, one after the other:

1. preference: the sum of the weights of the preferences of its group that the node satisfies, highest first;
2. `NodeOrder`: with `SPREAD` the number of slots of the job on the node, lowest first, then the usage of the
   node, lowest first; with `PACK` the usage of the node, highest first; with `POLICY` nothing;
3. the match policy.

Usage is what is on the node at present (`usage_ppm`). It depends on neither the request nor the time, so it
changes with a booking on the node and not otherwise. A policy that itself orders by usage (`pack`, `spread`)
is a choice for the whole cluster, and replaces the second key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.engine.graph import Vertex
from penstock.engine.policies import Policy, Usage
from penstock.engine.request import NodeOrder, Preference
from penstock.engine.vertex_state import USAGE_MAX_PPM, usage_ppm
from penstock.model.constraint import matches

__all__ = ["Ranking", "ranking_of"]

_USAGE_BITS: Final = 20  # more than `USAGE_MAX_PPM`
_SLOTS_BITS: Final = 20  # more slots than a job can have on one node
_PREFERENCE_MAX: Final = (1 << 20) - 1
_SHIFT: Final = 160  # a rank outweighs every score of a policy


class Ranking:
    """The first two keys as one number per slot."""

    def __init__(
        self,
        prefers: tuple[Preference, ...],
        order: NodeOrder,
        own_slots: Mapping[int, int],
        *,
        is_high: bool,
    ) -> None:
        self._prefers = prefers
        self._order = order
        self._own_slots = own_slots  # slots of the job by index of the node
        self._sign = -1 if is_high else 1  # high scores win

    def score(self, node: Vertex | None) -> int:
        """What a node adds to the score of the first slot on it, in the direction of the policy."""
        if node is None:
            return 0
        liked = sum(one.weight for one in self._prefers if matches(one.constraint, node))
        rank = (_PREFERENCE_MAX - min(max(liked, 0), _PREFERENCE_MAX)) << _SLOTS_BITS
        if self._order is NodeOrder.SPREAD:
            rank += self._own_slots.get(node.index, 0)
        rank <<= _USAGE_BITS
        if self._order is NodeOrder.SPREAD:
            rank += usage_ppm(node)
        elif self._order is NodeOrder.PACK:
            rank += USAGE_MAX_PPM - usage_ppm(node)
        return self._sign * rank << _SHIFT

    def step(self) -> int:
        """What each further slot on a node adds: with `SPREAD` it counts as one more slot of the job."""
        return self._sign << (_USAGE_BITS + _SHIFT) if self._order is NodeOrder.SPREAD else 0


def ranking_of(
    prefers: tuple[Preference, ...], order: NodeOrder, own_slots: Mapping[int, int], policy: Policy
) -> Ranking | None:
    """None if the match policy alone decides."""
    if policy.usage is not Usage.IGNORED:
        order = NodeOrder.POLICY
    if not prefers and order is NodeOrder.POLICY:
        return None
    return Ranking(prefers, order, own_slots, is_high=policy.high_first)
