"""`penstock demo --plan`: a small cluster, a queue of unlike jobs, and the plan that the engine makes of it.

Everything happens at time 0. The jobs are matched in order until one does not fit; from there on each
takes what is free or reserves its earliest start. So a small job may start in a gap that a larger
one before it could not use, and delays nobody, because the larger one's place is booked already.

The facts are worked out first (`plan`), and both outputs say the same: `draw` makes lines of marked
text, `facts` makes JSON. On a terminal the lines are coloured by rich, which is imported only then;
anywhere else, and under NO_COLOR, every job is drawn with its letter. The same options give the
same bytes.
"""

from __future__ import annotations

import getopt
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from string import ascii_letters
from textwrap import wrap
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
from penstock.errors import BadRequest
from penstock.model.hostlist import encode_hostlist
from penstock.model.jobspec import Count, Resource

__all__ = ["CORES", "GPUS", "NODES_MAX", "DemoJob", "DemoPlan", "draw", "facts", "main", "plan"]

CORES: Final = 8
GPUS: Final = 2
NODES_MAX: Final = 32

USAGE: Final = f"""usage: penstock demo
       penstock demo --plan [OPTIONS...]

Starts a real instance with four nodes in a directory of its own, lets it run a mixed workload for some
seconds, shows what was promised and what came of it, and removes everything.

With --plan nothing is started: an imagined cluster is filled, and the plan is drawn.

OPTIONS of --plan:
    --nodes=N        nodes of {CORES} cores and {GPUS} gpus, 1 to {NODES_MAX} (default: 8)
    --policy=POLICY  first (default), low, high, lonode, hinode, pack, spread, ...
    -o FORMAT        text (default) or json
    -h, --help       this text"""

_NODES_DEFAULT: Final = 8
_HOUR_S: Final = 3600
_LANE_CORES: Final = 4  # a node is drawn as lanes of so many cores
_LABEL_WIDTH: Final = 13
_CHART_WIDTH: Final = 84
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400)
_WHY_WIDTH: Final = 94
_BLOCKERS_SHOWN: Final = 3
_GREY: Final = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What one job wants: so many slots of cores and gpus, maybe whole nodes, for how long."""

    name: str
    slots: int
    cores: int
    duration_s: int
    gpus: int = 0
    distinct_nodes: bool = False
    within: str = ""
    whole_nodes: bool = False

    def request(self) -> Request:
        placement = Placement(self.distinct_nodes, self.within)
        amounts = {"core": self.cores, **({"gpu": self.gpus} if self.gpus else {})}
        if not self.whole_nodes:
            return slot_request(amounts, slots=self.slots, duration_s=self.duration_s, placement=placement)
        inner = tuple(Resource(kind, Count(units, units)) for kind, units in amounts.items())
        slot = Resource("slot", Count(1, 1), with_=inner, label="default")
        nodes = Resource("node", Count(self.slots, self.slots), exclusive=True, with_=(slot,))
        return Request((Group((nodes,)),), self.duration_s, placement)

    def told(self) -> str:
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


# A round of jobs fills eight nodes and leaves some waiting; larger clusters get several rounds.
_ROUND: Final = (
    Ask("climate", slots=4, cores=4, duration_s=3 * _HOUR_S, distinct_nodes=True, within="rack"),
    Ask("train", slots=2, cores=4, gpus=2, duration_s=4 * _HOUR_S, distinct_nodes=True),
    Ask("fold", slots=2, cores=8, duration_s=_HOUR_S, whole_nodes=True),
    Ask("render", slots=3, cores=4, duration_s=2 * _HOUR_S),
    Ask("tune", slots=1, cores=4, gpus=1, duration_s=_HOUR_S * 3 // 2),
    Ask("mesh", slots=4, cores=8, duration_s=_HOUR_S * 3 // 2, distinct_nodes=True, within="rack"),
    Ask("import", slots=2, cores=4, duration_s=_HOUR_S * 3 // 4),
    Ask("assemble", slots=6, cores=4, duration_s=_HOUR_S, distinct_nodes=True),
    Ask("notebook", slots=1, cores=4, gpus=1, duration_s=_HOUR_S * 2),
    Ask("reduce", slots=1, cores=8, duration_s=_HOUR_S * 2, whole_nodes=True),
    Ask("infer", slots=4, cores=4, gpus=2, duration_s=_HOUR_S, distinct_nodes=True),
    Ask("check", slots=2, cores=4, duration_s=_HOUR_S),
)
_IMPOSSIBLE: Final = Ask("giant", slots=1, cores=2 * CORES, duration_s=_HOUR_S)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job and what became of it. Who starts at once has no reason; who never starts has no start."""

    number: int
    letter: str
    ask: Ask
    allocation: Allocation | None
    reason: Reason | None

    def cores(self) -> dict[int, list[int]]:
        """The ids of the cores that the job holds, by the rank of their node."""
        return self._held("core")

    def gpus(self) -> dict[int, list[int]]:
        return self._held("gpu")

    def _held(self, kind: str) -> dict[int, list[int]]:
        held: dict[int, list[int]] = {}
        for pick in self.allocation.picks if self.allocation is not None else ():
            if pick.vertex.type == kind:
                held.setdefault(pick.vertex.rank, []).append(pick.vertex.id)
        return {rank: sorted(ids) for rank, ids in sorted(held.items())}


