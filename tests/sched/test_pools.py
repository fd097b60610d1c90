"""What nodes have and have no more: pools that come, go, and are still booked when they go."""

from __future__ import annotations

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.protocol.facts import Capacity, ExternalUsageGone, ExternalUsageSet, MemberSet, WorkloadSet
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, settings_of

CPU = Capacity("cpu", 8, divisible=True)


def told(driver: Driver, *kinds: str) -> None:
    """Every node has these kinds, and no others."""
    capacity = (CPU, *(Capacity(kind, 1, divisible=True) for kind in kinds))
    nodes = uniform_nodes(len(driver.backend.nodes), capacity)
    driver.backend.nodes = {node.node: node for node in nodes}
    driver.feed(*nodes)


def kinds(driver: Driver) -> set[str]:
    return set(driver.scheduler.graph.types()) - {"cluster", "node"}


def driver_of(nodes: int) -> Driver:
    return Driver(SimBackend({node.node: node for node in uniform_nodes(nodes, (CPU,))}))


def test_a_pool_that_a_node_no_longer_reports_is_removed() -> None:
    driver = driver_of(2)
    vertices = len(driver.scheduler.graph)
    for number in range(5):
        told(driver, f"port/{number}")
        assert kinds(driver) == {"cpu", f"port/{number}"}
    told(driver)
    assert len(driver.scheduler.graph) == vertices


def test_a_booked_pool_is_removed_with_the_first_change_after_the_end_of_its_job() -> None:
    driver = driver_of(1)
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=10.0)
    told(driver, "port/80")
    amounts = (("cpu", 1), ("port/80", 1))
    driver.feed(WorkloadSet("w", "w", 1), MemberSet("w", "w-0", 0, amounts))
    driver.settle()
    told(driver)
    assert kinds(driver) == {"cpu", "port/80"}
    driver.feed(WorkloadSet("v", "v", 1), MemberSet("v", "v-0", 0, (("port/80", 1),)))
    driver.settle()
    told(driver, "port/80")
    assert len(driver.scheduler.allocated_jobs()) == 1, "it is the same pool, and it is taken"
    told(driver)
    driver.run_until(driver.now + 60.0)
    told(driver, "port/81")
    assert kinds(driver) == {"cpu", "port/81"}


def test_external_usage_of_a_pool_counts_again_when_the_pool_returns() -> None:
    driver = driver_of(1)
    told(driver, "port/80")
    driver.feed(ExternalUsageSet("other", "node0", (("cpu", 1), ("port/80", 1))))
    told(driver)
    assert kinds(driver) == {"cpu"}
    told(driver, "port/80")
    driver.feed(WorkloadSet("w", "w", 1), MemberSet("w", "w-0", 0, (("port/80", 1),)))
    driver.settle()
    assert not driver.scheduler.allocated_jobs()
    driver.feed(ExternalUsageGone("other"))
    driver.settle()
    assert len(driver.scheduler.allocated_jobs()) == 1


def test_a_pool_missing_at_a_restart_is_still_booked_when_it_returns() -> None:
    """What the member has of it could not be booked again: it counts as use by others."""
    tables = MemoryTables()
    port = Capacity("port/80", 1, divisible=True)
    backend = SimBackend({node.node: node for node in uniform_nodes(1, (CPU, port))})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    amounts = (("cpu", 1), ("port/80", 1))
    backend.workloads["w"], backend.members["w-0"] = (
        WorkloadSet("w", "w", 1),
        MemberSet("w", "w-0", 0, amounts),
    )
    instance.feed(backend.workloads["w"], backend.members["w-0"])
    instance.run_until(10)
    with_port = dict(backend.nodes)
    backend.nodes = {node.node: node for node in uniform_nodes(1, (CPU,))}
    instance.restart()
    backend.nodes = with_port
    observed = [one for one in backend.snapshot().statuses if one.member == "w-0"]
    instance.feed(*with_port.values(), *observed)
    instance.feed(WorkloadSet("v", "v", 1), MemberSet("v", "v-0", 0, amounts))
    instance.run_until(20)
    assert len(instance.scheduler.allocated_jobs()) == 1
