"""What a caller of some namespaces may do and see, beside an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import msgspec
import pytest

from penstock.api.errors import UnknownJobId
from penstock.api.identity import AuthenticationMethod, Caller
from penstock.api.requests import (
    CancelRequest,
    JobsQuery,
    JobSubmission,
    SubmitRequest,
    TimelineQuery,
    UrgencyRequest,
)
from penstock.api.service import InstanceService
from penstock.errors import BadRequest
from penstock.instance.loop import Instance
from penstock.model.jobid import encode_jobid, parse_jobid
from penstock.protocol.commands import Command
from penstock.protocol.facts import ExternalUsageSet, WorkloadSet
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import QueueSettings, Settings
from tests.api.contexts import CALLER, context
from tests.sched.driving import Driver, jobspec, nodes_of, settings_of
from tests.sched.workloads import endless, member, pods

Answer = TypeVar("Answer")
TENANT = Caller("team-a", AuthenticationMethod.BEARER_TOKEN, frozenset({"team-a"}))


class DrivenInstance:
    """An instance that answers queries and executes commands, one step per command."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.store = driver.store
        self.settings = driver.settings

    async def query(self, about: Callable[[Scheduler, float], Answer]) -> Answer:
        return about(self._driver.scheduler, self._driver.now)

    async def execute(self, command: Command) -> object:
        (reply,) = self._driver.feed(command).replies
        if reply.error is not None:
            raise reply.error
        return reply.value


def service_of(driver: Driver, *, of_pods: bool = False) -> InstanceService:
    instance = cast(Instance, DrivenInstance(driver))
    return InstanceService(instance, context(accepts_submissions=not of_pods))


def answer(call: Awaitable[Answer]) -> Answer:
    async def wait() -> Answer:
        return await call

    return asyncio.run(wait())


def tenants() -> Driver:
    queues = (
        QueueSettings("default"),
        QueueSettings("gold", namespaces=("gold-*",), urgency_max=31),
        QueueSettings("urgent", urgency_max=20),
    )
    return Driver(nodes_of(1, 1), Settings(queues=queues))


def submit(service: InstanceService, caller: Caller, queue: str, urgency: int) -> int:
    spec = msgspec.Raw(jobspec(queue=queue).encode())
    result = answer(service.submit_jobs(caller, SubmitRequest([JobSubmission(spec, urgency)])))
    return parse_jobid(result.jobs[0].id)


@pytest.mark.parametrize(
    ("queue", "urgency", "refusal"),
    [
        ("default", 16, ""),
        ("default", 17, "urgency: the urgency is higher than the queue allows (found 17; expected 0 to 16"),
        ("urgent", 20, ""),
        ("urgent", 31, "expected 0 to 20 in queue urgent"),
        ("gold", 1, "attributes.system.queue: queue gold does not admit jobs of team-a"),
    ],
)
def test_the_rules_of_a_queue_hold_for_its_users_and_not_for_operators(
    queue: str, urgency: int, refusal: str
) -> None:
    service = service_of(tenants())
    assert submit(service, CALLER, queue, urgency)
    if not refusal:
        assert submit(service, TENANT, queue, urgency)
        return
    with pytest.raises(BadRequest) as refused:
        submit(service, TENANT, queue, urgency)
    assert refusal in str(refused.value)


def test_only_an_operator_may_raise_an_urgency_above_that_of_the_queue() -> None:
    service = service_of(tenants())
    submit(service, TENANT, "default", 16)
    waiting = submit(service, TENANT, "default", 16)
    with pytest.raises(BadRequest, match="expected 0 to 16 in queue default"):
        answer(service.set_urgency(TENANT, waiting, UrgencyRequest(31)))
    assert answer(service.set_urgency(TENANT, waiting, UrgencyRequest(3))).old == 16
    assert answer(service.set_urgency(CALLER, waiting, UrgencyRequest(31))).old == 3


# Names of other namespaces


def shared() -> tuple[Driver, dict[str, str]]:
    """Three jobs of team-b, one of team-a and a pod of ops fill the nodes; another job of team-a waits."""
    driver = Driver(pods(5, cpu=1000), settings_of("easy"))
    endless(driver)
    usage = ExternalUsageSet("uid", "node4", (("cpu", 1000),), name="ops/secret-pod", owner="ops")
    driver.feed(usage)
    for name, owner in (("b1", "team-b"), ("b2", "team-b"), ("b3", "team-b"), ("a1", "team-a")):
        driver.feed(WorkloadSet(name, name, 1, owner=owner, limit_s=600), member(name, 0, cpu=1000))
        driver.settle()
    driver.feed(WorkloadSet("a2", "a2", 1, owner="team-a"), member("a2", 0, cpu=1000))
    driver.settle()
    return driver, {job.spec.name: encode_jobid(job.id) for job in driver.scheduler.jobs.values()}


