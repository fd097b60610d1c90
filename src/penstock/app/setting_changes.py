"""What differs in the configuration from the last start, for whoever starts the instance.

The settings in force are saved with the identity of the instance as flat texts, so that a changed default
of a later version is reported as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from penstock.app.configuration import Configuration
from penstock.model.duration import format_duration

__all__ = ["setting_changes", "settings_in_force"]

_QUEUE = "queues."


def settings_in_force(configuration: Configuration) -> dict[str, str]:
    """All settings by key, durations as in the configuration file."""
    settings, retention = configuration.settings, configuration.retention
    found = {"default queue": settings.queues[0].name}
    parts: list[tuple[str, object, tuple[str, ...]]] = [
        ("", settings, ("queues",)),
        *((f"{_QUEUE}{queue.name}.", queue, ("name", "constraint")) for queue in settings.queues),
        ("retention.", retention, ()),
    ]
    for prefix, part, left_out in parts:
        for field in fields(part):  # type: ignore[arg-type]
            if field.name not in left_out:
                name = field.name.removesuffix("_s").removesuffix("_text")
                found[f"{prefix}{name}"] = _text(field.name, getattr(part, field.name))
    return found


def _text(name: str, value: object) -> str:
    if isinstance(value, (int, float)) and name.endswith("_s"):
        return format_duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


def setting_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """One text per difference; none if nothing is known of the last start."""
    if not before:
        return []
    had, has = _queues(before), _queues(after)
    changes = [f"queue {name} is removed" for name in sorted(had - has)]
    changes += [f"queue {name} is added" for name in sorted(has - had)]
    for key in sorted(before.keys() & after.keys()):
        if before[key] != after[key]:
            changes.append(f"{key}: {before[key] or 'none'} -> {after[key] or 'none'}")
    return changes


def _queues(settings: Mapping[str, str]) -> set[str]:
    keys = (key.removeprefix(_QUEUE) for key in settings if key.startswith(_QUEUE))
    return {key.rpartition(".")[0] for key in keys}
