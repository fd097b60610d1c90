"""The context of a service for tests that need nothing of an application."""

from __future__ import annotations

from typing import Any

from penstock.api.identity import AuthenticationMethod, Caller
from penstock.api.responses import DatabaseInfo, InstanceSettings
from penstock.api.service import ServiceContext

__all__ = ["CALLER", "SETTINGS", "context"]

CALLER = Caller("me", AuthenticationMethod.IN_PROCESS)
SETTINGS = InstanceSettings(policy="easy", match_policy="first", queue_depth=None, forecast_depth=100)


def context(**changes: Any) -> ServiceContext:
    values: dict[str, Any] = {
        "instance_id": "i",
        "version": "0",
        "state_dir": "/var/lib/penstock",
        "started_at": 0.0,
        "backend": "sim",
        "agents": list,
        "database": lambda: DatabaseInfo(None, embedded=False, state="up"),
        "settings": lambda: SETTINGS,
        "output_paths": None,
        "shutdown": lambda _: None,
    }
    return ServiceContext(**{**values, **changes})
