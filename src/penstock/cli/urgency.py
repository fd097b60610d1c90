"""`penstock hold`, `release` and `urgency`: change the urgency of pending jobs."""

from __future__ import annotations

import click

from penstock.cli.client import ApiClient, Doc, job_path
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.job_names import job_ids
from penstock.cli.jobspecs import parse_urgency
from penstock.cli.terminal import print_json, print_line
from penstock.model.job import URGENCY_DEFAULT, URGENCY_EXPEDITE, URGENCY_HOLD

__all__ = ["hold", "release", "urgency"]


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("ids", nargs=-1, required=True)
def hold(client: ApiClient, ids: tuple[str, ...], output_format: str) -> None:
    """Hold pending jobs: they do not start until `penstock release`."""
    _change(client, ids, URGENCY_HOLD, output_format)


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("ids", nargs=-1, required=True)
def release(client: ApiClient, ids: tuple[str, ...], output_format: str) -> None:
    """Release held jobs: they get the default urgency and may start."""
    _change(client, ids, URGENCY_DEFAULT, output_format)


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.argument("id_", metavar="ID")
@click.argument("value", metavar="URGENCY")
@click.option("-v", "--verbose", is_flag=True, help="Print the previous urgency.")
def urgency(client: ApiClient, id_: str, value: str, verbose: bool, output_format: str) -> None:
    """Set the urgency of a pending job: 0 to 31, hold, default or expedite."""
    (answer,) = _change(client, (id_,), parse_urgency(value), output_format)
    if verbose and output_format != "json":
        words = {URGENCY_HOLD: "job held", URGENCY_EXPEDITE: "job expedited"}
        print_line(words.get(answer["urgency"], f"old urgency: {answer['old']}"))


def _change(client: ApiClient, ids: tuple[str, ...], value: int, output_format: str) -> list[Doc]:
    jobs = job_ids(client, ids)
    answers = [client.post(job_path(job, "urgency"), {"urgency": value}) for job in jobs]
    if output_format == "json":
        print_json({"jobs": [{"id": text, **answer} for text, answer in zip(jobs, answers, strict=True)]})
    return answers
