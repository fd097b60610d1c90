"""The scheduler: `handle` takes facts and wishes in, `plan` decides, and both return what became true.

    handle(inputs, now) -> Step           quick; facts are recorded, wishes are answered
    plan(now) -> generator -> Step        yields between matches; starts, reservations, forecasts

No I/O, no clock, no chance: the same calls give the same steps, to the bit. A step's changes must be made
durable before anything of it is told or done; if that fails, this object is dropped and made anew from
what was recorded (`recovery`). Between the yields of `plan` nothing else may be called.
"""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from penstock.errors import PenstockError
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Wish
from penstock.protocol.facts import (
    Fact,
    HoldGone,
    HoldSet,
    MemberGone,
    MemberSet,
    NodeGone,
    NodeSet,
    Observed,
    Settled,
    Snapshot,
    WorkGone,
    WorkSet,
)
from penstock.protocol.intents import Intent, Place, Tell
from penstock.sched import gangs, nodes
from penstock.sched.commands import fulfil
from penstock.sched.cycle import Walk, WalkResult, walk
from penstock.sched.forecast import Planned, forecast, planned_of
from penstock.sched.job import Forecast, Job, MemberPhase, Promise
from penstock.sched.lifecycle import (
    TIMEOUT,
    back_to_waiting,
    end_members,
    free_some,
    holds_nothing,
    member_ended,
    node_failed,
    place_late,
    raise_exception,
    settle_step,
    start_job,
    try_depend,
)
from penstock.sched.queue import Bucket, Entry
from penstock.sched.reasons import Why, jobs_ahead, why, why_late
from penstock.sched.records import Change
from penstock.sched.state import Core, OpenIntent, Reply

__all__ = ["Scheduler", "Step"]

_SLIP_S = 60.0
_SLIP_SHARE = 0.1
_BACKSTOP_S = 10.0  # how long after its limit and grace a job may still be ending by itself


@dataclass(frozen=True, slots=True)
class Step:
    """What one call made true, and what follows from it once it is durable."""

    changes: tuple[Change, ...] = ()
    intents: tuple[Intent, ...] = ()
    probes: tuple[str, ...] = ()
    tidings: tuple[Tell, ...] = ()
    forgotten: tuple[str, ...] = ()  # members whose end is recorded with this step
    replies: tuple[Reply, ...] = ()  # one per wish, in order


