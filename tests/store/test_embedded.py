"""The embedded server: creation, reuse, shutdown, recovery after a crash, and refusal of foreign data."""

from __future__ import annotations

import logging
import os
import pwd
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers import Server, kill_server, started_server, temporary_paths, wait_until

from penstock.errors import Conflict, Unavailable
from penstock.paths import InstancePaths
from penstock.store import embedded as module
from penstock.store.binaries import bundled_binaries
from penstock.store.embedded import EmbeddedPostgres
from penstock.store.os_account import POSTGRES_ACCOUNT, OsAccount, require_search_permission

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root runs PostgreSQL as another account")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_start_creates_the_server_once_and_reuses_it_until_stop() -> None:
    with temporary_paths() as paths:
        server = EmbeddedPostgres(paths)
        assert (server.pid(), server.is_running()) == (None, False)
        url = server.start()
        try:
            pid = server.pid()
            assert server.is_running()
            assert EmbeddedPostgres(paths).start() == url
            assert EmbeddedPostgres(paths).pid() == pid
            with psycopg.connect(url) as connection:
                assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
                assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert mode(paths.database) == mode(paths.database_socket) == 0o700
            sockets = [path for path in paths.database_socket.iterdir() if path.is_socket()]
            assert [mode(path) for path in sockets] == [0o700]
            assert mode(paths.state / "db-password") == 0o600
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(make_conninfo(url, password="wrong"))
        finally:
            server.stop()
        assert (server.pid(), server.is_running()) == (None, False)
        server.stop()


