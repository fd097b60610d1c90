"""The configuration file: what it sets, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.configuration import Configuration, read_configuration
from penstock.errors import BadRequest
from penstock.model.queue_rules import QueueRules


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