def test_the_status_of_a_workload_counts_jobs_and_pods_of_other_namespaces() -> None:
    driver, ids = shared()
    reason = driver.statuses["a2"].reason
    assert "held by 3 jobs in other namespaces, 1 pod in another namespace, " in reason
    assert reason.endswith(f"{ids['a1']} (team-a/a1)")
    assert not any(ids[name] in reason for name in ("b1", "b2", "b3"))
    assert "secret" not in reason


def test_a_tenant_sees_neither_jobs_nor_names_of_other_namespaces() -> None:
    driver, ids = shared()
    service = service_of(driver, of_pods=True)
    hidden = [ids["b1"], ids["b2"], ids["b3"], "secret-pod"]
    waiting = parse_jobid(ids["a2"])
    every: list[tuple[Caller, bytes]] = []
    for caller in (CALLER, TENANT):
        answers: list[object] = [
            answer(service.list_jobs(caller, JobsQuery())),
            answer(service.explain_wait(caller, waiting)),
            answer(service.get_job(caller, waiting)),
            answer(service.list_nodes(caller)),
            answer(service.get_timeline(caller, TimelineQuery())),
        ]
        every.append((caller, msgspec.json.encode(answers)))
    (_, of_operator), (_, of_tenant) = every
    assert [name for name in hidden if name.encode() not in of_operator] == []
    assert [name for name in hidden if name.encode() in of_tenant] == []
    assert ids["a1"].encode() in of_tenant
    listed = answer(service.list_jobs(TENANT, JobsQuery()))
    assert sorted(job.name for job in listed.jobs) == ["a1", "a2"]


def test_a_job_of_another_namespace_is_unknown_to_a_tenant() -> None:
    driver, ids = shared()
    service = service_of(driver, of_pods=True)
    foreign = parse_jobid(ids["b1"])
    calls: list[Callable[[Caller], Awaitable[object]]] = [
        lambda caller: service.get_job(caller, foreign),
        lambda caller: service.get_eventlog(caller, foreign),
        lambda caller: service.explain_wait(caller, foreign),
    ]
    for call in calls:
        assert answer(call(CALLER))
        with pytest.raises(UnknownJobId):
            answer(call(TENANT))
    refused = answer(service.cancel_jobs(TENANT, CancelRequest(ids=[ids["b1"]])))
    assert (refused.canceled, [failure.message for failure in refused.errors]) == ([], ["no such job"])
    with pytest.raises(UnknownJobId):
        answer(service.set_urgency(TENANT, foreign, UrgencyRequest(0)))


def test_a_slip_names_the_job_that_caused_it_to_operators_only() -> None:
    driver = Driver(pods(1, cpu=1000), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("b", "b", 1, owner="team-b", limit_s=100), member("b", 0, cpu=1000))
    driver.settle()
    driver.feed(WorkloadSet("a", "a", 1, owner="team-a", limit_s=100), member("a", 0, cpu=1000))
    driver.settle()
    driver.feed(WorkloadSet("c", "c", 1, owner="team-b", limit_s=9000), member("c", 0, cpu=1000))
    driver.settle()
    first = driver.scheduler.job_of_workload("c")
    second = driver.scheduler.job_of_workload("a")
    assert first is not None
    assert second is not None
    service = service_of(driver, of_pods=True)
    answer(service.set_urgency(CALLER, first.id, UrgencyRequest(31)))
    driver.settle()
    name = encode_jobid(first.id)
    causes = {}
    for caller in (CALLER, TENANT):
        events = answer(service.get_eventlog(caller, second.id)).events
        causes[caller.user] = [event.context for event in events if "cause" in event.context]
    assert causes[CALLER.user]
    assert all(context["cause_job"] == name for context in causes[CALLER.user])
    text = "the urgency of a job in another namespace was set to 31"
    assert [context["cause"] for context in causes[TENANT.user]] == [text] * len(causes[TENANT.user])
    assert name not in str(causes[TENANT.user])
