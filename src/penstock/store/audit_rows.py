"""Who has a place according to the store: read by whoever checks the store against the rest of the world.

The values here are known to readers that must know nothing of the scheduler, so they stand by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PlacedJob", "PlacedMember", "placed_job"]


@dataclass(frozen=True, slots=True)
class PlacedMember:
    key: str
    node: str  # "": on none yet
    phase: str  # of `MemberPhase`, never `ended`
    seen_at: float


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """An active job of which at least one member has a place; ended members are left out."""

    id: int
    members: tuple[PlacedMember, ...]
    placed_at: float | None
    incomplete_since: float | None
    broken: str
    ending: bool  # something fatal has come: it need not be whole any more


def placed_job(job: int, detail: Mapping[str, Any]) -> PlacedJob:
    members = tuple(
        PlacedMember(told["key"], told.get("node", ""), told["phase"], told.get("seen_at", 0.0))
        for told in detail.get("members", ())
        if told["phase"] != "ended"
    )
    return PlacedJob(
        id=job,
        members=members,
        placed_at=detail.get("placed_at"),
        incomplete_since=detail.get("incomplete_since"),
        broken=detail.get("broken", ""),
        ending=bool(detail.get("exception")),
    )
