"""What each node offers at present, as sets of nodes: the index in front of the walker.

The walker decides which vertices a request gets. On a large cluster nearly all of its work is to find out
that nodes have too little, and this index answers that first: `candidates` returns a set of nodes outside of
which the walker would find nothing. The set may be too large (cores that are free in number, but in
different sockets), never too small, so an answer never depends on the index, only its cost does.

Nodes are numbered by id, which is the order of the policies that look at nodes. Per resource type the nodes
are kept in the order of their free units. A node is counted again after a booking, external usage or graph
change on it (`touch`), and when the time of a booking on it begins or ends; nothing here costs the size of
the cluster per event, except a node that is added before others in the order.

`free` holds for a window that begins at the present. A node with a later booking that takes more than what
is taken now is *affected*; for such nodes, and for windows in the future, `fits` reads the planners.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from penstock.engine.busy_times import BusyTimes
from penstock.engine.exclusion import Exclusion
from penstock.engine.graph import Graph, Vertex
from penstock.engine.node_fits import NodeFits
from penstock.engine.node_numbering import NodeNumbering
from penstock.engine.node_sets import NodeBlocks, bits_of, set_of_bits
from penstock.engine.planner import FOREVER
from penstock.engine.policies import SearchOrder
from penstock.engine.type_facts import TypeFacts
from penstock.engine.vertex_state import TimeView, VertexState, Window, is_idle, is_key_in_use, usage_ppm
from penstock.engine.walker import NODE
from penstock.model.constraint import Constraint, matches
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["Needs", "NodeIndex"]

_CONSTRAINTS_MAX: Final = 256  # sets that are kept
_EXPIRY_SWEEP: Final = 1000  # outdated times that are kept at least

Needs = tuple[tuple[str, int], ...]  # units of filter types that one node must have, by type


class NodeIndex:
    def __init__(
        self, graph: Graph, order: SearchOrder, changed: set[int], fits: NodeFits, *, by_weight: bool
    ) -> None:
        self._graph = graph
        self._order = order
        self._by_weight = by_weight  # `first` visits nodes by weight
        self.changed = changed  # nodes to count again, by vertex index
        self._fits = fits
        self.is_stale = True  # nodes must be numbered again
        self.is_usable = False
        self.numbered = 0  # how often all nodes were numbered or counted
        self.listeners: list[set[int]] = []  # each gets the nodes (bits) that are counted again
        self.numbering = NodeNumbering()
        self.now = -1
        self._facts: dict[str, TypeFacts] = {}
        self._constraints: dict[tuple[Constraint, bool], int] = {}  # the flag: without temporary taints
        self._reset_counts()

    def _reset_counts(self) -> None:
        self.up = 0  # up, with everything above
        self.idle = 0
        self.disturbed = 0  # has transient external usage
        self.busy = BusyTimes()
        self.affected = 0  # a later booking takes more than what is taken now
        self.free: dict[str, NodeBlocks] = {}  # at present, by type
        self.capacity: dict[str, NodeBlocks] = {}  # less standing usage, by type
        self.weights = NodeBlocks()
        self.usage: NodeBlocks | None = None  # counted once a request orders nodes by usage
        self._keys: dict[ExclusionKey, int] = {}
        self._keys_at: dict[int, tuple[ExclusionKey, ...]] = {}
        self._expiry: list[tuple[int, int]] = []  # (time at which a node must be counted again, node)
        self._expires: dict[int, int] = {}  # by node: the earliest of these
        self._totals: dict[str, dict[int, int]] = {}  # units below a node, by type and node

    @property
    def nodes(self) -> list[Vertex]:
        return self.numbering.nodes

    # Changes

    def touch(self, vertex: Vertex) -> None:
        """Must be called after the status of a vertex has changed."""
        self._touch_within(vertex, is_capacity=False)

    def touch_properties(self, vertex: Vertex) -> None:
        """Must be called after the properties of a vertex have changed."""
        bit = self.numbering.bit(vertex.index)
        if bit is None:
            return
        for (constraint, ideal), nodes in self._constraints.items():
            if matches(constraint, vertex, ideal=ideal) != bool(nodes >> bit & 1):
                self._constraints[constraint, ideal] = nodes ^ 1 << bit

    def touch_capacity(self, vertex: Vertex) -> None:
        """Must be called after vertices were removed below a vertex, or its size has changed."""
        self._note_fact(vertex)
        self._touch_within(vertex, is_capacity=True)

    def add(self, vertices: list[Vertex]) -> None:
        """Must be called after a subtree was added, with its vertices, the top first."""
        nodes = [vertex for vertex in vertices if vertex.type == NODE]
        for vertex in vertices:
            self._note_fact(vertex)
        if nodes == vertices[:1]:
            self._add_node(nodes[0])
        elif nodes:
            self.is_stale = True
        else:
            self._touch_within(vertices[0], is_capacity=True)

    def forget_all(self) -> None:
        """Must be called after changes anywhere in the graph."""
        self.is_stale = True
        self._fits.clear()

    def remove(self, top: Vertex, parent: Vertex) -> None:
        """Must be called after a subtree was removed."""
        if top.type == NODE and self.numbering.bit(top.index) is not None:
            self.changed.add(top.index)
            self._fits.forget(top)
        else:
            self._touch_within(parent, is_capacity=True)

    def _note_fact(self, vertex: Vertex) -> None:
        facts = self._facts.get(vertex.type)
        if facts is not None:
            parent = vertex.parent()
            siblings = parent.below() if parent is not None else ()
            facts.note(vertex, all(one is vertex or one.type != vertex.type for one in siblings))

    def _touch_within(self, vertex: Vertex, is_capacity: bool) -> None:
        at: Vertex | None = vertex
        while at is not None and at.type != NODE:
            at = at.parent()
        if at is not None:
            self._fits.forget(at)
        bit = self.numbering.bit(at.index) if at is not None else None
        if at is None or bit is None:
            self.is_stale = True
            return
        if is_capacity:
            for totals in self._totals.values():
                totals.pop(bit, None)
        self.changed.add(at.index)

    def _add_node(self, node: Vertex) -> None:
        """Numbers a node, if it comes after all others; otherwise all are numbered again."""
        if self.is_stale or not self.is_usable or not self.numbering.append(node):
            self.is_stale = True
            return
        bit = len(self.nodes) - 1
        for (constraint, ideal), nodes in self._constraints.items():
            if matches(constraint, node, ideal=ideal):
                self._constraints[constraint, ideal] = nodes | 1 << bit
        self.changed.add(node.index)

    def refresh(self, now: int | None) -> bool:
        """Brings everything up to date for the present. False if the graph cannot be indexed.

        None: a query that does not depend on the time.
        """
        if now is None:
            now = max(self.now, 0)
        if self.is_stale:
            self.now = now
            self._number()
        if not self.is_usable:
            self.changed.clear()
            return False
        if now < self.now:
            self.now = now
            self._count_all()
        self.now = now
        while self._expiry and self._expiry[0][0] <= now:
            at, bit = heapq.heappop(self._expiry)
            if self._expires.get(bit) == at:
                del self._expires[bit]
                self.changed.add(self.nodes[bit].index)
        reweighted = self._order.reweighted
        if reweighted and self._by_weight:
            self.changed.update(reweighted)
        reweighted.clear()
        if self.changed:
            for index in self.changed:
                bit_or_none = self.numbering.bit(index)
                if bit_or_none is not None:
                    self._count(bit_or_none)
            self.changed.clear()
        return True

    def _number(self) -> None:
        graph = self._graph
        self.is_stale = False
        self._facts.clear()
        self._constraints.clear()
        self.changed.clear()
        self.is_usable = graph.is_tree and self.numbering.number(graph)
        if self._by_weight and len({node.uniq_id for node in self.nodes}) < len(self.nodes):
            self.is_usable = False
        if self.is_usable:
            self._count_all()

    def _count_all(self) -> None:
        watched, has_usage = list(self.free), self.usage is not None
        self._reset_counts()
        self.numbered += 1
        for resource_type in watched:
            self.free[resource_type], self.capacity[resource_type] = NodeBlocks(), NodeBlocks()
            self._totals[resource_type] = {}
        if has_usage:
            self.usage = NodeBlocks()
        for bit in range(len(self.nodes)):
            self._count(bit)

    # Counting

    def watch(self, resource_types: Iterable[str]) -> None:
        """Counts types that no request has named before."""
        for resource_type in resource_types:
            if resource_type not in self.free:
                self.free[resource_type], self.capacity[resource_type] = NodeBlocks(), NodeBlocks()
                self._totals[resource_type] = {}
                free: dict[int, int] = {}
                capacity: dict[int, int] = {}
                for bit, node in enumerate(self.nodes):
                    if node.index in self._graph.vertices:
                        free[bit], capacity[bit] = self._units(bit, node, resource_type)
                        self._note_later(bit, node, (resource_type,))
                self.free[resource_type].fill(free)
                self.capacity[resource_type].fill(capacity)

    def watch_usage(self) -> NodeBlocks:
        """The nodes in the order of `usage_ppm`."""
        if self.usage is None:
            self.usage = NodeBlocks()
            self.usage.fill(
                {bit: usage_ppm(node) for bit, node in enumerate(self.nodes) if self.is_present(node)}
            )
        return self.usage

    def is_present(self, node: Vertex) -> bool:
        return self._graph.vertices.get(node.index) is node

    def _count(self, bit: int) -> None:
        node, one = self.nodes[bit], 1 << bit
        for listener in self.listeners:
            listener.add(bit)
        if not self.is_present(node):
            self._forget(bit)
            return
        state = node.state
        at: Vertex | None = node
        while at is not None and at.up:
            at = at.parent()
        is_up = at is None
        self.up = self.up | one if is_up else self.up & ~one
        window = Window(self.now, self.now + 1, self.now, TimeView.NOW)
        free_now = is_idle(node, window)
        self.idle = self.idle | one if free_now else self.idle & ~one
        is_disturbed = state is not None and state.transient_shares > 0
        self.disturbed = self.disturbed | one if is_disturbed else self.disturbed & ~one
        self.busy.put(bit, state.presence if state is not None else None)
        for resource_type, blocks in self.free.items():
            free, capacity = self._units(bit, node, resource_type)
            blocks.put(bit, free)
            self.capacity[resource_type].put(bit, capacity)
        if self.usage is not None:
            self.usage.put(bit, usage_ppm(node))
        if self._by_weight:
            weight = self._order.weight(node, self.now)
            self.weights.put(bit, (weight << 64) + node.uniq_id)
        self.affected &= ~one
        self._note_later(bit, node, self.free)
        self._set_keys(bit, tuple(state.keys) if state is not None and state.keys else ())

    def _forget(self, bit: int) -> None:
        one = 1 << bit
        self.numbering.removed |= one
        self.is_stale = 2 * self.numbering.removed.bit_count() > len(self.nodes)
        self.up &= ~one
        self.idle &= ~one
        self.disturbed &= ~one
        self.affected &= ~one
        self.busy.put(bit, None)
        for blocks in (*self.free.values(), *self.capacity.values(), self.weights):
            blocks.put(bit, None)
        if self.usage is not None:
            self.usage.put(bit, None)
        self._set_keys(bit, ())

    def _set_keys(self, bit: int, keys: tuple[ExclusionKey, ...]) -> None:
        before = self._keys_at.get(bit, ())
        if before == keys:
            return
        one = 1 << bit
        for key in before:
            left = self._keys[key] & ~one
            if left:
                self._keys[key] = left
            else:
                del self._keys[key]
        for key in keys:
            self._keys[key] = self._keys.get(key, 0) | one
        if keys:
            self._keys_at[bit] = keys
        else:
            del self._keys_at[bit]

    def total(self, bit: int, resource_type: str) -> int:
        """Units of a type below a node."""
        node = self.nodes[bit]
        if node.totals is not None and resource_type in node.totals:
            return node.totals[resource_type]
        totals = self._totals[resource_type]
        found = totals.get(bit)
        if found is None:
            found = totals[bit] = sum(
                vertex.size for vertex in self._graph.walk(node) if vertex.type == resource_type
            )
        return found

    def _units(self, bit: int, node: Vertex, resource_type: str) -> tuple[int, int]:
        """The units of a type that are free on a node at present, and if no job were there."""
        total = self.total(bit, resource_type)
        state = node.state
        if state is None:
            return total, total
        now = self.now
        external = state.external_below.get(resource_type)
        planner = state.below.get(resource_type)
        booked = planner.booked_at(now) if planner is not None else 0
        if state.live_end_min <= now:
            booked = max(booked, _overdue(state, resource_type, now))
        standing = external[1] if external is not None else 0
        transient = external[0] if external is not None else 0
        return (
            total - booked - standing - transient + state.excess_below.get(resource_type, 0),
            total - standing + state.standing_excess_below.get(resource_type, 0),
        )

    def _note_later(self, bit: int, node: Vertex, resource_types: Iterable[str]) -> None:
        """Notes what the plan of a node changes after the present."""
        state = node.state
        if state is None or not state.bookings:
            return
        now, following = self.now, FOREVER
        planners = [state.presence, *(p for name in resource_types if (p := state.below.get(name)))]
        if self._by_weight and node.totals and (weighed := state.below.get(next(reversed(node.totals)))):
            planners.append(weighed)
        for planner in planners:
            at = planner.next_change(now)
            if at is not None:
                following = min(following, at)
                if planner.booked_most(at, FOREVER) > planner.booked_at(now):
                    self.affected |= 1 << bit
        if following < self._expires.get(bit, FOREVER):
            self._expires[bit] = following
            heapq.heappush(self._expiry, (following, bit))
            if len(self._expiry) > 2 * len(self._expires) + _EXPIRY_SWEEP:
                self._expiry = sorted((at, one) for one, at in self._expires.items())

    # Queries

    def facts(self, resource_type: str) -> TypeFacts:
        found = self._facts.get(resource_type)
        if found is None:
            found = self._facts[resource_type] = TypeFacts(self._graph.of_type(resource_type))
        return found

    def visited(self, vertex: Vertex, nodes: int, weighed_at: int | None) -> Iterable[Vertex] | None:
        """The children of a vertex that lead to a set of nodes, as a walk visits them; None inside a node.

        `weighed_at` is the time of the weights by which they are ordered; None: as their edges were added.
        """
        split = self.numbering.split(vertex, nodes)
        if split is None:
            return None
        direct, others = split
        if weighed_at == self.now and not others:
            return (self.nodes[bit] for _, bit in self.weights.descending(direct))
        children = [*(self.nodes[bit] for bit in bits_of(direct)), *others]
        if weighed_at is not None:
            return self._order.ordered(children, weighed_at)
        children.sort(key=lambda child: child.order)
        return children

    def nodes_matching(self, constraint: Constraint, *, ideal: bool = False) -> int:
        """The nodes that match a constraint; with `ideal`, those that would without temporary taints."""
        nodes = self._constraints.get((constraint, ideal))
        if nodes is None:
            if len(self._constraints) >= _CONSTRAINTS_MAX:
                del self._constraints[next(iter(self._constraints))]
            found = (bit for bit, node in enumerate(self.nodes) if matches(constraint, node, ideal=ideal))
            nodes = self._constraints[constraint, ideal] = set_of_bits(found, len(self.nodes))
        return nodes

    def candidates(
        self,
        needs: Needs,
        needs_idle: bool,
        constraint: Constraint | None,
        exclusion: Exclusion,
        window: Window,
        inside: int,
    ) -> int:
        """The nodes in a set outside of which a walk over this window finds nothing."""
        nodes = inside
        is_ideal = window.view is TimeView.IDEAL
        if not is_ideal:
            nodes &= self.up
        by_type = self.free if window.view is TimeView.NOW else self.capacity
        for resource_type, units in needs:
            nodes &= by_type[resource_type].at_least(units)
        if needs_idle and window.view is TimeView.NOW:
            nodes &= self.idle
        if constraint is not None:
            nodes &= self.nodes_matching(constraint, ideal=is_ideal)
        if exclusion.forbids and nodes:
            nodes = self._without_keys(nodes, exclusion, window)
        if is_ideal or not nodes:
            return nodes
        if needs_idle:
            # What is idle during the window has all its capacity.
            return nodes & ~(self.busy.during(window.start, window.end) | self.disturbed)
        unsure = nodes & self.affected if window.view is TimeView.NOW else nodes
        for bit in bits_of(unsure):
            if not self.fits(bit, needs, needs_idle, window):
                nodes ^= 1 << bit
        return nodes

    def _without_keys(self, nodes: int, exclusion: Exclusion, window: Window) -> int:
        for level, keys in exclusion.forbids.items():
            if level == NODE:
                for key in keys:
                    for bit in bits_of(nodes & self._keys.get(key, 0)):
                        if is_key_in_use(self.nodes[bit], key, window):
                            nodes ^= 1 << bit
            elif level in self.numbering.outside:
                for vertex in self._graph.of_type(level):
                    if any(is_key_in_use(vertex, key, window) for key in keys):
                        nodes &= ~self.numbering.below(vertex)
        return nodes

    def fits(self, bit: int, needs: Needs, needs_idle: bool, window: Window) -> bool:
        """Whether a node has enough during a window, as far as its totals tell."""
        node = self.nodes[bit]
        state = node.state
        if state is None:
            return True  # Its capacity is enough.
        if needs_idle and not is_idle(node, window):
            return False
        return all(
            self._free_during(bit, state, resource_type, window) >= units for resource_type, units in needs
        )

    def slots(self, bit: int, needs: Needs, window: Window) -> int:
        """The most slots with these needs that a node could hold during a window."""
        state = self.nodes[bit].state
        if state is None or window.view is TimeView.IDEAL:
            return min(
                (self.capacity[resource_type].value(bit) or 0) // units for resource_type, units in needs
            )
        return min(
            self._free_during(bit, state, resource_type, window) // units for resource_type, units in needs
        )

    def _free_during(self, bit: int, state: VertexState, resource_type: str, window: Window) -> int:
        external = state.external_below.get(resource_type)
        planner = state.below.get(resource_type)
        booked = 0
        if planner is not None:
            booked = planner.booked_most(window.start, window.end)
            if window.start <= window.now and state.live_end_min <= window.now:
                booked = max(booked, _overdue(state, resource_type, window.now))
        used = external[0] + external[1] if external is not None else 0
        return self.total(bit, resource_type) - booked - used + state.excess_below.get(resource_type, 0)


def _overdue(state: VertexState, resource_type: str, now: int) -> int:
    """Units that overdue jobs hold below a vertex.

    They can be on the same vertices as what is booked after them, so the two are not added.
    """
    return sum(booking.below.get(resource_type, 0) for booking in state.overdue(now))
