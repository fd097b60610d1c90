"""What is recorded of nodes: their ranks and drains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.sched.journal import Journal
from penstock.sched.records import DrainGone, DrainSet, NodeForgotten, NodeNew

__all__ = ["NodeRecords"]


class NodeRecords:
    """A rank is the position of a node in the order of all nodes; none is reused."""

    def __init__(self, journal: Journal, rank_highest: int = -1) -> None:
        self._journal = journal
        self._ranks: dict[str, int] = {}  # of known nodes, and of those recorded before a restart
        self._drains: dict[str, DrainSet] = {}
        self.rank_highest = rank_highest

    def copy(self, journal: Journal) -> NodeRecords:
        made = NodeRecords(journal, self.rank_highest)
        made._ranks, made._drains = dict(self._ranks), dict(self._drains)
        return made

    @property
    def ranks(self) -> Mapping[str, int]:
        return self._ranks

    @property
    def drains(self) -> Mapping[str, DrainSet]:
        return self._drains

    def restore(self, nodes: Iterable[NodeNew], drains: Iterable[DrainSet]) -> None:
        self._ranks = {node.node: node.rank for node in nodes}
        self._drains = {drain.node: drain for drain in drains}

    def rank_of(self, node: str) -> int:
        """The rank of a node; an unknown node gets the next one."""
        rank = self._ranks.get(node, -1)
        if rank < 0:
            self.rank_highest += 1
            rank = self._ranks[node] = self.rank_highest
            self._journal.add(NodeNew(node, rank))
        return rank

    def forget(self, node: str) -> None:
        self._ranks.pop(node, None)
        self._journal.add(NodeForgotten(node))

    def drain(self, drain: DrainSet) -> None:
        self._drains[drain.node] = drain
        self._journal.add(drain)

    def undrain(self, node: str) -> None:
        del self._drains[node]
        self._journal.add(DrainGone(node))
