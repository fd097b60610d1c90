"""The state that all commands of one `resource-query` session share.

It holds the engine, the jobs by number, the output streams and two quirks of Fluxion's writer that survive
from one command to the next: the writer never forgets a queue name, and `rv1` defers the graph of a set
without cores until the next set that has some.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final, TextIO

from penstock.engine.allocation import Allocation
from penstock.engine.engine import Engine
from penstock.engine.graph import Graph
from penstock.fluxion.checks import HORIZON_S
from penstock.fluxion.options import ResourceQueryOptions
from penstock.fluxion.order import FluxionOrder
from penstock.fluxion.writers.formats import FORMATS, PickedSet, Simple

__all__ = ["RULE", "SessionJob", "SessionState", "leading_int"]

RULE: Final = "INFO: =============================\n"
_FILE_MAX: Final = 512 << 20


@dataclass(slots=True)
class SessionJob:
    """A job as `list` and `info` show it."""

    state: str  # ALLOCATED, RESERVED or CANCELED
    start_s: int
    file: str  # the jobspec or resource set that the job came from
    match_time_s: float


class SessionState:
    """Engine, jobs and output streams of one session.

    Every method that reports an error returns True, the value with which a command continues the session.
    """

    def __init__(
        self, graph: Graph, options: ResourceQueryOptions, out: TextIO, stdout: TextIO, stderr: TextIO
    ) -> None:
        self.order = FluxionOrder(is_weighed=options.policy.stop_on_first)
        self.engine = Engine(
            graph,
            options.policy,
            options.filters,
            order=self.order,
            horizon_s=HORIZON_S,
            index=not options.elapse_time,  # Visit counts are those of a walk over the whole graph.
        )
        self.options = options
        self.out = out  # results: standard output, or the file of `-t`
        self.stdout = stdout
        self.stderr = stderr
        self.jobs: dict[int, SessionJob] = {}
        self.next_job = 1
        self.queue = ""  # the last queue named by a jobspec that matched
        self._writer = FORMATS[options.match_format]
        self._deferred: tuple[PickedSet, ...] = ()

    def render_allocation(self, answer: Allocation) -> str | None:
        """An allocation in the session's match format, None if the format cannot represent it."""
        if answer.blocks and isinstance(self._writer, Simple):
            written = self._writer.write_blocks(answer.blocks)
            if written is not None:
                return written
        return self.render(PickedSet(answer.picks, answer.start_s, answer.end_s or HORIZON_S, self.queue))

    def render(self, picked: PickedSet) -> str | None:
        """The set in the session's match format, None if the format cannot represent it."""
        if self.options.match_format != "rv1":
            return self._writer.write(picked)
        # Fluxion's `rv1` writes the graph of a set without cores only together with the next set.
        written = self._writer.write(replace(picked, earlier=self._deferred))
        self._deferred = () if written else (*self._deferred, picked)
        return written

    def read_file(self, file: str, *, report: bool = True) -> bytes | None:
        """The content of a file, None if it cannot be read. `report` prints Fluxion's error message."""
        try:
            return _content(file)
        except (OSError, ValueError):
            if report:
                self.error(f"ERROR: can't open {file}")
            return None

    def malformed(self) -> bool:
        return self.error("ERROR: malformed command")

    def error(self, text: str) -> bool:
        self.stderr.write(f"{text}\n")
        return True


def _content(file: str) -> bytes:
    """As `open` and `read`, at a third of the cost: a session reads a small file for every match."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size > _FILE_MAX:
            raise OSError("too large")
        parts = [os.read(descriptor, size + 1)]
        while parts[-1] and sum(map(len, parts)) != size:  # a pipe, or a file that grows
            parts.append(os.read(descriptor, 1 << 20))
            if sum(map(len, parts)) > _FILE_MAX:
                break
        return b"".join(parts)[:_FILE_MAX]
    finally:
        os.close(descriptor)


def leading_int(text: str) -> int:
    """The integer at the start of a text, 0 without one, like C's `atoi`."""
    sign = -1 if text.startswith("-") else 1
    digits = ""
    for character in text[1:] if text[:1] in "+-" and text else text:
        if not character.isascii() or not character.isdigit() or len(digits) > 18:
            break
        digits += character
    return sign * int(digits) if digits else 0
