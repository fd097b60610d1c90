"""`penstock submit`: hands jobs in and prints one id a line.

Many jobs go in calls of 1000, so that the bar can move and no call is huge. Each call is all or none and
carries a key of its own: if the answer is lost, asking again gives the same ids.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from penstock.cli.client import ApiClient, Doc, StreamBroken
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.job_options import JobOptions, job_options, submissions_of
from penstock.cli.terminal import ProgressLine, say, say_json, shown

__all__ = ["send", "submit"]

_CHUNK: Final = 1000


@click.command(context_settings={**SETTINGS, "allow_interspersed_args": False})
@with_client
@job_options
@json_option
def submit(client: ApiClient, options: JobOptions, output_format: str) -> None:
    """Submit COMMAND as a job, or as many jobs with --cc, and print the ids."""
    jobs = submissions_of(options)
    if options.values["dry_run"]:
        for job in jobs:
            say(json.dumps(job["jobspec"]))
        return
    done = send(client, jobs, options.values["queue"] or "")
    if output_format == "json":
        say_json({"jobs": done})
        return
    for job in done:
        say(shown(job["id"]))


def send(client: ApiClient, jobs: list[dict[str, Any]], queue: str = "") -> list[Doc]:
    from secrets import token_hex

    client.meant("queue", queue)
    done: list[Doc] = []
    progress = ProgressLine("submitting", len(jobs))
    try:
        for start in range(0, len(jobs), _CHUNK):
            body = {"jobs": jobs[start : start + _CHUNK], "key": token_hex(12)}
            try:
                answer = client.post("/v1/jobs", body)
            except StreamBroken:
                answer = client.post("/v1/jobs", body)
            done += answer["jobs"]
            progress.show(len(done))
    finally:
        progress.close()
    return done
