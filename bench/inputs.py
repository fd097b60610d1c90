"""The inputs of the benchmark: a cluster, jobspecs, and commands for `resource-query`.

The cluster is flat: its nodes have two sockets, each with 16 cores, 2 gpus and 32 chunks of memory, and each
of these is a vertex. The cases fill it (`a` whole nodes, `b` single cores, `c` gangs of 8 nodes), reserve on
a full cluster (`d`), cancel (`e`), check satisfiability (`f`), or only load it (`g`). A variant changes the
cluster or the requests of all cases: racks of 50 nodes, pools instead of single cores and chunks, nodes of
two kinds, or a constraint that half of the nodes satisfy.

Random choices come from one generator with fixed seeds, so a case is the same sequence on every machine, and
its output can be compared with a recorded one. The order of the draws determines the sequence: do not reorder
them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CASES", "Case", "Draws", "Inputs", "Phase", "Variant", "durations_s", "graph", "vertices"]

CASES: Final[dict[str, str]] = {
    "a": "1-node exclusive jobs, fill",
    "b": "1-core jobs, fill",
    "c": "gangs of 8 nodes x 32 cores, fill",
    "d": "full cluster, then reservations of mixed size",
    "e": "cancel",
    "f": "satisfiability checks, on an idle cluster",
    "g": "load the graph",
}


class Variant(enum.Enum):
    PLAIN = "plain"
    RACKS = "racks"
    POOLS = "pools"
    TWO_KINDS = "two-kinds"
    CONSTRAINT = "constraint"


_SOCKETS: Final = 2
_PER_SOCKET: Final = {"core": 16, "gpu": 2, "memory": 32}
_CORES_PER_NODE: Final = _SOCKETS * _PER_SOCKET["core"]

_RACK: Final = 50

_GANG: Final = 8
_LIMIT_S: Final = 3600  # the time limit of jobs whose limit does not matter
_LIMITS: Final = 128  # number of different time limits in case d
_RESERVED_NODES: Final = (1, 2, 4, 8, 16, 32, 64)
_RESERVATIONS: Final = 1_000
_CORE_JOBS_MAX: Final = 40_000
_CHECKS: Final = 200

_SEED_LIMITS: Final = 777
_SEED_JOBS: Final = 4242


class Draws:
    """Knuth's 64-bit linear congruential generator (MMIX). Its low bits are of poor quality and not used."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        self._state = (self._state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % (1 << 64)
        return (self._state >> 33) % bound


def durations_s() -> tuple[int, ...]:
    """The time limits of case d: from ten minutes to four hours, in whole minutes."""
    draws = Draws(_SEED_LIMITS)
    return tuple(60 * (10 + draws.below(240)) for _ in range(_LIMITS))


# The cluster


def vertices(nodes: int) -> int:
    return 1 + nodes * (1 + _SOCKETS * (1 + sum(_PER_SOCKET.values())))


# The attributes that a GRUG recipe must declare; "" is an attribute without a default.
_NODE_DEFAULTS: Final[dict[str, str | int]] = {
    "root": 0,
    "type": "",
    "basename": "",
    "size": 1,
    "unit": "",
    "subsystem": "containment",
}
_EDGE_DEFAULTS: Final[dict[str, str | int]] = {
    "e_subsystem": "containment",
    "relation": "contains",
    "rrelation": "in",
    "id_scope": 0,
    "id_start": 0,
    "id_stride": 1,
    "gen_method": "MULTIPLY",
    "multi_scale": 1,
    "as_tgt_subsystem": "containment",
    "as_tgt_uplvl": 1,
    "as_src_uplvl": 1,
}


