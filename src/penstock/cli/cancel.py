"""`penstock cancel`: cancels jobs by id, or all jobs of given states or queues."""

from __future__ import annotations

import time
from typing import Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.job_names import job_ids
from penstock.cli.terminal import ProgressLine, print_error, print_json
from penstock.model.text import count_of

__all__ = ["cancel"]

_POLL_S: Final = 0.5
_IDS_PER_QUERY: Final = 500


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("ids", nargs=-1)
@click.option("--all", "all_jobs", is_flag=True, help="All jobs, or those in --states and --queue.")
@click.option(
    "-S",
    "--states",
    metavar="STATE,...",
    help="With --all: only jobs in these states (pending, running, sched, ...).",
)
@click.option("-q", "--queue", metavar="NAME", help="With --all: only jobs of this queue.")
@click.option("-m", "--message", metavar="NOTE", default="", help="Note for the job's eventlog.")
@click.option("--wait", is_flag=True, help="Wait until the jobs are inactive.")
def cancel(
    client: ApiClient,
    ids: tuple[str, ...],
    all_jobs: bool,
    states: str | None,
    queue: str | None,
    message: str,
    wait: bool,
    output_format: str,
) -> int:
    """Cancel jobs: pending jobs do not start, running jobs are terminated."""
    if bool(ids) == (all_jobs or states is not None):
        raise click.UsageError("no job ids (expected IDS or --all)")
    body: dict[str, object] = {"note": message}
    if ids:
        body["ids"] = list(job_ids(client, ids))
    else:
        client.remember("queue", queue or "")
        body["all"] = True
        if states:
            body["states"] = states.split(",")
        if queue:
            body["queue"] = queue
    response = client.post("/v1/jobs/cancel", body)
    if wait:
        _wait_for(client, response["canceled"])
    if output_format == "json":
        print_json(response)
    else:
        hint = client.did_you_mean() if ids and response["errors"] else ""
        for error in response["errors"]:
            print_error(f"{error['id']}: {error['message']}" + (f"; {hint}" if hint else ""))
        if not ids:
            count = len(response["canceled"])
            errors = count_of(len(response["errors"]), "error")
            print_error(f"Canceled {count_of(count, 'job')} ({errors})" if count else "Matched 0 jobs")
    return exits.FAILED if response["errors"] else exits.OK


def _wait_for(client: ApiClient, ids: list[str]) -> None:
    progress = ProgressLine("canceling", len(ids))
    active = list(ids)
    while active:
        still: list[str] = []
        for start in range(0, len(active), _IDS_PER_QUERY):
            part = ",".join(active[start : start + _IDS_PER_QUERY])
            found = client.get("/v1/jobs", ids=part, states="active", limit=_IDS_PER_QUERY)
            still += [job["id"] for job in found["jobs"]]
        active = still
        progress.show(len(ids) - len(active))
        if active:
            time.sleep(_POLL_S)
    progress.close()
