"""Adds a JGF subgraph to the graph of an engine, for the `attach` command."""

from __future__ import annotations

from penstock.engine.engine import Engine
from penstock.engine.graph import Graph, Vertex
from penstock.fluxion.readers.jgf import attach_jgf

__all__ = ["attach"]


def attach(engine: Engine, text: str | bytes) -> list[Vertex]:
    """Adds a JGF subgraph and returns the added vertices. Vertices that exist already are unchanged."""

    def read(graph: Graph) -> list[Vertex]:
        added = attach_jgf(graph, text)
        for vertex in added:
            vertex.unit = ""  # Fluxion reads no units from JGF, so it writes none.
        return added

    return engine.attach(read)
