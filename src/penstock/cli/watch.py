"""`penstock jobs --watch`: the job table, refreshed every second with rich, until ctrl-C."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from penstock.cli.client import ApiClient, NoInstance, StreamBroken
from penstock.cli.exits import USAGE, CommandExit
from penstock.cli.fields import HEADINGS
from penstock.cli.formats import parse_format
from penstock.cli.interrupts import interruptible
from penstock.cli.jobs import job_table
from penstock.cli.terminal import is_terminal
from penstock.cli.times import day_and_time
from penstock.model.text import count_of

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["watch"]

_STEP_S: Final = 1.0


def watch(client: ApiClient, query: dict[str, object], form: str) -> None:
    if not is_terminal(sys.stdout):
        raise CommandExit(USAGE, "--watch needs a terminal; use `penstock jobs -o json` in a script")
    from rich.console import Console
    from rich.live import Live

    table = parse_format(form, HEADINGS)
    console = Console(highlight=False)

    def render() -> Text:
        from rich.text import Text

        now = time.time()
        try:
            found = client.get("/v1/jobs", **query)["jobs"]
        except (NoInstance, StreamBroken) as error:
            return Text(f"{day_and_time(now)}  {error}")
        running = sum(job["state"] in ("RUN", "CLEANUP") for job in found)
        pending = sum(job["state"] in ("DEPEND", "PRIORITY", "SCHED") for job in found)
        lines = job_table(table, found, now, columns=console.width)
        rows_max = max(3, console.height - 3)
        if len(lines) > rows_max:
            lines = [*lines[:rows_max], f"... and {count_of(len(lines) - rows_max, 'more line')}"]
        title = f"{day_and_time(now)}  {running} running, {pending} pending  (ctrl-C to quit)"
        return Text.from_ansi("\n".join([title, "", *lines]), no_wrap=True)

    try:
        with interruptible(), Live(render(), console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.refresh()
                time.sleep(_STEP_S)
                live.update(render())
    except KeyboardInterrupt:
        return
