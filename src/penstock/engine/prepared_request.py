"""Compiled requests, kept for the next match of an equal job.

A queue has few different requests and asks for each of them again and again. Compiling one costs as much as
answering it from the index, so the results are kept by the identity of the request: whoever keeps a `Request`
and passes it again pays once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from penstock.engine.exclusion import Exclusion, exclusion_of
from penstock.engine.graph import Vertex
from penstock.engine.request import Demand, Request, check_rules, compile_demands

__all__ = ["KEPT_MAX", "PreparedRequest", "PreparedRequests"]

KEPT_MAX: Final = 1024  # requests; beyond that everything is forgotten


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A compiled request, with the subtree to search and the nodes to leave out."""

    request: Request
    demands: tuple[tuple[Demand, ...], ...]
    exclusions: tuple[Exclusion, ...]  # one per group
    top: Vertex | None = None  # None: the root, or each domain of `placement.within`
    excluded_nodes: Set[int] = frozenset()
    own_slots: Mapping[int, int] = field(default_factory=dict)  # of its job already, by index of the node

    @property
    def is_whole(self) -> bool:
        """Whether it may be placed anywhere, so that it is what `PreparedRequests` keeps."""
        return self.top is None and not self.excluded_nodes and not self.own_slots

    def without(self, excluded_nodes: Set[int]) -> PreparedRequest:
        """The same request on other nodes than these."""
        if not excluded_nodes:
            return self
        return PreparedRequest(
            self.request, self.demands, self.exclusions, self.top, excluded_nodes, self.own_slots
        )


class PreparedRequests:
    def __init__(self, whole_nodes: bool) -> None:
        self._whole_nodes = whole_nodes
        self._tracked: frozenset[str] = frozenset()
        # By the id of the request, which stays its own as long as the request is kept here.
        self._kept: dict[int, PreparedRequest] = {}

    def prepared(self, request: Request, tracked: frozenset[str]) -> PreparedRequest:
        """Validates and compiles a request for these filter types."""
        if tracked != self._tracked or len(self._kept) >= KEPT_MAX:
            self._tracked = tracked
            self._kept.clear()
        kept = self._kept.get(id(request))
        if kept is None:
            demands = tuple(
                compile_demands(group.resources, tracked, whole_nodes=self._whole_nodes)
                for group in request.groups
            )
            check_rules(request, demands)
            exclusions = tuple(exclusion_of(group, request.placement) for group in request.groups)
            kept = self._kept[id(request)] = PreparedRequest(request, demands, exclusions)
        return kept
