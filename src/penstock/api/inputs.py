"""The standard input that a client sends to a running or pending job.

A request names the position of its first byte, so it can be repeated after a lost response or a restart of
the instance: bytes that are already stored are skipped. No more than `WINDOW_BYTES` are stored beyond what
the slowest task has read; a request waits for room, and accepts as much as there is. What all tasks have read
is removed, unless the job may be requeued: its next attempt reads the input from the beginning, so its input
is limited to the window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from penstock.agent.input_spool import WINDOW_BYTES, InputSpool
from penstock.api.job_records import JobRecords
from penstock.api.requests import InputRequest
from penstock.api.responses import InputResult
from penstock.errors import Conflict
from penstock.model.idset import parse_idset
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.sched.jobspec import ALL_RANKS, payload_of
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import JobNew, MemberRecord

__all__ = ["InputPaths", "write_input"]

# From a job id and members (key and index) to the spool directory and the position file of each member.
InputPaths: TypeAlias = Callable[[int, Iterable[tuple[str, int]]], tuple[Path, list[Path]]]

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.1


async def write_input(
    records: JobRecords, job: int, request: InputRequest, paths: InputPaths | None
) -> InputResult:
    """Stores input for the tasks of a job; returns how much of it the job has by now."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _WAIT_S
    while True:
        found, members = await records.with_members(job)
        ranks = _ranks(found.new)
        if paths is None or not ranks:
            raise Conflict(f"{encode_jobid(job)} does not read standard input from its client")
        if found.live.state is JobState.INACTIVE:
            raise Conflict(f"{encode_jobid(job)}: job is inactive")
        directory, positions = paths(job, _readers(members, ranks))
        spool = InputSpool(directory)
        is_kept = found.new.spec.get("requeue", "never") != "never"
        is_over = bool(members) and not positions  # All tasks that would read it have ended.
        read = spool.size if is_over else spool.position(positions) or 0
        result = _store(spool, request, read, is_kept)
        if result is not None:
            return result
        if loop.time() >= deadline:
            return InputResult(spool.size, spool.has_ended)
        await asyncio.sleep(_POLL_S)


def _ranks(new: JobNew) -> str:
    text = new.spec.get("jobspec")
    return str(payload_of(text)["stdin"]) if isinstance(text, str) else ""


def _readers(members: Sequence[MemberRecord], ranks: str) -> list[tuple[str, int]]:
    wanted = None if ranks == ALL_RANKS else set(parse_idset(ranks))
    return [
        (member.key, member.index)
        for member in members
        if member.phase is not MemberPhase.ENDED and (wanted is None or member.index in wanted)
    ]


def _store(spool: InputSpool, request: InputRequest, read: int, is_kept: bool) -> InputResult | None:
    """Stores what there is room for; None: there is no room yet. `read` bytes are needed no more."""
    size = spool.size
    if request.offset > size:
        raise Conflict(f"input at byte {request.offset}, but the job has only {size} bytes: some were lost")
    data = request.data[size - request.offset :]
    if spool.has_ended:
        if data:
            raise Conflict("the input of the job has ended")
        return InputResult(size, ended=True)
    if is_kept:
        room = WINDOW_BYTES - size
        if data and room <= 0:
            raise Conflict(
                f"a job that may be requeued reads at most {WINDOW_BYTES >> 20} MiB from its client;"
                " use --input FILE"
            )
    else:
        room = WINDOW_BYTES - (size - read)
        spool.discard(read)
    if data and room <= 0:
        return None
    spool.append(data[:room])
    if request.end and len(data) <= room:
        spool.end()
    return InputResult(spool.size, spool.has_ended)
