"""`penstock submit`: submits jobs and prints one id per line.

Jobs are submitted in batches of 1000, which bounds the request size and lets the progress bar move. A batch
is accepted completely or not at all and carries an idempotency key: after a lost response it is sent again,
and the instance returns the ids of the jobs that it has already created.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc, RequestRefused, StreamBroken
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.job_options import JobOptions, job_options, submissions_of
from penstock.cli.jobspecs import parse_input
from penstock.cli.terminal import ProgressLine, print_json, print_line, printable

__all__ = ["send", "submit"]

_BATCH: Final = 1000
_IN_BATCH: Final = re.compile(r"jobs\[[0-9]+\]\.")
_OPTIONS_BY_PATH: Final = {
    "attributes.system.queue": "--queue",
    "attributes.system.dependencies": "--dependency",
    "attributes.system.constraints": "--requires",
    "attributes.system.duration": "--time-limit",
    "resources": "",  # Several options together describe the resources.
}


@click.command(context_settings={**SETTINGS, "allow_interspersed_args": False})
@with_client
@job_options
@json_option
@click.option("-W", "--wait", is_flag=True, help="Wait until the jobs are inactive; exit with their code.")
def submit(client: ApiClient, options: JobOptions, output_format: str, wait: bool) -> int:
    """Submit COMMAND as a job, or as one job per id with --cc, and print the job ids.

    With --wait, the exit code is the largest exit code of the jobs; ctrl-C stops waiting, not the jobs.
    """
    if parse_input(options.values["input"] or "").get("type") == "service":
        raise click.UsageError("--input: submit forwards no input (expected a file name; or use run)")
    jobs = submissions_of(options)
    if options.values["dry_run"]:
        for job in jobs:
            print_line(json.dumps(job["jobspec"]))
        return exits.OK
    done = send(client, jobs, options)
    if output_format != "json":
        for job in done:
            print_line(printable(job["id"]))
    code = exits.OK
    if wait:
        from penstock.cli.waiting import wait_for_jobs

        sys.stdout.flush()
        ids = [str(job["id"]) for job in done]
        code, done = wait_for_jobs(client, ids, None, quiet=output_format == "json")
    if output_format == "json":
        print_json({"jobs": done})
    return code


def send(client: ApiClient, jobs: list[dict[str, Any]], options: JobOptions) -> list[Doc]:
    """Submits jobs; returns a document with the id of each, in order. Errors name the options."""
    from secrets import token_hex

    client.remember("queue", options.values["queue"] or "")
    submitted: list[Doc] = []
    progress = ProgressLine("submitting", len(jobs))
    try:
        for start in range(0, len(jobs), _BATCH):
            body = {"jobs": jobs[start : start + _BATCH], "key": token_hex(12)}
            try:
                response = client.post("/v1/jobs", body)
            except StreamBroken:
                response = client.post("/v1/jobs", body)
            submitted += response["jobs"]
            progress.show(len(submitted))
    except RequestRefused as error:
        if options.values["jobspec_file"]:
            raise
        raise _in_options(error) from None
    finally:
        progress.close()
    return submitted


def _in_options(error: RequestRefused) -> RequestRefused:
    """The error with the option that was typed in place of its path in the jobspec."""
    if error.kind == "DependencyRefused":
        return RequestRefused(error.status, {**error.error, "message": f"--{error}"})
    path = _IN_BATCH.sub("", error.where)
    for prefix, option in _OPTIONS_BY_PATH.items():
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            return error.at(option)
    return error