def test_the_server_survives_its_starter_and_a_signal_from_the_terminal(mortal: Server) -> None:
    code = (
        "import sys; from pathlib import Path; from penstock.paths import InstancePaths;"
        "from penstock.store.embedded import EmbeddedPostgres;"
        "EmbeddedPostgres(InstancePaths(Path(sys.argv[1]), Path(sys.argv[2]))).start();"
        "print('up', flush=True);"
        "sys.stdin.read()"
    )
    mortal.embedded.stop()
    owner = subprocess.Popen(
        [sys.executable, "-c", code, mortal.paths.state, mortal.paths.runtime],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    os.killpg(owner.pid, signal.SIGINT)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.communicate()
    pid = mortal.embedded.pid()
    assert mortal.embedded.is_running()
    mortal.embedded.start()
    assert mortal.embedded.pid() == pid


def test_the_data_survive_a_kill_of_the_server(mortal: Server) -> None:
    with psycopg.connect(mortal.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
    kill_server(mortal)
    assert not mortal.embedded.is_running()
    with psycopg.connect(mortal.embedded.start()) as connection:
        assert connection.execute("SELECT a FROM kept").fetchone() == (1,)


def test_concurrent_starts_get_the_same_server(mortal: Server) -> None:
    mortal.embedded.stop()
    urls: list[str] = []
    threads = [
        threading.Thread(target=lambda: urls.append(EmbeddedPostgres(mortal.paths).start())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert urls == [mortal.url] * 3


def test_a_server_with_another_socket_directory_is_found(mortal: Server) -> None:
    moved = InstancePaths(mortal.paths.state, mortal.paths.runtime.with_name("other"))
    url = EmbeddedPostgres(moved).start()
    assert conninfo_to_dict(url)["host"] == str(mortal.paths.database_socket)


def test_an_interrupted_initdb_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_paths() as paths:
        server = EmbeddedPostgres(paths)

        def die(*_: object) -> None:
            (paths.state / "db.new" / "base").mkdir()
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(server, "_run", die)
            with pytest.raises(KeyboardInterrupt):
                server.start()
        assert not paths.database.exists()
        (paths.state / "db-password.left").touch()
        server.start()
        try:
            assert server.is_running()
            assert not (paths.state / "db.new").exists()
            assert [path.name for path in paths.state.glob("db-password*")] == ["db-password"]
        finally:
            server.stop()


@pytest.mark.parametrize(
    ("version", "words"), [("16", "created by PostgreSQL 16"), (None, "is not a PostgreSQL data directory")]
)
def test_a_data_directory_of_another_version_or_program_is_refused_unchanged(
    version: str | None, words: str
) -> None:
    with temporary_paths() as paths:
        paths.database.mkdir(parents=True)
        (paths.database / "mine").touch()
        if version:
            (paths.database / "PG_VERSION").write_text(f"{version}\n")
        with pytest.raises(Conflict, match=words):
            EmbeddedPostgres(paths).start()
        assert (paths.database / "mine").exists()


def test_a_missing_or_wrong_password_file_is_named(mortal: Server) -> None:
    file = mortal.paths.state / "db-password"
    kept = file.read_text()
    file.unlink()
    try:
        with pytest.raises(Conflict, match="db-password is missing"):
            mortal.embedded.start()
        file.write_text("wrong")
        with pytest.raises(Conflict, match="does not match"):
            mortal.embedded.start()
    finally:
        file.write_text(kept)
        file.chmod(0o600)


def test_a_full_disk_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_paths() as paths:
        server = EmbeddedPostgres(paths)
        full = subprocess.CompletedProcess([], 1, "initdb: error: could not write: No space left on device\n")
        monkeypatch.setattr(server, "_run", lambda *_: full)
        with pytest.raises(Unavailable, match="the disk is full"):
            server.start()
        assert not (paths.state / "db.new").exists()


def test_a_long_log_is_truncated_while_the_server_writes(
    mortal: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = mortal.paths.state / "db.log"
    monkeypatch.setattr(module, "_LOG_MAX_BYTES", 100)
    monkeypatch.setattr(module, "_LOG_KEPT_BYTES", 50)
    with log.open("a") as file:
        file.write("x" * 200)
    assert mortal.embedded.is_running()
    assert log.stat().st_size == 0
    assert log.with_suffix(".log.1").stat().st_size == 50
    assert mode(log.with_suffix(".log.1")) == 0o600
    with psycopg.connect(mortal.url) as connection, pytest.raises(psycopg.Error):
        connection.execute("SELECT 1/0")
    wait_until(lambda: b"division by zero" in log.read_bytes())


@needs_root
def test_under_root_the_server_runs_as_an_account_of_its_own() -> None:
    with started_server() as server:
        owner = pwd.getpwnam(POSTGRES_ACCOUNT)
        process = Path(f"/proc/{server.embedded.pid()}").stat()
        assert (process.st_uid, process.st_gid) == (owner.pw_uid, owner.pw_gid)
        for directory in (server.paths.state, server.paths.runtime):
            found = directory.stat()
            assert (found.st_uid, found.st_gid, mode(directory)) == (0, owner.pw_gid, 0o710)
        found = server.paths.database.stat()
        assert (found.st_uid, mode(server.paths.database)) == (owner.pw_uid, 0o700)


@needs_root
def test_under_root_only_the_account_reads_the_password_while_the_server_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with temporary_paths() as paths:
        server = EmbeddedPostgres(paths)
        seen: list[tuple[str, str, int]] = []
        run = server._run

        def observed(account: OsAccount, *command: object) -> subprocess.CompletedProcess[str]:
            copies = paths.state.glob("db-password.*")
            seen.extend((Path(str(command[0])).name, path.owner(), mode(path)) for path in copies)
            return run(account, *command)

        monkeypatch.setattr(server, "_run", observed)
        server.start()
        server.stop()
        assert seen == [("initdb", POSTGRES_ACCOUNT, 0o600)]


@needs_root
@pytest.mark.parametrize("interrupted", [False, True])
def test_data_of_nobody_are_taken_over_with_their_running_server(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = OsAccount(65534, 65534, "nobody", switches_user=True)
    with temporary_paths() as paths:
        server = EmbeddedPostgres(paths)
        with monkeypatch.context() as patched:
            patched.setattr(module, "postgres_account", lambda: nobody)
            with psycopg.connect(server.start(), autocommit=True) as connection:
                connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        paths.state.chmod(0o711)
        before = server.pid()
        assert before is not None
        if interrupted:
            server.stop()
            os.chown(paths.database, 0, 0)
        with caplog.at_level(logging.WARNING), psycopg.connect(server.start()) as connection:
            assert connection.execute("SELECT a FROM kept").fetchone() == (1,)
        try:
            owner = pwd.getpwnam(POSTGRES_ACCOUNT).pw_uid
            assert Path(f"/proc/{server.pid()}").stat().st_uid == owner
            everything = [paths.database, *paths.database.rglob("*"), paths.database_socket]
            assert {path.lstat().st_uid for path in everything} == {owner}
            assert server.pid() != before
            assert mode(paths.state) == 0o710
            former = 0 if interrupted else 65534
            assert f"{paths.database} belonged to user {former}; it belongs to the" in caplog.text
            caplog.clear()
            server.start()
            assert not caplog.text
        finally:
            server.stop()


@needs_root
def test_a_directory_that_the_postgres_account_cannot_search_is_named() -> None:
    with temporary_paths() as paths:
        closed = paths.state.parent
        closed.chmod(0o700)
        with pytest.raises(Conflict, match=f"{closed} is not accessible to the account 'penstock-postgres'"):
            EmbeddedPostgres(paths).start()
        assert mode(closed) == 0o700


@pytest.mark.parametrize(
    ("bits", "is_owner", "is_group", "may_search"),
    [
        (0o100, True, False, True),
        (0o011, True, True, False),
        (0o010, False, True, True),
        (0o101, False, True, False),
        (0o001, False, False, True),
        (0o110, False, False, False),
    ],
)
def test_search_permission_follows_owner_then_group_then_others(
    bits: int, is_owner: bool, is_group: bool, may_search: bool
) -> None:
    with temporary_paths() as paths:
        root = paths.state.parent
        found = root.stat()
        account = OsAccount(found.st_uid if is_owner else 4711, found.st_gid if is_group else 4711, "x", True)
        root.chmod(bits)
        if may_search:
            require_search_permission(root, account)
        else:
            with pytest.raises(Conflict, match=str(root)):
                require_search_permission(root, account)
        root.chmod(0o700)


@needs_root
def test_an_ordinary_user_runs_the_programs_of_the_wheel() -> None:
    # Python itself may be below a closed directory, so the process changes its user after the imports.
    code = (
        "import os, sys; from pathlib import Path; from penstock.paths import InstancePaths;"
        "from penstock.store.embedded import EmbeddedPostgres;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); root = Path(sys.argv[1]);"
        "server = EmbeddedPostgres(InstancePaths(root / 'state', root / 'run'));"
        "server.start(); print(server.is_running(), sorted(os.listdir(root / 'state'))); server.stop()"
    )
    for directory in (binaries := bundled_binaries(), *binaries.parents):
        if not directory.stat().st_mode & 0o001:
            pytest.skip(f"{directory} is closed to others")
    with temporary_paths() as paths:
        root = paths.state.parent
        os.chown(root, 65534, 65534)
        command = [sys.executable, "-c", code, root]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert done.stdout == "True ['db', 'db-password', 'db.lock', 'db.log']\n", done.stderr
