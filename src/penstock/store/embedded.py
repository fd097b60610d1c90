"""The embedded PostgreSQL server: created below the state directory, started on demand, reused after a crash.

The server listens on a Unix socket only, requires a password that only the owner can read, and runs in its
own session, so neither a terminal signal nor the death of the instance ends it. Under root it runs as a
system account (`os_account`); data of another account are taken over first. `start` reuses a server that
runs on the data directory, independent of the process that started it. The data directory is created under
another name and renamed, so a crash during `initdb` leaves nothing that looks like data. Methods block; call
them in a thread. A file lock serializes concurrent starts.
"""

from __future__ import annotations

import errno
import fcntl
import logging
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
from penstock.paths import InstancePaths, make_instance_directory
from penstock.store.binaries import POSTGRES_MAJOR, bundled_binaries, copy_binaries
from penstock.store.data_ownership import take_ownership
from penstock.store.os_account import (
    OsAccount,
    grant_search,
    make_owned_directory,
    postgres_account,
    require_search_permission,
)

__all__ = ["EmbeddedPostgres"]

_LOG: Final = logging.getLogger("penstock.store")
_USER: Final = "penstock"
_DATABASE: Final = "penstock"
_PORT: Final = 5432  # only the name of the socket
_POLL_S: Final = 0.02
_STOP_MAX_S: Final = 60
_START_MAX_S: Final = 120  # WAL replay after a crash takes time
_LOG_MAX_BYTES: Final = 8 * 1024 * 1024
_LOG_KEPT_BYTES: Final = 1024 * 1024
# After SIGKILL of the postmaster its children still run for a moment, and its parent must reap it.
_STALE_SERVER: Final = re.compile(
    r'lock file "postmaster\.pid" already exists|pre-existing shared memory block'
)
_STALE_SERVER_MAX_S: Final = 20.0
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
    "log_min_error_statement": "panic",  # statements contain what users submitted
}


