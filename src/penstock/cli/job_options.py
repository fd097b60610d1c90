"""The options that `submit` and `run` share, and the wishes that come out of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from penstock.cli.jobspecs import (
    JobRequest,
    Shape,
    build_jobspec,
    parse_urgency,
    select_environment,
    substitute,
)
from penstock.cli.terminal import complain
from penstock.errors import BadRequest
from penstock.model.idset import parse_idset

__all__ = ["JobOptions", "job_options", "submissions_of"]

_COPIES_MAX: Final = 100_000
_COUNT: Final = click.IntRange(min=1)

_OPTIONS: Final = (
    click.option(
        "-N", "--nodes", type=_COUNT, metavar="N", help="So many nodes; alone: one task on each, nobody else."
    ),
    click.option("-n", "--ntasks", type=_COUNT, metavar="N", help="So many tasks (default 1)."),
    click.option("-c", "--cores-per-task", type=_COUNT, metavar="N", help="Cores for each task (default 1)."),
    click.option("-g", "--gpus-per-task", type=_COUNT, metavar="N", help="Gpus for each task."),
    click.option("--tasks-per-node", type=_COUNT, metavar="N", help="Tasks on each node (instead of -n)."),
    click.option("--cores", type=_COUNT, metavar="N", help="So many cores in all (instead of -n)."),
    click.option("--gpus-per-node", type=_COUNT, metavar="N", help="Gpus on each node (instead of -g)."),
    click.option("-x", "--exclusive", is_flag=True, help="Nobody else on the nodes (needs -N)."),
    click.option(
        "-t", "--time-limit", metavar="MINUTES|FSD", help="End after this: 30 (minutes), 90s, 1.5h."
    ),
    click.option("-q", "--queue", metavar="NAME", help="The queue."),
    click.option("--urgency", metavar="N", default="default", help="0..31, hold, default or expedite."),
    click.option(
        "--dependency", "dependencies", multiple=True, metavar="SCHEME:VALUE", help="E.g. afterok:ƒ1."
    ),
    click.option("--begin-time", metavar="WHEN", help="Not before: +1h, 14:30, 2026-06-21T08:00."),
    click.option("--cc", metavar="IDSET", help="One job for each id; {cc} stands for it. Sets FLUX_JOB_CC."),
    click.option("--bcc", metavar="IDSET", help="As --cc, without the variable."),
    click.option("--job-name", "--name", "name", metavar="NAME", help="The job's name."),
    click.option(
        "--requeue",
        type=click.Choice(["never", "node-failure", "always"]),
        default="never",
        help="When to run the job again.",
    ),
    click.option("--output", metavar="FILE", help="Where the tasks' standard output goes."),
    click.option("--error", metavar="FILE", help="Where the tasks' standard error goes."),
    click.option("-l", "--label-io", is_flag=True, help="Put the task's rank before each line."),
    click.option("--signal", metavar="[SIG][@TIME]", help="A signal before the end (USR1, 60s)."),
    click.option("--cwd", metavar="DIR", help="The directory of the tasks (default: this one)."),
    click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable of the tasks."),
    click.option("--env-remove", multiple=True, metavar="PATTERN", help="Leave out variables."),
    click.option("--requires", metavar="CONSTRAINT", help="Only such nodes: a,b  a|b  -host:n7  rank:0."),
    click.option(
        "--jobspec", "jobspec_file", metavar="FILE", help="Take the jobspec from a file, - for input."
    ),
    click.option("--dry-run", is_flag=True, help="Print the jobspec, submit nothing."),
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    values: dict[str, Any]
    command: tuple[str, ...]


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options and the command; the function gets them as one `JobOptions`."""
    names = [name for option in _OPTIONS for name in _names(option)]

    def call(client: Any, command: tuple[str, ...], **values: Any) -> Any:
        own = {name: values.pop(name) for name in names}
        return function(client, JobOptions(own, command), **values)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Callable[..., Any] = click.argument("command", nargs=-1, type=click.UNPROCESSED)(call)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _names(option: Callable[..., Any]) -> list[str]:
    def probe() -> None: ...

    option(probe)
    return [parameter.name for parameter in probe.__click_params__]  # type: ignore[attr-defined]


def submissions_of(options: JobOptions) -> list[dict[str, Any]]:
    """The jobs as the API takes them."""
    values = options.values
    extra = {"urgency": parse_urgency(values["urgency"]), "requeue": values["requeue"]}
    if values["jobspec_file"]:
        if options.command:
            raise click.UsageError("a command and --jobspec exclude each other")
        return [{"jobspec": _read_jobspec(values["jobspec_file"]), **extra}]
    request = _request(options)
    now = time.time()
    if values["cc"] and values["bcc"]:
        raise click.UsageError("--cc and --bcc exclude each other")
    copies = values["cc"] or values["bcc"]
    if not copies:
        return [{"jobspec": build_jobspec(request, now), **extra}]
    made = []
    for number in parse_idset(copies, ids_max=_COPIES_MAX):
        one = substitute(request, str(number))
        if values["cc"]:
            one = replace(one, environment={**one.environment, "FLUX_JOB_CC": str(number)})
        made.append({"jobspec": build_jobspec(one, now), **extra})
    return made


def _request(options: JobOptions) -> JobRequest:
    values = options.values
    environment, unsendable = select_environment(os.environ, values["env"], values["env_remove"])
    if unsendable:
        complain(f"not sent, because their values are no UTF-8 text: {', '.join(unsendable)}")
    shape_names = (
        "nodes",
        "ntasks",
        "cores_per_task",
        "gpus_per_task",
        "tasks_per_node",
        "cores",
        "gpus_per_node",
        "exclusive",
    )
    return JobRequest(
        command=options.command,
        shape=Shape(**{name: values[name] for name in shape_names}),
        time_limit=values["time_limit"] or "",
        queue=values["queue"] or "",
        name=values["name"] or "",
        dependencies=values["dependencies"],
        begin_time=values["begin_time"] or "",
        requires=values["requires"] or "",
        output=values["output"] or "",
        error=values["error"] or "",
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
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("the jobspec cannot be read", where=path, found=str(error)) from error
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise BadRequest("neither JSON nor YAML", where=path, found=str(error)) from error
