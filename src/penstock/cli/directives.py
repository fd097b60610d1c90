"""Warns about a submitted script with directives of Slurm or Flux, which Penstock does not read.

A script that was written for `sbatch` or `flux batch` carries its options in comments. Submitted here it
would run with one core and without a limit, silently. The warning names the first directives and the
option that each of them corresponds to.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Collection
from typing import Final

__all__ = ["warnings_of"]

_BYTES_MAX: Final = 64 << 10
_NAMED_MAX: Final = 3
_SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh", "python", "python3", "perl")
_SLURM: Final = re.compile(r"#SBATCH\s+(\S.*)")
_FLUX: Final = re.compile(r"[^\w\s]\s*(?:flux|FLUX):\s*(-.*)")

# Options of sbatch with another name or meaning here. The others have the same name, or no counterpart.
_FROM_SLURM: Final = {
    "-N": "--nodes", "-n": "--ntasks", "-t": "--time-limit", "--time": "--time-limit",
    "-c": "--cores-per-task", "--cpus-per-task": "--cores-per-task", "--ntasks-per-node": "--tasks-per-node",
    "-J": "--job-name", "-p": "--queue", "--partition": "--queue", "-o": "--output", "-e": "--error",
    "-i": "--input", "-d": "--dependency", "-b": "--begin-time", "--begin": "--begin-time",
    "-D": "--cwd", "--chdir": "--cwd", "-a": "--cc", "--array": "--cc", "-C": "--requires",
    "--constraint": "--requires", "-H": "--urgency=hold", "--hold": "--urgency=hold",
    "--requeue": "--requeue=node-failure", "-W": "--wait", "--export": "--env",
}  # fmt: skip
_SLURM_TAGS: Final = {
    "%j": "{{id}}",
    "%J": "{{id}}",
    "%x": "{{name}}",
    "%t": "{{task.rank}}",
    "%N": "{{node.name}}",
}


def warnings_of(command: tuple[str, ...], known: Collection[str]) -> list[str]:
    """One line per directive, up to a limit. `known` are the options of the command that was typed."""
    path, text = _script(command)
    found = [(number, line) for number, line in enumerate(text.splitlines(), 1) if _body(line)]
    lines = [
        f"{path}, line {number}: {line.strip()!r} is not read; {_advice(line, known)}"
        for number, line in found[:_NAMED_MAX]
    ]
    more = len(found) - len(lines)
    return (
        [*lines, f"{path}: {more} more {'directives are' if more > 1 else 'directive is'} not read"]
        if more
        else lines
    )


def _script(command: tuple[str, ...]) -> tuple[str, str]:
    """The path and the beginning of the script that a command runs; empty if there is none."""
    words = list(command)
    if len(words) > 1 and os.path.basename(words[0]) in _SHELLS and not words[1].startswith("-"):
        words.pop(0)
    if not words or ("/" not in words[0] and len(words) == len(command)):
        return "", ""  # A program from PATH.
    try:
        if not stat.S_ISREG(os.stat(words[0]).st_mode):
            return "", ""
        with open(words[0], "rb") as stream:
            return words[0], stream.read(_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, ValueError):
        return "", ""


def _body(line: str) -> str:
    match = _SLURM.match(line) or _FLUX.match(line)
    return match[1] if match else ""


def _advice(line: str, known: Collection[str]) -> str:
    is_slurm = _SLURM.match(line) is not None
    try:
        words = shlex.split(_body(line), comments=True)
    except ValueError:
        words = _body(line).split()
    name, equals, value = (words[0] if words else "").partition("=")
    if not name.startswith("--") and len(name) > 2:
        name, value = name[:2], name[2:]
    elif not equals and len(words) > 1 and not words[1].startswith("-"):
        value = words[1]
    option = _FROM_SLURM.get(name, name) if is_slurm else name
    if option.partition("=")[0] not in known:
        return "there is no such option here"
    if is_slurm and option in ("--output", "--error", "--input"):
        for tag, ours in _SLURM_TAGS.items():
            value = value.replace(tag, ours)
    if "=" in option or not value:
        return f"use {option}"
    return (
        f"use {option}={shlex.quote(value)}"
        if option.startswith("--")
        else f"use {option} {shlex.quote(value)}"
    )
