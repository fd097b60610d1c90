"""The configuration of an instance: options of `penstock start` and a TOML file.

An unknown key is an error that lists the valid keys, because a misspelt limit must not be ignored silently.

    policy = "easy"              # queue policy: fcfs, easy, hybrid, hybrid:8, conservative
    match_policy = "lonode"      # order in which nodes are tried
    queue_depth = 1000           # jobs per queue that one cycle considers; default: all
    forecast_depth = 100         # pending jobs that get a forecast start
    reservation_horizon = "7d"   # a start later than this is only forecast, and delays no other job
    lost_timeout = "30s"         # a node without contact for this long is lost
    grace = "5s"                 # between SIGTERM and SIGKILL of a task
    starvation_after = "10m"     # a job without a start time that waits this long claims nodes
    claim_backfill_max = "10m"   # longest enforced limit of jobs that may use claimed nodes meanwhile
    gang_repair_timeout = "2m"   # how long members of a started gang may wait before it is reported
    replacement_timeout = "11m"  # how long the slot of a failed pod is kept for its replacement

    [retention]                  # of inactive jobs
    days = 30
    jobs = 1000000
    output_days = 30             # of their output in the state directory; not of files that users have named

    [[queues]]                   # the first queue is the default
    name = "batch"
    policy = "hybrid:8"
    duration_default = "30m"     # of submitted jobs without a limit; does not apply to pods
    duration_max = "1d"          # longest limit; of pods without a limit it is the limit, and is enforced
    requires = {properties = ["gpu"]}
    namespaces = ["team-*"]      # shell patterns: whose pods may use it; default: all
    urgency_max = 16             # of pods; operators may set any urgency
    pending_max = 10000          # pending workloads of one namespace; the newest beyond it wait outside

    [[namespaces]]               # the first entry that matches a namespace counts
    name = "team-*"              # shell pattern
    queue = "batch"              # of its pods that name none, instead of the first queue

    [limits]                     # of one namespace
    shapes_max = 500             # distinct requests of its pending workloads
    exclusion_keys_max = 200     # host ports and anti-affinity rules of its waiting pods
    group_size_max = 16384       # members of one group or job

    [kube]
    scheduler_names = ["penstock", "fluence", "fluxnetes"]
    topology_levels = "rack=example.com/rack"   # in addition to regions and zones; default: none
    assembly_timeout = "1h"      # how long a group may wait for its members
    limit_default = "1h"         # planned duration of pods without a time limit, not enforced; default: none
    binds_in_flight = 64         # concurrent bind requests
    lease_namespace = "penstock-system"
    lease_name = "penstock"
    audit_every = "1m"           # interval of the auditor
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
from penstock.model.duration import BadDuration, parse_duration
from penstock.model.job import URGENCY_DEFAULT, URGENCY_EXPEDITE
from penstock.podspec.nodes import parse_topology_levels
from penstock.sched.settings import DEFAULT_QUEUE, QueueSettings, Settings, parse_backfill
from penstock.store.port import Retention

__all__ = ["Configuration", "read_configuration"]

_SIZE_MAX: Final = 1 << 20
_BINDS_MAX: Final = 1024
_LIMIT_MAX: Final = 1_000_000


class _Retention(msgspec.Struct, forbid_unknown_fields=True):
    days: float | None = 30
    jobs: int | None = 1_000_000
    output_days: float = 30


class _Queue(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    policy: str = ""
    duration_default: str = ""
    duration_max: str = ""
    requires: dict[str, object] | None = None
    namespaces: list[str] = msgspec.field(default_factory=lambda: ["*"])
    urgency_max: int = URGENCY_DEFAULT
    pending_max: int = QueueSettings("").pending_max


class _Limits(msgspec.Struct, forbid_unknown_fields=True):
    shapes_max: int = Settings().shapes_max
    exclusion_keys_max: int = KubeSettings().exclusion_keys_max
    group_size_max: int = Settings().group_size_max


class _Namespace(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    queue: str


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
    reservation_horizon: str = "7d"
    lost_timeout: str = "30s"
    grace: str = "5s"
    retention: _Retention = msgspec.field(default_factory=_Retention)
    queues: list[_Queue] = []
    namespaces: list[_Namespace] = []
    limits: _Limits = msgspec.field(default_factory=_Limits)
    kube: _Kube = msgspec.field(default_factory=_Kube)
    gang_repair_timeout: str = "2m"
    starvation_after: str = "10m"
    claim_backfill_max: str = "10m"
    replacement_timeout: str = "11m"


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: Settings
    retention: Retention
    kube: KubeOptions = field(default_factory=KubeOptions)


def read_configuration(
    path: Path | None, *, policy: str = "", match_policy: str = "", queue_depth: int | None = None
) -> Configuration:
    """Reads the file, if one is given. Arguments, which are command options, override it."""
    for option, value, parse in (
        ("--policy", policy, parse_backfill),
        ("--match-policy", match_policy, parse_policy),
    ):
        try:
            if value:
                parse(value)
        except BadRequest as error:
            raise error.at(option) from None
    file = _read(path) if path is not None else _File()
    try:
        return _configuration(file, policy, match_policy, queue_depth)
    except BadRequest as error:
        if path is None:
            raise
        raise error.at(f"{path}: {error.where}" if error.where else str(path)) from error


def _configuration(file: _File, policy: str, match_policy: str, queue_depth: int | None) -> Configuration:
    default_policy = policy or file.policy
    parse_policy(match_policy or file.match_policy)
    depth = queue_depth if queue_depth is not None else file.queue_depth
    for name, value, minimum in (("queue_depth", depth, 1), ("forecast_depth", file.forecast_depth, 0)):
        if value is not None and value < minimum:
            raise BadRequest("too small", where=name, found=str(value), expected=f"{minimum} or more")
    for name in _Limits.__struct_fields__:
        _check_range(f"limits.{name}", getattr(file.limits, name), 1, _LIMIT_MAX)
    queues = tuple(_queue(queue, default_policy) for queue in file.queues)
    names = [queue.name for queue in queues]
    if len(set(names)) != len(names):
        raise BadRequest("duplicate queue", where="queues", found=", ".join(names), expected="each name once")
    settings = Settings(
        queues=queues or (QueueSettings(DEFAULT_QUEUE, parse_backfill(default_policy)),),
        match_policy=match_policy or file.match_policy,
        queue_depth=depth,
        forecast_depth=file.forecast_depth,
        reservation_horizon_s=_positive("reservation_horizon", file.reservation_horizon),
        lost_timeout_s=_duration("lost_timeout", file.lost_timeout),
        grace_s=_duration("grace", file.grace),
        gang_repair_timeout_s=_duration("gang_repair_timeout", file.gang_repair_timeout),
        starvation_after_s=_duration("starvation_after", file.starvation_after),
        claim_backfill_max_s=_duration("claim_backfill_max", file.claim_backfill_max),
        replacement_timeout_s=_duration("replacement_timeout", file.replacement_timeout),
        shapes_max=file.limits.shapes_max,
        group_size_max=file.limits.group_size_max,
    )
    return Configuration(settings, _retention(file.retention), _kube(file, settings))


def _retention(section: _Retention) -> Retention:
    for name in _Retention.__struct_fields__:
        value = getattr(section, name)
        if value is not None and not value >= 0:
            raise BadRequest("too small", where=f"retention.{name}", found=str(value), expected="0 or more")
    age_s = None if section.days is None else section.days * 86400.0
    return Retention(age_s, section.jobs, section.output_days * 86400.0)


def _kube(file: _File, settings: Settings) -> KubeOptions:
    section = file.kube
    if (
        not section.scheduler_names
        or not all(section.scheduler_names)
        or "default-scheduler" in section.scheduler_names
    ):
        raise BadRequest(
            "invalid scheduler names",
            where="kube.scheduler_names",
            found=", ".join(section.scheduler_names),
            expected="at least one name, none of them default-scheduler",
        )
    _check_range("kube.binds_in_flight", section.binds_in_flight, 1, _BINDS_MAX)
    return KubeOptions(
        settings=KubeSettings(
            scheduler_names=tuple(section.scheduler_names),
            topology_levels=parse_topology_levels(section.topology_levels),
            queues=tuple(queue.rules for queue in settings.queues),
            default_queues=_default_queues(file.namespaces, settings),
            group_size_max=settings.group_size_max,
            exclusion_keys_max=file.limits.exclusion_keys_max,
            assembly_timeout_s=_duration("kube.assembly_timeout", section.assembly_timeout),
            limit_default_s=_seconds("kube.limit_default", section.limit_default),
            binds_in_flight_max=section.binds_in_flight,
        ),
        lease_namespace=section.lease_namespace,
        lease_name=section.lease_name,
        audit_every_s=_duration("kube.audit_every", section.audit_every),
    )


def _default_queues(entries: list[_Namespace], settings: Settings) -> tuple[tuple[str, str], ...]:
    known = [queue.name for queue in settings.queues]
    for entry in entries:
        if entry.queue not in known:
            where = f"namespaces.{entry.name}.queue"
            raise BadRequest(
                "no such queue", where=where, found=repr(entry.queue), expected=f"one of {', '.join(known)}"
            )
    return tuple((entry.name, entry.queue) for entry in entries)


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as stream:
            text = stream.read(_SIZE_MAX + 1)
    except OSError as error:
        raise BadRequest("cannot read the file", where=str(path), found=error.strerror or "") from error
    if len(text) > _SIZE_MAX:
        raise BadRequest("the file is too large", where=str(path), expected=f"at most {_SIZE_MAX} bytes")
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadRequest("not a TOML file", where=str(path), found=str(error)) from error
    _check_keys(path, document)
    try:
        return msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        # "Expected `array`, got `object` - at `$.queues`"
        problem, _, place = str(error).replace("`", "").partition(" - at ")
        key = place.removeprefix("$").removeprefix(".")
        summary = problem[:1].lower() + problem[1:]
        raise BadRequest(summary, where=f"{path}: {key}" if key else str(path)) from error


def _check_keys(path: Path, document: dict[str, object]) -> None:
    """Refuses an unknown key and lists the valid ones. Wrong types are left to the conversion."""
    sections: list[tuple[str, object, type[msgspec.Struct]]] = [
        ("", document, _File),
        ("retention.", document.get("retention"), _Retention),
        ("kube.", document.get("kube"), _Kube),
        ("limits.", document.get("limits"), _Limits),
    ]
    tables: tuple[tuple[str, type[msgspec.Struct]], ...] = (("queues", _Queue), ("namespaces", _Namespace))
    for name, table in tables:
        entries = document.get(name)
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            sections.append((f"{name}[{number}].", entry, table))
    for prefix, section, struct in sections:
        valid = struct.__struct_fields__
        for key in section if isinstance(section, dict) else ():
            if key not in valid:
                raise BadRequest(
                    "unknown key",
                    where=f"{path}: {prefix}{key}",
                    expected=f"one of {', '.join(sorted(valid))}",
                )


def _queue(queue: _Queue, default_policy: str) -> QueueSettings:
    where = f"queues.{queue.name}"
    if not queue.name or any(not (letter.isalnum() or letter in "-_.") for letter in queue.name):
        raise BadRequest(
            "invalid queue name", where=where, found=repr(queue.name), expected="letters, digits, - _ ."
        )
    if not queue.namespaces or not all(queue.namespaces):
        raise BadRequest(
            "invalid namespaces",
            where=f"{where}.namespaces",
            found=json.dumps(queue.namespaces),
            expected='at least one name or pattern, such as ["team-*"]',
        )
    _check_range(f"{where}.urgency_max", queue.urgency_max, 0, URGENCY_EXPEDITE)
    _check_range(f"{where}.pending_max", queue.pending_max, 1, _LIMIT_MAX)
    constraint = None
    text = json.dumps(queue.requires) if queue.requires else ""
    if text:
        constraint = parse_constraint(parse_document(text))
    return QueueSettings(
        name=queue.name,
        backfill=parse_backfill(queue.policy or default_policy),
        duration_default_s=_seconds(f"{where}.duration_default", queue.duration_default),
        duration_max_s=_seconds(f"{where}.duration_max", queue.duration_max),
        constraint=constraint,
        constraint_text=text,
        namespaces=tuple(queue.namespaces),
        urgency_max=queue.urgency_max,
        pending_max=queue.pending_max,
    )


def _check_range(where: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        raise BadRequest("out of range", where=where, found=str(found), expected=f"{least} to {most}")


def _seconds(key: str, text: str) -> int | None:
    return ceil(_duration(key, text)) if text else None


def _positive(key: str, text: str) -> float:
    found = _duration(key, text)
    if found <= 0:
        raise BadRequest("too small", where=key, found=repr(text), expected="more than 0s")
    return found


def _duration(key: str, text: str) -> float:
    try:
        return parse_duration(text)
    except BadDuration as error:
        raise error.at(key) from None
