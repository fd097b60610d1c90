"""The commands that book and release resources: match, multi-match, update, cancel, partial-cancel.

The engine decides each match. This module reproduces what Fluxion prints about it, which number the next job
gets, and which bookings survive an answer that the match format cannot represent.
"""

from __future__ import annotations

import time
from typing import Final, TextIO

from penstock.engine.allocation import Allocation, AllocationKind
from penstock.engine.engine import MatchOp
from penstock.engine.request import InvalidResources, NothingAllocated, Request, request_of
from penstock.errors import BadRequest, Conflict
from penstock.fluxion.checks import HORIZON_S, NOW, check_types, has_enough_nodes, is_satisfiable
from penstock.fluxion.rsets import reapply, release_part, vertices_named
from penstock.fluxion.session_state import RULE, SessionJob, SessionState, leading_int
from penstock.fluxion.writers.formats import PickedSet
from penstock.model.jobspec import parse_jobspec

__all__ = ["MATCH_OPS", "MatchCommands"]

MATCH_OPS: Final = {op.value: op for op in MatchOp}
_REPORTS_UNSATISFIABLE: Final = frozenset(
    {MatchOp.ALLOCATE_WITH_SATISFIABILITY, MatchOp.ALLOCATE_ORELSE_RESERVE, MatchOp.WITHOUT_ALLOCATING_FUTURE}
)
_DRY_RUN: Final = frozenset({MatchOp.WITHOUT_ALLOCATING, MatchOp.WITHOUT_ALLOCATING_FUTURE})
_REQUESTS_MAX: Final = 1024  # jobspecs whose requests are kept


