"""The workload of `penstock demo --plan`, and the plan that the engine makes for it.

All jobs are submitted at time 0 and matched in order. A job that does not fit reserves its earliest start, so
a later, smaller job can be backfilled before it: it starts in a gap that the larger job cannot use and does
not delay it, because the larger job's resources are already reserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_letters
from typing import Final

from penstock.engine import (
    Allocation,
    Engine,
    Graph,
    Group,
    MatchOp,
    Never,
    NotNow,
    Placement,
    Reason,
    Request,
    Satisfiable,
    Vertex,
    cluster_of,
    slot_request,
)
from penstock.model.jobspec import Count, Resource

__all__ = [
    "CORES",
    "GPUS",
    "HOUR_S",
    "NODES_DEFAULT",
    "NODES_MAX",
    "DemoJob",
    "DemoPlan",
    "DemoRequest",
    "plan",
]

CORES: Final = 8
GPUS: Final = 2
NODES_DEFAULT: Final = 8
NODES_MAX: Final = 32
HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """The resources that one job requests: slots of cores and GPUs, or whole nodes, for a duration."""

    name: str
    slots: int
    cores: int
    duration_s: int
    gpus: int = 0
    distinct_nodes: bool = False
    within: str = ""
    whole_nodes: bool = False

    def to_engine(self) -> Request:
        placement = Placement(self.distinct_nodes, self.within)
        per_slot = {"core": self.cores, **({"gpu": self.gpus} if self.gpus else {})}
        if not self.whole_nodes:
            return slot_request(per_slot, slots=self.slots, duration_s=self.duration_s, placement=placement)
        inner = tuple(Resource(name, Count(units, units)) for name, units in per_slot.items())
        slot = Resource("slot", Count(1, 1), with_=inner, label="default")
        nodes = Resource("node", Count(self.slots, self.slots), exclusive=True, with_=(slot,))
        return Request((Group((nodes,)),), self.duration_s, placement)

    def __str__(self) -> str:
        if self.whole_nodes:
            text = "1 whole node" if self.slots == 1 else f"{self.slots} whole nodes"
        else:
            text = f"{self.slots} x {self.cores} cores" if self.slots > 1 else f"{self.cores} cores"
        if self.gpus:
            text += f" + {self.gpus} gpu"
        if self.distinct_nodes:
            text += ", distinct nodes"
        if self.within:
            text += f", one {self.within}"
        return text


# The jobs fill eight nodes and leave some pending; larger clusters get the list several times.
_WORKLOAD: Final = (
    DemoRequest("climate", slots=4, cores=4, duration_s=3 * HOUR_S, distinct_nodes=True, within="rack"),
    DemoRequest("train", slots=2, cores=4, gpus=2, duration_s=4 * HOUR_S, distinct_nodes=True),
    DemoRequest("fold", slots=2, cores=8, duration_s=HOUR_S, whole_nodes=True),
    DemoRequest("render", slots=3, cores=4, duration_s=2 * HOUR_S),
    DemoRequest("tune", slots=1, cores=4, gpus=1, duration_s=HOUR_S * 3 // 2),
    DemoRequest("mesh", slots=4, cores=8, duration_s=HOUR_S * 3 // 2, distinct_nodes=True, within="rack"),
    DemoRequest("import", slots=2, cores=4, duration_s=HOUR_S * 3 // 4),
    DemoRequest("assemble", slots=6, cores=4, duration_s=HOUR_S, distinct_nodes=True),
    DemoRequest("notebook", slots=1, cores=4, gpus=1, duration_s=HOUR_S * 2),
    DemoRequest("reduce", slots=1, cores=8, duration_s=HOUR_S * 2, whole_nodes=True),
    DemoRequest("infer", slots=4, cores=4, gpus=2, duration_s=HOUR_S, distinct_nodes=True),
    DemoRequest("check", slots=2, cores=4, duration_s=HOUR_S),
)
_IMPOSSIBLE: Final = DemoRequest("giant", slots=1, cores=2 * CORES, duration_s=HOUR_S)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job and its outcome. Without a reason it starts now; without an allocation it never starts."""

    number: int
    letter: str
    request: DemoRequest
    allocation: Allocation | None
    reason: Reason | None

    def span(self) -> tuple[int, int]:
        """Start and end in seconds. Every job of the demo has a duration, so it has an end."""
        assert self.allocation is not None
        assert self.allocation.end_s is not None
        return self.allocation.start_s, self.allocation.end_s

    def cores(self) -> dict[int, list[int]]:
        """The ids of the allocated cores by node rank."""
        return self._allocated("core")

    def gpus(self) -> dict[int, list[int]]:
        return self._allocated("gpu")

    def _allocated(self, resource: str) -> dict[int, list[int]]:
        ids: dict[int, list[int]] = {}
        for pick in self.allocation.picks if self.allocation is not None else ():
            if pick.vertex.type == resource:
                ids.setdefault(pick.vertex.rank, []).append(pick.vertex.id)
        return {rank: sorted(of_node) for rank, of_node in sorted(ids.items())}


@dataclass(frozen=True, slots=True)
class DemoPlan:
    nodes: tuple[Vertex, ...]
    policy: str
    jobs: tuple[DemoJob, ...]

    def end_s(self) -> int:
        return max((job.span()[1] for job in self.jobs if job.allocation is not None), default=HOUR_S)


def plan(nodes: int, policy: str) -> DemoPlan:
    """Matches all jobs on an empty cluster. Raises `BadRequest` for an unknown policy."""
    engine = Engine(_cluster(nodes), policy)
    requests = [*(_WORKLOAD * max(1, nodes // NODES_DEFAULT)), _IMPOSSIBLE]
    jobs: list[DemoJob] = []
    for number, request in enumerate(requests, start=1):
        letter = ascii_letters[26:][number - 1] if number <= 26 else ascii_letters[number - 27]
        jobs.append(_planned(engine, number, letter, request))
    return DemoPlan(tuple(engine.graph.of_type("node")), policy, tuple(jobs))


def _cluster(nodes: int) -> Graph:
    return cluster_of(nodes=nodes, cores=CORES, gpus=GPUS, racks=max(1, nodes // 4))


def _planned(engine: Engine, number: int, letter: str, request: DemoRequest) -> DemoJob:
    result = engine.match(number, request.to_engine(), now=0)
    reason: Reason | None = None
    if isinstance(result, NotNow):
        reason = result.reason
        result = engine.match(number, request.to_engine(), now=0, op=MatchOp.ALLOCATE_ORELSE_RESERVE)
    match result:
        case Allocation():
            return DemoJob(number, letter, request, result, reason)
        case Never():
            return DemoJob(number, letter, request, None, result.reason)
        case NotNow() | Satisfiable():
            raise AssertionError(
                f"{request.name}: every job has an end, so a request starts at some time or never"
            )
