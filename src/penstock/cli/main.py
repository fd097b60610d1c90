"""`penstock`: looks up the command and runs it, importing only what that command needs.

Some commands parse their arguments themselves (`parses_argv`) and are called directly. The others are click
commands, each in a module that is imported when the command is used. `penstock --help` is rendered from the
table below and imports none of them. An error in a click command becomes one line and an exit code.
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
    """A command: its entry point (`module:function`) and a one-line summary in the imperative."""

    entry_point: str
    summary: str
    section: str
    parses_argv: bool = False


_JOBS: Final = "Jobs"
_CLUSTER: Final = "Cluster"
_TOOLS: Final = "Tools"
_OPTIONS: Final = ("--state", "--server", "--help", "--version")  # before the command
_VARIABLES: Final = {"--state": "PENSTOCK_STATE", "--server": "PENSTOCK_SERVER"}

COMMANDS: Final[dict[str, CommandEntry]] = {
    "submit": CommandEntry("penstock.cli.submit:submit", "submit jobs and print their ids", _JOBS),
    "run": CommandEntry("penstock.cli.run:run", "submit a job, show its output, exit with its code", _JOBS),
    "jobs": CommandEntry("penstock.cli.jobs:jobs", "list jobs", _JOBS),
    "job": CommandEntry(
        "penstock.cli.job:job", "one job: show, why, when, eventlog, wait, attach, kill", _JOBS
    ),
    "cancel": CommandEntry("penstock.cli.cancel:cancel", "cancel jobs", _JOBS),
    "hold": CommandEntry("penstock.cli.urgency:hold", "hold pending jobs (urgency 0)", _JOBS),
    "release": CommandEntry("penstock.cli.urgency:release", "release held jobs", _JOBS),
    "urgency": CommandEntry("penstock.cli.urgency:urgency", "change the urgency of a pending job", _JOBS),
    "resource": CommandEntry("penstock.cli.resource:resource", "list, drain and undrain nodes", _CLUSTER),
    "queue": CommandEntry(
        "penstock.cli.queue:queue", "list, start, stop, enable and disable queues", _CLUSTER
    ),
    "timeline": CommandEntry(
        "penstock.cli.timeline:timeline", "draw running and planned jobs, by node and time", _CLUSTER
    ),
    "status": CommandEntry(
        "penstock.cli.status:status", "show the instance, its agents and its database", _CLUSTER
    ),
    "start": CommandEntry(
        "penstock.cli.start:start", "start an instance, or restart one with its jobs", _CLUSTER
    ),
    "stop": CommandEntry("penstock.cli.stop:stop", "stop the instance", _CLUSTER),
    "dev": CommandEntry(
        "penstock.cli.dev:dev", "run a Kubernetes control plane with simulated nodes", _TOOLS
    ),
    "completion": CommandEntry(
        "penstock.cli.completion:completion", "print the completion script for a shell", _TOOLS
    ),
    "demo": CommandEntry(
        "penstock.cli.plan_demo:main",
        "run a mixed workload on a temporary instance",
        _TOOLS,
        parses_argv=True,
    ),
    "resource-query": CommandEntry(
        "penstock.cli.resource_query:main",
        "match jobspecs against a resource graph, as Fluxion does",
        _TOOLS,
        parses_argv=True,
    ),
    "jobspec-validate": CommandEntry(
        "penstock.cli.jobspec_validate:main",
        "validate a jobspec: exit 0 valid, 2 invalid, 3 not YAML",
        _TOOLS,
        parses_argv=True,
    ),
}


def _usage() -> str:
    lines = ["usage: penstock COMMAND [ARGUMENTS...]"]
    for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
        lines += ["", f"{section}:"]
        lines += [
            f"  {name:18} {entry.summary}" for name, entry in COMMANDS.items() if entry.section == section
        ]
    lines += [
        "",
        "Run `penstock COMMAND --help` for the options of a command. The environment",
        "variable PENSTOCK_STATE, or --state DIR before or after COMMAND, selects the",
        "instance; PENSTOCK_SERVER or --server URL selects one on TCP.",
        "",
        exits.TEXT,
    ]
    return "\n".join(lines)


def main() -> None:
    argv = _take_options(sys.argv[1:])
    if "_PENSTOCK_COMPLETE" in os.environ:
        from penstock.cli.group import complete

        complete()
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if argv else sys.stderr)
        sys.exit(exits.OK if argv else exits.USAGE)
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"penstock {version('penstock')}")
        sys.exit(0)
    entry = COMMANDS.get(argv[0])
    if entry is None:
        print(f"penstock: {_unknown(argv)}\nTry `penstock --help`.", file=sys.stderr)
        sys.exit(exits.USAGE)
    sys.exit(_run(entry, argv))


def _take_options(argv: list[str]) -> list[str]:
    """Removes `--state DIR` or `--server URL` before the command and passes it on in the environment."""
    if not argv:
        return argv
    name, equals, value = argv[0].partition("=")
    rest = argv[1:]
    if name not in _VARIABLES or (not equals and not rest):
        return argv
    if not equals:
        value, rest = rest[0], rest[1:]
    if name == "--state":
        os.environ.pop("PENSTOCK_SERVER", None)
    os.environ[_VARIABLES[name]] = value
    return rest


def _run(entry: CommandEntry, argv: list[str]) -> int:
    try:
        if entry.parses_argv:
            from importlib import import_module

            module, _, function = entry.entry_point.partition(":")
            code = int(getattr(import_module(module), function)(argv[1:]))
        else:
            from penstock.cli.group import run_click

            code = run_click(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Buffered output must not fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _unknown(argv: list[str]) -> str:
    """What is wrong with the first argument, which is no command."""
    from difflib import get_close_matches

    word = argv[0]
    if word in _OPTIONS:
        return f"{word}: the value is missing"
    kind, known = ("option", _OPTIONS) if word.startswith("-") else ("command", tuple(COMMANDS))
    near = get_close_matches(word.partition("=")[0], known, n=1)
    return f"no {kind} {word!r}" + (f"; did you mean {near[0]!r}?" if near else "")
