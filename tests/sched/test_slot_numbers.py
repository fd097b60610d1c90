"""Numbers of parts and slots: counted from 0 in each job, and never used again."""

from __future__ import annotations

from penstock.backends.sim.backend import MemberScript
from penstock.protocol.facts import MemberStatus, Phase, Requeue, WorkloadSet
from penstock.sched.records import AllocationNew
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.workloads import endless, member, only_job, pods


def numbers(driver: Driver) -> list[tuple[int, list[int]]]:
    """The parts that were allocated, with the numbers of their slots."""
    parts = [change for change in driver.changes if isinstance(change, AllocationNew)]
    return [(part.part, [slot.number for slot in part.slots]) for part in parts]


def test_a_late_member_of_a_job_without_slots_gets_further_numbers() -> None:
    driver = Driver(pods(2))
    endless(driver)
    driver.backend.workloads["w"] = WorkloadSet("w", "w", 1)
    driver.feed(driver.backend.workloads["w"], member("w", 0))
    driver.settle()
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0"))
    driver.feed(member("w", 1))
    driver.settle()
    driver.feed(member("w", 2))
    driver.settle()
    slots = {one.key: one.slot for one in only_job(driver).members.values()}
    assert slots == {"w-0": 0, "w-1": 1, "w-2": 2}
    assert numbers(driver) == [(0, [0]), (1, [1]), (2, [2])]


def test_the_next_attempt_of_a_job_gets_further_numbers() -> None:
    driver = Driver(nodes_of(2, 2))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    driver.submit(submission(slots=2, duration_s=1e5, requeue=Requeue.ALWAYS))
    driver.settle()
    (job,) = driver.scheduler.jobs.values()
    node = next(iter(job.members.values())).node
    driver.feed(driver.backend.remove_node(node))
    driver.settle()
    assert [part for part, _ in numbers(driver)] == [0, 1]
    assert [slots for _, slots in numbers(driver)] == [[0, 1], [2, 3]]


def test_numbers_continue_after_a_restart() -> None:
    backend, tables = pods(2), MemoryTables()
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of(), lambda: MemoryStore(tables))
    backend.workloads["w"] = WorkloadSet("w", "w", 1)
    for number in range(3):
        backend.members[f"w-{number}"] = member("w", number)
        instance.feed(backend.workloads["w"], backend.members[f"w-{number}"])
        instance.settle()
        (job,) = instance.scheduler.jobs.values()
        assert job.members[f"w-{number}"].slot == number
        del backend.runs[f"w-{number}"], backend.members[f"w-{number}"]
        instance.feed(MemberStatus(f"w-{number}", Phase.ENDED, backend.now, job.members[f"w-{number}"].node))
        instance.restart()
