"""Rows that cannot be decoded: their job or intent is set aside at take-over, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from servers import Server, fresh_database

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.instance.virtual import VirtualInstance
from penstock.model.job import JobState
from penstock.protocol.commands import Submit
from penstock.store.port import JobFilter
from penstock.store.postgres import PostgresStore
from tests.instance.restarts import with_loop
from tests.sched.driving import nodes_of, settings_of, submission
from tests.sched.internals import check_invariants


@dataclass
class Restartable:
    url: str
    backend: SimBackend
    run: Callable[..., Any]

    def start(self) -> VirtualInstance:
        self.store = PostgresStore(self.url)
        self.run(self.store.open())
        instance = VirtualInstance(
            settings_of("easy"), self.store, self.backend, after_step=check_invariants, run=self.run
        )
        instance.begin()
        return instance

    def stop(self) -> None:
        self.run(self.store.close())

    def execute(self, statement: str, *values: object) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode(), values)


def running_jobs(server: Server) -> tuple[Restartable, tuple[int, ...]]:
    """A stopped instance with two running jobs of a node each."""
    backend = nodes_of(3, 4)
    backend.script_for = lambda *_: MemberScript(runs_s=1e6)
    found = Restartable(fresh_database(server), backend, with_loop())
    instance = found.start()
    jobs = (submission(slots=4, duration_s=0), submission(slots=4, duration_s=0))
    numbers = instance.feed(Submit(jobs)).replies[0].value
    assert isinstance(numbers, tuple)
    instance.settle()
    assert len(instance.scheduler.allocated_jobs()) == 2
    found.stop()
    return found, numbers


DAMAGES = {
    "record": 'UPDATE jobs SET record = \'{"attempt": "first"}\' WHERE id = %s',
    "record, not an object": "UPDATE jobs SET record = '7' WHERE id = %s",
    "state": "UPDATE jobs SET state = 'DREAMING' WHERE id = %s",
    "jobspec": "UPDATE jobs SET spec = '[]' WHERE id = %s",
    "member": "UPDATE members SET data = '{\"grants\": 1}' WHERE job = %s",
    "member, not an object": "UPDATE members SET data = '[]' WHERE job = %s",
    "phase": "UPDATE members SET phase = 'flying' WHERE job = %s",
    "resources of a node": "UPDATE job_nodes SET resources = '[]' WHERE job = %s",
    "event": "UPDATE job_events SET context = '[]' WHERE job_id = %s",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_job_with_an_unreadable_row_keeps_its_node_and_the_others_go_on(server: Server, what: str) -> None:
    site, (bad, good) = running_jobs(server)
    site.execute("DROP TRIGGER job_events_never_change ON job_events")
    site.execute(DAMAGES[what], bad)
    instance = site.start()
    assert list(instance.scheduler.jobs) == [good]
    assert set(instance.scheduler.allocated_jobs()) == {bad, good}
    assert [str(found.subject) for found in instance.isolation.quarantine.objects()] == [f"job {bad}"]
    aside = instance.scheduler.set_aside.get(bad)
    assert aside is not None
    assert "a recorded value cannot be read: " in aside
    text = instance.isolation.metrics.render().decode()
    assert 'penstock_quarantined_total{kind="job"} 1.0' in text
    jobs = (submission(slots=4, duration_s=0), submission(slots=4, duration_s=0))
    instance.feed(Submit(jobs))
    instance.settle()
    states = sorted(job.state.value for job in instance.scheduler.jobs.values())
    assert states == ["RUN", "RUN", "SCHED"]  # Of three nodes, the job that is set aside has one.
    listed = site.run(site.store.jobs(JobFilter()))
    assert {row.new.id for row in listed} >= {bad, good}
    assert len(site.run(site.store.placed_jobs())) == 3
    site.stop()


@pytest.mark.parametrize("table", ["allocations", "allocation_slots"])
def test_a_job_with_an_unreadable_allocation_keeps_everything_off_its_node(
    server: Server, table: str
) -> None:
    site, (bad, good) = running_jobs(server)
    site.execute(f"UPDATE {table} SET data = '[]' WHERE job = %s", bad)
    instance = site.start()
    assert list(instance.scheduler.jobs) == [good]
    jobs = (submission(slots=4, duration_s=0), submission(slots=4, duration_s=0))
    instance.feed(Submit(jobs))
    instance.settle()
    states = sorted(job.state.value for job in instance.scheduler.jobs.values())
    assert states == ["RUN", "RUN", "SCHED"]
    site.stop()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("dream", '{"members": []}'), ("end", "[]"), ("end", "{}"), ("end", '{"members": ["x"], "signal": 9}')],
)
def test_an_unreadable_intent_is_left_out(server: Server, kind: str, payload: str) -> None:
    site, (bad, good) = running_jobs(server)
    insert = "INSERT INTO intents (id, job, kind, payload) VALUES (%s, %s, %s, %s)"
    site.execute(insert, 901, None, kind, payload)
    instance = site.start()
    assert [str(found.subject) for found in instance.isolation.quarantine.objects()] == ["intent 901"]
    assert set(instance.scheduler.jobs) == {bad, good}
    site.stop()
    site.execute(insert, 902, bad, kind, payload)
    again = site.start()
    assert list(again.scheduler.jobs) == [good]
    assert again.scheduler.jobs[good].state is JobState.RUN
    subjects = {str(found.subject) for found in again.isolation.quarantine.objects()}
    assert subjects == {"intent 901", f"job {bad}"}
    site.stop()
