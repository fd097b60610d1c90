"""Waits until jobs are inactive, for `job wait` and `submit --wait`, and reports how they ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from penstock.cli import exits
from penstock.cli.client import ApiClient, Doc, job_path
from penstock.cli.fields import job_field
from penstock.cli.terminal import print_error

__all__ = ["exit_code", "wait_for_jobs"]

_STEP_S: Final = 30.0


def wait_for_jobs(
    client: ApiClient, ids: Iterable[str], timeout_s: float | None, *, quiet: bool = False
) -> tuple[int, list[Doc]]:
    """Waits for all jobs; returns the largest of their exit codes, and their documents.

    Prints one line for each job that did not complete, unless `quiet`. A job that is still active after the
    timeout is always reported, and counts as failed.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found: list[Doc] = []
    code = exits.OK
    for id_ in ids:
        job = _wait_for(client, id_, deadline)
        found.append(job)
        if job["state"] != "INACTIVE":
            print_error(f"{id_}: still {job['state']} after {timeout_s:g}s")
            code = max(code, exits.FAILED)
        elif job["result"] != "COMPLETED":
            if not quiet:
                print_error(f"{id_}: {job_field(job, 'inactive_reason', 0.0)}")
            code = max(code, exit_code(job), exits.FAILED)
    return code, found


def exit_code(job: Doc) -> int:
    """As in Flux: the job's exit code, or 128 + signal, or 1 if it never ran or had a fatal exception."""
    status = job.get("waitstatus")
    if status is None:
        return exits.FAILED
    if status & 0x7F:
        return 128 + int(status & 0x7F)
    code = int(status >> 8)
    exception = job.get("exception") or {}
    if code == 0 and exception.get("occurred") and exception.get("severity") == 0:
        return exits.FAILED
    return code


def _wait_for(client: ApiClient, id_: str, deadline: float | None) -> Doc:
    while True:
        remaining_s = _STEP_S if deadline is None else max(0.0, deadline - time.monotonic())
        found = client.get(job_path(id_, "wait"), timeout_s=min(remaining_s, _STEP_S))
        if found["state"] == "INACTIVE" or (deadline is not None and time.monotonic() >= deadline):
            return found