def graph(nodes: int, variant: Variant = Variant.PLAIN) -> str:
    """The GRUG recipe of the cluster."""
    is_pooled = variant is Variant.POOLS
    has_two_kinds = variant is Variant.TWO_KINDS
    types = ["cluster", *(["rack"] if variant is Variant.RACKS else []), "node", "socket", *_PER_SOCKET]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *_keys("node", _NODE_DEFAULTS),
        *_keys("edge", _EDGE_DEFAULTS),
        f'<graph id="flat{nodes}" edgedefault="directed">',
        *(_template(name, _PER_SOCKET[name] if is_pooled and name in _PER_SOCKET else 1) for name in types),
        *([_template("node", label="fatnode")] if has_two_kinds else []),
        *_rules_of_nodes(nodes, variant),
        _rule("node", "socket", _SOCKETS, id_scope=0),
        # A node of the second kind has twice as many sockets.
        *([_rule("fatnode", "socket", 2 * _SOCKETS, id_scope=0)] if has_two_kinds else []),
        # Scope 1 numbers cores, gpus and chunks across the sockets of a node.
        *(
            _rule("socket", name, 1 if is_pooled else count, id_scope=1)
            for name, count in _PER_SOCKET.items()
        ),
        "</graph>",
        "</graphml>",
    ]
    return "\n".join(lines) + "\n"


