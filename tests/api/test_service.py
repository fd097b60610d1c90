"""How the service handles a job that becomes inactive between a query and a command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from penstock.api.requests import JobSubmission, SubmitRequest
from penstock.api.responses import SubmitResult, SubmittedJob
from penstock.api.service import InstanceService
from penstock.instance.loop import Instance
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Submit
from penstock.sched.dependencies import Dependency, DependencyRefused, Scheme
from penstock.sched.records import JobLive, JobNew, JobOverview
from penstock.store.port import JobFilter
from tests.api.contexts import CALLER, context

TARGET = 7 << 24


class Ending:
    """An instance in which the target is active at the query, and inactive when the command runs."""

    def __init__(self, *, is_recorded: bool) -> None:
        self.store = self
        self.commands: list[Submit] = []
        self._is_recorded = is_recorded

    async def query(self, about: Callable[[object, float], object]) -> object:
        del about
        return set() if self.commands else {TARGET}

    async def jobs(self, wanted: JobFilter) -> list[JobOverview]:
        del wanted
        live = JobLive(TARGET, JobState.INACTIVE, "default", 16, 16, "COMPLETED", 0, 1.0, 2.0)
        return [JobOverview(JobNew(TARGET, "me", "job", 0.0, {}), live)] if self._is_recorded else []

    async def execute(self, command: Submit) -> tuple[int, ...]:
        self.commands.append(command)
        if not command.finished_jobs:
            raise DependencyRefused(Dependency(Scheme.AFTER_ANY, TARGET), "job not found")
        return (8,)


def submit(instance: Ending) -> SubmitResult:
    spec = {
        "version": 1,
        "attributes": {
            "system": {"dependencies": [{"scheme": "afterany", "value": encode_jobid(TARGET)}]},
        },
    }
    service = InstanceService(cast(Instance, instance), context())
    request = SubmitRequest([JobSubmission(msgspec.Raw(json.dumps(spec).encode()))])
    return asyncio.run(service.submit_jobs(CALLER, request))


def test_a_dependency_that_ends_during_the_submission_is_found_in_the_store() -> None:
    instance = Ending(is_recorded=True)
    assert submit(instance) == SubmitResult([SubmittedJob(encode_jobid(8))])
    assert [len(command.finished_jobs) for command in instance.commands] == [0, 1]


def test_the_owner_of_a_job_is_the_user_of_the_caller() -> None:
    instance = Ending(is_recorded=True)
    submit(instance)
    assert [[job.owner for job in command.jobs] for command in instance.commands] == [["me"], ["me"]]


def test_a_dependency_on_an_unknown_job_is_refused_at_once() -> None:
    instance = Ending(is_recorded=False)
    with pytest.raises(DependencyRefused):
        submit(instance)
    assert len(instance.commands) == 1


@pytest.mark.parametrize(
    "attributes",
    ['"dependencies"', '{"system": ["dependencies"]}', '{"system": {"dependencies": "\\ud800"}}'],
)
def test_dependencies_that_cannot_be_read_are_left_to_the_scheduler(attributes: str) -> None:
    instance = Ending(is_recorded=True)
    service = InstanceService(cast(Instance, instance), context())
    jobspec = msgspec.Raw(f'{{"version": 1, "attributes": {attributes}}}'.encode())
    with pytest.raises(DependencyRefused):
        asyncio.run(service.submit_jobs(CALLER, SubmitRequest([JobSubmission(jobspec)])))
