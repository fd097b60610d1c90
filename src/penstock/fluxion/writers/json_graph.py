"""Writes picks as a graph in JGF. Fields with their default value are omitted."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engine.allocation import Pick
from penstock.fluxion.writers.json_text import Json

__all__ = ["FilterUsage", "jgf_of"]


FilterUsage = Mapping[int, Mapping[str, str]]  # by vertex index: usage of each filter type below the vertex


def jgf_of(*sets: tuple[tuple[Pick, ...], FilterUsage]) -> Json:
    """One graph that lists several sets one after the other."""
    nodes: list[Json] = []
    edges: list[Json] = []
    for picks, usage in sets:
        shown = {pick.vertex.index for pick in picks}
        for pick in picks:
            vertex = pick.vertex
            nodes.append(
                {"id": str(vertex.uniq_id), "metadata": _metadata(pick, usage.get(vertex.index, {}))}
            )
            above = pick.above
            if above is not None and above.index in shown:
                edges.append({"source": str(above.uniq_id), "target": str(vertex.uniq_id)})
    return {"graph": {"nodes": nodes, "edges": edges}}


def _metadata(pick: Pick, usage: Mapping[str, str]) -> dict[str, Json]:
    vertex = pick.vertex
    data: dict[str, Json] = {"type": vertex.type}
    if vertex.basename != vertex.type:
        data["basename"] = vertex.basename
    if vertex.name != f"{vertex.basename}{vertex.id}":
        data["name"] = vertex.name
    data["id"] = vertex.id
    data["rank"] = vertex.rank
    if vertex.properties:
        data["properties"] = dict(sorted(vertex.properties.items()))
    if vertex.unit:
        data["unit"] = vertex.unit
    if pick.exclusive:
        data["exclusive"] = True
    if pick.units != 1:
        data["size"] = pick.units
    data["paths"] = dict(vertex.paths)
    if pick.label:
        data["ephemeral"] = {"label": pick.label}
    if usage:
        data["agfilter"] = dict(sorted(usage.items()))
    return data
