"""Texts with control characters: refused in commands with their place, escaped in reports."""

from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.protocol.commands import Cancel, Command, Drain, QueueChange, Submission, Submit
from penstock.protocol.facts import EndCause, MemberStatus, Phase
from tests.sched.driving import Driver, nodes_of, submission

NUL = "a\x00b"
BAD_TEXTS: list[tuple[Command, str]] = [
    (Submit((submission(),), key=NUL), "key"),
    (Submit((submission(owner=NUL),)), "jobs[0].owner"),
    (Submit((submission(job={"name": NUL}),)), "attributes.system.job.name"),
    (Submit((submission(job={"name": "two\nlines"}),)), "attributes.system.job.name"),
    (Submit((submission(job={"name": "\ud800"}),)), "document"),
    (Submit((submission(command=["echo", NUL]),)), "tasks[0].command[1]"),
    (Submit((submission(environment={"A": NUL}),)), "attributes.system.environment.A"),
    (Submit((submission(environment={NUL: "1"}),)), "attributes.system.environment"),
    (Submit((submission(cwd=NUL),)), "attributes.system.cwd"),
    (Submit((submission(), submission(cwd=NUL))), "jobs[1].attributes.system.cwd"),
    (Cancel((1,), NUL), "note"),
    (Drain(("node0",), NUL), "reason"),
    (Drain(("node0",), "reason", NUL), "by"),
    (QueueChange("default", enabled=False, reason="\x1b[2J"), "reason"),
]


@pytest.mark.parametrize(("command", "where"), BAD_TEXTS, ids=lambda value: str(value)[:40])
def test_a_command_with_a_control_character_is_refused_with_its_place(command: Command, where: str) -> None:
    driver = Driver(nodes_of(1, 4))
    (reply,) = driver.feed(command).replies
    assert isinstance(reply.error, BadRequest)
    assert reply.error.where == where
    driver.submit(submission())
    driver.run()


def test_arguments_may_contain_line_breaks_and_the_name_from_the_program_is_printable() -> None:
    driver = Driver(nodes_of(1, 4))
    (job,) = driver.submit(submission(command=["/bin/a\nb", "for i in 1 2\ndo\techo $i\ndone"]))
    assert driver.scheduler.jobs[job].spec.name == "a\\x0ab"
    driver.run()
    assert "clean" in driver.names(job)


def test_the_message_of_an_ended_member_is_escaped() -> None:
    driver = Driver(nodes_of(1, 4))
    (job,) = driver.submit(Submission(submission(duration_s=0).jobspec, "me"))
    driver.settle()
    (member,) = driver.scheduler.jobs[job].members
    driver.feed(MemberStatus(member, Phase.ENDED, driver.now, "node0", 256, EndCause.OTHER, "died: \x00\x07"))
    (recorded,) = driver.store.tables.members[job].values()
    assert recorded.cause == "died: \\x00\\x07"
