"""Placed jobs as the store records them, for the auditor.

The auditor must not share code with the scheduler, so these types depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AuditJob", "AuditMember", "audit_job"]


@dataclass(frozen=True, slots=True)
class AuditMember:
    key: str
    node: str  # "": not assigned yet
    phase: str  # a value of `MemberPhase`, never `ended`
    seen_at: float


@dataclass(frozen=True, slots=True)
class AuditJob:
    """An active job with at least one member that is assigned to a node. Ended members are omitted."""

    id: int
    members: tuple[AuditMember, ...]
    placed_at: float | None
    incomplete_since: float | None
    incomplete_reason: str
    ending: bool  # a fatal exception was recorded, so the job may be incomplete


def audit_job(
    job: int,
    placed_at: float | None,
    incomplete_since: float | None,
    incomplete_reason: str,
    ending: bool,
    *members: Sequence[Any],
) -> AuditJob:
    """A job from a row; `members` are the columns of its members: keys, nodes, phases and times."""
    found = tuple(AuditMember(*columns) for columns in zip(*members, strict=True))
    return AuditJob(job, found, placed_at, incomplete_since, incomplete_reason, ending)
