"""The texts of commands, checked before anything changes: a store cannot keep every text.

Notes, keys, names and reasons are printed in tables, so they are printable. Arguments, environment and paths
are passed to programs, which accept everything but NUL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from penstock.errors import BadRequest
from penstock.model.text import check_passable, check_printable
from penstock.protocol.commands import Cancel, Command, Drain, QueueChange, Submit
from penstock.protocol.validity import TEXT_MAX
from penstock.sched.jobspec import SchedulingSpec

__all__ = ["check_command_texts", "check_spec_texts"]


def check_command_texts(command: Command) -> None:
    """Refuses control characters in the fields of a command; jobspecs are checked after they are read."""
    match command:
        case Submit():
            check_printable(command.key, "key")
            if len(command.key) > TEXT_MAX:
                raise BadRequest("the key is too long", where="key", expected=f"{TEXT_MAX} characters")
            for index, submission in enumerate(command.jobs):
                check_printable(submission.owner, f"jobs[{index}].owner")
        case Cancel():
            check_printable(command.note, "note")
        case QueueChange():
            check_printable(command.reason, "reason")
        case Drain():
            check_printable(command.reason, "reason")
            check_printable(command.by, "by")


def check_spec_texts(spec: SchedulingSpec, payload: Mapping[str, object]) -> None:
    """Refuses a name that is not printable, and what no program can receive."""
    system = "attributes.system"
    check_printable(spec.name, f"{system}.job.name")
    for index, word in enumerate(cast(list[str], payload["command"])):
        check_passable(word, f"tasks[0].command[{index}]")
    for name, value in cast(dict[str, str], payload["environment"]).items():
        check_passable(name, f"{system}.environment")
        check_passable(value, f"{system}.environment.{name}")
    check_passable(cast(str, payload["cwd"]), f"{system}.cwd")
    for key, stream in (("output", "stdout"), ("error", "stderr")):
        check_passable(cast(str, payload[key]), f"{system}.shell.options.output.{stream}.path")
