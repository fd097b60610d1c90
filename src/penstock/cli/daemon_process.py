"""Launches the daemon. The commands do not import it: they run `python -m penstock.app` as a process.

`-P` keeps the user's working directory out of the module search path, so that a file there cannot shadow a
module of the daemon. The address of the database, which may contain a password, is passed in the environment:
other users can read the command line of a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final, NoReturn

from penstock.cli import exits
from penstock.paths import InstancePaths

__all__ = ["DATABASE_VARIABLE", "exec_daemon", "serve_command", "spawn_daemon", "stop_database"]

DATABASE_VARIABLE: Final = "PENSTOCK_DATABASE"


def serve_command(paths: InstancePaths, options: list[str]) -> list[str]:
    """The command line of the daemon that serves this state directory."""
    return _command("serve", paths, options)


def exec_daemon(paths: InstancePaths, options: list[str], database: str) -> NoReturn:
    """Replaces this process by the daemon, which keeps its pid, terminal and open files."""
    command = serve_command(paths, options)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, _environment(database))


def spawn_daemon(
    paths: InstancePaths, options: list[str], report_fd: int, database: str
) -> subprocess.Popen[bytes]:
    """Starts the daemon in a session of its own. It reports on `report_fd` and opens its log itself."""
    return subprocess.Popen(
        serve_command(paths, [*options, "--report-fd", str(report_fd)]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(report_fd,),
        start_new_session=True,
        env=_environment(database),
    )


def _environment(database: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE}
    return {**kept, DATABASE_VARIABLE: database} if database else kept


def stop_database(paths: InstancePaths) -> int | None:
    """Stops the embedded database that a dead instance left running. Returns its pid, None if none ran."""
    if not paths.database.is_dir():
        return None
    done = subprocess.run(
        _command("stop-database", paths, []),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode != exits.OK:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise exits.CommandExit(done.returncode, lines[-1].removeprefix("penstock: "))
    pid = json.loads(done.stdout)["database"]
    return None if pid is None else int(pid)


def _command(action: str, paths: InstancePaths, options: list[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "penstock.app", action, "--state", str(paths.state), *options]
