"""How long an instance waits between two terms: exponentially longer, with jitter; pure.

Every term costs a take-over in the store and a complete list of the cluster, so a term that fails at once
must not be repeated at once. A term that lasted long enough was a success: the next pause is short again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Backoff"]

_FIRST_S: Final = 0.1
_MAX_S: Final = 30.0
_RESET_AFTER_S: Final = 60.0
_DOUBLINGS_MAX: Final = 16  # beyond `_MAX_S` in any case


@dataclass(frozen=True, slots=True)
class Backoff:
    failures: int = 0  # short terms in succession

    def after_term(self, lasted_s: float) -> Backoff:
        return Backoff(1 if lasted_s >= _RESET_AFTER_S else self.failures + 1)

    def pause_s(self, jitter: float) -> float:
        """The pause before the next term; `jitter` from 0 to 1 spreads instances that failed together."""
        if not self.failures:
            return 0.0
        longest_s = min(_FIRST_S * (1 << min(self.failures - 1, _DOUBLINGS_MAX)), _MAX_S)
        return longest_s * (1.0 + jitter) / 2
