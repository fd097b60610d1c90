"""Intents that are recorded and not confirmed for all of their members."""

from __future__ import annotations

from penstock.protocol.intents import Evict, Intent, IntentKind, Place
from penstock.sched.records import IntentDone, IntentNew
from penstock.sched.state import OpenIntent, SchedulerState

__all__ = ["open_intent", "resolve_intent", "track_intent"]


def open_intent(state: SchedulerState, intent: Intent) -> None:
    if isinstance(intent, Place):
        members = {assignment.member for assignment in intent.assignments}
        # The backend gets the full intent. What recovery derives from the job is not recorded twice.
        payload: dict[str, object] = {
            "members": [assignment.member for assignment in intent.assignments],
            "end_at": intent.end_at,
        }
        kind = IntentKind.PLACE
    elif isinstance(intent, Evict):
        members = set(intent.members)
        payload = {"members": list(intent.members)}
        kind = IntentKind.EVICT
    else:
        members = set(intent.members)
        payload = {
            "members": list(intent.members),
            "signal": intent.signal,
            "grace_s": intent.grace_s,
            "why": intent.reason.value,
        }
        kind = IntentKind.END
    track_intent(state, intent, members)
    state.journal.add(IntentNew(intent.intent, intent.job, kind, payload))
    state.journal.intents.append(intent)


def track_intent(state: SchedulerState, intent: Intent, members: set[str]) -> None:
    state.intents[intent.intent] = OpenIntent(intent, members)
    for member in members:
        state.intents_of_member.setdefault(member, set()).add(intent.intent)


def resolve_intent(state: SchedulerState, number: int, member: str) -> None:
    """Confirms an intent for one member; with the last one it is done."""
    found = state.intents.get(number)
    if found is None:
        return
    found.waits_for.discard(member)
    numbers = state.intents_of_member.get(member)
    if numbers is not None:
        numbers.discard(number)
        if not numbers:
            del state.intents_of_member[member]
    if not found.waits_for:
        del state.intents[number]
        state.journal.add(IntentDone(number))
