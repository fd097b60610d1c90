"""What the service does when the instance and the store tell of different moments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

import pytest

from penstock.api.interface import Submission
from penstock.api.service import Answers, ServiceContext
from penstock.instance.loop import Instance
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Submit
from penstock.sched.dependencies import Dependency, DependencyRefused, Scheme
from penstock.sched.records import JobLive, JobNew, JobRow
from penstock.store.port import JobFilter

TARGET = 7 << 24


class Ending:
    """An instance in which the target is active when asked, and over when the wish comes in."""

    def __init__(self, *, is_recorded: bool) -> None:
        self.store = self
        self.commands: list[Submit] = []
        self._is_recorded = is_recorded

    async def query(self, about: Callable[[object, float], object]) -> object:
        del about
        return set() if self.commands else {TARGET}

    async def jobs(self, wanted: JobFilter) -> list[JobRow]:
        del wanted
        live = JobLive(TARGET, JobState.INACTIVE, "default", 16, 16, "COMPLETED", 0, 1.0, 2.0, {})
        return [JobRow(JobNew(TARGET, "me", "job", 0.0, {}), live)] if self._is_recorded else []

    async def execute(self, command: Submit) -> tuple[int, ...]:
        self.commands.append(command)
        if not command.finished_jobs:
            raise DependencyRefused(Dependency(Scheme.AFTER_ANY, TARGET), "job not found")
        return (8,)


def submit(instance: Ending) -> object:
    spec = {
        "version": 1,
        "attributes": {
            "system": {"dependencies": [{"scheme": "afterany", "value": encode_jobid(TARGET)}]},
        },
    }
    context = ServiceContext({}, list, dict, dict, None, lambda _: None)
    answers = Answers(cast(Instance, instance), context)
    return asyncio.run(answers.submit([Submission(json.dumps(spec).encode(), 16, "never")], "", "me"))


def test_a_job_that_ends_while_another_is_submitted_that_depends_on_it_is_found() -> None:
    instance = Ending(is_recorded=True)
    assert submit(instance) == [{"id": encode_jobid(8)}]
    assert [len(command.finished_jobs) for command in instance.commands] == [0, 1]


def test_a_job_that_never_was_is_refused_at_once() -> None:
    instance = Ending(is_recorded=False)
    with pytest.raises(DependencyRefused):
        submit(instance)
    assert len(instance.commands) == 1
