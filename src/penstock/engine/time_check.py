"""Checks the times that a caller of the engine passes."""

from __future__ import annotations

from penstock.errors import BadRequest

__all__ = ["BadTime", "check_time"]


class BadTime(BadRequest):
    """An invalid time or duration."""


def check_time(now: int, duration_s: int | None) -> None:
    if now < 0:
        raise BadTime("negative time", where="now", found=str(now), expected="0 or more")
    if duration_s is not None and duration_s <= 0:
        raise BadTime(
            "the duration is not positive", where="duration", found=f"{duration_s} s", expected="1 s or more"
        )
