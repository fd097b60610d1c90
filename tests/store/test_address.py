"""Addresses of databases: what is accepted, and that no text about them contains a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from penstock.errors import BadRequest
from penstock.store.address import check_address, mask_address

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", "embedded"),
        ("embedded", "embedded"),
        ("memory", "memory"),
        (f"postgresql://u:{SECRET}@db.example/jobs", "postgresql://u:***@db.example/jobs"),
        (f"postgres://u:{SECRET}@db:5433/jobs?sslmode=require", "postgresql://u:***@db:5433/jobs"),
        (f"postgresql://db/jobs?user=u&password={SECRET}", "postgresql://u:***@db/jobs"),
        (f"host=db user=u password='{SECRET} x' dbname=jobs", "postgresql://u:***@db/jobs"),
        ("postgresql://u@db/jobs", "postgresql://u@db/jobs"),
        ("postgresql://db/jobs", "postgresql://db/jobs"),
        (f"postgresql://u:{SECRET}%zz@db/jobs", "postgresql://..."),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert mask_address(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://u:{SECRET}@db/jobs",
        f"postgresql://u:{SECRET}%zz@db/jobs",
        f"postgresql://u:p@{SECRET}@db/jobs",
        f"postgresql://u:{SECRET}/x@db/jobs",
        f"postgresql://u:1/{SECRET}@db/jobs",
        f"postgresql://u:x/{SECRET}@db:y/jobs",
        f"user=u password='{SECRET}",
        f"postgresql://db/jobs?password={SECRET}&nonsense=1",
    ],
)
def test_a_malformed_address_is_refused_without_showing_its_password(address: str) -> None:
    with pytest.raises(BadRequest, match="not a PostgreSQL address") as refusal:
        check_address(address)
    assert SECRET not in str(refusal.value)


def test_a_malformed_address_without_a_password_is_shown() -> None:
    with pytest.raises(BadRequest, match="'mysql://x'"):
        check_address("mysql://x")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20))
def test_no_password_is_ever_shown(password: str) -> None:
    marked = f"<{password}>"
    assert marked not in mask_address(make_conninfo("", host="db", user="u", password=marked))
    assert marked not in mask_address(f"postgresql://u:{marked}@db/jobs")
