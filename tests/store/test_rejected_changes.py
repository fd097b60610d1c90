"""Changes that PostgreSQL rejects: their object is set aside, the rest of the step is recorded."""

from __future__ import annotations

from dataclasses import replace

import psycopg
from servers import Server, fresh_database

from penstock.instance.virtual import VirtualInstance
from penstock.model.job import JobState
from penstock.protocol.commands import Submit
from penstock.protocol.facts import WorkloadSet
from penstock.store.postgres import PostgresStore
from tests.instance.restarts import with_loop
from tests.sched.driving import settings_of, submission
from tests.sched.internals import check_invariants
from tests.sched.workloads import member, pods


def test_the_culprit_of_a_rejected_commit_is_found_and_the_others_are_recorded(server: Server) -> None:
    run = with_loop()
    url = fresh_database(server)
    store = PostgresStore(url)
    run(store.open())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE jobs ADD CHECK (name <> 'unstorable')")
    backend = pods(nodes=2)
    instance = VirtualInstance(settings_of("easy"), store, backend, after_step=check_invariants, run=run)
    instance.begin()
    names = {f"w{number}": "unstorable" if number == 4 else f"w{number}" for number in range(7)}
    workloads = tuple(WorkloadSet(key, name, 1) for key, name in names.items())
    members = tuple(member(key, 0, 100) for key in names)
    plain = backend.snapshot
    backend.snapshot = lambda: replace(plain(), workloads=workloads, members=members)  # type: ignore[method-assign]
    instance.feed(*workloads, *members)
    assert [str(found.subject) for found in instance.isolation.quarantine.objects()] == ["workload w4"]
    instance.settle()
    assert sorted(job.workload for job in instance.scheduler.jobs.values()) == [
        f"w{number}" for number in (0, 1, 2, 3, 5, 6)
    ]
    assert {job.state for job in instance.scheduler.jobs.values()} == {JobState.RUN}
    good, bad = submission(kind="cpu"), submission(kind="cpu", job={"name": "unstorable"})
    replies = instance.feed(Submit((good,)), Submit((bad,)), Submit((good,))).replies
    assert [reply.error for reply in replies] == [None, None]
    assert b'kind="command"} 1.0' in instance.isolation.metrics.render()
    assert len(run(store.placed_jobs())) == 6
    run(store.close())
