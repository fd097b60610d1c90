"""The account of PostgreSQL: created once, refused if somebody could use it; and how data change hands."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Conflict
from penstock.store import os_account as module
from penstock.store.data_ownership import take_ownership
from penstock.store.os_account import OsAccount, postgres_account, system_account

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root creates accounts and changes owners")

OTHER = OsAccount(4711, 4712, "other", switches_user=True)


@pytest.fixture
def name() -> Iterator[str]:
    """The name of an account that does not exist; it is removed afterwards."""
    name = f"penstock-test-{os.getpid()}"
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)
        subprocess.run(["groupdel", name], capture_output=True, check=False)


def test_an_account_is_created_once_without_login_home_or_company(name: str) -> None:
    found: list[OsAccount] = []
    threads = [threading.Thread(target=lambda: found.append(system_account(name))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [system_account(name)] * 3
    made = pwd.getpwnam(name)
    assert (found[0].uid, found[0].gid, found[0].name) == (made.pw_uid, made.pw_gid, name)
    assert 0 < made.pw_uid < 1000
    assert not Path(made.pw_dir).exists()
    assert Path(made.pw_shell).name in ("nologin", "false")
    assert not [other for other in pwd.getpwall() if other.pw_gid == made.pw_gid and other.pw_name != name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--shell", "/bin/sh"], "it has the login shell /bin/sh"),
        (["--shell", ""], "it has the login shell /bin/sh"),
        (["--uid", "4711"], "uid 4711 is not that of a system account"),
        (["--gid", "0"], "its group is root, not one of its own"),
    ],
)
def test_an_account_that_somebody_could_use_is_refused(name: str, change: list[str], words: str) -> None:
    system_account(name)
    subprocess.run(["usermod", *change, name], check=True, capture_output=True)
    with pytest.raises(Conflict, match=words):
        system_account(name)


def test_a_group_that_a_removed_account_left_is_used_again(name: str) -> None:
    subprocess.run(["groupadd", "--system", name], check=True)
    assert system_account(name).gid == grp.getgrnam(name).gr_gid


@pytest.mark.parametrize("tool", [None, "#!/bin/sh\necho 'useradd: cannot open /etc/passwd'; exit 1\n"])
def test_an_account_that_cannot_be_created_is_refused_with_instructions(
    name: str, tool: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if tool is not None:
        (tmp_path / "useradd").write_text(tool)
        (tmp_path / "useradd").chmod(0o755)
    monkeypatch.setattr(module, "_TOOLS_PATH", str(tmp_path))
    with pytest.raises(Conflict) as refusal:
        system_account(name)
    message = str(refusal.value)
    assert ("useradd: cannot open /etc/passwd" if tool else "neither useradd nor adduser") in message
    assert "`useradd --system --user-group --no-create-home --home-dir /nonexistent --shell" in message
    assert "run Penstock as an ordinary user, or name a database with --database" in message


def test_postgres_does_not_share_its_account() -> None:
    account = postgres_account()
    assert account.switches_user
    assert account.name == "penstock-postgres"
    assert account.uid not in (0, pwd.getpwnam("nobody").pw_uid)


def test_everything_below_a_directory_changes_hands(tmp_path: Path) -> None:
    (tmp_path / "db" / "base" / "1").mkdir(parents=True)
    (tmp_path / "db" / "base" / "1" / "file").write_text("kept")
    (tmp_path / "db" / "base" / "1" / "file").chmod(0o666)
    take_ownership(tmp_path / "db", OTHER)
    for path in (tmp_path / "db", *(tmp_path / "db").rglob("*")):
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o077) == (OTHER.uid, OTHER.gid, 0), path
    assert (tmp_path / "db" / "base" / "1" / "file").read_text() == "kept"


@pytest.mark.parametrize("kind", ["symbolic link", "link to a directory", "second name", "pipe", "socket"])
def test_what_is_reachable_through_a_planted_link_keeps_its_owner(kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        victim, data = Path(directory, "victim"), Path(directory, "db")
        (data / "base").mkdir(parents=True)
        planted = data / "base" / "planted"
        if kind == "link to a directory":
            (victim / "below").mkdir(parents=True)
            planted.symlink_to(victim)
        else:
            victim.touch()
        if kind == "symbolic link":
            planted.symlink_to(victim)
        elif kind == "second name":
            planted.hardlink_to(victim)
        elif kind == "pipe":
            os.mkfifo(planted)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(planted))
        with pytest.raises(Conflict, match=f"{planted} is a link or a special file"):
            take_ownership(data, OTHER)
        assert {path.lstat().st_uid for path in (victim, *victim.rglob("*"))} == {0}
        assert data.stat().st_uid == 0  # Closed to the former owner, and taken over again by the next start.
