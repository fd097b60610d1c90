"""Refusals of requests that cannot start now: proven as `Never`, or `NotNow` with a reason and a start."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.allocation import Never, NotNow, Reason
from penstock.engine.bounds import cannot_ever_fit
from penstock.engine.explain import Explainer
from penstock.engine.graph import Graph
from penstock.engine.plain_slots import has_enough, plain_request
from penstock.engine.prepared_request import PreparedRequest
from penstock.engine.search import Search

__all__ = ["Refusals"]


class Refusals:
    def __init__(self, graph: Graph, search: Search, whole_nodes: bool) -> None:
        self._graph = graph
        self._search = search
        self._whole_nodes = whole_nodes

    def refusal(
        self, prepared: PreparedRequest, now: int, explain: bool, searched: bool = False
    ) -> NotNow | Never:
        search = self._search
        explainer = Explainer(
            self._graph,
            prepared.request,
            prepared.demands,
            prepared.exclusions,
            prepared.excluded_nodes,
            self._whole_nodes,
        )
        proof = None if search.could_ever(prepared) and len(prepared.demands) == 1 else self._proof(prepared)
        if proof is not None:
            reason = explainer.never(proof) if explain else Reason(proof)
            if prepared.excluded_nodes and self._proof(replace(prepared, excluded_nodes=frozenset())) is None:
                return NotNow(None, reason)  # It waits until a member of its own job leaves a node.
            return Never(reason)
        if not explain:
            return NotNow(None, Reason("not free now"))
        earliest = None
        if not searched:
            earliest = next(
                (t for t in search.instants(prepared, now) if search.select(prepared, t, now)), None
            )
        return NotNow(earliest, explainer.not_now(search.window(prepared, now, now)))

    def could_ever(self, prepared: PreparedRequest) -> bool:
        """The ideal view matches each group alone, so their sum is checked as well."""
        return self._search.could_ever(prepared) and (
            len(prepared.demands) == 1 or self._proof(prepared) is None
        )

    def never(self, prepared: PreparedRequest) -> str:
        """The clause that no state of the resources could satisfy; "" if that is not proven."""
        plain = plain_request(prepared.request, prepared.demands, prepared.exclusions)
        if plain is not None:
            if has_enough(self._graph, plain):
                return ""
        elif len(prepared.demands) == 1 and self._search.could_ever(prepared):
            return ""
        return self._proof(prepared) or ""

    def _proof(self, prepared: PreparedRequest) -> str | None:
        tops = None if prepared.top is None else [prepared.top]
        return cannot_ever_fit(
            self._graph,
            prepared.request,
            prepared.demands,
            prepared.exclusions,
            tops,
            prepared.excluded_nodes,
        )
