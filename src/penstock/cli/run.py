"""`penstock run`: submit one job, stay with it, end as it ends."""

from __future__ import annotations

import json
import sys

import click

from penstock.cli.client import ApiClient
from penstock.cli.group import SETTINGS, with_client
from penstock.cli.job_options import JobOptions, job_options, submissions_of
from penstock.cli.submit import send
from penstock.cli.terminal import say

__all__ = ["run"]


@click.command(context_settings={**SETTINGS, "allow_interspersed_args": False})
@with_client
@job_options
def run(client: ApiClient, options: JobOptions) -> int:
    """Run COMMAND as a job: wait for it, show what it prints, and exit with its code.

    TERM, HUP, ALRM, USR1 and USR2 are passed on to the tasks. One ctrl-C warns, a second within 2 seconds
    cancels the job, ctrl-Z instead leaves it alone. Standard input is not passed on: tasks read nothing.
    """
    jobs = submissions_of(options)
    if options.values["dry_run"]:
        for job in jobs:
            say(json.dumps(job["jobspec"]))
        return 0
    if len(jobs) != 1:
        raise click.UsageError("run takes one job; submit takes --cc with many ids")
    from penstock.cli.attach import attach_to

    done = send(client, jobs, options.values["queue"] or "")
    sys.stdout.flush()
    return attach_to(client, done[0]["id"], label=options.values["label_io"])