class Scheduler:
    def __init__(self, core: Core) -> None:
        self.core = core

    # Facts and wishes

    def handle(self, inputs: Sequence[Fact | Wish], now: float) -> Step:
        core = self.core
        replies: list[Reply] = []
        for one in inputs:
            if isinstance(one, Wish):
                core.cluster.settle()
                try:
                    replies.append(Reply(fulfil(core, one, now)))
                except PenstockError as error:
                    replies.append(Reply(error=error))
            else:
                self._take(one, now)
        self._assemble(now)
        self._tick(now)
        self._settle(now)
        return self._step(replies)

    def wake_at(self) -> float | None:
        """When `handle` should be called even if nothing has happened."""
        return self.core.wake_at()

    def _take(self, fact: Fact, now: float) -> None:
        core = self.core
        match fact:
            case Observed():
                gangs.observed(core, fact, now)
            case Settled():
                gangs.settled(core, fact, now)
            case MemberSet():
                gangs.member_set(core, fact, now)
            case MemberGone():
                gangs.member_gone(core, fact.member, now)
            case WorkSet():
                gangs.work_set(core, fact)
            case WorkGone():
                gangs.work_gone(core, fact.work, now)
            case HoldSet():
                nodes.hold_set(core, fact)
            case HoldGone():
                nodes.hold_gone(core, fact.hold)
            case NodeSet():
                nodes.node_set(core, fact)
            case NodeGone():
                nodes.node_gone(core, fact.node, now)
            case Snapshot():
                self._take_snapshot(fact, now)

    def _take_snapshot(self, fact: Snapshot, now: float) -> None:
        """Everything at once: what is absent is gone."""
        core = self.core
        present = {node.node for node in fact.nodes}
        for node in sorted(
            fact.nodes, key=lambda node: (core.ranks.get(node.node, 1 << 62), _natural(node.node))
        ):
            nodes.node_set(core, node)
        for name in [name for name in core.cluster.nodes if name not in present]:
            nodes.node_gone(core, name, now)
        core.cluster.settle()
        for job in core.lay_bookings():
            holds_nothing(core, job, now)
        if not core.cluster.is_complete:
            self._miss_places(present, now)
        core.cluster.is_complete = True
        held = {hold.hold for hold in fact.holds}
        observed = {one.member for one in fact.observations}
        held |= {gangs.LEFT_OVER + one for one in observed}
        for hold in core.cluster.holds():
            if hold not in held:
                nodes.hold_gone(core, hold)
        for hold_fact in fact.holds:
            nodes.hold_set(core, hold_fact)
        works = {work.work for work in fact.works}
        for work_fact in fact.works:
            gangs.work_set(core, work_fact)
        members = {member.member for member in fact.members}
        for member_fact in fact.members:
            gangs.member_set(core, member_fact, now)
        for observation in fact.observations:
            gangs.observed(core, observation, now)
        self._miss(present, works, members, observed, now)
        core.again.update(core.intents)

    def _miss_places(self, present: set[str], now: float) -> None:
        """Members of works whose place could not be booked again: the node went meanwhile, or the record.

        What is still to be seen of them counts as use by others. A place without a member is given back.
        """
        core = self.core
        for job in [job for job in core.jobs.values() if job.work]:
            seats = core.cluster.seats(job.id)
            empty = seats.keys() - {member.slot for member in job.live_members()}
            if empty:
                core.owed_slots.setdefault(job.id, []).extend(sorted(empty))
            for member in [one for one in job.live_members() if seats.get(one.slot) != one.node]:
                if member.phase is MemberPhase.PLACING:
                    back_to_waiting(core, job, member, now)
                    core.unsettled[job.id] = None
                elif member.node not in present:
                    node_failed(core, job, member, now)
                else:
                    member_ended(core, job, member, 9, "its place was not recorded", now)

    def _miss(
        self, present: set[str], works: set[str], members: set[str], observed: set[str], now: float
    ) -> None:
        core = self.core
        there = members | observed
        for work in [work for work in {**core.works, **core.given_up} if work not in works]:
            gangs.work_gone(core, work, now)
        for job in list(core.jobs.values()):
            if job.work:
                for key in [key for key in job.members if key not in there]:
                    gangs.member_gone(core, key, now)
                if job.work not in works:
                    gangs.work_gone(core, job.work, now)
                continue
            for member in list(job.members.values()):
                known = core.cluster.nodes.get(member.node)
                if not member.phase.is_live or member.key in observed:
                    continue
                if known is None and member.node and member.node not in present:
                    node_failed(core, job, member, now)
                elif known is not None and known.fact.up and not core.intents_of_member.get(member.key):
                    gangs.vanished(core, job, member, now)

    # Time

    def _tick(self, now: float) -> None:
        core = self.core
        due: dict[int, None] = {}
        while core.timers and core.timers[0][0] <= now:
            due[heapq.heappop(core.timers)[1]] = None
        for number in due:
            job = core.jobs.get(number)
            if job is not None:
                self._look_at_times(job, now)

    def _look_at_times(self, job: Job, now: float) -> None:
        core, settings = self.core, self.core.settings
        begin_at = job.spec.begin_at
        if job.is_begin_waiting and begin_at is not None and begin_at <= now:
            job.is_begin_waiting = False
            core.journal.log(job, "dependency-remove", now, description=f"begin-time={begin_at:.3f}")
            try_depend(core, job, now)
        work = core.works.get(job.work)
        until = gangs.assemble_by(job, work) if work is not None and not job.is_assembled else None
        if work is not None and until is not None and until <= now:
            there = sum(1 for member in job.members.values() if member.is_ready)
            note = f"only {there} of {work.size} members came in time"
            raise_exception(core, job, now, "assembly", note)
        for member in list(job.members.values()):
            if member.phase is MemberPhase.LOST and (member.lost_at or 0) + settings.lost_s <= now:
                node_failed(core, job, member, now)
        self._look_at_limit(job, now)
        since = job.incomplete_since
        if (
            since is not None
            and since + settings.whole_s <= now
            and job.state is JobState.RUN
            and not job.broken
        ):
            gangs.unwind(core, job, now)

    def _look_at_limit(self, job: Job, now: float) -> None:
        """The world ends what it can by itself; we end the rest, and what did not end."""
        core, settings = self.core, self.core.settings
        if job.end_at is None or job.end_at > now or not job.live_members():
            return
        work = core.works.get(job.work)
        backstop_at = job.end_at + settings.grace_s + _BACKSTOP_S
        by_world = work.enforced_by_world if work is not None else True
        if by_world and now < backstop_at:
            core.wake(backstop_at, job.id)
            return
        if not job.is_ending and not (job.work and by_world):
            raise_exception(core, job, now, TIMEOUT, "resource allocation expired", sent=signal.SIGALRM)
        elif job.is_ending:
            end_members(core, job, signal.SIGKILL, 0.0, TIMEOUT)
        core.wake(now + 60.0, job.id)

    # Settling a step

    def _assemble(self, now: float) -> None:
        """Counts the members of groups once, however many of them have come or gone."""
        core = self.core
        counting, core.counting = core.counting, {}
        for number in counting:
            job = core.jobs.get(number)
            if job is not None:
                gangs.assemble(core, job, now)

    def _queue_lately(self, now: float) -> None:
        """Takes groups further that have become whole in this step."""
        core = self.core
        lately, core.lately = core.lately, {}
        for number in lately:
            assembled = core.jobs.get(number)
            if assembled is not None:
                self._park_if_never(assembled)
                try_depend(core, assembled, now)
                core.enqueue(assembled)  # It may ask for something else than before.

    def _settle(self, now: float) -> None:
        core = self.core
        core.cluster.settle()
        if core.reconsider:
            core.reconsider = False
            for job in list(core.jobs.values()):
                if job.is_parked:
                    self._park_if_never(job)
        settle_step(core, now)
        self._queue_lately(now)
        for number, slots in core.owed_slots.items():
            if number in core.jobs:
                free_some(core, core.jobs[number], slots, now)
        core.owed_slots.clear()
        returning, core.returning = core.returning, []
        for member_fact in returning:
            gangs.member_set(core, member_fact, now)
        self._assemble(now)
        self._queue_lately(now)
        for number, key in core.late:
            begun = core.jobs.get(number)
            late = begun.members.get(key) if begun is not None else None
            if begun is None or late is None or begun.state is not JobState.RUN:
                continue
            if late.phase is MemberPhase.WAITING:
                gangs.enqueue_late(core, begun, late)
        core.late.clear()
        settle_step(core, now)
        core.journal.intents.extend(
            _what_is_left(core.intents[number]) for number in sorted(core.again) if number in core.intents
        )
        core.again.clear()

    def _park_if_never(self, job: Job) -> None:
        """A work that can never run cannot be refused: it is told so, and waits aside."""
        core = self.core
        if not core.cluster.is_complete or not job.spec.request.groups:
            return
        parked = core.why_never(job.spec.request)
        if parked != job.is_parked:
            job.is_parked = parked
            core.journal.touch(job)
            core.enqueue(job)
            core.tell(job, "never" if parked else "waiting", parked)

    def _step(self, replies: Sequence[Reply] = ()) -> Step:
        journal = self.core.journal
        changes = self.core.take_changes()
        step = Step(
            changes,
            tuple(journal.intents),
            tuple(journal.probes),
            tuple(journal.tidings.values()),
            tuple(journal.forgotten),
            tuple(replies),
        )
        journal.intents, journal.probes, journal.forgotten = [], [], []
        journal.tidings = {}
        return step

    # Deciding

    @property
    def is_dirty(self) -> bool:
        """Whether a pass could start something that the last one could not."""
        return self.core.is_dirty

    def plan(
        self, now: float, *, deep: bool = True, hurry: Callable[[], bool] = lambda: False
    ) -> Generator[None, None, Step]:
        """One pass. `deep`: also forecasts for as many jobs as the settings say.

        Decisions never depend on `hurry`; only forecasts are cut short by it.
        """
        core = self.core
        core.is_dirty = False
        core.cluster.settle()
        core.shapes_sweep()
        plan = self._walk_plan(now)
        found = yield from walk(replace(plan, starts_max=core.settings.starts_max))
        if found.is_cut:
            core.disturb()
        for entry, _ in found.reserved:
            core.cluster.engine.release(entry.job)
        for entry, allocation in found.started:
            job = core.jobs[entry.job]
            if entry.member:
                place_late(core, job, job.members[entry.member], allocation)
            else:
                start_job(core, job, allocation, now)
        starts: dict[int, Planned] = {}
        if deep and core.settings.forecast_depth and len(core.pending):
            plan = self._walk_plan(now)
            entries = self._forecast_entries(plan)
            starts = yield from forecast(plan, entries, core.settings.forecast_matches_max, hurry)
        self._note_starts(found, starts, now, deep)
        if deep:
            self._tell_waiting(now)
        core.notable.clear()
        settle_step(core, now)
        return self._step()

    def _tell_waiting(self, now: float) -> None:
        """Lets the people behind works know why those wait and until when, as far as is foreseen."""
        core = self.core
        memo: dict[int, Why] = {}
        told = 0
        for entry in core.pending.in_order():
            job = core.jobs[entry.job]
            if not job.work:
                continue
            if told >= core.settings.forecast_depth and core.pending.shape(entry) not in memo:
                continue  # What nobody has looked at for its own sake is told with others of its kind.
            told += 1
            if entry.member:
                core.tell(job, "waiting", why_late(core, entry, now, memo).sentence)
                continue
            found = self.why(job.id, now, memo)
            start_at = job.forecast.start_at if job.forecast is not None else None
            core.tell(job, "waiting", found.sentence, start_at)

    def _walk_plan(self, now: float) -> Walk:
        core = self.core
        now_s = int(now)
        started: list[Bucket] = [
            bucket for bucket in core.pending.buckets() if core.queue_state(bucket.queue).started
        ]
        return Walk(
            engine=core.cluster.engine,
            now=now_s,
            extra_s=1 if now > now_s else 0,
            buckets=started,
            backfill=lambda queue: core.settings.queue(queue).backfill,
            request=core.shapes.request,
            end_at=lambda job: core.jobs[job].end_at,
            queue_depth=core.settings.queue_depth,
        )

    def _forecast_entries(self, plan: Walk) -> list[Entry]:
        merged = heapq.merge(*(bucket.entries() for bucket in plan.buckets))
        entries: list[Entry] = []
        for entry in merged:
            if not entry.member:
                entries.append(entry)
                if len(entries) >= self.core.settings.forecast_depth:
                    break
        return entries

    def _note_starts(self, found: WalkResult, starts: dict[int, Planned], now: float, deep: bool) -> None:
        """Sets what every job may expect, and records promises that were made or have slipped."""
        core = self.core
        reserved = {entry.job: planned_of(allocation, True) for entry, allocation in found.reserved}
        core.reservations = {number: float(planned.start_s) for number, planned in reserved.items()}
        fresh = {**starts, **reserved}
        for number, planned in fresh.items():
            exact = starts.get(
                number, planned
            )  # The forecast knows more than the reservation it begins with.
            self._expect(core.jobs[number], float(exact.start_s), number in reserved, now)
        if deep:
            for number in core.planned.keys() - fresh.keys():
                job = core.jobs.get(number)
                if job is not None:
                    job.forecast = None
            core.planned = fresh
        else:
            core.planned.update(reserved)

    def _expect(self, job: Job, start: float, is_reservation: bool, now: float) -> None:
        core = self.core
        if job.state is not JobState.SCHED:
            return
        job.forecast = Forecast(start, now, is_reservation)
        before = job.promise
        if before is None:
            job.promise = Promise(start, start, now, is_reservation)
            if is_reservation:
                core.journal.log(job, "promise", now, start=start)
            else:
                core.journal.touch(job)
            return
        room = max(_SLIP_S, _SLIP_SHARE * (before.last_at - before.made_at))
        if start > before.last_at + room:
            cause = self._cause(now)
            core.journal.log(job, "promise", now, start=start, previous=before.last_at, cause=cause)
        elif start >= before.last_at - room and before.is_reservation == is_reservation:
            return
        job.promise = Promise(before.first_at, start, now, is_reservation)
        core.journal.touch(job)

    def _cause(self, now: float) -> str:
        """Why a promise has slipped: somebody overran, or what happened since the last pass."""
        core = self.core
        for number in core.cluster.engine.jobs:
            job = core.jobs.get(number)
            if job is not None and job.end_at is not None and job.end_at <= now:
                return f"{encode_jobid(number)} runs past its limit; its end is unknown"
        return core.notable[-1] if core.notable else "jobs before it take longer than was planned"

    # Questions

    def why(self, number: int, now: float, memo: dict[int, Why] | None = None) -> Why:
        return why(self.core, self.core.jobs[number], now, memo)

    def jobs_ahead(self) -> dict[int, int]:
        return jobs_ahead(self.core)


def _what_is_left(found: OpenIntent) -> Intent:
    """An intent as it is carried out again: for those members only whose outcome is not known."""
    intent = found.intent
    if isinstance(intent, Place):
        seats = (replace(seat, is_settled=seat.member not in found.waits_for) for seat in intent.seats)
        return replace(intent, seats=tuple(seats))
    return replace(intent, members=tuple(member for member in intent.members if member in found.waits_for))


def _natural(name: str) -> tuple[str, int, str]:
    """node2 before node10."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits else -1, name
