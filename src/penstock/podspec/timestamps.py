"""Timestamps of the Kubernetes API (RFC 3339) as seconds since the epoch."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

__all__ = ["epoch_seconds"]


@lru_cache(maxsize=8192)
def epoch_seconds(text: str) -> float:
    """Raises `ValueError` for a text that is not a timestamp. Pods of one group share most of theirs."""
    return datetime.fromisoformat(text).timestamp()
