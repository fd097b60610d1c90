"""Property: after any history of changes, in any batches, both stores have the same state or refuse the same
batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
import pytest
from changes import opened
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Server, fresh_database

from penstock.errors import Corrupt
from penstock.model.job import JobEvent, JobState
from penstock.protocol.intents import IntentKind
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    Change,
    ClaimGone,
    ClaimSet,
    DrainGone,
    DrainSet,
    ExceptionRecord,
    IdHighest,
    InadmissibleGone,
    InadmissibleSet,
    IntentDone,
    IntentNew,
    JobLive,
    JobLogged,
    JobNew,
    JobNodeGone,
    JobNodeSet,
    JobRecord,
    MemberDropped,
    MemberRecord,
    MemberRecorded,
    NodeForgotten,
    NodeNew,
    Promise,
    QueueSet,
    SlotChanged,
    SlotRecord,
    SlotsFreed,
)
from penstock.store.memory import MemoryStore
from penstock.store.migrate import migrate
from penstock.store.port import JobFilter, Retention, Store
from penstock.store.postgres import PostgresStore

Batches = list[list[Change]]

_jobs = st.integers(1, 4)
_few = st.integers(0, 3)
_times = st.integers(0, 50).map(lambda number: number / 4)
_words = st.sampled_from(["", "a", "tab\t", "line\n", "\\N", "\\", "漢'\""])
_documents = st.dictionaries(
    st.sampled_from(["depends_on", "x", "y\\"]),
    st.lists(st.integers(1, 4), max_size=2) | _words | st.none() | st.floats(-1e6, 1e6),
    max_size=2,
)
_records = st.builds(
    JobRecord,
    attempt=_few,
    times=st.dictionaries(_words, _times, max_size=2),
    exception=st.none() | st.builds(ExceptionRecord, _words, _few, _words),
    placed_at=st.none() | _times,
    incomplete_reason=_words,
    is_assembled=st.booleans(),
    promise=st.none() | st.builds(Promise, _times, _times, _times, st.booleans()),
)
_members = st.builds(
    MemberRecord,
    *(_words, _few, _few, st.sampled_from(MemberPhase), st.sampled_from(["", "n0", "n1"]), _few),
    grants=st.lists(st.tuples(_words, _words, _few), max_size=2).map(tuple),
    cause=_words,
    ended_at=st.none() | _times,
    seen_at=_times,
    slot_release_pending=st.booleans(),
    refused_by=st.lists(_words, max_size=2).map(tuple),
)
_slots = st.dictionaries(_few, _documents, max_size=2).map(
    lambda found: tuple(SlotRecord(number, data) for number, data in found.items())
)
_lives = st.builds(
    JobLive,
    *(_jobs, st.sampled_from(JobState), _words, _few, _few, _words, st.none() | _few),
    *(st.none() | _times, st.none() | _times, _records),
)
_changes = st.one_of(
    st.builds(JobNew, _jobs, _words, _words, _times, _documents, _words, _words),
    _lives,
    st.builds(JobLogged, _jobs, _few, st.builds(JobEvent, _times, _words, _documents)),
    st.builds(MemberRecorded, _jobs, _members),
    st.builds(MemberDropped, _jobs, _words),
    st.builds(JobNodeSet, _jobs, _words, st.dictionaries(_words, _words, max_size=2)),
    st.builds(JobNodeGone, _jobs, _words),
    st.builds(AllocationNew, _jobs, st.integers(0, 1), _few, st.none() | _few, _documents, _slots),
    st.builds(
        SlotsFreed,
        _jobs,
        st.lists(_few, max_size=2).map(tuple),
        st.lists(st.integers(0, 1), max_size=1).map(tuple),
    ),
    st.builds(SlotChanged, _jobs, st.builds(SlotRecord, _few, _documents)),
    st.builds(AllocationGone, _jobs, _times),
    st.builds(IntentNew, _few, _jobs, st.sampled_from(IntentKind), _documents),
    st.builds(IntentDone, _few),
    st.builds(lambda number: NodeNew(f"n{number}", number), _few),
    st.builds(NodeForgotten, st.sampled_from(["n0", "n1"])),
    st.builds(DrainSet, _words, _words, _words, _times),
    st.builds(DrainGone, _words),
    st.builds(QueueSet, _words, st.booleans(), st.booleans(), _words, _words),
    st.builds(InadmissibleSet, _words, st.lists(_words, max_size=2).map(tuple), _words),
    st.builds(InadmissibleGone, _words),
    st.builds(ClaimSet, _jobs, st.lists(_words, max_size=2).map(tuple), _times),
    st.builds(ClaimGone, _jobs),
    st.builds(IdHighest, _few, _few, _few),
)
_START: list[Change] = [JobNew(1, "", "", 0.0, {}), JobNew(2, "", "", 0.0, {"depends_on": [1]}, key="k")]


async def _answers(store: Store, batches: Sequence[Sequence[Change]]) -> list[object]:
    """Everything that a store returns for a history."""
    epoch, _ = await store.take_over(0.0)
    answers: list[object] = []
    for batch in batches:
        try:
            await store.record(epoch, batch)
        except Corrupt:
            answers.append("refused")
    _, found = await store.take_over(1.0)
    answers += [found, await store.jobs(JobFilter())]
    answers += [await store.log(job) for job in range(1, 5)]
    answers += [await store.members(job) for job in range(1, 5)]
    answers.append(await store.placed_jobs())
    epoch, _ = await store.take_over(1.0)
    answers.append(await store.prune(epoch, 8.0, Retention(age_s=2.0, count=1)))
    answers.append((await store.take_over(1.0))[1])
    return answers


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return fresh_database(server)


_EMPTY = (
    "ALTER TABLE job_events DISABLE TRIGGER USER",
    "TRUNCATE jobs, job_events, members, job_nodes, allocations, allocation_slots, intents, nodes, drains, "
    "queues, inadmissible, claims, submissions",
    "ALTER TABLE job_events ENABLE TRIGGER USER",
    "UPDATE instance SET began_at = NULL, highest_job = 0, highest_intent = 0, highest_rank = -1",
)


async def _empty(url: str) -> None:
    """Empties the database: creating one per example would take longer than the example."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection)
        for statement in _EMPTY:
            await connection.execute(statement.encode())


@settings(max_examples=40)
@given(batches=st.lists(st.lists(_changes, max_size=6), max_size=6))
def test_both_stores_return_the_same(url: str, batches: Batches) -> None:
    async def scenario() -> None:
        await _empty(url)
        async with opened(lambda: PostgresStore(url), MemoryStore) as (postgres, memory):
            history = [_START, *batches, *([change] for change in (batches[0] if batches else []))]
            assert await _answers(postgres, history) == await _answers(memory, history)

    asyncio.run(scenario())
