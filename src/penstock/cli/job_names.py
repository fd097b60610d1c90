"""Jobs by name: every command that takes a job id also takes NAMESPACE/NAME, as `kubectl` users write it.

A name stands for the active job that has it, else for the last one that had it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.cli.client import ApiClient
from penstock.errors import BadRequest
from penstock.model.jobid import parse_jobid

__all__ = ["job_id", "job_ids"]

_JOBS_MAX: Final = 100


def job_ids(client: ApiClient, texts: Iterable[str]) -> tuple[str, ...]:
    """The ids of jobs that are given as ids or names; ids are checked only for their form."""
    return tuple(job_id(client, text) for text in texts)


def job_id(client: ApiClient, text: str) -> str:
    namespace, slash, name = text.partition("/")
    if not slash:
        parse_jobid(text)
        client.remember("job", text)
        return text
    if not namespace or not name:
        raise BadRequest("not a job", where="ID", found=repr(text), expected="a job id, or NAMESPACE/NAME")
    found = client.get("/v1/jobs", owner=namespace, name=name, states="active", limit=_JOBS_MAX)["jobs"]
    if len(found) > 1:
        ids = ", ".join(job["id"] for job in found)
        raise BadRequest("several active jobs have this name", where="ID", found=repr(text), expected=ids)
    if not found:
        found = client.get("/v1/jobs", owner=namespace, name=name, states="inactive", limit=1)["jobs"]
    if not found:
        raise BadRequest("no such job", where="ID", found=repr(text), expected="see `penstock jobs -a`")
    return str(found[0]["id"])
