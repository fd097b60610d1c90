"""Whole screens of a real instance at 80 and 160 columns, compared with files that a person has looked at.

What differs from run to run (ids, times, process ids, paths) is replaced by something of the same width.
`PENSTOCK_SNAPSHOTS=write` rewrites the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instances import Running, running_instance, wait_until

SNAPSHOTS = Path(__file__).parent / "snapshots"
SCREENS = {
    "jobs": ["jobs"],
    "jobs-all": ["jobs", "{good}", "{bad}", "{first}", "{gang}", "{long}", "{held}", "{after}"],
    "jobs-why": ["jobs", "-o", "why"],
    "jobs-long": ["jobs", "-o", "long"],
    "jobs-endreason": ["jobs", "-o", "endreason", "{good}", "{bad}"],
    "job-show-waiting": ["job", "show", "{gang}"],
    "job-show-running": ["job", "show", "{first}"],
    "job-show-over": ["job", "show", "{bad}"],
    "job-why-resources": ["job", "why", "{gang}"],
    "job-why-behind": ["job", "why", "{long}"],
    "job-why-depends": ["job", "why", "{after}"],
    "job-when": ["job", "when", "{gang}"],
    "eventlog": ["job", "eventlog", "-H", "{bad}"],
    "resource-list": ["resource", "list"],
    "resource-status": ["resource", "status", "--long"],
    "queue-list": ["queue", "list"],
    "status": ["status"],
    "timeline": ["timeline"],
    "never": ["submit", "-N9", "true"],
}


class Scene(Running):
    """An instance, and the ids of its jobs by name."""

    __slots__ = ("ids",)

    ids: dict[str, str]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with running_instance() as instance:
        made = Scene(instance.directory, instance.state)
        object.__setattr__(made, "ids", _jobs(instance))
        yield made


def _jobs(instance: Running) -> dict[str, str]:
    def is_long_enough() -> bool:
        """Ids have the same length for two minutes from here."""
        never = instance.submit("--urgency=hold", "--name=never", "true")
        instance.ok("cancel", never)
        return len(never) == 8

    wait_until(is_long_enough)
    good = instance.submit("--name=good", "--requires=rank:2", "true")
    bad = instance.submit("--name=bad", "--requires=rank:2", "sh", "-c", "exit 3")
    instance.end(good, bad)
    first = instance.submit("--name=first", "-N2", "-n4", "-t10m", "sleep", "600")
    instance.started(first)
    gang = instance.submit("--name=gang", "-N4", "-t5m", "sleep", "20")
    long = instance.submit("--name=long-simulation", "-n2", "-t1h", "app", "--steps=1000")
    held = instance.submit("--name=held", "--urgency=hold", "true")
    after = instance.submit("--name=after", f"--dependency=afterok:{gang}", "true")
    wait_until(lambda: instance.job(long)["forecast"]["start_at"] is not None)
    made = {"good": good, "bad": bad, "first": first, "gang": gang, "long": long}
    return {**made, "held": held, "after": after}


def steady(text: str, scene: Scene) -> str:
    """The text without what differs from run to run, in the same width."""
    for name, job in scene.ids.items():
        text = text.replace(job, f"ƒ{name[:7]:X<7}")
    text = re.sub(re.escape(str(scene.directory)), "/ABOVE", text)
    text = re.sub(r"(?<=/output/)\d+", "NUMBER", text)
    text = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "YYYY-MM-DD", text)
    text = re.sub(r"[A-Z][a-z]{2}\d\d \d\d:\d\d", "MonDD HH:MM", text)
    text = re.sub(r"\+\d\.\d{6}", "+0.000000", text)
    text = re.sub(r"(?<=in about )\S+", "TIME", text)
    text = re.sub(r"(?<=eta:)\S+", "TIME", text)
    text = re.sub(r"(?<=pid )\d+", "PID", text)
    text = re.sub(r"(?<= up)( +)(\d+)(?= +\d+$)", lambda m: "PID".rjust(len(m[0])), text, flags=re.M)
    text = re.sub(r"(?<=, up )\S+(?=,)", "TIME", text)
    return re.sub(r" *\d+\.\d+[smh](?= )", lambda m: "TIME".rjust(len(m[0])), text)


def steady_rows(text: str) -> str:
    """A timeline with one character per bar and without the axis, because lengths depend on the time."""
    rows, _, legend = text.partition("\n\n")
    bars = [re.sub(r"([^\w ])\1*", r"\1", row.replace("│", " ")) for row in rows.splitlines()[2:]]
    return "\n".join(bar.replace(" ", "") for bar in bars) + "\n\n" + legend


def test_screens(scene: Scene) -> None:
    """All screens in one test, so that one worker starts one instance for them."""
    shown = {f"{name}-{columns}": screen(scene, name, columns) for name in SCREENS for columns in (80, 160)}
    if os.environ.get("PENSTOCK_SNAPSHOTS") == "write":
        for name, text in shown.items():
            (SNAPSHOTS / f"{name}.txt").write_text(text)
    assert shown == {path.stem: path.read_text() for path in SNAPSHOTS.glob("*.txt")}


def screen(scene: Scene, name: str, columns: int) -> str:
    arguments = [word.format_map(scene.ids) for word in SCREENS[name]]
    found = scene.screen(*arguments, columns=columns)
    assert "Traceback" not in found.text
    is_allowed_wide = name in ("never", "job-show-over", "job-show-running")  # one long message, long paths
    assert is_allowed_wide or max(map(len, found.text.splitlines()), default=0) <= columns, found.text
    text = steady(found.text, scene)
    return steady_rows(text) if name == "timeline" else text