def _rules_of_nodes(nodes: int, variant: Variant) -> list[str]:
    if variant is Variant.RACKS:
        racks = max(nodes // _RACK, 1)
        # Scope 1 numbers the nodes across the racks.
        return [
            _rule("cluster", "rack", racks, id_scope=0),
            _rule("rack", "node", nodes // racks, id_scope=1),
        ]
    if variant is Variant.TWO_KINDS:
        fat = nodes // 2
        return [
            _rule("cluster", "node", nodes - fat, id_scope=0),
            _rule("cluster", "fatnode", fat, id_scope=0, id_start=nodes - fat),
        ]
    return [_rule("cluster", "node", nodes, id_scope=0)]


def _keys(element: str, defaults: dict[str, str | int]) -> Iterator[str]:
    for name, default in defaults.items():
        attribute_type = "int" if isinstance(default, int) else "string"
        start = f'<key id="{name}" for="{element}" attr.name="{name}" attr.type="{attribute_type}"'
        yield f"{start}/>" if default == "" else f"{start}><default>{default}</default></key>"


def _template(name: str, size: int = 1, *, label: str = "") -> str:
    data = {"type": name, "basename": name}
    if name == "cluster":
        data["root"] = "1"
    if size != 1:
        data["size"] = str(size)
    if name == "memory":
        data["unit"] = "chunk"
    return f'<node id="{label or name}">{_data(data)}</node>'


def _rule(above: str, below: str, count: int, *, id_scope: int, id_start: int = 0) -> str:
    data = {"id_scope": str(id_scope), "multi_scale": str(count)}
    if id_start:
        data["id_start"] = str(id_start)
    return f'<edge id="{above}-{below}" source="{above}" target="{below}">{_data(data)}</edge>'


def _data(values: dict[str, str]) -> str:
    return "".join(f'<data key="{name}">{value}</data>' for name, value in values.items())


# The jobs


def _jobspec(levels: list[tuple[str, int]], duration_s: int) -> str:
    """A jobspec with a chain of resources, each below the one before."""
    lines = ["version: 9999", "resources:"]
    for depth, (name, count) in enumerate(levels):
        pad = "  " * (2 * depth + 1)
        lines += [f"{pad}- type: {name}", f"{pad}  count: {count}"]
        if name == "slot":
            lines.append(f"{pad}  label: default")
        if depth + 1 < len(levels):
            lines.append(f"{pad}  with:")
    lines += ["attributes:", "  system:", f"    duration: {duration_s}"]
    lines += ["tasks:", "  - command: [app]", "    slot: default", "    count:", "      per_slot: 1"]
    return "\n".join(lines) + "\n"


def _whole_nodes(nodes: int, cores_per_socket: int = _PER_SOCKET["core"]) -> list[tuple[str, int]]:
    """A request for `nodes` slots of one node each, with its sockets and cores listed."""
    return [("slot", nodes), ("node", 1), ("socket", _SOCKETS), ("core", cores_per_socket)]


_NODE: Final = _jobspec([("slot", 1), ("node", 1)], _LIMIT_S)
_CORE: Final = _jobspec([("slot", 1), ("core", 1)], _LIMIT_S)
_GANG_OF_8: Final = _jobspec(_whole_nodes(_GANG), _LIMIT_S)
_TOO_MANY_CORES: Final = _jobspec(_whole_nodes(1, _PER_SOCKET["core"] + 1), _LIMIT_S)


def _constraint(nodes: int) -> str:
    """The start of the attributes with a constraint that the second half of the nodes satisfies."""
    first = nodes // 2
    return f"attributes:\n  system:\n    constraints:\n      hostlist: ['node[{first}-{nodes - 1}]']\n"


# The cases


@dataclass(frozen=True, slots=True)
class Phase:
    """Commands that are timed together."""

    name: str
    commands: tuple[str, ...]
    prepares: bool = False  # later phases are measured only if this one was completed


@dataclass(frozen=True, slots=True)
class Case:
    graph_file: Path
    phases: tuple[Phase, ...]

    def commands(self) -> tuple[str, ...]:
        return tuple(command for phase in self.phases for command in phase.commands)


class Inputs:
    """Writes the input files for one cluster into a directory and returns the commands that use them."""

    def __init__(self, folder: Path, nodes: int, variant: Variant = Variant.PLAIN) -> None:
        self._folder = folder
        self._nodes = nodes
        self._variant = variant
        self._usable = nodes - nodes // 2 if variant is Variant.CONSTRAINT else nodes
        self._written: dict[str, Path] = {}

    def case(self, letter: str) -> Case:
        graph_file = self._folder / f"flat{self._nodes}.graphml"
        graph_file.write_text(graph(self._nodes, self._variant), encoding="utf-8")
        phases: dict[str, Callable[[], tuple[Phase, ...]]] = {
            "a": self._fill_with_nodes,
            "b": self._fill_with_cores,
            "c": self._fill_with_gangs,
            "d": self._reserve,
            "e": self._cancel,
            "f": self._check,
            "g": lambda: (),
        }
        return Case(graph_file, phases[letter]())

    def _fill_with_nodes(self) -> tuple[Phase, ...]:
        # Every fill has one job more than fits: a refused match is measured too.
        return (Phase("allocate", self._match("allocate", _NODE) * (self._usable + 1)),)

    def _fill_with_cores(self) -> tuple[Phase, ...]:
        jobs = min(_CORES_PER_NODE * self._usable + 1, _CORE_JOBS_MAX)
        return (Phase("allocate", self._match("allocate", _CORE) * jobs),)

    def _fill_with_gangs(self) -> tuple[Phase, ...]:
        return (Phase("allocate", self._match("allocate", _GANG_OF_8) * (self._usable // _GANG + 1)),)

    def _reserve(self) -> tuple[Phase, ...]:
        limits_s = durations_s()
        draws = Draws(_SEED_JOBS)
        fill: list[str] = []
        for _ in range(self._usable // _GANG):
            fill += self._match("allocate", _jobspec(_whole_nodes(_GANG), limits_s[draws.below(_LIMITS)]))
        fill += self._match("allocate", _NODE) * (self._usable % _GANG)
        reserve: list[str] = []
        for _ in range(_RESERVATIONS):
            nodes = _RESERVED_NODES[draws.below(len(_RESERVED_NODES))]
            while nodes > self._usable:
                nodes //= 2
            text = _jobspec(_whole_nodes(nodes), limits_s[draws.below(_LIMITS)])
            reserve += self._match("allocate_orelse_reserve", text)
        return Phase("fill", tuple(fill), prepares=True), Phase("reserve", tuple(reserve))

    def _cancel(self) -> tuple[Phase, ...]:
        allocate = self._match("allocate", _NODE) * self._usable
        cancel = tuple(f"cancel {job}" for job in range(1, self._usable + 1))
        return Phase("allocate", allocate, prepares=True), Phase("cancel", cancel)

    def _check(self) -> tuple[Phase, ...]:
        jobspecs = {"node1": _NODE, "gang8": _GANG_OF_8, "core1": _CORE, "unsat": _TOO_MANY_CORES}
        return tuple(
            Phase(name, self._match("satisfiability", text) * _CHECKS) for name, text in jobspecs.items()
        )

    def _match(self, op: str, jobspec: str) -> tuple[str, ...]:
        """One command. Equal jobspecs share a file."""
        if self._variant is Variant.CONSTRAINT:
            jobspec = jobspec.replace("attributes:\n  system:\n", _constraint(self._nodes))
        file = self._written.get(jobspec)
        if file is None:
            file = self._written[jobspec] = self._folder / f"job{len(self._written):04}.yaml"
            file.write_text(jobspec, encoding="utf-8")
        return (f"match {op} {file}",)
