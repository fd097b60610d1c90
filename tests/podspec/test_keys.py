"""Keys of Penstock that it does not know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.kube.types import ObjectMeta
from penstock.podspec.keys import describe_unknown_key, unknown_keys

ROOT = Path(__file__).resolve().parents[2]


def test_only_keys_of_penstock_that_mean_nothing_are_unknown() -> None:
    labels = {"app": "x", "penstock.dev/group": "g", "penstock.dev/queu": "q", "other.dev/limt": "1h"}
    annotations = {"penstock.dev/limt": "1h", "penstock.dev/job": "f1", "penstock.dev/sim-run": "5s"}
    found = unknown_keys(ObjectMeta(labels=labels, annotations=annotations))
    assert found == ("penstock.dev/limt", "penstock.dev/queu")
    assert unknown_keys(ObjectMeta()) == ()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("limt", "limit"),
        ("Limit", "limit"),
        ("group_size", "group-size"),
        ("groupsize", "group-size"),
        ("distinct-node", "distinct-nodes"),
        ("priority-urgency", "urgency"),
    ],
)
def test_the_closest_key_is_named(key: str, meant: str) -> None:
    text = describe_unknown_key(f"penstock.dev/{key}")
    assert text == f"unknown key penstock.dev/{key} has no effect; did you mean penstock.dev/{meant}?"


def test_without_a_similar_key_all_are_named() -> None:
    text = describe_unknown_key("penstock.dev/zzz")
    assert text.startswith("unknown key penstock.dev/zzz has no effect; known are penstock.dev/begin, ")


def test_every_key_in_documents_and_examples_is_known() -> None:
    files = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.yaml"), ROOT / "CONTRIBUTING.md"]
    texts = [file.read_text("utf-8") for file in files]
    found = {key for text in texts for key in re.findall(r"penstock\.dev/[a-z][a-z-]+", text)}
    assert "penstock.dev/limit" in found
    assert unknown_keys(ObjectMeta(annotations=dict.fromkeys(found, "x"))) == ()
