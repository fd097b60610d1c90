"""Durations in the Flux format (RFC 23): `90`, `1.5h`, `100ms`, `inf`.

A number without a unit is in seconds. Zero and infinity are valid; their meaning is up to the caller. The
formatted text is for display and keeps four digits.
"""

from __future__ import annotations

import math
import re

from penstock.errors import BadRequest

__all__ = ["BadDuration", "format_duration", "parse_duration"]

_LENGTH_MAX = 64
_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?(ms|s|m|h|d)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class BadDuration(BadRequest):
    """The text is not a duration."""


def parse_duration(text: str) -> float:
    """Seconds; `math.inf` for `inf` and `infinity`."""
    if text.lower() in ("inf", "infinity"):
        return math.inf
    match = _DURATION.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if match is None:
        raise BadDuration(
            "invalid duration",
            where="duration",
            found=repr(text[:80]),
            expected="seconds such as 30, a number with ms, s, m, h or d such as 90s, or inf",
        )
    number = float(match[1] + (match[2] or ""))
    unit: str = match[3] or "s"
    seconds = number / 1000.0 if unit == "ms" else number * _SECONDS[unit]
    if math.isinf(seconds):
        raise BadDuration(
            "duration out of range", where="duration", found=repr(text), expected="a finite number, or inf"
        )
    return seconds


def format_duration(seconds: float) -> str:
    """Formats a duration in a suitable unit: `1.500s`, `90s` as `1.5m`, `inf`."""
    if math.isnan(seconds) or seconds < 0:
        raise BadDuration(
            "invalid duration", where="duration", found=repr(seconds), expected="zero or more seconds"
        )
    if math.isinf(seconds):
        return "inf"
    if seconds < 0.001:
        return "0s"
    if seconds < 10.0:
        return f"{seconds:.3f}s"
    if seconds < 60.0:
        return f"{seconds:.4g}s"
    if seconds < 3600.0:
        return f"{seconds / 60.0:.4g}m"
    if seconds < 86400.0:
        return f"{seconds / 3600.0:.4g}h"
    return f"{seconds / 86400.0:.4g}d"
