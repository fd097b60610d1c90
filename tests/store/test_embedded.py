"""The embedded server: made, found, ended, made again after a death, and refused when it is not ours."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers import Server, kill_server, own_places, wait_until

from penstock.errors import Conflict, Unavailable
from penstock.paths import InstancePaths
from penstock.store import embedded as module
from penstock.store.binaries import programs_in_place
from penstock.store.embedded import EmbeddedPostgres
from penstock.store.os_account import Account, require_passage

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root lends an account")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_once_found_again_and_ended_in_order() -> None:
    with own_places() as paths:
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
            assert mode(paths.state / "db-password") == 0o600
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(make_conninfo(url, password="wrong"))
        finally:
            server.stop()
        assert (server.pid(), server.is_running()) == (None, False)
        server.stop()


def test_it_outlives_its_owner_and_a_signal_from_the_terminal(mortal: Server) -> None:
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


def test_it_comes_back_with_its_data_after_it_was_killed(mortal: Server) -> None:
    with psycopg.connect(mortal.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
    kill_server(mortal)
    assert not mortal.embedded.is_running()
    with psycopg.connect(mortal.embedded.start()) as connection:
        assert connection.execute("SELECT a FROM kept").fetchone() == (1,)


def test_several_that_start_at_once_get_the_same_server(mortal: Server) -> None:
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


def test_a_server_that_answers_elsewhere_is_found_where_it_is(mortal: Server) -> None:
    moved = InstancePaths(mortal.paths.state, mortal.paths.runtime.with_name("other"))
    url = EmbeddedPostgres(moved).start()
    assert conninfo_to_dict(url)["host"] == str(mortal.paths.database_socket)


def test_data_that_were_made_only_half_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_places() as paths:
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
    ("version", "words"), [("16", "made by PostgreSQL 16"), (None, "holds no data of PostgreSQL")]
)
def test_data_of_another_version_or_of_somebody_else_are_left_alone(version: str | None, words: str) -> None:
    with own_places() as paths:
        paths.database.mkdir(parents=True)
        (paths.database / "mine").touch()
        if version:
            (paths.database / "PG_VERSION").write_text(f"{version}\n")
        with pytest.raises(Conflict, match=words):
            EmbeddedPostgres(paths).start()
        assert (paths.database / "mine").exists()


def test_a_lost_password_is_named(mortal: Server) -> None:
    file = mortal.paths.state / "db-password"
    kept = file.read_text()
    file.unlink()
    try:
        with pytest.raises(Conflict, match="db-password is gone"):
            mortal.embedded.start()
        file.write_text("wrong")
        with pytest.raises(Conflict, match="is not that of"):
            mortal.embedded.start()
    finally:
        file.write_text(kept)
        file.chmod(0o600)


def test_a_full_disk_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_places() as paths:
        server = EmbeddedPostgres(paths)
        full = subprocess.CompletedProcess([], 1, "initdb: error: could not write: No space left on device\n")
        monkeypatch.setattr(server, "_run", lambda *_: full)
        with pytest.raises(Unavailable, match="the disk is full"):
            server.start()
        assert not (paths.state / "db.new").exists()


def test_a_long_log_is_cut_and_the_server_writes_on(mortal: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    log = mortal.paths.state / "db.log"
    monkeypatch.setattr(module, "_LOG_MAX_BYTES", 100)
    monkeypatch.setattr(module, "_LOG_KEPT_BYTES", 50)
    with log.open("a") as file:
        file.write("x" * 200)
    assert mortal.embedded.is_running()
    assert log.stat().st_size == 0
    assert log.with_suffix(".log.1").stat().st_size == 50
    with psycopg.connect(mortal.url) as connection, pytest.raises(psycopg.Error):
        connection.execute("SELECT 1/0")
    wait_until(lambda: b"division by zero" in log.read_bytes())


@needs_root
def test_a_directory_that_the_lent_account_cannot_pass_is_named() -> None:
    with own_places() as paths:
        closed = paths.state.parent
        closed.chmod(0o700)
        with pytest.raises(Conflict, match=f"{closed} is closed for the account 'nobody'"):
            EmbeddedPostgres(paths).start()
        assert mode(closed) == 0o700


@pytest.mark.parametrize(
    ("bits", "is_owner", "is_group", "passes"),
    [
        (0o100, True, False, True),
        (0o011, True, True, False),
        (0o010, False, True, True),
        (0o101, False, True, False),
        (0o001, False, False, True),
        (0o110, False, False, False),
    ],
)
def test_passage_is_judged_by_owner_then_group_then_others(
    bits: int, is_owner: bool, is_group: bool, passes: bool
) -> None:
    with own_places() as paths:
        above = paths.state.parent
        found = above.stat()
        account = Account(found.st_uid if is_owner else 4711, found.st_gid if is_group else 4711, "x", True)
        above.chmod(bits)
        if passes:
            require_passage(above, account)
        else:
            with pytest.raises(Conflict, match=str(above)):
                require_passage(above, account)
        above.chmod(0o700)


@needs_root
def test_an_ordinary_user_runs_the_programs_where_they_are() -> None:
    # Python itself may lie below a closed directory, so the process changes its user once it has loaded all.
    code = (
        "import os, sys; from pathlib import Path; from penstock.paths import InstancePaths;"
        "from penstock.store.embedded import EmbeddedPostgres;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); above = Path(sys.argv[1]);"
        "server = EmbeddedPostgres(InstancePaths(above / 'state', above / 'run'));"
        "server.start(); print(server.is_running(), sorted(os.listdir(above / 'state'))); server.stop()"
    )
    for directory in (programs := programs_in_place(), *programs.parents):
        if not directory.stat().st_mode & 0o001:
            pytest.skip(f"{directory} is closed for others")
    with own_places() as paths:
        above = paths.state.parent
        os.chown(above, 65534, 65534)
        command = [sys.executable, "-c", code, above]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert done.stdout == "True ['db', 'db-password', 'db.lock', 'db.log']\n", done.stderr
