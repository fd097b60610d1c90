"""`penstock cancel`: ends jobs, by id or all of a kind."""

from __future__ import annotations

import time
from typing import Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import ProgressLine, complain, say_json
from penstock.model.jobid import parse_jobid

__all__ = ["cancel"]

_ASK_S: Final = 0.5
_IDS_A_QUERY: Final = 500


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All jobs (of --states, of --queue).")
@click.option("-S", "--states", metavar="STATE,...", help="With --all: pending, running, sched, ...")
@click.option("-q", "--queue", metavar="NAME", help="With --all: jobs of this queue.")
@click.option("-m", "--message", metavar="NOTE", default="", help="A note that the job's log keeps.")
@click.option("--wait", is_flag=True, help="Return when the jobs have ended.")
def cancel(
    client: ApiClient,
    ids: tuple[str, ...],
    everything: bool,
    states: str | None,
    queue: str | None,
    message: str,
    wait: bool,
    output_format: str,
) -> int:
    """Cancel jobs: pending ones never start, running ones are ended."""
    if bool(ids) == (everything or states is not None):
        raise click.UsageError("name job ids, or say --all")
    body: dict[str, object] = {"note": message}
    if ids:
        for text in ids:
            parse_jobid(text)
        client.meant("job", *ids)
        body["ids"] = list(ids)
    else:
        client.meant("queue", queue or "")
        body["all"] = True
        if states:
            body["states"] = states.split(",")
        if queue:
            body["queue"] = queue
    answer = client.post("/v1/jobs/cancel", body)
    if wait:
        _wait_for(client, answer["canceled"])
    if output_format == "json":
        say_json(answer)
    else:
        hint = client.did_you_mean() if ids and answer["errors"] else ""
        for error in answer["errors"]:
            complain(f"{error['id']}: {error['message']}" + (f"; {hint}" if hint else ""))
        if not ids:
            count = len(answer["canceled"])
            words = f"Canceled {count} jobs ({len(answer['errors'])} errors)" if count else "Matched 0 jobs"
            complain(words)
    return exits.FAILED if answer["errors"] else exits.OK


def _wait_for(client: ApiClient, ids: list[str]) -> None:
    progress = ProgressLine("ending", len(ids))
    left = list(ids)
    while left:
        still: list[str] = []
        for start in range(0, len(left), _IDS_A_QUERY):
            part = ",".join(left[start : start + _IDS_A_QUERY])
            found = client.get("/v1/jobs", ids=part, states="active", limit=_IDS_A_QUERY)
            still += [job["id"] for job in found["jobs"]]
        left = still
        progress.show(len(ids) - len(left))
        if left:
            time.sleep(_ASK_S)
    progress.close()
