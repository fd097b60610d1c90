"""Finds the object whose changes a store rejects, by trying parts of a step.

The changes of one job, node, queue or workload stand for themselves, so the store can be asked about any
selection of them (`Store.accepts`). Halving finds one culprit with few questions. Of a step with commands, a
command that concerns the culprit is suspected first: it may have brought the value that cannot be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.protocol.commands import (
    Cancel,
    Command,
    Drain,
    QueueChange,
    SetUrgency,
    Signal,
    Submit,
    Undrain,
)
from penstock.protocol.facts import Fact
from penstock.sched.records import (
    Change,
    DrainGone,
    DrainSet,
    IdHighest,
    InadmissibleGone,
    InadmissibleSet,
    IntentDone,
    IntentNew,
    JobLive,
    JobLogged,
    JobNew,
    NodeForgotten,
    NodeNew,
    QueueSet,
)
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.subjects import Culprit, CulpritKind, subject_of_job
from penstock.store.port import Store

__all__ = ["culprit_of"]

_Entity = tuple[CulpritKind | None, str]  # None: of no object, such as a queue


async def culprit_of(
    store: Store, epoch: int, scheduler: Scheduler, inputs: Sequence[Fact | Command], step: Step
) -> Culprit | None:
    """The subject of changes that the store rejects; None if only several together are rejected."""
    groups: dict[_Entity, list[Change]] = {}
    intents = {one.id: one.job for one in step.changes if isinstance(one, IntentNew)}
    for change in step.changes:
        if not isinstance(change, IdHighest):
            groups.setdefault(_entity_of(change, intents), []).append(change)
    entity = await _rejected(store, epoch, groups, list(groups))
    if entity is None:
        return None
    commands = [one for one in inputs if isinstance(one, Command)]
    for index, command in enumerate(commands):
        reply = step.replies[index].value if index < len(step.replies) else None
        if entity in _entities_of(command, reply):
            return Culprit(CulpritKind.COMMAND, str(index))
    kind, key = entity
    if kind is CulpritKind.JOB:
        return _subject_of_number(scheduler, int(key), step)
    return Culprit(kind, key) if kind is not None else None


async def _rejected(
    store: Store, epoch: int, groups: dict[_Entity, list[Change]], entities: list[_Entity]
) -> _Entity | None:
    """One entity whose changes are rejected on their own."""
    if not entities or await store.accepts(epoch, [one for entity in entities for one in groups[entity]]):
        return None
    if len(entities) == 1:
        return entities[0]
    middle = len(entities) // 2
    found = await _rejected(store, epoch, groups, entities[:middle])
    return found or await _rejected(store, epoch, groups, entities[middle:])


def _entity_of(change: Change, intents: Mapping[int, int]) -> _Entity:
    """`intents` has the jobs of the intents that are created in the same step."""
    match change:
        case JobNew() | JobLogged() | JobLive():
            return CulpritKind.JOB, str(change.id)
        case NodeNew() | NodeForgotten() | DrainSet() | DrainGone():
            return CulpritKind.NODE, change.node
        case InadmissibleSet() | InadmissibleGone():
            return CulpritKind.WORKLOAD, change.workload
        case QueueSet():
            return None, f"queue {change.queue}"
        case IntentDone() if not intents.get(change.id):
            return None, f"intent {change.id}"
        case IntentDone():
            return CulpritKind.JOB, str(intents[change.id])
        case IntentNew() if not change.job:
            return None, f"intent {change.id}"
        case IdHighest():
            return None, ""
    return CulpritKind.JOB, str(change.job)


def _entities_of(command: Command, reply: object) -> list[_Entity]:
    """What a command has changed."""
    numbers: tuple[object, ...] = ()
    match command:
        case Submit():
            numbers = reply if isinstance(reply, tuple) else ()
        case Cancel():
            numbers = command.jobs
        case SetUrgency() | Signal():
            numbers = (command.job,)
        case Drain() | Undrain():
            return [(CulpritKind.NODE, node) for node in command.nodes]
        case QueueChange():
            return [(None, f"queue {reply.queue}")] if isinstance(reply, QueueSet) else []
    return [(CulpritKind.JOB, str(number)) for number in numbers]


def _subject_of_number(scheduler: Scheduler, number: int, step: Step) -> Culprit:
    job = scheduler.jobs.get(number)
    if job is not None:
        return subject_of_job(number, job.workload)
    created = (one for one in step.changes if isinstance(one, JobNew) and one.id == number)
    return subject_of_job(number, next((one.workload for one in created), ""))
