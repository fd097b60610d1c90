"""Who has a place according to the store: read by whoever checks the store against the rest of the world.

The values here are known to readers that must know nothing of the scheduler, so they stand by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["AuditJob", "AuditMember", "audit_job"]


@dataclass(frozen=True, slots=True)
class AuditMember:
    key: str
    node: str  # "": on none yet
    phase: str  # of `MemberPhase`, never `ended`
    seen_at: float


@dataclass(frozen=True, slots=True)
class AuditJob:
    """An active job of which at least one member has a place; ended members are left out."""

    id: int
    members: tuple[AuditMember, ...]
    placed_at: float | None
    incomplete_since: float | None
    incomplete_reason: str
    ending: bool  # something fatal has come: it need not be whole any more


def audit_job(job: int, detail: Mapping[str, Any]) -> AuditJob:
    members = tuple(
        AuditMember(told["key"], told.get("node", ""), told["phase"], told.get("seen_at", 0.0))
        for told in detail.get("members", ())
        if told["phase"] != "ended"
    )
    return AuditJob(
        id=job,
        members=members,
        placed_at=detail.get("placed_at"),
        incomplete_since=detail.get("incomplete_since"),
        incomplete_reason=detail.get("incomplete_reason", ""),
        ending=bool(detail.get("exception")),
    )
