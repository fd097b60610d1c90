"""The options that `submit` and `run` share, and the jobs that they describe."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from penstock.cli.directives import warnings_of
from penstock.cli.jobspecs import (
    JobRequest,
    JobSize,
    build_jobspec,
    parse_urgency,
    select_environment,
    substitute,
)
from penstock.cli.memory_option import MemorySize
from penstock.cli.terminal import print_error
from penstock.errors import BadRequest
from penstock.model.idset import BadIdset, parse_idset

__all__ = ["JobOptions", "job_options", "submissions_of"]

_COPIES_MAX: Final = 100_000
_MAY_BE_EMPTY: Final = ("signal",)  # the default signal and time


class _Count(click.IntRange):
    name = "number"  # for the error message


_COUNT: Final = _Count(min=1)

_OPTIONS: Final = (
    click.option(
        "-N",
        "--nodes",
        type=_COUNT,
        metavar="N",
        help="Number of nodes; without -n: one task per node, exclusively.",
    ),
    click.option("-n", "--ntasks", type=_COUNT, metavar="N", help="Number of tasks (default 1)."),
    click.option("-c", "--cores-per-task", type=_COUNT, metavar="N", help="Cores per task (default 1)."),
    click.option("-g", "--gpus-per-task", type=_COUNT, metavar="N", help="GPUs per task."),
    click.option("--tasks-per-node", type=_COUNT, metavar="N", help="Tasks per node (instead of -n)."),
    click.option("--cores", type=_COUNT, metavar="N", help="Total number of cores (instead of -n)."),
    click.option("--gpus-per-node", type=_COUNT, metavar="N", help="GPUs per node (instead of -g)."),
    click.option(
        "--mem",
        type=MemorySize(),
        metavar="SIZE",
        help="Memory per node: 4000 (MiB), 512M, 4G; not enforced. A job with several tasks also needs -N.",
    ),
    click.option(
        "-x", "--exclusive", is_flag=True, help="Do not share the nodes with other jobs (needs -N)."
    ),
    click.option(
        "-t",
        "--time-limit",
        metavar="TIME",
        help="Time limit: 30 (minutes), 90s, 1.5h, MM:SS, HH:MM:SS, D-HH, D-HH:MM:SS.",
    ),
    click.option("-q", "--queue", metavar="NAME", help="Queue to submit to."),
    click.option(
        "--urgency",
        metavar="N",
        default="default",
        help="Urgency: 0 to 31, hold (0), default (16) or expedite (31); higher starts first.",
    ),
    click.option(
        "--dependency",
        "dependencies",
        multiple=True,
        metavar="SCHEME:VALUE",
        help="Start after another job: afterany, afterok, afternotok, afterstart or afterexcept with its id,"
        " as in afterok:ƒ1; or singleton.",
    ),
    click.option("--begin-time", metavar="WHEN", help="Do not start before: +1h, 14:30, 2026-06-21T08:00."),
    click.option(
        "--cc", metavar="IDSET", help="Submit one job per id; {cc} expands to the id. Sets FLUX_JOB_CC."
    ),
    click.option("--bcc", metavar="IDSET", help="Like --cc, but without FLUX_JOB_CC."),
    click.option("--job-name", "--name", "name", metavar="NAME", help="Job name."),
    click.option(
        "--requeue",
        type=click.Choice(["never", "node-failure", "always"]),
        default="never",
        help="Requeue the job if its node fails, or after any failure of the infrastructure (always)."
        "  [default: never]",
    ),
    click.option("--output", metavar="FILE", help="File for the standard output of the tasks."),
    click.option("--error", metavar="FILE", help="File for the standard error of the tasks."),
    click.option(
        "--input",
        metavar="FILE|RANKS|none",
        help="Standard input of the tasks: FILE; none; or, for run, the ranks of the tasks that read the"
        " input of this command.",
    ),
    click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank."),
    click.option(
        "--signal",
        metavar="[SIG][@TIME]",
        help="Send SIG (default USR1) TIME (default 60s) before the time limit.",
    ),
    click.option("--cwd", metavar="DIR", help="Working directory of the tasks (default: the current one)."),
    click.option(
        "--env", multiple=True, metavar="NAME[=VALUE]", help="Set an environment variable of the tasks."
    ),
    click.option(
        "--env-remove",
        multiple=True,
        metavar="PATTERN",
        help="Remove environment variables that match PATTERN.",
    ),
    click.option("--requires", metavar="CONSTRAINT", help="Constraint on nodes: a,b  a|b  -host:n7  rank:0."),
    click.option(
        "--jobspec", "jobspec_file", metavar="FILE", help="Read the jobspec from FILE, - for standard input."
    ),
    click.option("--dry-run", is_flag=True, help="Print the jobspec without submitting it."),
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    values: dict[str, Any]
    command: tuple[str, ...]


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options and the command arguments, which the function receives as one `JobOptions`."""
    names = [str(option.name) for option in _parameters()]

    def call(client: Any, command: tuple[str, ...], **values: Any) -> Any:
        own = {name: values.pop(name) for name in names}
        _refuse_empty(own)
        known = [name for option in click.get_current_context().command.params for name in option.opts]
        for warning in warnings_of(command, known):
            print_error(f"warning: {warning}")
        return function(client, JobOptions(own, command), **values)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Callable[..., Any] = click.argument("command", nargs=-1, type=click.UNPROCESSED)(call)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _parameters() -> list[click.Option]:
    def probe() -> None: ...

    for option in _OPTIONS:
        option(probe)
    return list(probe.__click_params__)  # type: ignore[attr-defined]


