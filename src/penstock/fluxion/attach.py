"""Adds a subgraph in JGF to the graph of a running engine, as the `attach` command does."""

from __future__ import annotations

from penstock.engine.engine import Engine
from penstock.engine.graph import Vertex
from penstock.fluxion.readers.jgf import attach_jgf

__all__ = ["attach"]


def attach(engine: Engine, text: str | bytes) -> list[Vertex]:
    """Adds a subgraph in JGF; what is there already is left as it is. Returns the new vertices."""
    fresh = attach_jgf(engine.graph, text)
    engine.recompute_totals()
    return fresh
