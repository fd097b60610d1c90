"""What an instance is started with: options of the command, and a file for queues and limits.

The file is TOML. Unknown keys are errors, because a misspelt limit that is silently ignored is worse than
none.

    policy = "easy"            # or fcfs, hybrid, hybrid:8, conservative
    match_policy = "lonode"
    queue_depth = 1000
    forecast_depth = 100

    [retention]
    days = 30
    jobs = 1000000

    [[queues]]
    name = "batch"
    policy = "hybrid:8"
    duration_default = "30m"
    duration_max = "1d"
    requires = {properties = ["gpu"]}
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

import msgspec

from penstock.engine import parse_policy
from penstock.errors import BadRequest
from penstock.model.constraint import parse_constraint
from penstock.model.document import parse_document
from penstock.model.duration import parse_duration
from penstock.sched.settings import DEFAULT_QUEUE, QueueSettings, Settings, parse_backfill
from penstock.store.port import Retention

__all__ = ["Configuration", "read_configuration"]

_SIZE_MAX: Final = 1 << 20


class _Retention(msgspec.Struct, forbid_unknown_fields=True):
    days: float | None = 30
    jobs: int | None = 1_000_000


class _Queue(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    policy: str = ""
    duration_default: str = ""
    duration_max: str = ""
    requires: dict[str, object] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    policy: str = "easy"
    match_policy: str = "lonode"
    queue_depth: int | None = None
    forecast_depth: int = 100
    lost: str = "30s"
    grace: str = "5s"
    retention: _Retention = msgspec.field(default_factory=_Retention)
    queues: list[_Queue] = []


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: Settings
    retention: Retention


def read_configuration(
    path: Path | None, *, policy: str = "", match_policy: str = "", queue_depth: int | None = None
) -> Configuration:
    """The file, if there is one; what the command says itself counts more."""
    if policy:
        parse_backfill(policy)
    if match_policy:
        parse_policy(match_policy)
    told = _read(path) if path is not None else _File()
    try:
        return _configuration(told, policy, match_policy, queue_depth)
    except BadRequest as error:
        if path is None:
            raise
        where = f"{path}: {error.where}" if error.where else str(path)
        raise BadRequest(error.summary, where=where, found=error.found, expected=error.expected) from error


def _configuration(told: _File, policy: str, match_policy: str, queue_depth: int | None) -> Configuration:
    fallback = policy or told.policy
    parse_policy(match_policy or told.match_policy)
    depth = queue_depth if queue_depth is not None else told.queue_depth
    for name, value, least in (("queue_depth", depth, 1), ("forecast_depth", told.forecast_depth, 0)):
        if value is not None and value < least:
            raise BadRequest("too small", where=name, found=str(value), expected=f"{least} or more")
    queues = tuple(_queue(queue, fallback) for queue in told.queues)
    names = [queue.name for queue in queues]
    if len(set(names)) != len(names):
        raise BadRequest("a queue twice", where="queues", found=", ".join(names), expected="each name once")
    settings = Settings(
        queues=queues or (QueueSettings(DEFAULT_QUEUE, parse_backfill(fallback)),),
        match_policy=match_policy or told.match_policy,
        queue_depth=depth,
        forecast_depth=told.forecast_depth,
        lost_s=parse_duration(told.lost),
        grace_s=parse_duration(told.grace),
    )
    days = told.retention.days
    return Configuration(settings, Retention(None if days is None else days * 86400.0, told.retention.jobs))


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as stream:
            text = stream.read(_SIZE_MAX + 1)
    except OSError as error:
        raise BadRequest("the file cannot be read", where=str(path), found=error.strerror or "") from error
    if len(text) > _SIZE_MAX:
        raise BadRequest("the file is too large", where=str(path), expected=f"at most {_SIZE_MAX} bytes")
    try:
        return msgspec.convert(tomllib.loads(text.decode("utf-8")), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadRequest("not a configuration", where=str(path), found=str(error)) from error


def _queue(queue: _Queue, fallback: str) -> QueueSettings:
    where = f"queues.{queue.name}"
    if not queue.name or any(not (letter.isalnum() or letter in "-_.") for letter in queue.name):
        raise BadRequest(
            "not a queue's name", where=where, found=repr(queue.name), expected="letters, digits, - _ ."
        )
    constraint = None
    text = json.dumps(queue.requires) if queue.requires else ""
    if text:
        constraint = parse_constraint(parse_document(text))
    return QueueSettings(
        name=queue.name,
        backfill=parse_backfill(queue.policy or fallback),
        duration_default_s=_seconds(queue.duration_default),
        duration_max_s=_seconds(queue.duration_max),
        constraint=constraint,
        constraint_text=text,
    )


def _seconds(text: str) -> int | None:
    return ceil(parse_duration(text)) if text else None