def _refuse_empty(values: Mapping[str, Any]) -> None:
    """An empty value is refused: it comes from an unset variable in a script, and would mean the default."""
    for option in _parameters():
        found = values[str(option.name)]
        if option.name not in _MAY_BE_EMPTY and "" in (found if isinstance(found, tuple) else (found,)):
            where = max(option.opts, key=len)
            raise BadRequest("the value is empty", where=where, found="''", expected=str(option.metavar))


def submissions_of(options: JobOptions) -> list[dict[str, Any]]:
    """The jobs to submit, as documents of the API."""
    values = options.values
    extra = {"urgency": parse_urgency(values["urgency"]), "requeue": values["requeue"]}
    if values["jobspec_file"]:
        if options.command:
            raise click.UsageError("give either a command or --jobspec, not both")
        return [{"jobspec": _read_jobspec(values["jobspec_file"]), **extra}]
    request = _request(options)
    now = time.time()
    if values["cc"] and values["bcc"]:
        raise click.UsageError("give either --cc or --bcc, not both")
    option = "--cc" if values["cc"] else "--bcc"
    copies = values["cc"] or values["bcc"]
    if not copies:
        return [{"jobspec": build_jobspec(request, now), **extra}]
    try:
        numbers = parse_idset(copies, ids_max=_COPIES_MAX)
    except BadIdset as error:
        raise error.at(option) from None
    submissions = []
    for number in numbers:
        one = substitute(request, str(number))
        if values["cc"]:
            one = replace(one, environment={**one.environment, "FLUX_JOB_CC": str(number)})
        submissions.append({"jobspec": build_jobspec(one, now), **extra})
    return submissions


def _request(options: JobOptions) -> JobRequest:
    values = options.values
    environment, unsendable = select_environment(os.environ, values["env"], values["env_remove"])
    if unsendable:
        print_error(f"environment variables not passed on, values are not UTF-8: {', '.join(unsendable)}")
    size_options = (
        "nodes",
        "ntasks",
        "cores_per_task",
        "gpus_per_task",
        "tasks_per_node",
        "cores",
        "gpus_per_node",
        "exclusive",
        "mem",
    )
    return JobRequest(
        command=options.command,
        size=JobSize(**{name: values[name] for name in size_options}),
        time_limit=values["time_limit"] or "",
        queue=values["queue"] or "",
        name=values["name"] or "",
        dependencies=values["dependencies"],
        begin_time=values["begin_time"] or "",
        requires=values["requires"] or "",
        output=values["output"] or "",
        error=values["error"] or "",
        input=values["input"] or "",
        label_io=values["label_io"],
        signal=values["signal"],
        cwd=values["cwd"] or os.getcwd(),
        environment=environment,
    )


def _read_jobspec(path: str) -> Any:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as stream:
                text = stream.read()
    except OSError as error:
        raise BadRequest(f"cannot read the jobspec: {error.strerror}", where=path) from error
    except UnicodeDecodeError as error:
        raise BadRequest("the jobspec is not UTF-8", where=path, found=str(error)) from error
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise BadRequest("the jobspec is neither JSON nor YAML", where=path, found=str(error)) from error
