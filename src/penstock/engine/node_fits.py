"""Which idle nodes a request for whole nodes fits, without a walk for each of them.

The walker works out once what a group takes of an idle node of one shape; for every other node of that shape
the result is looked up. `first` visits children in an order that depends on earlier bookings, so there the
weights inside the node belong to the key. Where something could make two nodes of one shape differ (external
usage, running work that is not idle yet), there is no answer, and the walker decides.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import ge
from typing import Final

from penstock.engine.booking import Booker
from penstock.engine.candidates import Choice
from penstock.engine.graph import CONTAINMENT, Graph, Vertex
from penstock.engine.node_blocks import Block, NodeFit
from penstock.engine.policies import SearchOrder
from penstock.engine.request import Demand
from penstock.engine.walker import CONSTRAINED_TYPES, NODE

__all__ = ["UNKNOWN", "NodeFits", "Unknown", "signature_of"]

_FITS_MAX: Final = 4096


class Unknown:
    """No answer: the walker must visit the node."""


UNKNOWN: Final = Unknown()


class _Shape:
    __slots__ = ("inner", "members", "number")

    def __init__(self, number: int, members: tuple[Vertex, ...]) -> None:
        self.number = number  # equal for nodes of one shape
        self.members = members
        self.inner = [vertex for vertex in members[1:] if vertex.children]  # the others have no weight


def signature_of(demand: Demand, *, is_counted: bool = True) -> tuple[object, ...]:
    """Equal for demands that a walk treats alike."""
    return (
        demand.type,
        demand.count if is_counted else None,
        demand.exclusive,
        demand.label,
        tuple(signature_of(inner) for inner in demand.with_),
    )


class NodeFits:
    def __init__(self, graph: Graph, order: SearchOrder, booker: Booker, *, by_weight: bool) -> None:
        self._graph = graph
        self._order = order
        self._booker = booker
        self._by_weight = by_weight
        self._tracked = booker.tracked
        self._shapes: dict[int, _Shape | None] = {}  # by index of the node; None: it is not covered
        self._numbers: dict[tuple[object, ...], int] = {}
        self._fits: dict[tuple[object, ...], NodeFit | None] = {}

    def forget(self, node: Vertex) -> None:
        """Must be called after a change of a node or of something in it."""
        self._shapes.pop(node.index, None)

    def clear(self) -> None:
        self._shapes.clear()

    def prepare(self) -> None:
        """Works out the shapes of all nodes ahead of the requests, as a part of loading a graph."""
        for node in self._graph.each_of_type(NODE):
            self._shape(node)

    def shape(self, node: Vertex) -> tuple[int, tuple[Vertex, ...]] | None:
        """A number, equal for nodes that a walk treats alike when they are idle, and what is in the node."""
        shape = self._shape(node)
        return (shape.number, shape.members) if shape is not None else None

    def _shape(self, node: Vertex) -> _Shape | None:
        shape = self._shapes.get(node.index)
        if shape is None and node.index not in self._shapes:
            shape = self._shapes[node.index] = self._shape_of(node)
        return shape

    def block(
        self,
        node: Vertex,
        signature: tuple[object, ...],
        now: int,
        *,
        is_now: bool,
        whole_nodes: bool,
        select_on: Callable[[Vertex], Choice | None],
    ) -> Block | Unknown | None:
        """What a group takes of a node that is idle; None if it does not fit.

        `select_on` asks the walker; `is_now` if the window begins at the present.
        """
        state = node.state
        if state is not None:
            if state.external or state.excess or state.excess_below:
                return UNKNOWN
            if is_now and any(booking.live for booking in state.bookings.values()):
                return UNKNOWN
        shape = self._shape(node)
        if shape is None:
            return UNKNOWN
        if self._booker.tracked is not self._tracked or len(self._fits) > _FITS_MAX:
            self._tracked = self._booker.tracked
            self._fits.clear()
        weights: tuple[int, ...] = ()
        if self._by_weight:
            weights = tuple([self._order.weight(vertex, now) for vertex in shape.inner])
        key = (signature, shape.number, weights)
        fit = self._fits.get(key)
        if fit is None:
            if key in self._fits:
                return None
            choice = select_on(node)
            if choice is not None:
                fit = NodeFit(choice, shape.members, whole_nodes, self._booker)
            self._fits[key] = fit
        return Block(shape.members, fit) if fit is not None else None

    def _shape_of(self, node: Vertex) -> _Shape | None:
        if node.size != 1 or node.divisible:
            return None
        members = [node]
        structure: list[object] = []
        for position, vertex in enumerate(members):  # grows during the iteration
            kids = vertex.children.get(CONTAINMENT)
            if not kids:
                continue
            uniq_ids = [child.uniq_id for child in kids.values()]
            if len(kids) > 1 and any(map(ge, uniq_ids, uniq_ids[1:])):
                return None  # Children of equal weight are visited in the order of these ids.
            structure.append((position, len(kids), tuple(vertex.totals or ())))
            members.extend(kids.values())
        inner = members[1:]
        looks = [(v.type, v.id, v.name, v.size, v.divisible, v.up) for v in inner]
        key = (tuple(structure), tuple(looks))
        number = self._numbers.get(key)
        if number is None:
            if any(vertex.type in CONSTRAINED_TYPES for vertex in inner):
                return None
            number = self._numbers[key] = len(self._numbers)
        for vertex in inner:
            vertex.home = node
        return _Shape(number, tuple(members))
