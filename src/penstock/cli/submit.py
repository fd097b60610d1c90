"""`penstock submit`: submits jobs and prints one id per line.

Jobs are submitted in batches of 1000, which bounds the request size and lets the progress bar move. A batch
is accepted completely or not at all and carries an idempotency key: after a lost response it is sent again,
and the instance returns the ids of the jobs that it has already created.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from penstock.cli.client import ApiClient, Doc, StreamBroken
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.job_options import JobOptions, job_options, submissions_of
from penstock.cli.terminal import ProgressLine, print_json, print_line, printable

__all__ = ["send", "submit"]

_BATCH: Final = 1000


@click.command(context_settings={**SETTINGS, "allow_interspersed_args": False})
@with_client
@job_options
@json_option
def submit(client: ApiClient, options: JobOptions, output_format: str) -> None:
    """Submit COMMAND as a job, or as one job per id with --cc, and print the job ids."""
    jobs = submissions_of(options)
    if options.values["dry_run"]:
        for job in jobs:
            print_line(json.dumps(job["jobspec"]))
        return
    done = send(client, jobs, options.values["queue"] or "")
    if output_format == "json":
        print_json({"jobs": done})
        return
    for job in done:
        print_line(printable(job["id"]))


def send(client: ApiClient, jobs: list[dict[str, Any]], queue: str = "") -> list[Doc]:
    """Submits jobs; returns a document with the id of each, in order."""
    from secrets import token_hex

    client.remember("queue", queue)
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
    finally:
        progress.close()
    return submitted
