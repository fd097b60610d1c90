"""Eventlogs as text in the formats of Flux: one line per event with its time, name and context."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from penstock.cli.terminal import printable, styled

__all__ = ["EventLines"]


class EventLines:
    """Formats events one after another; relative times refer to an earlier event."""

    def __init__(self, time_format: str = "raw", *, as_json: bool = False, colours: bool = False) -> None:
        self._time_format = time_format
        self._as_json = as_json
        self._colours = colours
        self._first: float | None = None
        self._dated: float | None = None
        self._minute = ""

    def line(self, event: dict[str, Any]) -> str:
        if self._as_json:
            return json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        name = str(event["name"])
        pairs = [f"{key}={_compact(value)}" for key, value in (event.get("context") or {}).items()]
        time = self._time(float(event["timestamp"]))
        if self._colours:
            style = "red" if name == "exception" else "yellow"
            return " ".join([styled(time, "green"), styled(printable(name), style), *map(printable, pairs)])
        return printable(" ".join([time, name, *pairs]))

    def _time(self, at: float) -> str:
        if self._first is None:
            self._first = at
        if self._time_format == "raw":
            return f"{at:.6f}"
        if self._time_format == "offset":
            return f"{at - self._first:.6f}"
        if self._time_format == "iso":
            return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        minute = datetime.fromtimestamp(at).strftime("%b%d %H:%M")
        if minute != self._minute or self._dated is None:
            self._minute, self._dated = minute, at
            return f"[{minute}]"
        return f"[{at - self._dated:+11.6f}]"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
