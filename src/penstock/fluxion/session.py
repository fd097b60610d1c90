"""A `resource-query` session: dispatches command lines, and implements the commands that only report.

`MatchCommands` books and releases resources, `GraphCommands` inspects and changes the graph. All three share
one `SessionState`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from penstock.engine.graph import Graph
from penstock.fluxion.graph_commands import GraphCommands
from penstock.fluxion.match_commands import MATCH_OPS, MatchCommands
from penstock.fluxion.options import ResourceQueryOptions
from penstock.fluxion.session_state import SessionState, leading_int

__all__ = ["Session"]


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    short: str
    run: Callable[[list[str]], bool]  # takes the words of the line; False ends the session
    help: str


class Session:
    """Runs the commands of one session, one line at a time."""

    def __init__(
        self, graph: Graph, options: ResourceQueryOptions, out: TextIO, stdout: TextIO, stderr: TextIO
    ) -> None:
        self._state = SessionState(graph, options, out, stdout, stderr)
        self._match = MatchCommands(self._state)
        self._graph = GraphCommands(self._state)
        self._commands = self._all_commands()
        self._by_name: dict[str, _Command] = {}
        for command in self._commands:
            for name in (command.name, command.short):
                self._by_name.setdefault(name, command)  # Two share an abbreviation: the first has it.

    def execute(self, line: str) -> bool:
        """Runs one line. False ends the session. Unknown commands are ignored, as in Fluxion."""
        words = line.split()
        if not words:
            return True
        command = self._by_name.get(words[0])
        return command.run(words) if command is not None else True

    def _list(self, words: list[str]) -> bool:  # noqa: ARG002 (all commands have the same signature)
        for job in sorted(self._state.jobs):
            self._print_job(job)
        return True

    def _info(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._state.malformed()
        job = leading_int(words[1])
        if job not in self._state.jobs:
            return self._state.error(f"info: ERROR: nonexistent job {job}")
        self._print_job(job)
        return True

    def _print_job(self, job: int) -> None:
        info = self._state.jobs[job]
        self._state.stdout.write(
            f"INFO: {job}, {info.state}, {info.start_s}, {info.file}, {info.match_time_s:g}\n"
        )

    def _stat(self, words: list[str]) -> bool:
        if len(words) != 1:
            return self._state.malformed()
        times = self._match.update_times_s
        jobs = len(self._state.jobs)
        least = min(times, default=1.79769e308) if jobs else 0.0
        out = self._state.stdout
        out.write(f"INFO: Num. of Jobs Matched: {jobs}\n")
        out.write(f"INFO: Min. Match Time: {least:g}\n")
        out.write(f"INFO: Max. Match Time: {max(times, default=0):g}\n")
        out.write(f"INFO: Avg. Match Time: {sum(times) / jobs if jobs else 0:g}\n")
        return True

    def _cat(self, words: list[str]) -> bool:
        if len(words) != 2:
            return self._state.malformed()
        text = self._state.read_file(words[1], report=False)
        for line in text.decode("utf-8", "replace").splitlines() if text is not None else ():
            self._state.stdout.write(f"{line}\n")
        self._state.stdout.write(f"INFO: Jobspec in {words[1]}\n")
        return True

    def _help(self, words: list[str]) -> bool:
        wanted = words[1] if len(words) == 2 else None
        shown = [c for c in self._commands if wanted in (None, c.name, c.short)]
        for command in shown:
            self._state.stdout.write(f"INFO: {command.name} ({command.short}) -- {command.help}\n")
        if not shown:
            self._state.stdout.write(f"ERROR: unknown command: {wanted}\n")
        return True

    def _quit(self, words: list[str]) -> bool:  # noqa: ARG002 (all commands have the same signature)
        return False

    def _all_commands(self) -> tuple[_Command, ...]:
        match, graph = self._match, self._graph
        ops = " | ".join(MATCH_OPS)
        return (
            _Command("match", "m", match.match, f"Match a jobspec: match OP FILE, with OP {ops}"),
            _Command(
                "multi-match",
                "M",
                match.multi_match,
                "Match jobspecs until one fails: multi-match OP FILE FILE...",
            ),
            _Command(
                "update",
                "u",
                match.update,
                "Book a set: update allocate|reserve jgf|rv1exec FILE JOBID START DURATION",
            ),
            _Command("attach", "j", graph.attach, "Add a subgraph in JGF: attach FILE"),
            _Command(
                "remove", "j", graph.remove, "Remove a subgraph: remove PATH true, or remove RANKS false"
            ),
            _Command(
                "find",
                "f",
                graph.find,
                "Find resources: find EXPRESSION, such as status=down and sched-now=free",
            ),
            _Command("cancel", "c", match.cancel, "Release a job: cancel JOBID [stats]"),
            _Command(
                "partial-cancel",
                "pc",
                match.partial_cancel,
                "Release a part: partial-cancel JOBID jgf|rv1exec FILE [stats]",
            ),
            _Command("set-property", "p", graph.set_property, "Set a property: set-property PATH KEY=VALUE"),
            _Command("get-property", "g", graph.get_property, "Show properties: get-property PATH"),
            _Command("set-status", "t", graph.set_status, "Set a status: set-status PATH up|down"),
            _Command("get-status", "e", graph.get_status, "Show a status: get-status PATH"),
            _Command("list", "l", self._list, "List all jobs: list"),
            _Command("info", "i", self._info, "Show a job: info JOBID"),
            _Command("stat", "s", self._stat, "Show totals: stat"),
            _Command("cat", "a", self._cat, "Show a jobspec file: cat FILE"),
            _Command("help", "h", self._help, "Show this: help [COMMAND]"),
            _Command("quit", "q", self._quit, "End the session: quit"),
        )
