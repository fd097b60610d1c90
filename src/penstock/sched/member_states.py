"""The phases of a member as a table: phase x event -> phase, with every pair decided.

`Journal.change_phase` is the only code that changes the phase of a member, and it follows this table. An
event that a report can repeat, or that can arrive too late, is ignored in the phases where it says nothing
(`IGNORED`). Every other pair is a defect of the code that raises the event.

A refusal by a node is no event of its own: the member returns to the queue, or it ends if its controller
replaces it. A deleted member of a group that has not started is dropped, whatever its phase.
"""

from __future__ import annotations

import enum
from typing import Final

from penstock.errors import Corrupt

__all__ = ["IGNORED", "TABLE", "MemberEvent", "MemberPhase", "next_phase"]


class MemberPhase(enum.Enum):
    WAITING = "waiting"  # without a node
    PLACING = "placing"  # ordered, not confirmed
    PLACED = "placed"
    RUNNING = "running"
    LOST = "lost"  # its node does not respond; it may be running
    ENDED = "ended"

    @property
    def is_live(self) -> bool:
        """It has a node and may use its units."""
        return self not in (MemberPhase.WAITING, MemberPhase.ENDED)


class MemberEvent(enum.Enum):
    ASSIGN = "assign"  # a slot is assigned, and its placement is ordered
    PLACE = "place"  # the backend confirms or reports that it is on its node
    START = "start"  # it is reported as running
    LOSE = "lose"  # its node does not respond
    RETURN = "return"  # it has not started on its node and waits for another one
    END = "end"  # it is reported as ended, or cannot be started
    DELETE = "delete"  # it does not exist any more
    VANISH = "vanish"  # the backend does not know it; how it ended is unknown
    NODE_FAIL = "node-fail"  # its node was removed, or did not respond for too long


_P: Final = MemberPhase
_E: Final = MemberEvent

TABLE: Final[dict[tuple[MemberPhase, MemberEvent], MemberPhase]] = {
    (_P.WAITING, _E.ASSIGN): _P.PLACING,
    (_P.PLACING, _E.PLACE): _P.PLACED,
    (_P.LOST, _E.PLACE): _P.PLACED,
    (_P.PLACING, _E.START): _P.RUNNING,
    (_P.PLACED, _E.START): _P.RUNNING,
    (_P.LOST, _E.START): _P.RUNNING,
    (_P.PLACING, _E.LOSE): _P.LOST,
    (_P.PLACED, _E.LOSE): _P.LOST,
    (_P.RUNNING, _E.LOSE): _P.LOST,
    (_P.PLACING, _E.RETURN): _P.WAITING,
    (_P.PLACED, _E.RETURN): _P.WAITING,
    (_P.RUNNING, _E.RETURN): _P.WAITING,
    (_P.LOST, _E.RETURN): _P.WAITING,
    (_P.WAITING, _E.END): _P.ENDED,
    (_P.PLACING, _E.END): _P.ENDED,
    (_P.PLACED, _E.END): _P.ENDED,
    (_P.RUNNING, _E.END): _P.ENDED,
    (_P.LOST, _E.END): _P.ENDED,
    (_P.WAITING, _E.DELETE): _P.ENDED,
    (_P.PLACING, _E.DELETE): _P.ENDED,
    (_P.PLACED, _E.DELETE): _P.ENDED,
    (_P.RUNNING, _E.DELETE): _P.ENDED,
    (_P.LOST, _E.DELETE): _P.ENDED,
    (_P.PLACING, _E.VANISH): _P.ENDED,
    (_P.PLACED, _E.VANISH): _P.ENDED,
    (_P.RUNNING, _E.VANISH): _P.ENDED,
    (_P.LOST, _E.VANISH): _P.ENDED,
    (_P.WAITING, _E.NODE_FAIL): _P.ENDED,  # a late report of a node that it has left
    (_P.PLACING, _E.NODE_FAIL): _P.ENDED,
    (_P.PLACED, _E.NODE_FAIL): _P.ENDED,
    (_P.RUNNING, _E.NODE_FAIL): _P.ENDED,
    (_P.LOST, _E.NODE_FAIL): _P.ENDED,
}

# Repeated reports, and reports about a node that the member has left.
IGNORED: Final = frozenset(
    {
        (_P.WAITING, _E.PLACE),
        (_P.PLACED, _E.PLACE),
        (_P.RUNNING, _E.PLACE),
        (_P.WAITING, _E.START),
        (_P.RUNNING, _E.START),
        (_P.WAITING, _E.LOSE),
        (_P.LOST, _E.LOSE),
        (_P.WAITING, _E.VANISH),
        *((_P.ENDED, event) for event in MemberEvent if event not in (_E.ASSIGN, _E.RETURN)),
    }
)


def next_phase(phase: MemberPhase, event: MemberEvent) -> MemberPhase:
    """The phase after an event; the same one if the event is ignored. An impossible pair raises `Corrupt`."""
    found = TABLE.get((phase, event))
    if found is not None:
        return found
    if (phase, event) in IGNORED:
        return phase
    raise Corrupt(f"event {event.value} cannot come in phase {phase.value} of a member")
