"""The output formats by name, behind the `Writer` protocol.

A writer takes a `PickedSet` and returns its text, or None where the format cannot represent the picks
(`rlite` has only cores and gpus on nodes). JSON is written as jansson writes it: one line, a space after
commas and colons, keys in insertion order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.engine.allocation import Pick
from penstock.engine.node_blocks import Block
from penstock.fluxion.writers.json_graph import FilterUsage, jgf_of
from penstock.fluxion.writers.json_text import Json, dumps
from penstock.fluxion.writers.rlite import rlite_of

__all__ = ["FORMATS", "PickedSet", "Writer", "writer_of"]


@dataclass(frozen=True, slots=True)
class PickedSet:
    """The vertices of a match or of a search, in output order, with the time and queue to print."""

    picks: tuple[Pick, ...]
    start_s: int = 0
    end_s: int = 0
    queue: str = ""
    earlier: tuple[PickedSet, ...] = ()  # deferred sets whose graphs are written before this one's
    usage: FilterUsage = field(default_factory=dict)  # shown by `find agfilter=true`


class Writer(Protocol):
    def write(self, picked: PickedSet) -> str | None:
        """The text with its line ends. "": nothing to print; None: the format cannot represent it."""


class Simple:
    """Children before parents; `[units:x]` is an exclusive vertex, `[units:s]` a shared one."""

    def write_blocks(self, blocks: tuple[Block, ...]) -> str | None:
        """As `write`, for whole nodes with one parent, the root: most of the text is the same on each."""
        root = blocks[0].node.parent()
        if root is None or root.parent() is not None or any(b.node.parent() is not root for b in blocks):
            return None
        lines: list[str] = []
        for block in sorted(blocks, key=_edge_order):
            fit = block.fit
            if fit.text is None:
                *inner, last = fit.picks(block.members)
                fit.text = (self._text(inner), f"[{last.units}:{'x' if last.exclusive else 's'}]\n")
            below, units = fit.text
            lines.append(f"{below}      ------{block.node.name}{units}")
        lines.append(_line(Pick(root, root.size, False, 1), "s"))
        return "".join(lines)

    @staticmethod
    def _text(picks: list[Pick]) -> str:
        return "".join([_line(pick, "x" if pick.exclusive else "s") for pick in picks])

    def write(self, picked: PickedSet) -> str | None:
        lines = (_line(pick, "x" if pick.exclusive else "s") for pick in picked.picks)
        return "".join(lines)


class PrettySimple:
    """Parents before children; `exclusive` and `shared` are spelled out."""

    def write(self, picked: PickedSet) -> str | None:
        lines = (_line(pick, "exclusive" if pick.exclusive else "shared") for pick in reversed(picked.picks))
        return "".join(lines)


class Jgf:
    def write(self, picked: PickedSet) -> str | None:
        return dumps(jgf_of((picked.picks, picked.usage))) + "\n" if picked.picks else ""


class Rlite:
    def write(self, picked: PickedSet) -> str | None:
        groups = rlite_of(picked.picks).groups
        return dumps(groups) + "\n" if groups else None


class Rv1:
    """R version 1, with or without the graph under `scheduling`."""

    def __init__(self, scheduling: bool) -> None:
        self._scheduling = scheduling

    def write(self, picked: PickedSet) -> str | None:
        lite = rlite_of(picked.picks)
        if not lite.groups:
            return ""
        execution: dict[str, Json] = {"R_lite": lite.groups, "nodelist": [lite.nodelist]}
        if lite.properties:
            execution["properties"] = lite.properties
        execution["starttime"] = picked.start_s
        execution["expiration"] = picked.end_s
        document: dict[str, Json] = {"version": 1, "execution": execution}
        if self._scheduling:
            document["scheduling"] = jgf_of(*((each.picks, each.usage) for each in (*picked.earlier, picked)))
            if picked.queue:
                document["attributes"] = {"system": {"scheduler": {"queue": picked.queue}}}
        return dumps(document) + "\n"


def _edge_order(block: Block) -> int:
    return block.node.order


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
