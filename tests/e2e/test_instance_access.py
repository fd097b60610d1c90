"""Who can reach an instance that root has started: nobody else, neither by files nor by sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.instances import NODE_OPTIONS, Running, running_instance, temporary_sandbox

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

NOBODY = 65534

# Tries everything that a process of `nobody` could do with the paths; prints what it could do.
INTRUDER = f"""
import json, os, socket, sys
paths = json.load(sys.stdin)
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
def attempt(what, action):
    try:
        action()
    except PermissionError:
        return
    except OSError as error:
        print(what, "failed otherwise:", error)
        return
    print("could", what)
def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
for path, kind in paths:
    if kind == "socket":
        attempt(f"connect to {{path}}", lambda: connect(path))
    elif kind == "directory":
        attempt(f"list {{path}}", lambda: os.listdir(path))
        attempt(f"create in {{path}}", lambda: os.mkdir(path + "/planted"))
    else:
        attempt(f"read {{path}}", lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
        attempt(f"write {{path}}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
print("done")
"""


def intrude(paths: list[Path]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", INTRUDER],
        input=json.dumps([(str(path), kind_of(path)) for path in paths]),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    *achieved, last = done.stdout.splitlines()
    assert last == "done"
    return achieved


def kind_of(path: Path) -> str:
    return "directory" if path.is_dir() else "socket" if path.is_socket() else "file"


def everything(instance: Running) -> list[Path]:
    roots = [instance.paths.state, instance.paths.runtime]
    return [*roots, *(path for root in roots for path in root.rglob("*"))]


def test_another_user_reaches_nothing_of_an_instance_of_root() -> None:
    before = os.umask(0)  # The modes must not depend on it.
    try:
        with running_instance("--listen", "127.0.0.1:0") as instance:
            instance.ok("run", "-n2", "echo", "ran")
            job = instance.submit("sleep", "600")
            instance.started(job)
            paths = everything(instance)
            names = {path.name for path in paths}
            assert {"instance.json", "token", "db-password", "pg_hba.conf", "spec.json"} <= names
            assert {"api.sock", "agent0.sock", ".s.PGSQL.5432"} <= names
            assert intrude(paths) == []
    finally:
        os.umask(before)


def test_the_account_of_postgres_can_change_its_own_files_only() -> None:
    with running_instance() as instance:
        instance.ok("run", "true")
        account = instance.paths.database.stat()
        mine = {instance.paths.database, instance.paths.database_socket, instance.paths.state / "db.log"}
        for path in everything(instance):
            found = path.lstat()
            is_own = bool(mine & {path, *path.parents})
            assert found.st_uid == (account.st_uid if is_own else 0), path
            if found.st_gid == account.st_gid and not is_own:
                assert found.st_mode & 0o070 == 0o010, path


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_state_directory_that_others_could_replace_is_refused(mode: int) -> None:
    with temporary_sandbox() as sandbox:
        sandbox.directory.chmod(mode)
        message = sandbox.refused("start", *NODE_OPTIONS, code=1)
        assert f"{sandbox.directory} can be changed by other users (owner 0, mode 0{mode:o})" in message
        assert f"chmod go-w {sandbox.directory}" in message
        assert not sandbox.state.exists()


def test_a_state_directory_below_that_of_another_user_is_refused() -> None:
    with temporary_sandbox() as sandbox:
        os.chown(sandbox.directory, NOBODY, NOBODY)
        message = sandbox.refused("start", *NODE_OPTIONS, code=1)
        assert f"{sandbox.directory} can be changed by other users (owner {NOBODY}," in message
        link = sandbox.directory.with_name(sandbox.directory.name + "-link")
        link.symlink_to("/var/lib")
        try:
            os.lchown(link, NOBODY, NOBODY)
            message = sandbox.refused("start", "--state", str(link / "penstock-test"), code=1)
            assert f"{link} can be changed by other users" in message
        finally:
            link.unlink()