class MatchCommands:
    """Each public method is one command. It takes the words of the line and returns True."""

    def __init__(self, state: SessionState) -> None:
        self.update_times_s: list[float] = []
        self._state = state
        self._engine = state.engine
        self._requested_queue = ""  # the queue of the jobspec read last
        # By the text of a jobspec: the types in the graph when it was checked, its request and its queue
        self._requests: dict[bytes, tuple[frozenset[str], Request, str]] = {}
        self._hidden_job = 1 << 62  # number of the next booking that Fluxion makes without a job

    def match(self, words: list[str]) -> bool:
        if len(words) != 3:
            return self._state.malformed()
        op = MATCH_OPS.get(words[1])
        if op is None:
            return self._state.error(f"ERROR: unknown subcmd {words[1]}")
        self._run_match(op, words[2])
        return True

    def multi_match(self, words: list[str]) -> bool:
        if len(words) <= 3:
            return self._state.malformed()
        op = MATCH_OPS.get(words[1])
        if op is None:
            return self._state.error(f"ERROR: unknown subcmd {words[1]}")
        for file in words[2:]:
            if not self._run_match(op, file):
                break
        return True

    def _run_match(self, op: MatchOp, file: str) -> bool:
        """Runs and prints one match. False if it failed; an unreadable file does not count as a failure."""
        state, engine = self._state, self._engine
        text = state.read_file(file)
        if text is None:
            return True
        began = time.perf_counter()
        try:
            request = self._request(text)
        except BadRequest as error:
            state.error(f"match_allocate: ERROR: Jobspec error for {state.next_job}: {error.summary}")
            return self._print_failure(op, satisfiable=True, began=began)
        try:
            if op is MatchOp.SATISFIABILITY:
                return self._print_satisfiability(is_satisfiable(engine, request), began)
            if not has_enough_nodes(engine, request, op):
                return self._refuse(op, began, unsatisfiable=op is MatchOp.ALLOCATE_WITH_SATISFIABILITY)
            answer = engine.match(state.next_job, request, NOW, op, explain=False)
        except NothingAllocated:
            return self._refuse(op, began, unsatisfiable=False)
        except InvalidResources as error:
            state.error(f"match_allocate: ERROR: {error.summary}")
            return self._refuse(op, began, unsatisfiable=op in _REPORTS_UNSATISFIABLE)
        if not isinstance(answer, Allocation):
            unsatisfiable = op in _REPORTS_UNSATISFIABLE and not is_satisfiable(engine, request)
            return self._refuse(op, began, unsatisfiable)
        state.order.note(answer, NOW)
        if op not in _DRY_RUN:
            state.order.note_span(answer.start_s, answer.end_s or HORIZON_S)
        # Fluxion's writer keeps the last queue name for all later sets.
        state.queue = self._requested_queue or state.queue
        written = state.render_allocation(answer)
        if written is None:
            return self._keep_unwritable(answer, op, began)
        state.out.write(written)
        self._print_success(answer, file, began, consumes=op not in _DRY_RUN)
        return True

    def _request(self, text: bytes) -> Request:
        types = self._engine.graph.types()
        known = self._requests.get(text)
        if known is not None and known[0] == types:
            self._requested_queue = known[2]
            return known[1]
        jobspec = parse_jobspec(text)
        check_types(types, jobspec.resources)
        if jobspec.duration_s > HORIZON_S:
            raise BadRequest("the duration ends beyond the horizon", found=f"{jobspec.duration_s} s")
        self._requested_queue = jobspec.queue
        request = request_of(jobspec)
        if len(self._requests) >= _REQUESTS_MAX:
            self._requests.clear()
        self._requests[text] = (types, request, jobspec.queue)
        return request

    def _refuse(self, op: MatchOp, began: float, unsatisfiable: bool) -> bool:
        if self._state.options.match_format == "rlite":
            # Fluxion's rlite writer fails on an empty set, and that error replaces the refusal.
            self._state.error("match_allocate: ERROR: match writer emit: Invalid argument")
            return self._print_failure(op, satisfiable=True, began=began)
        self._print_failure(op, satisfiable=not unsatisfiable, began=began)
        if op not in _DRY_RUN and op is not MatchOp.SATISFIABILITY:
            self._state.next_job += 1
        return False

    def _keep_unwritable(self, answer: Allocation, op: MatchOp, began: float) -> bool:
        """Books an answer that the match format cannot represent without a job, as Fluxion does."""
        if answer.kind is not AllocationKind.MATCHED:
            claims = self._engine.jobs[answer.job].claims()
            self._engine.release(answer.job)
            self._engine.update(
                self._hidden_job, claims.values(), answer.start_s, answer.end_s, answer.kind, NOW, force=True
            )
            self._hidden_job += 1
        self._state.error("match_allocate: ERROR: match writer emit: Invalid argument")
        return self._print_failure(op, satisfiable=True, began=began)

    def _print_success(self, answer: Allocation, file: str, began: float, consumes: bool) -> None:
        state = self._state
        start_s = answer.start_s
        outcome = "MATCHED" if not consumes else "ALLOCATED" if start_s == NOW else "RESERVED"
        elapsed = time.perf_counter() - began
        state.out.write(f"{RULE}INFO: JOBID={answer.job}\nINFO: RESOURCES={outcome}\n")
        state.out.write(f"INFO: SCHEDULED AT={'Now' if start_s == NOW else start_s}\n")
        self._print_effort(state.stdout, elapsed)
        state.out.write(RULE)
        if consumes:
            state.jobs[answer.job] = SessionJob(outcome, start_s, file, elapsed)
            state.next_job = answer.job + 1

    def _print_failure(self, op: MatchOp, satisfiable: bool, began: float) -> bool:
        if op is MatchOp.SATISFIABILITY:
            return self._print_satisfiability(satisfiable, began)
        out = self._state.out
        out.write(f"{RULE}INFO: No matching resources found\n")
        if not satisfiable:
            out.write("INFO: Unsatisfiable request\n")
        out.write(f"INFO: JOBID={self._state.next_job}\n")
        self._print_effort(out, time.perf_counter() - began)
        out.write(RULE)
        return False

    def _print_satisfiability(self, satisfiable: bool, began: float) -> bool:
        verdict = "Satisfiable" if satisfiable else "Unsatisfiable"
        self._state.out.write(f"{RULE}INFO: {verdict} request\n{RULE}")
        self._print_effort(self._state.stdout, time.perf_counter() - began)
        return satisfiable

    def _print_effort(self, elapse_to: TextIO, elapsed: float) -> None:
        if self._state.options.elapse_time:
            elapse_to.write(f"INFO: ELAPSE={elapsed:f}\n")
            preorder, postorder = self._engine.visits()
            self._state.stdout.write(f"INFO: PREORDER VISIT COUNT={preorder}\n")
            self._state.stdout.write(f"INFO: POSTORDER VISIT COUNT={postorder}\n")

    def update(self, words: list[str]) -> bool:
        state = self._state
        if len(words) != 7:
            return state.malformed()
        _, subcommand, reader, file, job_text, start_text, duration_text = words
        if subcommand not in ("allocate", "reserve"):
            return state.error(f"ERROR: unknown subcmd {subcommand}")
        if reader == "jgf_shorthand":
            return state.error("ERROR: reader jgf_shorthand is not supported yet")
        if reader not in ("jgf", "rv1exec"):
            return state.error(f"ERROR: unsupported reader {reader}")
        text = state.read_file(file)
        if text is None:
            return True
        job, start_s, duration_s = leading_int(job_text), leading_int(start_text), leading_int(duration_text)
        if job in self._engine.jobs:
            return state.error("ERROR: existing Jobid ")
        if job < 0:
            return state.error(f"ERROR: invalid Jobid {job}")
        if start_s < 0 or duration_s <= 0:
            return state.error(f"ERROR: invalid time ({start_s}, {duration_s})")
        self._reapply(job, reader, file, text, start_s, start_s + duration_s)
        return True

    def _reapply(self, job: int, reader: str, file: str, text: bytes, start_s: int, end_s: int) -> None:
        state = self._state
        began = time.perf_counter()
        state.next_job = job
        try:
            answer = reapply(self._engine, job, reader, text, start_s, end_s)
        except (BadRequest, Conflict) as error:
            state.error("ERROR: traverser run () returned error ")
            state.error(f"ERROR: {error}")
            self._print_failure(MatchOp.ALLOCATE, satisfiable=True, began=began)
        else:
            state.order.note_update(answer)
            state.order.note_span(start_s, end_s)
            state.out.write(state.render(PickedSet(answer.picks, start_s, end_s, state.queue)) or "")
            self._print_success(answer, file, began, consumes=True)
        self.update_times_s.append(time.perf_counter() - began)
        state.next_job = job + 1

    def cancel(self, words: list[str]) -> bool:
        state = self._state
        if len(words) not in (2, 3):
            return state.malformed()
        job = leading_int(words[1])
        if job not in self._engine.jobs or job not in state.jobs:
            return state.error(f"cancel: ERROR: nonexistent job {job}")
        before = self._engine.allocation(job)
        visited = len(before.picks) if words[2:] == ["stats"] else 0
        self._engine.release(job)
        state.order.note_span(before.start_s, before.end_s or HORIZON_S)
        state.jobs[job].state = "CANCELED"
        if words[2:] == ["stats"]:
            self._print_visits("CANCEL", visited)
        return True

    def partial_cancel(self, words: list[str]) -> bool:
        state = self._state
        if len(words) not in (4, 5):
            return state.malformed()
        _, job_text, reader, file = words[:4]
        job = leading_int(job_text)
        if reader not in ("jgf", "rv1exec"):
            return state.error(f"ERROR: unsupported reader {reader}")
        text = state.read_file(file)
        if text is None:
            return True
        if job not in state.jobs or job not in self._engine.jobs:
            return state.error(f"ERROR: nonexistent job {job}")
        if state.jobs[job].state == "RESERVED":
            return state.error("ERROR: reservations not currently supported by partial cancel")
        try:
            if release_part(self._engine, job, vertices_named(self._engine.graph, reader, text)):
                state.jobs[job].state = "CANCELED"
        except (BadRequest, Conflict):
            state.error(f"ERROR: error encountered while removing job {job}")
        if words[4:] == ["stats"]:
            self._print_visits("PARTIAL CANCEL", 0)
        return True

    def _print_visits(self, command: str, visited: int) -> None:
        self._state.out.write(f'{RULE}INFO: {command} PREORDER COUNT="{visited}"\n')
        self._state.out.write(f'INFO: {command} POSTORDER COUNT="{visited}"\n{RULE}')
