"""What a queue demands of the jobs of its users: who may use it, and with which urgency and run time.

Operators, and the owner of an instance on one machine, may use every queue with any urgency.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from penstock.model.job import URGENCY_DEFAULT

__all__ = ["QueueRules", "matches_any"]

_ALL: Final = ("*",)


@dataclass(frozen=True, slots=True)
class QueueRules:
    name: str
    namespaces: tuple[str, ...] = _ALL  # shell patterns
    urgency_max: int = URGENCY_DEFAULT
    duration_max_s: int | None = None  # None: unlimited

    def admits(self, namespace: str) -> bool:
        return self.namespaces == _ALL or matches_any(namespace, self.namespaces)

    @property
    def urgency_default(self) -> int:
        """The urgency of a job that specifies none."""
        return min(URGENCY_DEFAULT, self.urgency_max)


def matches_any(namespace: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(namespace, pattern) for pattern in patterns)
