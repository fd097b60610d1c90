"""Intents that are recorded and not confirmed for all of their members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.protocol.intents import Evict, Intent, IntentKind, Place
from penstock.sched.journal import Journal
from penstock.sched.records import IntentDone, IntentNew

__all__ = ["OpenIntent", "OpenIntents"]


@dataclass(slots=True)
class OpenIntent:
    intent: Intent
    waits_for: set[str]  # members without a result


class OpenIntents:
    """Open intents by number and by member. A number is never reused."""

    def __init__(self, journal: Journal, highest: int = 0) -> None:
        self._journal = journal
        self._open: dict[int, OpenIntent] = {}
        self._of_member: dict[str, set[int]] = {}
        self._to_resend: set[int] = set()
        self.highest = highest

    def copy(self, journal: Journal) -> OpenIntents:
        made = OpenIntents(journal, self.highest)
        made._open = {
            number: OpenIntent(found.intent, set(found.waits_for)) for number, found in self._open.items()
        }
        made._of_member = {member: set(numbers) for member, numbers in self._of_member.items()}
        made._to_resend = set(self._to_resend)
        return made

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def get(self, number: int) -> OpenIntent | None:
        return self._open.get(number)

    def of_member(self, member: str) -> list[int]:
        """The numbers of the open intents of a member, in order."""
        return sorted(self._of_member.get(member, ()))

    def placements_of(self, member: str) -> list[int]:
        return [number for number in self.of_member(member) if isinstance(self._open[number].intent, Place)]

    def next_number(self) -> int:
        self.highest += 1
        return self.highest

    def open(self, intent: Intent) -> None:
        """Records an intent and gives it to the backend after the commit of the step."""
        members = _members_of(intent)
        self.track(intent, set(members))
        self._journal.add(IntentNew(intent.intent, intent.job, *_recorded(intent, members)))
        self._journal.intents.append(intent)

    def track(self, intent: Intent, members: set[str]) -> None:
        self._open[intent.intent] = OpenIntent(intent, members)
        for member in members:
            self._of_member.setdefault(member, set()).add(intent.intent)

    def resolve(self, number: int, member: str) -> None:
        """Confirms an intent for one member; with the last one it is done."""
        found = self._open.get(number)
        if found is None:
            return
        found.waits_for.discard(member)
        numbers = self._of_member.get(member)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._of_member[member]
        if not found.waits_for:
            del self._open[number]
            self._journal.add(IntentDone(number))

    def resolve_all(self, member: str) -> None:
        for number in self.of_member(member):
            self.resolve(number, member)

    def resend(self, number: int) -> None:
        """Applies an intent again at the end of the step, as far as it is not confirmed."""
        self._to_resend.add(number)

    def resend_all(self) -> None:
        self._to_resend.update(self._open)

    def flush_resends(self) -> None:
        self._journal.intents.extend(
            _remaining(self._open[number]) for number in sorted(self._to_resend) if number in self._open
        )
        self._to_resend.clear()


def _members_of(intent: Intent) -> list[str]:
    if isinstance(intent, Place):
        return [assignment.member for assignment in intent.assignments]
    return list(intent.members)


def _recorded(intent: Intent, members: list[str]) -> tuple[IntentKind, dict[str, object]]:
    """What recovery needs. The backend gets the full intent; what follows from the job is not recorded."""
    if isinstance(intent, Place):
        return IntentKind.PLACE, {"members": members, "end_at": intent.end_at}
    if isinstance(intent, Evict):
        return IntentKind.EVICT, {"members": members}
    return IntentKind.END, {
        "members": members,
        "signal": intent.signal,
        "grace_s": intent.grace_s,
        "why": intent.reason.value,
        "note": intent.note,
    }


def _remaining(found: OpenIntent) -> Intent:
    """The part of an open intent that is not confirmed."""
    intent = found.intent
    if isinstance(intent, Place):
        assignments = (
            replace(assignment, already_placed=assignment.member not in found.waits_for)
            for assignment in intent.assignments
        )
        return replace(intent, assignments=tuple(assignments))
    return replace(intent, members=tuple(member for member in intent.members if member in found.waits_for))
