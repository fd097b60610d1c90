"""The inbox of an instance: batches, answers, limits."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from penstock.errors import Conflict, Unavailable
from penstock.instance import inbox as inbox_module
from penstock.instance.inbox import Inbox, PendingCommand, PendingQuery
from penstock.protocol.commands import Cancel
from penstock.protocol.facts import MemberGone, NodeGone, Snapshot
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.settings import Settings
from penstock.sched.state import Reply

CANCEL = Cancel((1,), "")


def answer() -> Future[object]:
    return Future()


def test_a_batch_keeps_the_order_of_inputs_and_answers_each_command() -> None:
    inbox = Inbox()
    waits = [answer() for _ in range(3)]
    inbox.put(NodeGone("a"))
    inbox.put_pending(PendingCommand(CANCEL, waits[0]))
    inbox.put(CANCEL)
    inbox.put_pending(PendingQuery(lambda _scheduler, now: now, waits[2]))
    inbox.put(NodeGone("b"))
    inbox.put_pending(PendingCommand(CANCEL, waits[1]))
    assert len(inbox) == 6
    batch = inbox.take_batch()
    assert batch.inputs == [NodeGone("a"), CANCEL, CANCEL, NodeGone("b"), CANCEL]
    assert len(inbox) == 0
    assert not batch.has_snapshot
    batch.reply((Reply("first"), Reply("nobody waits"), Reply(error=Conflict("refused"))))
    assert waits[0].result() == "first"
    with pytest.raises(Conflict, match="refused"):
        waits[1].result()
    assert not waits[2].done()
    batch.answer_queries(scheduler_from(Settings(), Recorded(), 0.0), lambda: 5.0)
    assert waits[2].result() == 5.0


def test_a_query_that_fails_fails_only_for_its_caller() -> None:
    inbox = Inbox()
    waits = [answer(), answer()]
    inbox.put_pending(PendingQuery(lambda _scheduler, _now: 1 // 0, waits[0]))
    inbox.put_pending(PendingQuery(lambda _scheduler, _now: 1, waits[1]))
    inbox.take_batch().answer_queries(scheduler_from(Settings(), Recorded(), 0.0), lambda: 5.0)
    with pytest.raises(ZeroDivisionError):
        waits[0].result()
    assert waits[1].result() == 1


def test_a_caller_that_no_longer_waits_gets_no_answer() -> None:
    inbox = Inbox()
    waits = [answer(), answer()]
    inbox.put_pending(PendingCommand(CANCEL, waits[0]))
    inbox.put_pending(PendingQuery(lambda _scheduler, _now: 1, waits[1]))
    for one in waits:
        one.cancel()
    batch = inbox.take_batch()
    batch.reply((Reply("late"),))
    batch.answer_queries(scheduler_from(Settings(), Recorded(), 0.0), lambda: 5.0)
    batch.fail(Unavailable("late"))
    assert all(one.cancelled() for one in waits)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unavailable("the database is away"), "^the database is away$"),
        (ValueError("broken"), "^the outcome is unknown: broken$"),
    ],
)
def test_after_a_failed_step_its_callers_get_unavailable(error: Exception, message: str) -> None:
    inbox = Inbox()
    waits = [answer(), answer()]
    inbox.put_pending(PendingCommand(CANCEL, waits[0]))
    inbox.put_pending(PendingQuery(lambda _scheduler, _now: 1, waits[1]))
    inbox.take_batch().fail(error)
    for one in waits:
        with pytest.raises(Unavailable, match=message):
            one.result()


def test_the_end_of_a_term_drops_all_inputs_and_fails_all_callers() -> None:
    inbox = Inbox()
    wait = answer()
    inbox.put(NodeGone("a"))
    inbox.put_pending(PendingCommand(CANCEL, wait))
    inbox.fail("the term has ended")
    assert len(inbox) == 0
    with pytest.raises(Unavailable, match="the term has ended"):
        wait.result()


def test_a_batch_is_limited_and_queries_do_not_count() -> None:
    inbox = Inbox()
    for number in range(5_002):
        inbox.put(MemberGone(str(number)))
        inbox.put_pending(PendingQuery(lambda _scheduler, _now: 1, answer()))
    batch = inbox.take_batch()
    assert (len(batch.inputs), len(batch.queries)) == (5_000, 4_999)
    rest = inbox.take_batch()
    assert (len(rest.inputs), len(rest.queries)) == (2, 3)


def test_a_full_inbox_refuses_callers_but_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_INBOX_MAX", 2)
    inbox = Inbox()
    for name in "abc":
        inbox.put(NodeGone(name))
    with pytest.raises(Unavailable, match="the instance is overloaded: 3 inputs wait; try again later"):
        inbox.put_pending(PendingCommand(CANCEL, answer()))
    inbox.put(Snapshot())
    assert inbox.take_batch().has_snapshot
