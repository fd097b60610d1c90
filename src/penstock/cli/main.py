"""`penstock`: finds the command and hands over. Nothing is imported that the command does not need.

Commands are of two kinds. Those with their own reading of arguments (`argv`) are called as they are. The
others are click commands; each lives in a module that is imported only when it is asked for, and the help
of `penstock` itself is written from the table below without importing any. What goes wrong in a click
command ends here as one line and an exit code.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

from penstock.cli import exits

__all__ = ["COMMANDS", "CommandEntry", "main"]


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: where it lives (`module:function`), and what it does in half a line."""

    place: str
    about: str
    section: str
    is_argv: bool = False


_JOBS: Final = "Jobs"
_CLUSTER: Final = "Cluster"
_TOOLS: Final = "Tools"
_EXIT_NO_COMMAND: Final = 1

COMMANDS: Final[dict[str, CommandEntry]] = {
    "submit": CommandEntry("penstock.cli.submit:submit", "submit jobs and print their ids", _JOBS),
    "run": CommandEntry("penstock.cli.run:run", "submit a job, show its output, exit as it does", _JOBS),
    "jobs": CommandEntry("penstock.cli.jobs:jobs", "list jobs", _JOBS),
    "job": CommandEntry("penstock.cli.job:job", "one job: show, eventlog, why, when, wait, attach", _JOBS),
    "cancel": CommandEntry("penstock.cli.cancel:cancel", "cancel jobs", _JOBS),
    "hold": CommandEntry("penstock.cli.urgency:hold", "hold jobs back (urgency 0)", _JOBS),
    "release": CommandEntry("penstock.cli.urgency:release", "let held jobs go on", _JOBS),
    "urgency": CommandEntry("penstock.cli.urgency:urgency", "change the urgency of a job", _JOBS),
    "resource": CommandEntry(
        "penstock.cli.resource:resource", "nodes: list, status, drain, undrain", _CLUSTER
    ),
    "queue": CommandEntry(
        "penstock.cli.queue:queue", "queues: list, status, start, stop, enable, disable", _CLUSTER
    ),
    "timeline": CommandEntry("penstock.cli.timeline:timeline", "draw what runs where and when", _CLUSTER),
    "status": CommandEntry(
        "penstock.cli.status:status", "the instance, its agents and its database", _CLUSTER
    ),
    "start": CommandEntry("penstock.cli.start:start", "start an instance, or take one up again", _CLUSTER),
    "stop": CommandEntry("penstock.cli.stop:stop", "stop the instance", _CLUSTER),
    "dev": CommandEntry("penstock.cli.dev:dev", "a real control plane with simulated nodes", _TOOLS),
    "completion": CommandEntry(
        "penstock.cli.completion:completion", "the completion script of a shell", _TOOLS
    ),
    "demo": CommandEntry(
        "penstock.cli.plan_demo:main",
        "run a mixed workload on a real instance of its own",
        _TOOLS,
        is_argv=True,
    ),
    "resource-query": CommandEntry(
        "penstock.cli.resource_query:main",
        "match jobspecs against a graph, as Fluxion's tool does",
        _TOOLS,
        is_argv=True,
    ),
    "jobspec-validate": CommandEntry(
        "penstock.cli.jobspec_validate:main",
        "check a jobspec: exit 0 valid, 2 invalid, 3 not YAML",
        _TOOLS,
        is_argv=True,
    ),
}


def _usage() -> str:
    lines = ["usage: penstock COMMAND [ARGUMENTS...]"]
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
        lines += ["", f"{section}:"]
        lines += [
            f"  {name:18} {entry.about}" for name, entry in COMMANDS.items() if entry.section == section
        ]
    lines += [
        "",
        "`penstock COMMAND --help` tells the options of a command. The environment variable",
        "PENSTOCK_STATE, or --state DIR before or after COMMAND, names the instance that is meant.",
        "",
        exits.TEXT,
    ]
    return "\n".join(lines)


def main() -> None:
    argv = _take_state(sys.argv[1:])
    if "_PENSTOCK_COMPLETE" in os.environ:
        from penstock.cli.group import complete

        complete()
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if argv else sys.stderr)
        sys.exit(0 if argv else _EXIT_NO_COMMAND)
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"penstock {version('penstock')}")
        sys.exit(0)
    entry = COMMANDS.get(argv[0])
    if entry is None:
        print(f"penstock: no command {argv[0]!r}{_near(argv[0])}\n\n{_usage()}", file=sys.stderr)
        sys.exit(_EXIT_NO_COMMAND)
    sys.exit(_run(entry, argv))


def _take_state(argv: list[str]) -> list[str]:
    """Takes `--state DIR` from before the command; the environment carries it to the command."""
    if argv and argv[0].startswith("--state="):
        os.environ["PENSTOCK_STATE"] = argv[0].removeprefix("--state=")
        return argv[1:]
    if len(argv) > 1 and argv[0] == "--state":
        os.environ["PENSTOCK_STATE"] = argv[1]
        return argv[2:]
    return argv


def _run(entry: CommandEntry, argv: list[str]) -> int:
    try:
        if entry.is_argv:
            from importlib import import_module

            module, _, function = entry.place.partition(":")
            code = int(getattr(import_module(module), function)(argv[1:]))
        else:
            from penstock.cli.group import run_click

            code = run_click(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _near(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
