"""`penstock run`: submits one job, shows its output, and exits with its exit code."""

from __future__ import annotations

import json
import sys

import click

from penstock.cli.client import ApiClient
from penstock.cli.group import SETTINGS, with_client
from penstock.cli.job_options import JobOptions, job_options, submissions_of
from penstock.cli.submit import send
from penstock.cli.terminal import print_line

__all__ = ["run"]


@click.command(context_settings={**SETTINGS, "allow_interspersed_args": False})
@with_client
@job_options
def run(client: ApiClient, options: JobOptions) -> int:
    """Run COMMAND as a job: submit it, show its output, and exit with its exit code.

    TERM, HUP, ALRM, USR1 and USR2 are forwarded to the tasks. After one ctrl-C, a second ctrl-C within 2
    seconds cancels the job, and ctrl-Z detaches from it. Standard input is not forwarded to the tasks.
    """
    jobs = submissions_of(options)
    if options.values["dry_run"]:
        for job in jobs:
            print_line(json.dumps(job["jobspec"]))
        return 0
    if len(jobs) != 1:
        raise click.UsageError("run starts one job; use submit for --cc with several ids")
    from penstock.cli.attach import attach_to

    done = send(client, jobs, options)
    sys.stdout.flush()
    return attach_to(client, done[0]["id"], label=options.values["label_io"])
