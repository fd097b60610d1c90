"""Runs `penstock resource-query` in the test process on small generated inputs."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.resource_query import Streams, main
from tests.builders import jgf

RULE = "INFO: ============================="
Resource = dict[str, object]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        return self.out.splitlines()

    def values(self, word: str) -> list[str]:
        """The values of lines such as `INFO: JOBID=1`."""
        start = f"INFO: {word}="
        return [line.removeprefix(start) for line in self.lines() if line.startswith(start)]

    def tree(self) -> list[str]:
        """The vertices of the printed tree, without indentation."""
        return [line.lstrip(" -") for line in self.lines() if line.startswith("      -")]


class Inputs:
    """Writes the input files of one test and runs `resource-query` on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def job(self, name: str, *resources: Resource, duration: float = 60, **system: object) -> str:
        task = {"command": ["app"], "slot": "default", "count": {"per_slot": 1}}
        jobspec = {
            "version": 9999,
            "resources": resources,
            "tasks": [task],
            "attributes": {"system": {"duration": duration, **system}},
        }
        return self.write(name, json.dumps(jobspec))

    def rset(self, name: str, ranks: str, hosts: str, **children: str) -> str:
        group = {"rank": ranks, "children": children}
        execution = {"R_lite": [group], "nodelist": [hosts], "starttime": 0, "expiration": 0}
        return self.write(name, json.dumps({"version": 1, "execution": execution}))

    def cluster(self, name: str = "graph.json", **shape: int) -> list[str]:
        """Options that load a cluster; `cluster_in_jgf` documents the shape."""
        return ["-f", "jgf", "-L", self.write(name, cluster_in_jgf(**shape))]

    def run(self, argv: list[str], *commands: str, streams: Streams | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        lines = [f"{command}\n".encode() for command in commands]
        code = main(argv, streams or Streams(lines, out, err))
        return Result(code, out.getvalue(), err.getvalue())


def slot(*inner: Resource, count: object = 1) -> Resource:
    return {"type": "slot", "count": count, "label": "default", "with": list(inner)}


def of(name: str, count: object = 1, *inner: Resource, exclusive: bool = False) -> Resource:
    """A jobspec resource of the type `name`."""
    resource: Resource = {"type": name, "count": count}
    if exclusive:
        resource["exclusive"] = True
    return {**resource, "with": list(inner)} if inner else resource


def cluster_in_jgf(
    *, racks: int = 0, nodes: int = 1, cores: int = 2, gpus: int = 0, pools: int = 0, pool_size: int = 1
) -> str:
    """/cluster0[/rackR]/nodeN/{core,gpu,memory}. The rank of a node and its children is the node's number."""
    vertices: list[tuple[str, dict[str, object]]] = []
    edges: list[tuple[str, ...]] = []

    known: dict[str, str] = {}

    def add(above: str, name: str, number: int, rank: int = -1, size: int = 1) -> str:
        path, key = f"{above}/{name}{number}", str(len(known))
        vertices.append((key, {"type": name, "id": number, "rank": rank, "size": size, "path": path}))
        if above:
            edges.append((known[above], key))
        known[path] = key
        return path

    root = add("", "cluster", 0)
    parents = [add(root, "rack", number) for number in range(racks)] or [root]
    for number in range(nodes):
        node = add(parents[number * len(parents) // nodes], "node", number, number)
        for name, count, size in (
            ("core", cores, 1),
            ("gpu", gpus, 1),
            ("memory", pools, pool_size),
        ):
            for child in range(count):
                add(node, name, child, number, size)
    return jgf(vertices, edges)
