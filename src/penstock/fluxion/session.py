"""The commands of a session, one method each: a long list rather than a deep module."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TextIO

from penstock.engine.allocation import Allocation, AllocationKind
from penstock.engine.engine import Engine, MatchOp
from penstock.engine.find import find, parse_expression, usage_below
from penstock.engine.graph import Graph, Vertex
from penstock.engine.graph_updates import remove, set_property, set_status
from penstock.engine.request import BadShape, HoldsNothing, Request, request_of
from penstock.errors import BadRequest, Conflict
from penstock.fluxion.attach import attach
from penstock.fluxion.checks import HORIZON_S, NOW, check_types, could_ever, has_enough_nodes
from penstock.fluxion.options import ResourceQueryOptions
from penstock.fluxion.order import RememberedOrder
from penstock.fluxion.rsets import reapply, release_part, vertices_named
from penstock.fluxion.writers.formats import FORMATS, Sheet
from penstock.model.idset import parse_idset
from penstock.model.jobspec import parse_jobspec

__all__ = ["Session"]

_RULE: Final = "INFO: =============================\n"
_FILE_MAX: Final = 512 << 20

_OPS: Final = {op.value: op for op in MatchOp}
_TELLS_UNSATISFIABLE: Final = frozenset(
    {MatchOp.ALLOCATE_WITH_SATISFIABILITY, MatchOp.ALLOCATE_ORELSE_RESERVE, MatchOp.WITHOUT_ALLOCATING_FUTURE}
)
_LOOKS_ONLY: Final = frozenset({MatchOp.WITHOUT_ALLOCATING, MatchOp.WITHOUT_ALLOCATING_FUTURE})


@dataclass(slots=True)
class _JobInfo:
    state: str
    at: int
    file: str
    overhead_s: float


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    short: str
    run: Callable[[list[str]], bool]
    help: str


class Session:
    """The state behind a prompt: an engine, the jobs by number, and where to write."""

    def __init__(
        self, graph: Graph, options: ResourceQueryOptions, out: TextIO, stdout: TextIO, stderr: TextIO
    ) -> None:
        self._order = RememberedOrder()
        self._engine = Engine(graph, options.policy, options.filters, order=self._order, horizon_s=HORIZON_S)
        self._options = options
        self._writer = FORMATS[options.match_format]
        self._out = out
        self._stdout = stdout
        self._stderr = stderr
        self._jobs: dict[int, _JobInfo] = {}
        self._next_job = 1
        self._asked_queue = ""
        self._queue = ""
        self._unwritten: tuple[Sheet, ...] = ()
        self._hidden_job = 1 << 62  # bookings that Fluxion makes for jobs that do not exist
        self._update_times_s: list[float] = []
        self._commands = self._all_commands()

    def execute(self, line: str) -> bool:
        """Runs one line. False ends the session. Unknown commands are ignored, as scripts expect."""
        words = line.split()
        if not words:
            return True
        command = next((c for c in self._commands if words[0] in (c.name, c.short)), None)
        return command.run(words) if command is not None else True

    # Matching

    def _match(self, words: list[str]) -> bool:
        if len(words) != 3:
            return self._malformed()
        op = _OPS.get(words[1])
        if op is None:
            return self._error(f"ERROR: unknown subcmd {words[1]}")
        self._run_match(op, words[2])
        return True

    def _multi_match(self, words: list[str]) -> bool:
        if len(words) <= 3:
            return self._malformed()
        op = _OPS.get(words[1])
        if op is None:
            return self._error(f"ERROR: unknown subcmd {words[1]}")
        for file in words[2:]:
            if not self._run_match(op, file):
                break
        return True

    def _run_match(self, op: MatchOp, file: str) -> bool:
        """One match, told in full. False if it failed (a file that cannot be read does not count)."""
        text = self._read(file)
        if text is None:
            return True
        began = time.perf_counter()
        try:
            request = self._request(text)
        except BadRequest as error:
            self._error(f"match_allocate: ERROR: Jobspec error for {self._next_job}: {error.summary}")
            return self._tell_failure(op, satisfiable=True, began=began)
        try:
            if op is MatchOp.SATISFIABILITY:
                return self._tell_satisfiability(could_ever(self._engine, request), began)
            if not has_enough_nodes(self._engine, request, op):
                return self._refused(op, began, unsatisfiable=op is MatchOp.ALLOCATE_WITH_SATISFIABILITY)
            answer = self._engine.match(self._next_job, request, NOW, op, explain=False)
        except HoldsNothing:
            return self._refused(op, began, unsatisfiable=False)
        except BadShape as error:
            self._error(f"match_allocate: ERROR: {error.summary}")
            return self._refused(op, began, unsatisfiable=op in _TELLS_UNSATISFIABLE)
        if not isinstance(answer, Allocation):
            unsatisfiable = op in _TELLS_UNSATISFIABLE and not could_ever(self._engine, request)
            return self._refused(op, began, unsatisfiable)
        self._order.note(answer, NOW)
        if op not in _LOOKS_ONLY:
            self._order.note_span(answer.start_s, answer.end_s or HORIZON_S)
        written = self._write(self._sheet(answer))
        if written is None:
            return self._unwritable(answer, op, began)
        self._out.write(written)
        self._tell_success(answer, file, began, consumes=op not in _LOOKS_ONLY)
        return True

    def _request(self, text: bytes) -> Request:
        jobspec = parse_jobspec(text)
        check_types(self._engine.graph, jobspec.resources)
        if jobspec.duration_s > HORIZON_S:
            raise BadRequest("the duration ends beyond the horizon", found=f"{jobspec.duration_s} s")
        self._asked_queue = jobspec.queue
        return request_of(jobspec)

    def _sheet(self, answer: Allocation) -> Sheet:
        # Fluxion's writer never forgets a queue that it was told.
        self._queue = self._asked_queue or self._queue
        return Sheet(answer.picks, answer.start_s, answer.end_s or HORIZON_S, self._queue)

    def _write(self, sheet: Sheet) -> str | None:
        """Fluxion's `rv1` writes the graph of a set without cores only together with the next one."""
        if self._options.match_format != "rv1":
            return self._writer.write(sheet)
        written = self._writer.write(replace(sheet, earlier=self._unwritten))
        self._unwritten = () if written else (*self._unwritten, sheet)
        return written

    def _refused(self, op: MatchOp, began: float, unsatisfiable: bool) -> bool:
        if self._options.match_format == "rlite":
            # The writer has nothing to write, and that is an error that hides the other.
            self._error("match_allocate: ERROR: match writer emit: Invalid argument")
            return self._tell_failure(op, satisfiable=True, began=began)
        self._tell_failure(op, satisfiable=not unsatisfiable, began=began)
        if op not in _LOOKS_ONLY and op is not MatchOp.SATISFIABILITY:
            self._next_job += 1
        return False

    def _unwritable(self, answer: Allocation, op: MatchOp, began: float) -> bool:
        """Booked, but the format cannot say what: Fluxion forgets the job and keeps the booking."""
        if answer.kind is not AllocationKind.MATCHED:
            marks = self._engine.jobs[answer.job].marks()
            self._engine.release(answer.job)
            self._engine.update(
                self._hidden_job, marks.values(), answer.start_s, answer.end_s, answer.kind, NOW, force=True
            )
            self._hidden_job += 1
        self._error("match_allocate: ERROR: match writer emit: Invalid argument")
        return self._tell_failure(op, satisfiable=True, began=began)

    def _tell_success(self, answer: Allocation, file: str, began: float, consumes: bool) -> None:
        at = answer.start_s
        state = "MATCHED" if not consumes else "ALLOCATED" if at == NOW else "RESERVED"
        elapsed = time.perf_counter() - began
        self._out.write(f"{_RULE}INFO: JOBID={answer.job}\nINFO: RESOURCES={state}\n")
        self._out.write(f"INFO: SCHEDULED AT={'Now' if at == NOW else at}\n")
        self._tell_effort(self._stdout, elapsed)
        self._out.write(_RULE)
        if consumes:
            self._jobs[answer.job] = _JobInfo(state, at, file, elapsed)
            self._next_job = answer.job + 1

    def _tell_failure(self, op: MatchOp, satisfiable: bool, began: float) -> bool:
        if op is MatchOp.SATISFIABILITY:
            return self._tell_satisfiability(satisfiable, began)
        self._out.write(f"{_RULE}INFO: No matching resources found\n")
        if not satisfiable:
            self._out.write("INFO: Unsatisfiable request\n")
        self._out.write(f"INFO: JOBID={self._next_job}\n")
        self._tell_effort(self._out, time.perf_counter() - began)
        self._out.write(_RULE)
        return False

    def _tell_satisfiability(self, satisfiable: bool, began: float) -> bool:
        self._out.write(f"{_RULE}INFO: {'Satisfiable' if satisfiable else 'Unsatisfiable'} request\n{_RULE}")
        self._tell_effort(self._stdout, time.perf_counter() - began)
        return satisfiable

    def _tell_effort(self, elapse_to: TextIO, elapsed: float) -> None:
        if self._options.elapse_time:
            elapse_to.write(f"INFO: ELAPSE={elapsed:f}\n")
            preorder, postorder = self._engine.visits()
            self._stdout.write(f"INFO: PREORDER VISIT COUNT={preorder}\n")
            self._stdout.write(f"INFO: POSTORDER VISIT COUNT={postorder}\n")

    # Re-applying and releasing

    def _update(self, words: list[str]) -> bool:
        if len(words) != 7:
            return self._malformed()
        _, subcommand, reader, file, job_text, at_text, duration_text = words
        if subcommand not in ("allocate", "reserve"):
            return self._error(f"ERROR: unknown subcmd {subcommand}")
        if reader == "jgf_shorthand":
            return self._error("ERROR: reader jgf_shorthand is not supported yet")
        if reader not in ("jgf", "rv1exec"):
            return self._error(f"ERROR: unsupported reader {reader}")
        text = self._read(file)
        if text is None:
            return True
        job, at, duration = _leading_int(job_text), _leading_int(at_text), _leading_int(duration_text)
        if job in self._engine.jobs:
            return self._error("ERROR: existing Jobid ")
        if job < 0:
            return self._error(f"ERROR: invalid Jobid {job}")
        if at < 0 or duration <= 0:
            return self._error(f"ERROR: invalid time ({at}, {duration})")
        began = time.perf_counter()
        self._next_job = job
        try:
            answer = reapply(self._engine, job, reader, text, at, at + duration)
        except (BadRequest, Conflict) as error:
            self._error("ERROR: traverser run () returned error ")
            self._error(f"ERROR: {error}")
            self._tell_failure(MatchOp.ALLOCATE, satisfiable=True, began=began)
        else:
            self._order.note_update(answer)
            self._order.note_span(at, at + duration)
            self._out.write(self._write(Sheet(answer.picks, at, at + duration, self._queue)) or "")
            self._tell_success(answer, file, began, consumes=True)
        self._update_times_s.append(time.perf_counter() - began)
        self._next_job = job + 1
        return True

    def _cancel(self, words: list[str]) -> bool:
        if len(words) not in (2, 3):
            return self._malformed()
        job = _leading_int(words[1])
        if job not in self._engine.jobs or job not in self._jobs:
            return self._error(f"cancel: ERROR: nonexistent job {job}")
        before = self._engine.allocation(job)
        visited = len(before.picks)
        self._engine.release(job)
        self._order.note_span(before.start_s, before.end_s or HORIZON_S)
        self._jobs[job].state = "CANCELED"
        if words[2:] == ["stats"]:
            self._tell_visits("CANCEL", visited)
        return True

    def _partial_cancel(self, words: list[str]) -> bool:
        if len(words) not in (4, 5):
            return self._malformed()
        _, job_text, reader, file = words[:4]
        job = _leading_int(job_text)
        if reader not in ("jgf", "rv1exec"):
            return self._error(f"ERROR: unsupported reader {reader}")
        text = self._read(file)
        if text is None:
            return True
        holder = self._engine.jobs.get(job) if job in self._jobs else None
        if holder is None:
            return self._error(f"ERROR: nonexistent job {job}")
        if self._jobs[job].state == "RESERVED":
            return self._error("ERROR: reservations not currently supported by partial cancel")
        try:
            if release_part(self._engine, job, vertices_named(self._engine.graph, reader, text)):
                self._jobs[job].state = "CANCELED"
        except (BadRequest, Conflict):
            self._error(f"ERROR: error encountered while removing job {job}")
        if words[4:] == ["stats"]:
            self._tell_visits("PARTIAL CANCEL", 0)
        return True

    def _tell_visits(self, what: str, visited: int) -> None:
        self._out.write(f'{_RULE}INFO: {what} PREORDER COUNT="{visited}"\n')
        self._out.write(f'INFO: {what} POSTORDER COUNT="{visited}"\n{_RULE}')

    # The graph

    def _attach(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._malformed()
        text = self._read(words[1])
        if text is None:
            return True
        try:
            with self._growing():
                for vertex in attach(self._engine, text):
                    vertex.unit = ""  # Fluxion reads no units from JGF, so it writes none.
        except BadRequest as error:
            self._error("ERROR: can't attach JGF subgraph ")
            self._error("ERROR: add_subgraph: ERROR: add subgraph error: Invalid argument")
            self._error(
                f"add_subgraph: ERROR: reader returned error: add_graph_metadata: {error.summary}.\n\n"
            )
        return True

    def _remove(self, words: list[str]) -> bool:
        if len(words) != 3:
            return self._malformed()
        if words[2] not in ("true", "false"):
            return self._error("ERROR: invalid path boolean input ")
        graph = self._engine.graph
        try:
            if words[2] == "true":
                tops = graph.at_path(words[1])
            else:
                ranks = [graph.of_rank(rank) for rank in parse_idset(words[1])]
                if not all(ranks):
                    return self._error("ERROR: can't partial cancel subgraph ")
                tops = [min(members, key=lambda vertex: len(vertex.path())) for members in ranks]
            if not tops:
                return self._error("ERROR: can't remove subgraph ")
            for top in tops:
                with self._growing():
                    removal = remove(self._engine, top)
                for job in removal.emptied:
                    if job in self._jobs:
                        self._jobs[job].state = "CANCELED"
        except BadRequest as error:
            return self._error(f"ERROR: can't remove subgraph \nERROR: {error}")
        return True

    @contextmanager
    def _growing(self) -> Iterator[None]:
        """Around a change of the graph: the memory is told how much the root has won or lost."""
        root = self._engine.graph.root
        before = dict(root.totals or {})
        yield
        for kind, total in list((root.totals or {}).items())[:1]:
            self._order.note_growth(total - before.get(kind, 0), self._engine.instants(NOW))

    def _find(self, words: list[str]) -> bool:
        if len(words) < 2:
            return self._error("ERROR: malformed command: ")
        text = " ".join(words[1:])
        try:
            expression = parse_expression(text)
        except BadRequest:
            return self._error(f"findfind: invalid criteria: {text}.")
        picks = find(self._engine.graph.root, expression)
        usage = usage_below(picks, expression.job, NOW) if expression.with_usage else {}
        written = self._write(Sheet(picks, usage=usage, queue=self._queue))
        if written is None:
            return self._error("find: ERROR: find writer emit: Invalid argument")
        self._out.write(f'{written}{_RULE}INFO: EXPRESSION="{text}"\n{_RULE}')
        return True

    def _set_property(self, words: list[str]) -> bool:
        if len(words) != 3:
            return self._malformed()
        key, equals, value = words[2].partition("=")
        if not key or not equals or not value:
            self._out.write(
                "Incorrect input format. \nPlease use `set-property <resource> PROPERTY=VALUE`.\n"
            )
            return True
        vertices = self._engine.graph.at_path(words[1])
        if not vertices:
            self._out.write(f"Couldn't find path {words[1]} in resource graph.\n")
        for vertex in vertices:
            set_property(vertex, key, value)
        return True

    def _get_property(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._malformed()
        for vertex in self._at(words[1]):
            if not vertex.properties:
                self._out.write(
                    f"No properties were found for {words[1]} (vtx's uniq_id={vertex.uniq_id}).\n"
                )
            for key, value in sorted(vertex.properties.items()):
                self._out.write(f"{key}={value}\n")
        return True

    def _set_status(self, words: list[str]) -> bool:
        if len(words) != 3:
            return self._malformed()
        vertices = self._at(words[1])
        if vertices and words[2] not in ("up", "down"):
            return self._error("ERROR: unrecognized status")
        for vertex in vertices:
            set_status(vertex, words[2] == "up")
        return True

    def _get_status(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._malformed()
        for vertex in self._at(words[1]):
            self._out.write(f"{words[1]} is {'up' if vertex.up else 'down'}\n")
        return True

    def _at(self, path: str) -> list[Vertex]:
        vertices = self._engine.graph.at_path(path)
        if not vertices:
            self._out.write(f"Could not find path {path} in resource graph.\n")
        return vertices

    # Looking back

    def _list(self, words: list[str]) -> bool:  # noqa: ARG002 (every command takes its words)
        for job in sorted(self._jobs):
            self._tell_job(job)
        return True

    def _info(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._malformed()
        job = _leading_int(words[1])
        if job not in self._jobs:
            return self._error(f"info: ERROR: nonexistent job {job}")
        self._tell_job(job)
        return True

    def _tell_job(self, job: int) -> None:
        info = self._jobs[job]
        self._stdout.write(f"INFO: {job}, {info.state}, {info.at}, {info.file}, {info.overhead_s:g}\n")

    def _stat(self, words: list[str]) -> bool:
        if len(words) != 1:
            return self._malformed()
        times = self._update_times_s
        jobs = len(self._jobs)
        least = min(times, default=1.79769e308) if jobs else 0.0
        self._stdout.write(f"INFO: Num. of Jobs Matched: {jobs}\n")
        self._stdout.write(f"INFO: Min. Match Time: {least:g}\n")
        self._stdout.write(f"INFO: Max. Match Time: {max(times, default=0):g}\n")
        self._stdout.write(f"INFO: Avg. Match Time: {sum(times) / jobs if jobs else 0:g}\n")
        return True

    def _cat(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._malformed()
        text = self._read(words[1], silent=True)
        for line in text.decode("utf-8", "replace").splitlines() if text is not None else ():
            self._stdout.write(f"{line}\n")
        self._stdout.write(f"INFO: Jobspec in {words[1]}\n")
        return True

    def _help(self, words: list[str]) -> bool:
        wanted = words[1] if len(words) == 2 else None
        shown = [c for c in self._commands if wanted in (None, c.name, c.short)]
        for command in shown:
            self._stdout.write(f"INFO: {command.name} ({command.short}) -- {command.help}\n")
        if not shown:
            self._stdout.write(f"ERROR: unknown command: {wanted}\n")
        return True

    def _quit(self, words: list[str]) -> bool:  # noqa: ARG002 (every command takes its words)
        return False

    # Small things

    def _read(self, file: str, silent: bool = False) -> bytes | None:
        try:
            if os.path.getsize(file) > _FILE_MAX:
                raise OSError("too large")
            with open(file, "rb") as stream:
                return stream.read(_FILE_MAX)
        except OSError:
            if not silent:
                self._error(f"ERROR: can't open {file}")
            return None

    def _malformed(self) -> bool:
        return self._error("ERROR: malformed command")

    def _error(self, text: str) -> bool:
        self._stderr.write(f"{text}\n")
        return True

    def _all_commands(self) -> tuple[_Command, ...]:
        ops = " | ".join(_OPS)
        return (
            _Command("match", "m", self._match, f"Match a jobspec: match OP FILE, with OP {ops}"),
            _Command(
                "multi-match",
                "M",
                self._multi_match,
                "Match jobspecs until one fails: multi-match OP FILE FILE...",
            ),
            _Command(
                "update",
                "u",
                self._update,
                "Book a set: update allocate|reserve jgf|rv1exec FILE JOBID START DURATION",
            ),
            _Command("attach", "j", self._attach, "Add a subgraph in JGF: attach FILE"),
            _Command(
                "remove", "j", self._remove, "Remove a subgraph: remove PATH true, or remove RANKS false"
            ),
            _Command(
                "find",
                "f",
                self._find,
                "Find resources: find EXPRESSION, such as status=down and sched-now=free",
            ),
            _Command("cancel", "c", self._cancel, "Release a job: cancel JOBID [stats]"),
            _Command(
                "partial-cancel",
                "pc",
                self._partial_cancel,
                "Release a part: partial-cancel JOBID jgf|rv1exec FILE [stats]",
            ),
            _Command("set-property", "p", self._set_property, "Set a property: set-property PATH KEY=VALUE"),
            _Command("get-property", "g", self._get_property, "Show properties: get-property PATH"),
            _Command("set-status", "t", self._set_status, "Set a status: set-status PATH up|down"),
            _Command("get-status", "e", self._get_status, "Show a status: get-status PATH"),
            _Command("list", "l", self._list, "List all jobs: list"),
            _Command("info", "i", self._info, "Show a job: info JOBID"),
            _Command("stat", "s", self._stat, "Show totals: stat"),
            _Command("cat", "a", self._cat, "Show a jobspec file: cat FILE"),
            _Command("help", "h", self._help, "Show this: help [COMMAND]"),
            _Command("quit", "q", self._quit, "End the session: quit"),
        )


def _leading_int(text: str) -> int:
    """The number that a text begins with, 0 if none, as C reads it."""
    sign = -1 if text.startswith("-") else 1
    digits = ""
    for character in text[1:] if text[:1] in "+-" and text else text:
        if not character.isascii() or not character.isdigit() or len(digits) > 18:
            break
        digits += character
    return sign * int(digits) if digits else 0
