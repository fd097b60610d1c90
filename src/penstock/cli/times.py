"""Points in time and durations as users type and read them. The current time is an argument."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import datetime, timedelta

from penstock.errors import BadRequest
from penstock.model.duration import BadDuration, parse_duration

__all__ = ["clock", "day_and_time", "moment", "parse_span", "parse_when", "span"]

_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


def parse_span(text: str, option: str) -> float:
    """The seconds of a duration that the user gave with `option`."""
    try:
        return parse_duration(text)
    except BadDuration as error:
        raise error.at(option) from None


def parse_when(text: str, now: float, option: str, *, past: bool = False) -> float:
    """Seconds since 1970 for `now`, `+1h`, `-30m`, `14:30`, or an ISO date and time.

    A time of day means its next occurrence, or its last one if `past`. Errors name the `option`.
    """
    body = text.strip()
    if body == "now":
        return now
    if body[:1] in ("+", "-"):
        with contextlib.suppress(BadDuration):
            span_s = parse_duration(body[1:])
            if not math.isinf(span_s):
                return now + span_s if body[0] == "+" else now - span_s
    if match := _CLOCK.fullmatch(body):
        today = datetime.fromtimestamp(now).astimezone()
        at = today.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0), microsecond=0)
        if past and at.timestamp() > now:
            at -= timedelta(days=1)
        elif not past and at.timestamp() <= now:
            at += timedelta(days=1)
        return at.timestamp()
    try:
        return datetime.fromisoformat(body).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(
            "invalid time",
            where=option,
            found=repr(text[:80]),
            expected="now, +1h, -30m, 14:30, 2026-06-21 or 2026-06-21T08:00",
        ) from None


def clock(at: float, now: float) -> str:
    """`14:05:10` today, `Nov17 14:05` on another day, `2027-01-02` in another year."""
    when, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    if when.date() == today.date():
        return when.strftime("%H:%M:%S")
    return when.strftime("%b%d %H:%M" if when.year == today.year else "%Y-%m-%d")


def moment(at: float, now: float) -> str:
    """As `clock` in a sentence, where a date of another year has room for its time."""
    when, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    return clock(at, now) if when.year == today.year else when.strftime("%Y-%m-%d %H:%M")


def day_and_time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A duration with two units at most: `4.2s`, `42s`, `1m50s`, `2h05m`, `3d04h`."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 10:
        return f"{round(seconds, 1):g}s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f"{rest:02}{below}" if rest else "")
    return f"{whole}s"
