"""Our own PostgreSQL: made once below the state directory, started when needed, found again after a crash.

It answers on a Unix socket only, asks for a password that only we can read, and belongs to a session of its
own: neither the terminal nor our death ends it. `start` finds a server that runs on the data, whoever
started it. The data directory appears by renaming a complete one, so a death within `initdb` leaves nothing
that looks like data. Methods block; call them in a thread. A lock makes two that start at once take turns.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.errors import Conflict, Corrupt, Unavailable
from penstock.paths import InstancePaths, make_private
from penstock.store.binaries import MAJOR, copied_programs, programs_in_place
from penstock.store.os_account import Account, account_for_postgres, give, require_passage

__all__ = ["EmbeddedPostgres"]

_USER: Final = "penstock"
_DATABASE: Final = "penstock"
_PORT: Final = 5432  # only the name of the socket
_PAUSE_S: Final = 0.02
_STOP_MAX_S: Final = 60
_START_MAX_S: Final = 120  # replaying what a crash left can take a while
_LOG_MAX_BYTES: Final = 8 * 1024 * 1024
_LOG_KEPT_BYTES: Final = 1024 * 1024
# A server that was killed is not gone at once: its children end after it, and its parent must notice.
_REMAINS: Final = re.compile(r'lock file "postmaster\.pid" already exists|pre-existing shared memory block')
_REMAINS_MAX_S: Final = 20.0
_NO_SPACE: Final = "No space left on device"

_SETTINGS: Final = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "64MB",
    "max_connections": "20",
    "max_wal_size": "256MB",
    "io_method": "sync",
    "dynamic_shared_memory_type": "mmap",  # /dev/shm may be tiny, and systemd empties it when a user logs out
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "log_statement": "none",
    "log_min_error_statement": "panic",  # statements hold what users submitted
}


@dataclass(frozen=True, slots=True)
class _Running:
    """What `postmaster.pid` says of a server that lives."""

    pid: int
    port: int
    socket: str
    is_ready: bool


class EmbeddedPostgres:
    def __init__(self, paths: InstancePaths) -> None:
        self._paths = paths
        self._data = paths.database
        self._password_file = paths.state / "db-password"
        self._log = paths.state / "db.log"

    def start(self) -> str:
        """Starts the server, or finds it running; returns how to connect to it."""
        account = account_for_postgres()
        mode = 0o711 if account.is_lent else 0o700
        make_private(self._paths.state, mode)
        make_private(self._paths.runtime, mode)
        if account.is_lent:
            require_passage(self._paths.state, account)
            require_passage(self._paths.runtime, account)
        with self._alone():
            if self._data.exists():
                self._check_version()
            programs = copied_programs(self._paths.state) if account.is_lent else programs_in_place()
            if not self._data.exists():
                self._make_data(programs, account)
            password = self._password()
            self._shorten_log()
            running = self._running()
            if running is None or not running.is_ready:
                self._start_server(programs, account)
                running = self._running()
            if running is None:
                raise Unavailable(f"PostgreSQL ended right after its start; {self._log} may say why")
            return self._prepared(running, password)

    def stop(self) -> None:
        """Ends the server in order; nothing happens if there is none."""
        deadline = time.monotonic() + _STOP_MAX_S
        running = self._running()
        if running is None:
            return
        try:
            os.kill(running.pid, signal.SIGINT)  # "fast": ends connections, then writes everything down
        except ProcessLookupError:
            return
        while (still := self._running()) is not None and still.pid == running.pid:
            if time.monotonic() > deadline:
                raise Unavailable(f"PostgreSQL (process {running.pid}) does not stop within {_STOP_MAX_S} s")
            time.sleep(_PAUSE_S)

    def pid(self) -> int | None:
        """The process id of the server, if it lives."""
        running = self._running()
        return None if running is None else running.pid

    def is_running(self) -> bool:
        """Whether the server takes connections. Also keeps its log short."""
        self._shorten_log()
        running = self._running()
        return running is not None and running.is_ready

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self._paths.state / "db.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_data(self, programs: Path, account: Account) -> None:
        """`initdb` beside the place, then a rename. What a death left there before is removed."""
        unfinished = self._data.with_suffix(".new")
        with _disk_is_watched():
            shutil.rmtree(unfinished, ignore_errors=True)
            for copy in self._paths.state.glob("db-password.*"):
                copy.unlink()
            self._make_password()
            give(unfinished, account)
        with self._readable_password(account) as password_file:
            done = self._run(
                account,
                programs / "initdb",
                *("-D", unfinished, "-U", _USER, "--auth-local=scram-sha-256", "--auth-host=reject"),
                *(f"--pwfile={password_file}", "--no-locale", "-E", "UTF8"),
            )
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise _failure("the data directory of PostgreSQL cannot be made", done.stdout)
        unfinished.rename(self._data)
        _sync_directory(self._data.parent)

    def _make_password(self) -> None:
        """A password that is on disk before any data needs it."""
        if self._password_file.exists():
            return
        unfinished = self._password_file.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        with open(unfinished, "x", encoding="utf-8", opener=_open_private) as file:
            file.write(secrets.token_hex(24))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._password_file)
        _sync_directory(self._paths.state)

    def _password(self) -> str:
        try:
            return self._password_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise Conflict(
                f"{self._password_file} is gone, but the data in {self._data} needs it: put it back from a"
                " backup, or move the data away to begin afresh"
            ) from None

    @contextmanager
    def _readable_password(self, account: Account) -> Iterator[Path]:
        """A file with the password that the account can read, for as long as `initdb` needs it."""
        if not account.is_lent:
            yield self._password_file
            return
        with tempfile.NamedTemporaryFile(dir=self._paths.state, prefix="db-password.") as copy:
            copy.write(self._password_file.read_bytes())
            copy.flush()
            os.fchown(copy.fileno(), account.uid, account.gid)
            yield Path(copy.name)

    def _check_version(self) -> None:
        try:
            found = (self._data / "PG_VERSION").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise Conflict(
                f"{self._data} holds no data of PostgreSQL: move it away, or name another state directory"
            ) from None
        if found != str(MAJOR):
            raise Conflict(
                f"{self._data} was made by PostgreSQL {found}, this Penstock brings {MAJOR}: dump it with the"
                f" Penstock that made it, move {self._data} away and load the dump"
            )

    def _start_server(self, programs: Path, account: Account) -> None:
        give(self._paths.database_socket, account)
        with _disk_is_watched():
            self._log.touch(mode=0o600)
            os.chown(self._log, account.uid, account.gid, follow_symlinks=False)
        socket = str(self._paths.database_socket).replace('"', '""')
        settings = {**_SETTINGS, "unix_socket_directories": f'"{socket}"'}
        options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        deadline = time.monotonic() + _REMAINS_MAX_S
        while True:
            size = self._log.stat().st_size
            done = self._run(
                account,
                programs / "pg_ctl",
                *("-D", self._data, "-l", self._log, "-o", options, "-w", "-t", str(_START_MAX_S), "start"),
            )
            running = self._running()
            if done.returncode == 0 or (running is not None and running.is_ready):
                return  # Started, or another one was faster.
            said = self._log_since(size) or done.stdout
            if not _REMAINS.search(said) or time.monotonic() > deadline:
                raise _failure("PostgreSQL does not start", said)
            time.sleep(_PAUSE_S)

    def _prepared(self, running: _Running, password: str) -> str:
        """How to connect. The database is made if a death came before it."""
        address = make_conninfo(
            host=running.socket, port=running.port, user=_USER, password=password, connect_timeout=10
        )
        try:
            with psycopg.connect(address, dbname="postgres", autocommit=True) as connection:
                there = connection.execute("SELECT FROM pg_database WHERE datname = %s", [_DATABASE])
                if there.fetchone() is None:
                    connection.execute(f'CREATE DATABASE "{_DATABASE}"')
        except psycopg.Error as error:
            if "password authentication failed" in str(error):
                raise Conflict(
                    f"the password in {self._password_file} is not that of {self._data}: put the right one"
                    " back from a backup"
                ) from error
            raise Unavailable(f"PostgreSQL runs, but does not answer: {_last_line(str(error))}") from error
        return make_conninfo(address, dbname=_DATABASE)

    def _running(self) -> _Running | None:
        try:
            lines = (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            pid, port, socket = int(lines[0]), int(lines[3] or 0), lines[4]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, IndexError):  # Being written.
            return None
        if not _is_postgres(pid):
            return None
        is_ready = len(lines) > 7 and lines[7].strip() == "ready"
        return _Running(pid, port, socket, is_ready)

    def _log_since(self, size: int) -> str:
        with open(self._log, "rb") as log:
            log.seek(size)
            return log.read(65536).decode(errors="replace")

    def _shorten_log(self) -> None:
        """Keeps the end of a log that is too long. The server appends, so cutting in place is safe."""
        try:
            if self._log.lstat().st_size <= _LOG_MAX_BYTES:
                return
            with open(self._log, "r+b") as log:
                log.seek(-_LOG_KEPT_BYTES, os.SEEK_END)
                end = log.read()
                self._log.with_suffix(".log.1").write_bytes(end)
                log.truncate(0)
        except OSError:
            return  # A long log is no reason to be without a database.

    def _run(self, account: Account, *command: object) -> subprocess.CompletedProcess[str]:
        """Runs a program of PostgreSQL under the account, in a session of its own."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            # A file, not a pipe: the server inherits it and would keep a pipe open for ever.
            try:
                done = subprocess.run(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
                    start_new_session=True,
                    check=False,
                    user=account.uid if account.is_lent else None,
                    group=account.gid if account.is_lent else None,
                    extra_groups=[] if account.is_lent else None,
                    umask=0o077,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise Conflict(f"{command[0]} cannot be run as {account.name!r}: {error}") from error
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read(65536))


def _is_postgres(pid: int) -> bool:
    """Whether this process lives and is a PostgreSQL; a number may have been given to another program."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()  # Without /proc, that it lives must do.
    return state.rpartition(")")[2].split()[:1] != ["Z"] and b"postgres" in command.split(b"\0")[0]


def _failure(what: str, output: str) -> Unavailable | Corrupt:
    if _NO_SPACE in output:
        return Unavailable(f"{what}: the disk is full")
    if "PANIC" in output:
        return Corrupt(f"{what}: {_last_line(output)}")
    return Unavailable(f"{what}: {_last_line(output)}")


@contextmanager
def _disk_is_watched() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise Unavailable(f"the disk is full: {error}") from error
        raise


def _last_line(text: str) -> str:
    """The line that says most: the last that names an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "PANIC" in line or "error:" in line]
    return (telling or lines or ["nothing was said"])[-1][:400]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
