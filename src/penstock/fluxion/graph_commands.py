"""The commands that inspect or change the resource graph: attach, remove, find, properties and status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.engine.graph import Vertex
from penstock.errors import BadRequest
from penstock.fluxion.attach import attach
from penstock.fluxion.checks import NOW
from penstock.fluxion.find import find, parse_expression, usage_below
from penstock.fluxion.session_state import RULE, SessionState
from penstock.fluxion.writers.formats import PickedSet
from penstock.model.idset import parse_idset

__all__ = ["GraphCommands"]


class GraphCommands:
    """Each public method is one command. It takes the words of the line and returns True."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._engine = state.engine

    def attach(self, words: list[str]) -> bool:
        state = self._state
        if len(words) != 2:
            return state.malformed()
        text = state.read_file(words[1])
        if text is None:
            return True
        try:
            with self._changing_totals():
                attach(self._engine, text)
        except BadRequest as error:
            state.error("ERROR: can't attach JGF subgraph ")
            state.error("ERROR: add_subgraph: ERROR: add subgraph error: Invalid argument")
            state.error(
                f"add_subgraph: ERROR: reader returned error: add_graph_metadata: {error.summary}.\n\n"
            )
        return True

    def remove(self, words: list[str]) -> bool:
        state = self._state
        if len(words) != 3:
            return state.malformed()
        if words[2] not in ("true", "false"):
            return state.error("ERROR: invalid path boolean input ")
        graph = self._engine.graph
        try:
            if words[2] == "true":
                tops = graph.at_path(words[1])
            else:
                ranks = [graph.of_rank(rank) for rank in parse_idset(words[1])]
                if not all(ranks):
                    return state.error("ERROR: can't partial cancel subgraph ")
                tops = [min(members, key=lambda vertex: len(vertex.path())) for members in ranks]
            if not tops:
                return state.error("ERROR: can't remove subgraph ")
            for top in tops:
                with self._changing_totals():
                    removal = self._engine.remove(top)
                for job in removal.emptied:
                    if job in state.jobs:
                        state.jobs[job].state = "CANCELED"
        except BadRequest as error:
            return state.error(f"ERROR: can't remove subgraph \nERROR: {error}")
        return True

    @contextmanager
    def _changing_totals(self) -> Iterator[None]:
        """Reports to the search order by how much a change of the graph alters the root's first total."""
        root = self._engine.graph.root
        before = dict(root.totals or {})
        yield
        for resource_type, total in list((root.totals or {}).items())[:1]:
            self._state.order.note_growth(total - before.get(resource_type, 0), self._engine.instants(NOW))

    def find(self, words: list[str]) -> bool:
        state = self._state
        if len(words) < 2:
            return state.error("ERROR: malformed command: ")
        text = " ".join(words[1:])
        try:
            expression = parse_expression(text)
        except BadRequest:
            return state.error(f"findfind: invalid criteria: {text}.")
        picks = find(self._engine.graph.root, expression)
        usage = usage_below(picks, expression.job, NOW) if expression.with_usage else {}
        written = state.render(PickedSet(picks, usage=usage, queue=state.queue))
        if written is None:
            return state.error("find: ERROR: find writer emit: Invalid argument")
        state.out.write(f'{written}{RULE}INFO: EXPRESSION="{text}"\n{RULE}')
        return True

    def set_property(self, words: list[str]) -> bool:
        state = self._state
        if len(words) != 3:
            return state.malformed()
        key, equals, value = words[2].partition("=")
        if not key or not equals or not value:
            state.out.write(
                "Incorrect input format. \nPlease use `set-property <resource> PROPERTY=VALUE`.\n"
            )
            return True
        vertices = self._engine.graph.at_path(words[1])
        if not vertices:
            state.out.write(f"Couldn't find path {words[1]} in resource graph.\n")
        for vertex in vertices:
            self._engine.set_property(vertex, key, value)
        return True

    def get_property(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._state.malformed()
        out = self._state.out
        for vertex in self._at_path(words[1]):
            if not vertex.properties:
                out.write(f"No properties were found for {words[1]} (vtx's uniq_id={vertex.uniq_id}).\n")
            for key, value in sorted(vertex.properties.items()):
                out.write(f"{key}={value}\n")
        return True

    def set_status(self, words: list[str]) -> bool:
        if len(words) != 3:
            return self._state.malformed()
        vertices = self._at_path(words[1])
        if vertices and words[2] not in ("up", "down"):
            return self._state.error("ERROR: unrecognized status")
        for vertex in vertices:
            self._engine.set_status(vertex, words[2] == "up")
        return True

    def get_status(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._state.malformed()
        for vertex in self._at_path(words[1]):
            self._state.out.write(f"{words[1]} is {'up' if vertex.up else 'down'}\n")
        return True

    def _at_path(self, path: str) -> list[Vertex]:
        vertices = self._engine.graph.at_path(path)
        if not vertices:
            self._state.out.write(f"Could not find path {path} in resource graph.\n")
        return vertices
