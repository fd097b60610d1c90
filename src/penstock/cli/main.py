"""`penstock`: finds the command and hands over. Nothing is imported that the command does not need."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["main"]


def _resource_query(argv: list[str]) -> int:
    from penstock.cli.resource_query import main as run

    return run(argv)


def _jobspec_validate(argv: list[str]) -> int:
    from penstock.cli.jobspec_validate import main as run

    return run(argv)


def _demo(argv: list[str]) -> int:
    from penstock.cli.demo import main as run

    return run(argv)


_COMMANDS: Final[dict[str, tuple[Callable[[list[str]], int], str]]] = {
    "demo": (_demo, "fill a small cluster with jobs and draw the plan"),
    "resource-query": (_resource_query, "match jobspecs against a graph, as Fluxion's tool does"),
    "jobspec-validate": (_jobspec_validate, "check a jobspec: exit 0 valid, 2 invalid, 3 not YAML"),
}


def _usage() -> str:
    lines = [f"  {name:18} {text}" for name, (_, text) in _COMMANDS.items()]
    return "usage: penstock COMMAND [ARGUMENTS...]\n\nCommands:\n" + "\n".join(lines)


def main() -> None:
    argv = sys.argv[1:]
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if argv else sys.stderr)
        sys.exit(0 if argv else 1)
    found = _COMMANDS.get(argv[0])
    if found is None:
        print(f"penstock: no command {argv[0]!r}\n\n{_usage()}", file=sys.stderr)
        sys.exit(1)
    sys.exit(_run(found[0], argv[1:]))


def _run(command: Callable[[list[str]], int], argv: list[str]) -> int:
    try:
        code = command(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
