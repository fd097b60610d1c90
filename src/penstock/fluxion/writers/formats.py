"""The formats by name, behind one small interface.

A `Sheet` is what is written: picks in writing order, and the time. A writer returns the text, or
nothing where the format has nothing to say of these picks (`rlite` knows only cores and gpus on
nodes). JSON is written as jansson does: one line, blanks after commas and colons, insertion order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.engine.allocation import Pick
from penstock.fluxion.writers.json_graph import FilterUsage, jgf_of
from penstock.fluxion.writers.json_text import Json, dumps
from penstock.fluxion.writers.rlite import rlite_of

__all__ = ["FORMATS", "Sheet", "Writer", "writer_of"]


@dataclass(frozen=True, slots=True)
class Sheet:
    picks: tuple[Pick, ...]
    start_s: int = 0
    end_s: int = 0
    queue: str = ""
    earlier: tuple[Sheet, ...] = ()  # sets whose graphs are written before this one's
    usage: FilterUsage = field(default_factory=dict)  # shown by `find agfilter=true`


class Writer(Protocol):
    def write(self, sheet: Sheet) -> str | None:
        """The text, with its line ends. "": nothing to write; None: the format cannot say it."""


class Simple:
    """Children before parents, `[units:x]` for what is held alone and `[units:s]` for what is shared."""

    def write(self, sheet: Sheet) -> str | None:
        lines = (_line(pick, "x" if pick.exclusive else "s") for pick in sheet.picks)
        return "".join(lines)


class PrettySimple:
    """Parents before children, in whole words."""

    def write(self, sheet: Sheet) -> str | None:
        lines = (_line(pick, "exclusive" if pick.exclusive else "shared") for pick in reversed(sheet.picks))
        return "".join(lines)


class Jgf:
    def write(self, sheet: Sheet) -> str | None:
        return dumps(jgf_of((sheet.picks, sheet.usage))) + "\n" if sheet.picks else ""


class Rlite:
    def write(self, sheet: Sheet) -> str | None:
        groups = rlite_of(sheet.picks).groups
        return dumps(groups) + "\n" if groups else None


class Rv1:
    """R version 1, with the graph under `scheduling` or without."""

    def __init__(self, scheduling: bool) -> None:
        self._scheduling = scheduling

    def write(self, sheet: Sheet) -> str | None:
        lite = rlite_of(sheet.picks)
        if not lite.groups:
            return ""
        execution: dict[str, Json] = {"R_lite": lite.groups, "nodelist": [lite.nodelist]}
        if lite.properties:
            execution["properties"] = lite.properties
        execution["starttime"] = sheet.start_s
        execution["expiration"] = sheet.end_s
        whole: dict[str, Json] = {"version": 1, "execution": execution}
        if self._scheduling:
            whole["scheduling"] = jgf_of(*((part.picks, part.usage) for part in (*sheet.earlier, sheet)))
            if sheet.queue:
                whole["attributes"] = {"system": {"scheduler": {"queue": sheet.queue}}}
        return dumps(whole) + "\n"


def _line(pick: Pick, mode: str) -> str:
    return f"      {'---' * pick.depth}{pick.vertex.name}[{pick.units}:{mode}]\n"


FORMATS: Final[dict[str, Writer]] = {
    "simple": Simple(),
    "pretty_simple": PrettySimple(),
    "jgf": Jgf(),
    "rlite": Rlite(),
    "rv1": Rv1(scheduling=True),
    "rv1_nosched": Rv1(scheduling=False),
}


def writer_of(name: str) -> Writer | None:
    return FORMATS.get(name)
