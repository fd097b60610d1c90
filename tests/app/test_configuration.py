"""The configuration file: what it sets, and what it refuses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from penstock.app import configuration
from penstock.app.configuration import Configuration, read_configuration
from penstock.errors import BadRequest
from penstock.model.queue_rules import QueueRules

ROOT = Path(__file__).parents[2]
SETTING = re.compile(r"\s*([a-z_]+) = ([^#]+?)\s*(?:#\s*(.*))?")
NONE = ("none", "all", "unlimited")  # words for a default that is not there


def documented_settings(text: str) -> list[tuple[str, str, object, str]]:
    """Section, key, value and comment of every setting; queues and namespaces have examples, no defaults."""
    found: list[tuple[str, str, object, str]] = []
    section = ""
    for line in text.splitlines():
        header = re.fullmatch(r"\s*\[+([a-z]+)\]+.*", line)
        setting = SETTING.fullmatch(line)
        if header:
            section = header[1]
        elif line.strip() == "```":
            section = ""
        elif setting and section not in ("queues", "namespaces"):
            value = tomllib.loads(f"value = {setting[2]}")["value"]
            found.append((section, setting[1], value, setting[3] or ""))
    return found


@pytest.mark.parametrize("where", ["run-an-instance.md", "schedule-pods.md", ""])
def test_documented_defaults_are_those_of_the_code(where: str) -> None:
    """A documented value is the default, unless its comment says what the default is."""
    text = (ROOT / "docs/how-to" / where).read_text() if where else configuration.__doc__ or ""
    settings = documented_settings(text)
    assert settings
    for section, key, value, comment in settings:
        holder = msgspec.convert({}, configuration._File)
        default = getattr(getattr(holder, section) if section else holder, key)
        stated = comment.partition("default: ")[2]
        assert stated in ("", *NONE), f"{section}.{key}: {comment}"
        assert (default in ("", None)) if stated else default == value, f"{section}.{key}: {default!r}"


def configured(directory: Path, text: str) -> Configuration:
    path = directory / "penstock.toml"
    path.write_text(text)
    return read_configuration(path)


def test_the_rules_of_queues_reach_the_scheduler_and_the_translation_of_pods(tmp_path: Path) -> None:
    found = configured(
        tmp_path,
        """
        [[queues]]
        name = "batch"

        [[queues]]
        name = "gold"
        namespaces = ["gold-*", "ops"]
        urgency_max = 31
        duration_max = "1h"

        [[namespaces]]
        name = "gold-*"
        queue = "gold"
        """,
    )
    rules = (QueueRules("batch"), QueueRules("gold", ("gold-*", "ops"), 31, 3600))
    assert tuple(queue.rules for queue in found.settings.queues) == rules
    assert found.kube.settings.queues == rules
    assert found.kube.settings.default_queue("gold-1") == "gold"
    assert found.kube.settings.default_queue("ops") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[queues]]\nname = 'a'\nurgency_max = 32", "queues.a.urgency_max: out of range (found 32; "),
        ("[[queues]]\nname = 'a'\nnamespaces = []", "queues.a.namespaces: invalid namespaces (found []"),
        ("[[queues]]\nname = 'a'\nnamespaces = ['']", "queues.a.namespaces: invalid namespaces"),
        (
            "[[namespaces]]\nname = 'x'\nqueue = 'night'",
            "namespaces.x.queue: no such queue (found 'night'; expected one of default)",
        ),
        ("[[namespaces]]\nname = 'x'\nqueu = 'default'", "namespaces[0].queu: unknown key (expected one of "),
    ],
)
def test_an_invalid_rule_is_refused_with_its_location(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        configured(tmp_path, text)
    assert words in str(refused.value)


@pytest.mark.parametrize(("text", "seconds"), [("", 604800.0), ("12h", 43200.0), ("inf", float("inf"))])
def test_the_reservation_horizon_is_a_duration(tmp_path: Path, text: str, seconds: float) -> None:
    found = configured(tmp_path, f"reservation_horizon = '{text}'" if text else "")
    assert found.settings.reservation_horizon_s == seconds


def test_a_reservation_horizon_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"reservation_horizon: too small \(found '0s'"):
        configured(tmp_path, "reservation_horizon = '0s'")
