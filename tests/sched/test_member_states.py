"""The phases of a member: every pair of phase and event is decided, and documented as in the code."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from penstock.errors import Corrupt
from penstock.sched.member_states import IGNORED, TABLE, MemberEvent, MemberPhase, next_phase

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "scheduling.md"
PAIRS = list(product(MemberPhase, MemberEvent))


@pytest.mark.parametrize(
    ("phase", "event"), PAIRS, ids=[f"{phase.value}-{event.value}" for phase, event in PAIRS]
)
def test_every_pair_leads_to_a_phase_is_ignored_or_is_a_defect(
    phase: MemberPhase, event: MemberEvent
) -> None:
    if (phase, event) in TABLE:
        assert (phase, event) not in IGNORED
        assert next_phase(phase, event) is TABLE[(phase, event)]
        assert TABLE[(phase, event)] is not phase
    elif (phase, event) in IGNORED:
        assert next_phase(phase, event) is phase
    else:
        with pytest.raises(Corrupt, match=event.value):
            next_phase(phase, event)


def test_only_decisions_of_the_scheduler_can_be_defects() -> None:
    """A report can be repeated or late, so no report may fail in any phase."""
    undecided = {
        event for phase, event in PAIRS if (phase, event) not in TABLE and (phase, event) not in IGNORED
    }
    assert undecided == {MemberEvent.ASSIGN, MemberEvent.RETURN}


def test_an_ended_member_stays_ended() -> None:
    assert not [event for phase, event in TABLE if phase is MemberPhase.ENDED]


def _documented() -> dict[tuple[str, str], str]:
    lines = DOCUMENT.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| event | waiting |"))
    head = [cell.strip() for cell in lines[start].strip("|").split("|")][1:]
    found: dict[tuple[str, str], str] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        event, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found.update({(phase, event): cell for phase, cell in zip(head, cells, strict=True)})
    return found


def test_the_documented_table_is_that_of_the_code() -> None:
    expected = {}
    for phase, event in PAIRS:
        after = TABLE.get((phase, event))
        ignored = "-" if (phase, event) in IGNORED else "error"
        expected[(phase.value, event.value)] = after.value if after is not None else ignored
    assert _documented() == expected
