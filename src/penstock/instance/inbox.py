"""The inbox of an instance: facts, commands and queries in the order in which they arrived.

A command or query may have somebody who waits for its answer. At the end of a term everybody who waits gets
the same error, unless the term ended because of another input: then commands and queries are held, and follow
the first snapshot of the next term.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.errors import Unavailable
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact, Snapshot
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import Reply

__all__ = ["Answer", "Inbox", "InputBatch", "PendingCommand", "PendingQuery"]

_BATCH_MAX: Final = 5_000
_INBOX_MAX: Final = 200_000


class Answer(Protocol):
    """Where an answer goes, for example an `asyncio.Future`."""

    def done(self) -> bool: ...

    def set_result(self, result: object, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(frozen=True, slots=True)
class PendingCommand:
    command: Command
    answer: Answer


@dataclass(frozen=True, slots=True)
class PendingQuery:
    query: Callable[[Scheduler, float], object]
    answer: Answer


@dataclass(slots=True)
class InputBatch:
    """The inputs of one step, and the queries that are answered after it."""

    inputs: list[Fact | Command] = field(default_factory=list)
    queries: list[PendingQuery] = field(default_factory=list)
    # By command, in order; None if nobody waits for the answer.
    _answers: list[Answer | None] = field(default_factory=list)

    @property
    def has_snapshot(self) -> bool:
        return any(isinstance(fact, Snapshot) for fact in self.inputs)

    def waiting(self, left_out: int | None = None) -> list[Command | PendingCommand | PendingQuery]:
        """The commands and queries as they arrived, without the command at one position."""
        commands = [one for one in self.inputs if isinstance(one, Command)]
        pairs = zip(commands, self._answers, strict=True)
        kept: list[Command | PendingCommand | PendingQuery] = [
            command if answer is None else PendingCommand(command, answer)
            for index, (command, answer) in enumerate(pairs)
            if index != left_out
        ]
        return [*kept, *self.queries]

    def refuse(self, index: int, error: Exception) -> None:
        """Answers one command, by its position among the commands, with an error."""
        answer = self._answers[index]
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def add(self, item: Fact | Command | PendingCommand | PendingQuery) -> None:
        if isinstance(item, PendingQuery):
            self.queries.append(item)
        elif isinstance(item, PendingCommand):
            self.inputs.append(item.command)
            self._answers.append(item.answer)
        else:
            self.inputs.append(item)
            if isinstance(item, Command):
                self._answers.append(None)

    def reply(self, replies: tuple[Reply, ...]) -> None:
        """Answers the commands."""
        for answer, reply in zip(self._answers, replies, strict=True):
            if answer is None or answer.done():
                continue
            if reply.error is not None:
                answer.set_exception(reply.error)
            else:
                answer.set_result(reply.value)

    def answer_queries(self, scheduler: Scheduler, now: Callable[[], float]) -> None:
        for pending in self.queries:
            if pending.answer.done():
                continue
            try:
                pending.answer.set_result(pending.query(scheduler, now()))
            except Exception as error:
                pending.answer.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """The step has failed, so it is unknown whether its commands were executed."""
        is_known = isinstance(error, Unavailable)
        failure = error if is_known else Unavailable(f"the outcome is unknown: {error}")
        for answer in (*self._answers, *(pending.answer for pending in self.queries)):
            if answer is not None and not answer.done():
                answer.set_exception(failure)


class Inbox:
    def __init__(self) -> None:
        self._items: deque[Fact | Command | PendingCommand | PendingQuery] = deque()
        self._held: list[Command | PendingCommand | PendingQuery] = []  # until the next snapshot

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Fact | Command) -> None:
        """Adds a fact, or a command whose answer nobody waits for. Facts are never refused."""
        self._items.append(item)
        if isinstance(item, Snapshot):
            self._items.extend(self._held)
            self._held = []

    def put_pending(self, item: PendingCommand | PendingQuery) -> None:
        if len(self._items) > _INBOX_MAX:
            raise Unavailable(f"the instance is overloaded: {len(self._items)} inputs wait; try again later")
        self._items.append(item)

    def take_batch(self) -> InputBatch:
        batch = InputBatch()
        while self._items and len(batch.inputs) < _BATCH_MAX:
            batch.add(self._items.popleft())
        return batch

    def hold(self, items: Sequence[Command | PendingCommand | PendingQuery]) -> None:
        """Keeps these commands and queries, and those that wait, for the next term. Facts are dropped."""
        waiting = (one for one in self._items if isinstance(one, Command | PendingCommand | PendingQuery))
        self._held = [*self._held, *items, *waiting]
        self._items.clear()

    def fail(self, reason: str) -> None:
        """Drops all inputs. Everybody who waits gets `Unavailable`."""
        for item in (*self._items, *self._held):
            if isinstance(item, PendingCommand | PendingQuery) and not item.answer.done():
                item.answer.set_exception(Unavailable(reason))
        self._items.clear()
        self._held = []