@dataclass(frozen=True, slots=True)
class DemoPlan:
    nodes: tuple[Vertex, ...]
    policy: str
    jobs: tuple[DemoJob, ...]

    def end_s(self) -> int:
        return max((_span(job)[1] for job in self.jobs if job.allocation is not None), default=_HOUR_S)


def plan(nodes: int, policy: str) -> DemoPlan:
    """Matches all jobs on a fresh cluster. `BadRequest` if there is no such policy."""
    engine = Engine(_cluster(nodes), policy)
    asks = [*(_ROUND * max(1, nodes // _NODES_DEFAULT)), _IMPOSSIBLE]
    jobs: list[DemoJob] = []
    for number, ask in enumerate(asks, start=1):
        letter = ascii_letters[26:][number - 1] if number <= 26 else ascii_letters[number - 27]
        jobs.append(_planned(engine, number, letter, ask))
    return DemoPlan(tuple(engine.graph.of_type("node")), policy, tuple(jobs))


def _cluster(nodes: int) -> Graph:
    return cluster_of(nodes=nodes, cores=CORES, gpus=GPUS, racks=max(1, nodes // 4))


def _planned(engine: Engine, number: int, letter: str, ask: Ask) -> DemoJob:
    request = ask.request()
    answer = engine.match(number, request, now=0)
    reason: Reason | None = None
    if isinstance(answer, NotNow):
        reason = answer.reason
        answer = engine.match(number, request, now=0, op=MatchOp.ALLOCATE_ORELSE_RESERVE)
    match answer:
        case Allocation():
            return DemoJob(number, letter, ask, answer, reason)
        case Never():
            return DemoJob(number, letter, ask, None, answer.reason)
        case NotNow() | Satisfiable():
            raise AssertionError(f"{ask.name}: everything here ends, so it starts sometime or never")


def _span(job: DemoJob) -> tuple[int, int]:
    """Start and end. Every job here has a duration, so it has an end."""
    assert job.allocation is not None
    assert job.allocation.end_s is not None
    return job.allocation.start_s, job.allocation.end_s


# The picture


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text. `tint` is the number of the job whose colour it stands on, 0 for grey."""

    plain: str
    rich: str
    tint: int | None = None
    strong: bool = False
    dim: bool = False


Line = list[Piece]


def draw(planned: DemoPlan) -> list[Line]:
    """The whole picture, line by line, at most 100 columns wide."""
    waiting = [job for job in planned.jobs if job.allocation is not None and job.allocation.start_s > 0]
    refused = [job for job in planned.jobs if job.allocation is None]
    step_s = next((step for step in _STEPS_S if step * _CHART_WIDTH >= planned.end_s()), _STEPS_S[-1])
    scale = f"every line is {_LANE_CORES} cores of a node, every column {step_s // 60} min"
    lines = [_title(planned), [_dim(scale)], [], *_chart(planned, step_s), [], *_legend(planned)]
    if waiting:
        lines += [
            [],
            [_strong("Why they wait")],
            *(line for job in waiting for line in _wait_lines(planned, job)),
        ]
    if refused:
        lines += [[], [_strong("What can never start")]]
        lines += [line for job in refused for line in _refusal_lines(job)]
    return lines


def _text(text: str) -> Piece:
    return Piece(text, text)


def _strong(text: str) -> Piece:
    return Piece(text, text, strong=True)


def _dim(plain: str, rich: str = "") -> Piece:
    return Piece(plain, rich or plain, dim=True)


def _badge(job: DemoJob) -> Piece:
    tint = job.number if job.allocation is not None else _GREY
    return Piece(f" {job.letter} ", f" {job.letter} ", tint)


def _title(planned: DemoPlan) -> Line:
    count = len(planned.nodes)
    racks = len({node.parent() for node in planned.nodes})
    told = (
        f": {count} {_plural('node', count)} in {racks} {_plural('rack', racks)}, {count * CORES} cores, "
        f"{count * GPUS} gpus; policy {planned.policy}; {len(planned.jobs)} jobs at 0:00"
    )
    return [_strong("Penstock demo"), _text(told)]


def _chart(planned: DemoPlan, step_s: int) -> list[Line]:
    columns = min(_CHART_WIDTH, -(-planned.end_s() // step_s))
    by_lane: dict[tuple[int, int], list[DemoJob]] = {}
    for job in planned.jobs:
        for rank, ids in job.cores().items():
            for lane in {core // _LANE_CORES for core in ids}:
                by_lane.setdefault((rank, lane), []).append(job)
    lines = _axis(step_s, columns)
    labelled: set[int] = set()
    rack_before: Vertex | None = None
    for node in planned.nodes:
        rack = node.parent()
        head = rack.name if rack is not None and rack is not rack_before else ""
        rack_before = rack
        for lane in range(CORES // _LANE_CORES):
            label = f"{head if lane == 0 else '':6} {node.name if lane == 0 else '':{_LABEL_WIDTH - 8}} "
            jobs = sorted(by_lane.get((node.rank, lane), ()), key=_span)
            lines.append([_text(label), *_bars(jobs, step_s, columns, labelled)])
    return lines


def _axis(step_s: int, columns: int) -> list[Line]:
    every_s = next(span for span in (_HOUR_S, 2 * _HOUR_S, 6 * _HOUR_S, 24 * _HOUR_S) if span >= 6 * step_s)
    numbers = " " * _LABEL_WIDTH
    ticks = ""
    for column in range(columns):
        is_tick = column * step_s % every_s == 0
        ticks += "|" if is_tick else "-"
        if is_tick:
            numbers = f"{numbers:{_LABEL_WIDTH + column}}{_clock(column * step_s)[:-3]}"
    drawn = ticks.replace("|", "┬").replace("-", "─")
    return [[_dim(numbers)], [_text(" " * _LABEL_WIDTH), _dim(ticks, drawn)]]


def _bars(jobs: Sequence[DemoJob], step_s: int, columns: int, labelled: set[int]) -> Line:
    """One lane over time. A bar carries the name of its job where that is drawn for the first time."""
    line: Line = []
    at = 0
    for job in jobs:
        start, end = (min(columns, round(time / step_s)) for time in _span(job))
        if start > at:
            line.append(_dim("." * (start - at), "·" * (start - at)))
        width = end - max(start, at)
        if width > 0:
            label = f" {job.letter}" if job.number in labelled else f" {job.letter} {job.ask.name}"
            labelled.add(job.number)
            line.append(Piece(job.letter * width, f"{label:{width}}"[:width], job.number))
        at = max(at, end)
    if at < columns:
        line.append(_dim("." * (columns - at), "·" * (columns - at)))
    return line


def _legend(planned: DemoPlan) -> list[Line]:
    names = {node.rank: node.name for node in planned.nodes}
    lines: list[Line] = [[_strong(f"    {'job':10} {'asks for':38} {'starts':>8} {'ends':>8}  on")]]
    for job in planned.jobs:
        told = f" {job.ask.name:10} {job.ask.told():38} "
        if job.allocation is None:
            lines.append([_badge(job), _text(told), _dim(f"{'never':>8} {'-':>8}  -")])
            continue
        start_s, end_s = _span(job)
        start = "now" if start_s == 0 else _clock(start_s)
        on = encode_hostlist(names[rank] for rank in job.cores())
        lines.append([_badge(job), _text(f"{told}{start:>8} {_clock(end_s):>8}  {on}")])
    return lines


def _wait_lines(planned: DemoPlan, job: DemoJob) -> list[Line]:
    assert job.reason is not None
    start_s, _ = _span(job)
    first, *further = wrap(f"starts at {_clock(start_s)}, because it {job.reason.clause}", _WHY_WIDTH)
    lines = [[_badge(job), _text(f" {first}")], *([_text(f"      {more}")] for more in further)]
    blockers = _told_blockers(planned, job.reason)
    return [*lines, [_dim(f"      {blockers}")]] if blockers else lines


def _told_blockers(planned: DemoPlan, reason: Reason) -> str:
    """Who has what is missing, the first to end first."""
    letters: dict[int | None, str] = {job.number: job.letter for job in planned.jobs}
    told = [
        f"{letters.get(blocker.job, str(blocker))} "
        + ("has no known end" if blocker.until_s is None else f"until {_clock(blocker.until_s)}")
        for blocker in reason.blockers
    ]
    more = len(told) - _BLOCKERS_SHOWN
    return (
        ("in the way: " + ", ".join(told[:_BLOCKERS_SHOWN]) + (f" and {more} more" if more > 0 else ""))
        if told
        else ""
    )


def _refusal_lines(job: DemoJob) -> list[Line]:
    assert job.reason is not None
    lines: list[Line] = [[_badge(job), _text(f" {job.ask.name}: it {job.reason.clause}")]]
    for step in job.reason.stages:
        fails = step.passed < step.needed
        mark = "  <- fails here" if fails else ""
        lines.append([_dim(f"      {step.passed:3} {step.name:20} {step.needed} needed{mark}")])
        if fails:
            break
    if not job.reason.blockers:
        lines.append([_dim("      nothing is in the way that could end: waiting does not help")])
    return lines


def _clock(time_s: int) -> str:
    return f"{time_s // 3600}:{time_s % 3600 // 60:02}:{time_s % 60:02}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


# The same as JSON


def facts(planned: DemoPlan) -> dict[str, object]:
    names = {node.rank: node.name for node in planned.nodes}
    return {
        "cluster": {"nodes": list(names.values()), "cores_per_node": CORES, "gpus_per_node": GPUS},
        "policy": planned.policy,
        "jobs": [_job_facts(job, names) for job in planned.jobs],
    }


def _job_facts(job: DemoJob, names: dict[int, str]) -> dict[str, object]:
    start_s, end_s = _span(job) if job.allocation is not None else (None, None)
    gpus = job.gpus()
    return {
        "job": job.number,
        "letter": job.letter,
        "name": job.ask.name,
        "asks": job.ask.told(),
        "duration_s": job.ask.duration_s,
        "outcome": job.allocation.kind.value.lower() if job.allocation is not None else "never",
        "start_s": start_s,
        "end_s": end_s,
        "places": [
            {"node": names[rank], "cores": ids, "gpus": gpus.get(rank, [])}
            for rank, ids in job.cores().items()
        ],
        "reason": _reason_document(job.reason) if job.reason is not None else None,
    }


def _reason_document(reason: Reason) -> dict[str, object]:
    return {
        "clause": reason.clause,
        "steps": [asdict(step) for step in reason.stages],
        "blockers": [{"who": str(blocker), "until_s": blocker.until_s} for blocker in reason.blockers],
    }


# The command


def main(argv: list[str]) -> int:
    try:
        given, rest = getopt.gnu_getopt(argv, "o:h", ["plan", "nodes=", "policy=", "help"])
    except getopt.GetoptError as error:
        return _misused(str(error))
    options = {name.lstrip("-"): value for name, value in given}
    if "h" in options or "help" in options:
        print(USAGE)
        return 0
    if rest:
        return _misused(f"unexpected argument {rest[0]!r}")
    if "plan" not in options:
        if options:
            return _misused(f"{given[0][0]} goes with --plan")
        from penstock.cli.demo import tour

        return tour()
    output = options.get("o", "text")
    if output not in ("text", "json"):
        return _misused(f"-o: {output!r} is neither text nor json")
    nodes = options.get("nodes", str(_NODES_DEFAULT))
    if not (nodes.isascii() and nodes.isdigit() and len(nodes) <= 4 and 1 <= int(nodes) <= NODES_MAX):
        return _misused(f"--nodes: {nodes!r} is no number from 1 to {NODES_MAX}")
    try:
        planned = plan(int(nodes), options.get("policy", "first"))
    except BadRequest as error:
        return _misused(str(error))
    if output == "json":
        print(json.dumps(facts(planned), indent=2))
    else:
        _show(draw(planned))
    return 0


def _misused(what: str) -> int:
    print(f"penstock demo: {what}\n\n{USAGE}", file=sys.stderr)
    return 1


def _show(lines: Iterable[Line]) -> None:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb":
        _show_in_colours(lines)
        return
    for line in lines:
        print("".join(piece.plain for piece in line).rstrip())


# Light enough for black letters on them; neighbours in the queue are unlike each other.
_TINTS: Final = (
    *("#8ecae6", "#ffb703", "#95d5b2", "#f4978e", "#cdb4db", "#e9c46a"),
    *("#76c893", "#f9a8d4", "#a3b8ff", "#d4a373", "#b5e48c", "#ff9f6b"),
)


def _tint(number: int) -> str:
    return "#a8a8a8" if number == _GREY else _TINTS[(number - 1) % len(_TINTS)]


def _show_in_colours(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        text = Text()
        for piece in line:
            style = "bold" if piece.strong else "bright_black" if piece.dim else ""
            if piece.tint is not None:
                style = f"#101010 on {_tint(piece.tint)}"
            text.append(piece.rich, style)
        console.print(text)
