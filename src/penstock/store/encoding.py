"""Typed records as JSON values, and back. Only stores know this encoding.

A table of PostgreSQL has a column for each field that a query selects or sorts by, and one `jsonb` column for
the rest. Fields with their default value are omitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from penstock.errors import Corrupt
from penstock.protocol.facts import WorkloadSet
from penstock.sched.records import JobRecord, MemberRecord

__all__ = ["decode_member", "decode_record", "encode_member", "encode_record"]

_MEMBER_COLUMNS: Final = ("key", "number", "index", "phase", "node", "slot")

T = TypeVar("T")


def _defaults(record: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in dataclasses.fields(record):
        if one.name not in _MEMBER_COLUMNS:
            make = one.default_factory
            found[one.name] = one.default if make is dataclasses.MISSING else make()
    return found


_JOB_DEFAULTS: Final = _defaults(JobRecord)
_MEMBER_DEFAULTS: Final = _defaults(MemberRecord)
_WORKLOAD_DEFAULTS: Final = _defaults(WorkloadSet)


def encode_record(record: JobRecord) -> dict[str, object]:
    document = _changed(record, _JOB_DEFAULTS)
    if record.workload is not None:
        document["workload"] = _changed(record.workload, _WORKLOAD_DEFAULTS)
    return document


def decode_record(document: object) -> JobRecord:
    return _decoded(document, JobRecord)


def encode_member(job: int, member: MemberRecord) -> dict[str, object]:
    """A row of the table `members`."""
    row: dict[str, object] = {"job": job, "data": _changed(member, _MEMBER_DEFAULTS)}
    for column in _MEMBER_COLUMNS:
        row[column] = getattr(member, column)
    return row


def decode_member(row: Mapping[str, Any]) -> MemberRecord:
    data = row["data"]
    if not isinstance(data, dict):
        raise Corrupt(f"a recorded MemberRecord is invalid: expected a JSON object, found {data!r}")
    return _decoded({**data, **{column: row[column] for column in _MEMBER_COLUMNS}}, MemberRecord)


def _changed(record: object, defaults: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value
        for name, default in defaults.items()
        if (value := getattr(record, name)) != default or type(value) is not type(default)
    }


def _decoded(document: object, record: type[T]) -> T:
    try:
        return msgspec.convert(document, record)
    except msgspec.ValidationError as error:
        raise Corrupt(f"a recorded {record.__name__} is invalid: {error}") from error
