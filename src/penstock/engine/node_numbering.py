"""The numbers of nodes in sets of nodes, and which nodes are below which vertex.

Nodes are numbered by id, which is the order of the policies that look at nodes. A node that is added behind
all others gets the next number; otherwise everything is numbered again. The number of a removed node is not
used again until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from penstock.engine.graph import Graph, Vertex
from penstock.engine.node_sets import set_of_bits
from penstock.engine.policies import NODE_FACTOR
from penstock.engine.walker import NODE

__all__ = ["NodeNumbering"]


class NodeNumbering:
    def __init__(self) -> None:
        self.nodes: list[Vertex] = []
        self.outside: set[str] = set()  # types of vertices that are in no node
        self.removed = 0  # nodes that are not in the graph any more
        self.places: list[int] = []  # of each node: its place in a walk; only if `has_places`
        self.has_places = False
        self.above: list[Vertex] = []  # the vertices that are in no node
        self.is_mixed = False  # some vertex has nodes as children, and other children with nodes below
        self._bit: dict[int, int] = {}  # by vertex index
        self._below: dict[int, int] = {}  # by vertex index: the nodes below a vertex that is in no node
        self._direct: dict[int, int] = {}  # the same, of which it is the parent
        self._excluded: tuple[Set[int], int, int] = (frozenset(), 0, 0)  # the last set, its size, its nodes

    def number(self, graph: Graph) -> bool:
        """Numbers all nodes. False if there are nodes in nodes."""
        self.nodes, self._bit, self._below, self._direct = [], {}, {}, {}
        self.outside, self.removed, self._excluded = set(), 0, (frozenset(), 0, 0)
        above: list[Vertex] = []
        pending = [graph.root]
        while pending:
            vertex = pending.pop()
            above.append(vertex)
            self.outside.add(vertex.type)
            self.nodes.extend(child for child in vertex.below() if child.type == NODE)
            pending.extend(child for child in reversed(vertex.below()) if child.type != NODE)
        self.outside.add(NODE)
        if len(self.nodes) != graph.number_of(NODE) or graph.root.type == NODE:
            return False
        walked = {node.index: place for place, node in enumerate(self.nodes)}
        self.nodes.sort(key=_place)
        self.places = [walked[node.index] for node in self.nodes]
        self.above = above
        self._bit = {node.index: bit for bit, node in enumerate(self.nodes)}
        direct: dict[int, list[int]] = {}
        for bit, node in enumerate(self.nodes):
            parent = node.parent()
            assert parent is not None, "only the root has no parent"
            direct.setdefault(parent.index, []).append(bit)
        self._direct = {index: set_of_bits(bits, len(self.nodes)) for index, bits in direct.items()}
        for vertex in reversed(above):
            nodes = self._direct.get(vertex.index, 0)
            for child in vertex.below():
                nodes |= self._below.get(child.index, 0)
            self._below[vertex.index] = nodes
        self.is_mixed = any(self._below[index] != nodes for index, nodes in self._direct.items())
        self.has_places = not self.is_mixed
        return True

    def append(self, node: Vertex) -> bool:
        """Numbers a node that comes after all others, in a place that is known. False if it does not."""
        parent = node.parent()
        is_last = not self.nodes or _place(node) > _place(self.nodes[-1])
        if not is_last or parent is None or parent.index not in self._below:
            return False
        bit = len(self.nodes)
        self.nodes.append(node)
        self.places.append(bit)
        self.has_places = self.has_places and self._direct.keys() <= {parent.index}
        self._bit[node.index] = bit
        for above in node.ancestors():
            self._below[above.index] |= 1 << bit
        self._direct[parent.index] = self._direct.get(parent.index, 0) | 1 << bit
        self.is_mixed = self.is_mixed or self._direct[parent.index] != self._below[parent.index]
        return True

    def bit(self, index: int) -> int | None:
        """The number of the node with this vertex index."""
        return self._bit.get(index)

    def set_of(self, indexes: Set[int]) -> int:
        """The nodes with these vertex indexes."""
        last, size, nodes = self._excluded
        if last is indexes and size == len(indexes):
            return nodes
        bits = (self._bit[index] for index in indexes if index in self._bit)
        nodes = set_of_bits(bits, len(self.nodes))
        self._excluded = (indexes, len(indexes), nodes)
        return nodes

    def below(self, vertex: Vertex) -> int:
        """The nodes below a vertex, or the node that contains it."""
        nodes = self._below.get(vertex.index)
        if nodes is None:
            inside = (one for one in (vertex, *vertex.ancestors()) if one.index in self._bit)
            nodes = sum(1 << self._bit[one.index] for one in inside)
        return nodes & ~self.removed if self.removed else nodes

    def split(self, vertex: Vertex, nodes: int) -> tuple[int, Iterable[Vertex]] | None:
        """Which nodes of a set are children of a vertex, and its other children that lead to some of them.

        None inside a node.
        """
        below = self._below.get(vertex.index)
        if below is None:
            return None
        direct = self._direct.get(vertex.index, 0) & nodes
        if direct == below & nodes:
            return direct, ()
        return direct, [child for child in vertex.below() if self._below.get(child.index, 0) & nodes]

    def types_below(self, vertex: Vertex) -> set[str] | None:
        """Types of the children of a vertex that lead to nodes; None inside a node."""
        below = self._below.get(vertex.index)
        if below is None:
            return None
        direct = self._direct.get(vertex.index, 0)
        types = {NODE} if direct & ~self.removed else set()
        if direct != below:
            types |= {child.type for child in vertex.below() if child.index in self._below}
        return types


def _place(node: Vertex) -> tuple[int, int, int]:
    """The order of nodes: as `Policy.node_score`, and equal ones as their edges were added."""
    return node.id, abs(node.uniq_id % NODE_FACTOR - 1), node.order
