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

    [kube]
    scheduler_names = ["penstock", "fluence", "fluxnetes"]
    topology_levels = "rack=example.com/rack"      # besides regions and zones
    assembly_timeout = "1h"            # how long a group may wait for its members
    limit_default = "1h"       # to plan with where nobody says how long; never enforced
    lease_namespace = "penstock-system"
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Final

import msgspec

from penstock.app.kube_options import KubeOptions
from penstock.backends.kube.settings import KubeSettings
from penstock.engine import parse_policy
from penstock.errors import BadRequest
from penstock.model.constraint import parse_constraint
from penstock.model.document import parse_document
from penstock.model.duration import parse_duration
from penstock.podspec.nodes import parse_topology_levels
from penstock.sched.settings import DEFAULT_QUEUE, QueueSettings, Settings, parse_backfill
from penstock.store.port import Retention

__all__ = ["Configuration", "read_configuration"]

_SIZE_MAX: Final = 1 << 20
_BINDS_MAX: Final = 1024


class _Retention(msgspec.Struct, forbid_unknown_fields=True):
    days: float | None = 30
    jobs: int | None = 1_000_000


class _Queue(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    policy: str = ""
    duration_default: str = ""
    duration_max: str = ""
    requires: dict[str, object] | None = None


class _Kube(msgspec.Struct, forbid_unknown_fields=True):
    scheduler_names: list[str] = msgspec.field(default_factory=lambda: list(KubeSettings().scheduler_names))
    topology_levels: str = ""
    assembly_timeout: str = "1h"
    limit_default: str = ""
    binds_in_flight: int = 64
    lease_namespace: str = "penstock-system"
    lease_name: str = "penstock"
    audit_every: str = "1m"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    policy: str = "easy"
    match_policy: str = "lonode"
    queue_depth: int | None = None
    forecast_depth: int = 100
    lost_timeout: str = "30s"
    grace: str = "5s"
    retention: _Retention = msgspec.field(default_factory=_Retention)
    queues: list[_Queue] = []
    kube: _Kube = msgspec.field(default_factory=_Kube)
    gang_repair_timeout: str = "2m"


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: Settings
    retention: Retention
    kube: KubeOptions = field(default_factory=KubeOptions)


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
        lost_timeout_s=parse_duration(told.lost_timeout),
        grace_s=parse_duration(told.grace),
        gang_repair_timeout_s=parse_duration(told.gang_repair_timeout),
    )
    days = told.retention.days
    retention = Retention(None if days is None else days * 86400.0, told.retention.jobs)
    return Configuration(settings, retention, _kube(told.kube, settings))


def _kube(told: _Kube, settings: Settings) -> KubeOptions:
    if (
        not told.scheduler_names
        or not all(told.scheduler_names)
        or "default-scheduler" in told.scheduler_names
    ):
        raise BadRequest(
            "not names of our own",
            where="kube.scheduler_names",
            found=", ".join(told.scheduler_names),
            expected="at least one, and not default-scheduler",
        )
    if not 1 <= told.binds_in_flight <= _BINDS_MAX:
        raise BadRequest(
            "out of range",
            where="kube.binds_in_flight",
            found=str(told.binds_in_flight),
            expected=f"1 to {_BINDS_MAX}",
        )
    return KubeOptions(
        settings=KubeSettings(
            scheduler_names=tuple(told.scheduler_names),
            topology_levels=parse_topology_levels(told.topology_levels),
            queues=tuple(queue.name for queue in settings.queues),
            assembly_timeout_s=parse_duration(told.assembly_timeout),
            limit_default_s=_seconds(told.limit_default),
            binds_in_flight_max=told.binds_in_flight,
        ),
        lease_namespace=told.lease_namespace,
        lease_name=told.lease_name,
        audit_every_s=parse_duration(told.audit_every),
    )


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