@dataclass(frozen=True, slots=True)
class _Postmaster:
    """A running server, as described by `postmaster.pid`."""

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
        """Starts the server unless it runs; returns the connection string."""
        account = postgres_account()
        for directory in (self._paths.state, self._paths.runtime):
            make_instance_directory(directory)
            if account.switches_user:
                grant_search(directory, account)
                require_search_permission(directory, account)
        with self._exclusive():
            if self._data.exists():
                self._check_version()
                self._take_over_data(account)
            bin_directory = copy_binaries(self._paths.state) if account.switches_user else bundled_binaries()
            if not self._data.exists():
                self._create_cluster(bin_directory, account)
            password = self._password()
            self._truncate_log()
            server = self._postmaster()
            if server is None or not server.is_ready:
                self._start_server(bin_directory, account)
                server = self._postmaster()
            if server is None:
                raise Unavailable(f"PostgreSQL exited right after its start; see {self._log}")
            return self._connection_info(server, password)

    def stop(self) -> None:
        """Shuts the server down (fast mode); does nothing if it does not run."""
        deadline = time.monotonic() + _STOP_MAX_S
        server = self._postmaster()
        if server is None:
            return
        try:
            os.kill(server.pid, signal.SIGINT)  # fast shutdown: ends connections, then writes a checkpoint
        except ProcessLookupError:
            return
        while (still := self._postmaster()) is not None and still.pid == server.pid:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"PostgreSQL (process {server.pid}) did not stop within {_STOP_MAX_S} s; see {self._log}"
                )
            time.sleep(_POLL_S)

    def pid(self) -> int | None:
        """Returns the process id of the server; None if it does not run."""
        server = self._postmaster()
        return None if server is None else server.pid

    def is_running(self) -> bool:
        """Whether the server accepts connections. Also truncates its log."""
        self._truncate_log()
        server = self._postmaster()
        return server is not None and server.is_ready

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with open(self._paths.state / "db.lock", "ab", opener=_open_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _take_over_data(self, account: OsAccount) -> None:
        """Gives data of another account to `account`: Penstock ran PostgreSQL as `nobody` before."""
        former = self._data.lstat().st_uid
        if not account.switches_user or former == account.uid:
            return
        self.stop()
        shutil.rmtree(self._paths.database_socket, ignore_errors=True)
        take_ownership(self._data, account)
        _LOG.warning(
            "%s belonged to user %d; it belongs to the account %s from here on, which PostgreSQL runs as",
            *(self._data, former, account.name),
        )

    def _create_cluster(self, bin_directory: Path, account: OsAccount) -> None:
        """Runs `initdb` under another name, then renames. Removes the remains of an interrupted attempt."""
        unfinished = self._data.with_suffix(".new")
        with _disk_full_as_unavailable():
            shutil.rmtree(unfinished, ignore_errors=True)
            for copy in self._paths.state.glob("db-password.*"):
                copy.unlink()
            self._create_password()
            make_owned_directory(unfinished, account)
        with self._readable_password(account) as password_file:
            done = self._run(
                account,
                bin_directory / "initdb",
                *("-D", unfinished, "-U", _USER, "--auth-local=scram-sha-256", "--auth-host=reject"),
                *(f"--pwfile={password_file}", "--no-locale", "-E", "UTF8"),
            )
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise _failure(f"cannot create the PostgreSQL data directory {self._data}", done.stdout)
        unfinished.rename(self._data)
        _fsync_directory(self._data.parent)

    def _create_password(self) -> None:
        """Creates the password; it is durable before the data directory that needs it exists."""
        if self._password_file.exists():
            return
        unfinished = self._password_file.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        with open(unfinished, "x", encoding="utf-8", opener=_open_private) as file:
            file.write(secrets.token_hex(24))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._password_file)
        _fsync_directory(self._paths.state)

    def _password(self) -> str:
        try:
            return self._password_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise Conflict(
                f"{self._password_file} is missing, but the data in {self._data} needs it: restore it from a"
                " backup, or move the data directory away to start empty"
            ) from None

    @contextmanager
    def _readable_password(self, account: OsAccount) -> Iterator[Path]:
        """Yields a file with the password that the account can read while `initdb` runs."""
        if not account.switches_user:
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
                f"{self._data} is not a PostgreSQL data directory: move it away, or choose another state"
                " directory"
            ) from None
        if found != str(POSTGRES_MAJOR):
            raise Conflict(
                f"{self._data} was created by PostgreSQL {found}, this version of Penstock includes"
                f" {POSTGRES_MAJOR}: dump it with the version that created it, move {self._data} away and"
                " load the dump"
            )

    def _start_server(self, bin_directory: Path, account: OsAccount) -> None:
        make_owned_directory(self._paths.database_socket, account)
        with _disk_full_as_unavailable():
            self._log.touch(mode=0o600)
            os.chown(self._log, account.uid, account.gid, follow_symlinks=False)
        socket = str(self._paths.database_socket).replace('"', '""')
        settings = {**_SETTINGS, "unix_socket_directories": f'"{socket}"'}
        options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        deadline = time.monotonic() + _STALE_SERVER_MAX_S
        while True:
            size = self._log.stat().st_size
            done = self._run(
                account,
                bin_directory / "pg_ctl",
                *("-D", self._data, "-l", self._log, "-o", options, "-w", "-t", str(_START_MAX_S), "start"),
            )
            server = self._postmaster()
            if done.returncode == 0 or (server is not None and server.is_ready):
                return  # Started, by this call or by a concurrent one.
            output = self._log_since(size) or done.stdout
            if not _STALE_SERVER.search(output) or time.monotonic() > deadline:
                raise _failure(f"PostgreSQL does not start (log: {self._log})", output)
            time.sleep(_POLL_S)

    def _connection_info(self, server: _Postmaster, password: str) -> str:
        """Returns the connection string. Creates the database if an earlier start died before that."""
        address = make_conninfo(
            host=server.socket, port=server.port, user=_USER, password=password, connect_timeout=10
        )
        try:
            with psycopg.connect(address, dbname="postgres", autocommit=True) as connection:
                existing = connection.execute("SELECT FROM pg_database WHERE datname = %s", [_DATABASE])
                if existing.fetchone() is None:
                    connection.execute(f'CREATE DATABASE "{_DATABASE}"')
        except psycopg.Error as error:
            if "password authentication failed" in str(error):
                raise Conflict(
                    f"the password in {self._password_file} does not match {self._data}: restore the right"
                    " one from a backup"
                ) from error
            raise Unavailable(
                f"PostgreSQL runs, but does not answer on {server.socket}: {_last_line(str(error))}"
            ) from error
        return make_conninfo(address, dbname=_DATABASE)

    def _postmaster(self) -> _Postmaster | None:
        try:
            lines = (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            pid, port, socket = int(lines[0]), int(lines[3] or 0), lines[4]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, IndexError):  # The file is being written.
            return None
        if not _is_postgres(pid, self._data.stat().st_uid):
            return None
        is_ready = len(lines) > 7 and lines[7].strip() == "ready"
        return _Postmaster(pid, port, socket, is_ready)

    def _log_since(self, size: int) -> str:
        with open(self._log, "rb") as log:
            log.seek(size)
            return log.read(65536).decode(errors="replace")

    def _truncate_log(self) -> None:
        """Truncates a log that is too long and keeps its end. The server appends, so this is safe in
        place."""
        try:
            if self._log.lstat().st_size <= _LOG_MAX_BYTES:
                return
            with open(self._log, "r+b") as log:
                log.seek(-_LOG_KEPT_BYTES, os.SEEK_END)
                end = log.read()
                with open(self._log.with_suffix(".log.1"), "wb", opener=_open_private) as kept:
                    kept.write(end)
                log.truncate(0)
        except OSError:
            return  # A long log does not prevent the database from running.

    def _run(self, account: OsAccount, *command: object) -> subprocess.CompletedProcess[str]:
        """Runs a PostgreSQL program as the account, in its own session."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            # A file, not a pipe: the server inherits it and would keep a pipe open.
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
                    user=account.uid if account.switches_user else None,
                    group=account.gid if account.switches_user else None,
                    extra_groups=[] if account.switches_user else None,
                    umask=0o077,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise Conflict(f"cannot run {command[0]} as {account.name!r}: {error}") from error
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read(65536))


def _is_postgres(pid: int, uid: int) -> bool:
    """Whether the process runs, is PostgreSQL and belongs to the user; the pid may have been reused."""
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
        owner = Path(f"/proc/{pid}").stat().st_uid
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()  # Without /proc, a live process is taken for PostgreSQL.
    is_alive = state.rpartition(")")[2].split()[:1] != ["Z"]
    return is_alive and owner == uid and b"postgres" in command.split(b"\0")[0]


def _failure(what: str, output: str) -> Unavailable | Corrupt:
    if _NO_SPACE in output:
        return Unavailable(f"{what}: the disk is full, free space there")
    if "PANIC" in output:
        return Corrupt(f"{what}: {_last_line(output)}")
    return Unavailable(f"{what}: {_last_line(output)}")


@contextmanager
def _disk_full_as_unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise Unavailable(f"the disk is full, free space there: {error}") from error
        raise


def _last_line(text: str) -> str:
    """Returns the last line that names an error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "FATAL" in line or "PANIC" in line or "error:" in line]
    return (errors or lines or ["no output"])[-1][:400]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
