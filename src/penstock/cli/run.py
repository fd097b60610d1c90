"""`penstock run`: submits one job, shows its output, and exits with its exit code."""

from __future__ import annotations

import json
import sys

import click

from penstock.cli.client import ApiClient
from penstock.cli.group import SETTINGS, json_lines_option, with_client
from penstock.cli.input_sender import InputSender, has_input
from penstock.cli.job_options import JobOptions, job_options, submissions_of
from penstock.cli.jobspecs import parse_input
from penstock.cli.submit import send
from penstock.cli.terminal import print_line, shows_unicode

__all__ = ["run"]


@click.command(context_settings={**SETTINGS, "allow_interspersed_args": False})
@with_client
@job_options
@json_lines_option
def run(client: ApiClient, options: JobOptions, output_format: str) -> int:
    """Run COMMAND as a job: submit it, show its output, and exit with its exit code.

    Standard input goes to all tasks, or to those of --input=RANKS; with --input=none to no task. TERM, HUP,
    ALRM, USR1 and USR2 are forwarded to the tasks. After one ctrl-C, a second ctrl-C within 2 seconds cancels
    the job, and ctrl-Z detaches from it.
    """
    values = options.values
    if values["input"] is None and has_input() and not values["jobspec_file"]:
        values["input"] = "all"
    forwards_input = parse_input(values["input"] or "").get("type") == "service"
    if forwards_input and values["jobspec_file"]:
        raise click.UsageError("--input: not allowed with --jobspec; set shell.options.input in the jobspec")
    jobs = submissions_of(options)
    if values["dry_run"]:
        for job in jobs:
            print_line(json.dumps(job["jobspec"]))
        return 0
    if len(jobs) != 1:
        raise click.UsageError("run starts one job; use submit for --cc with several ids")
    from penstock.cli.attach import attach_to

    done = send(client, jobs, options)
    as_json = output_format == "json"
    if as_json:
        print_line(json.dumps({"event": "submitted", "data": done[0]}, ensure_ascii=not shows_unicode()))
    sys.stdout.flush()
    sender = InputSender(client, done[0]["id"]) if forwards_input else None
    return attach_to(client, done[0]["id"], label=values["label_io"], sender=sender, as_json=as_json)
