"""`penstock jobspec-validate` checks a jobspec. Exit code 0: valid, 2: invalid jobspec, 3: invalid YAML."""

from __future__ import annotations

import sys
from typing import Final

from penstock.errors import BadRequest
from penstock.model.document import BadDocument
from penstock.model.jobspec import parse_jobspec

__all__ = ["main"]

USAGE: Final = (
    "usage: penstock jobspec-validate [FILE]\n\nChecks a jobspec. Without FILE it reads standard input."
)


def main(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if len(argv) > 1:
        print(
            "penstock jobspec-validate: more than one FILE\nTry `penstock jobspec-validate --help`.",
            file=sys.stderr,
        )
        return 1
    source = argv[0] if argv else "standard input"
    try:
        if argv:
            with open(argv[0], "rb") as stream:
                text = stream.read()
        else:
            text = sys.stdin.buffer.read()
    except OSError as error:
        print(f"penstock jobspec-validate: cannot read {source}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        parse_jobspec(text)
    except BadDocument as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 3
    except BadRequest as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 2
    return 0
