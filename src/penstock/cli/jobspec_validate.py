"""`penstock jobspec-validate`: is this a jobspec? 0 yes, 2 it is none, 3 it is not even YAML."""

from __future__ import annotations

import sys
from typing import Final

from penstock.errors import BadRequest
from penstock.model.document import BadDocument
from penstock.model.jobspec import parse_jobspec

__all__ = ["main"]

USAGE: Final = "usage: penstock jobspec-validate [FILE]\n\nReads standard input without FILE."


def main(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if len(argv) > 1:
        print(USAGE, file=sys.stderr)
        return 1
    try:
        if argv:
            with open(argv[0], "rb") as stream:
                text = stream.read()
        else:
            text = sys.stdin.buffer.read()
    except OSError as error:
        print(f"penstock jobspec-validate: {error}", file=sys.stderr)
        return 1
    try:
        parse_jobspec(text)
    except BadDocument as error:
        print(f"{argv[0] if argv else 'standard input'}: {error}", file=sys.stderr)
        return 3
    except BadRequest as error:
        print(f"{argv[0] if argv else 'standard input'}: {error}", file=sys.stderr)
        return 2
    return 0
