"""The database of an instance: a secret password, an address that never worked, and the real state."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.e2e.instances import NODE_OPTIONS, Running, Sandbox, temporary_sandbox, wait_until
from tests.store.servers import Server, fresh_database, kill_server, started_server

UNREACHABLE = "postgresql://u:s3cr3t@127.0.0.1:9/jobs"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started_server() as server:
        yield server


def password_of(url: str) -> str:
    return str(conninfo_to_dict(url)["password"])


def started(sandbox: Sandbox, *options: str, **extra: str) -> Running:
    done = sandbox.call("start", *NODE_OPTIONS, *options, **extra)
    assert (done.returncode, done.stderr) == (0, ""), done
    return Running(sandbox.directory, sandbox.state)


def command_lines() -> bytes:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue  # It has ended meanwhile.
    return b"\n".join(lines)


def agent_environments(state: Path) -> list[bytes]:
    """The environments of the agents that an instance has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
            if b"penstock.agent" in command and str(state).encode() in command:
                found.append((path.parent / "environ").read_bytes())
        except OSError:
            continue  # It has ended meanwhile.
    return found


@pytest.mark.parametrize("source", ["file", "variable"])
def test_the_password_of_a_database_is_in_one_private_file_only(server: Server, source: str) -> None:
    url = fresh_database(server)
    password = password_of(url)
    with temporary_sandbox() as sandbox:
        if source == "file":
            file = sandbox.directory / "database"
            file.write_text(f"{url}\n")
            instance = started(sandbox, "--database-file", file.name)
            file.unlink()
        else:
            instance = started(sandbox, PENSTOCK_DATABASE=url)
        try:
            assert password.encode() not in command_lines()
            agents = agent_environments(instance.state)
            assert agents
            assert not any(password.encode() in variables for variables in agents)
            seen = instance.ok("run", "env") + instance.ok("status") + instance.ok("status", "-o", "json")
            assert password not in seen
            name = conninfo_to_dict(url)["dbname"]
            assert (
                f"up, external, postgresql://penstock:***@{server.paths.database_socket}:5432/{name}" in seen
            )
            files = [path for path in instance.state.rglob("*") if path.is_file()]
            holding = [path for path in files if password.encode() in path.read_bytes()]
            assert holding == [instance.paths.database_url]
            for path in (instance.paths.database_url, instance.paths.identity):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
            job = instance.submit("--urgency=hold", "true")
            instance.ok("stop")
            started(sandbox)  # The address is remembered.
            assert instance.job(job)["urgency"] == 0
        finally:
            instance.ok("stop")


def test_a_password_on_the_command_line_is_discouraged(server: Server) -> None:
    url = fresh_database(server)
    with temporary_sandbox() as sandbox:
        done = sandbox.call("start", *NODE_OPTIONS, "--database", url)
        assert done.returncode == 0, done
        try:
            assert done.stderr == (
                "penstock: warning: other users can read a password on the command line; use --database-file"
                " or PENSTOCK_DATABASE\n"
            )
            assert password_of(url).encode() not in command_lines()
        finally:
            assert sandbox.call("stop").returncode == 0


def test_an_address_that_has_never_worked_is_not_saved(server: Server) -> None:
    url = fresh_database(server)
    with temporary_sandbox() as sandbox:
        message = sandbox.refused("start", *NODE_OPTIONS, code=3, PENSTOCK_DATABASE=UNREACHABLE)
        assert "cannot use postgresql://u:***@127.0.0.1:9/jobs: the database does not answer: " in message
        assert "keeps its database" not in message
        assert not sandbox.paths.identity.exists()

        instance = started(sandbox, PENSTOCK_DATABASE=url)
        job = instance.submit("--urgency=hold", "true")
        instance.ok("stop")
        name = conninfo_to_dict(url)["dbname"]
        for wrong, code in ((UNREACHABLE, 3), (f"{url} password=wrong", 2), (f"{url} dbname=none", 2)):
            message = sandbox.refused("start", code=code, PENSTOCK_DATABASE=wrong)
            assert f"keeps its database, postgresql://penstock:***@{server.paths.database_socket}" in message
            assert message.endswith(f"/{name}\n")
        started(sandbox)
        assert instance.job(job)["urgency"] == 0
        instance.ok("stop")


def test_an_instance_changes_its_database_and_returns_to_the_embedded_one(server: Server) -> None:
    url = fresh_database(server)
    with temporary_sandbox() as sandbox:
        instance = started(sandbox)
        mine = instance.submit("echo", "embedded")
        instance.end(mine)
        instance.ok("stop")
        instance.ok("start")  # Its epoch is ahead of that of the other database.
        instance.ok("stop")

        started(sandbox, PENSTOCK_DATABASE=url)
        assert instance.json("jobs", "-a", "-o", "json")["jobs"] == []
        assert instance.ok("run", "echo", "external") == "external\n"
        other = instance.json("jobs", "-a", "-o", "json")["jobs"][0]["id"]
        assert [path.name for path in sandbox.state.glob("output.*")] != []
        instance.ok("stop")

        done = sandbox.call("start", "--database", "embedded")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert [job["id"] for job in instance.json("jobs", "-a", "-o", "json")["jobs"]] == [mine]
        assert instance.json("status", "-o", "json")["database"]["embedded"] is True
        assert instance.ok("run", "echo", "again") == "again\n"
        instance.ok("stop")

        started(sandbox, PENSTOCK_DATABASE=url)
        assert [job["id"] for job in instance.json("jobs", "-a", "-o", "json")["jobs"]] == [other]
        instance.ok("stop")


def test_the_database_is_not_changed_under_running_tasks(server: Server) -> None:
    with temporary_sandbox() as sandbox:
        instance = started(sandbox)
        instance.ok("stop")
        instance.ok("start")
        job = instance.submit("-n1", "sleep", "600")
        instance.started(job)
        instance.ok("stop", "--keep-tasks")
        message = sandbox.refused("start", code=1, PENSTOCK_DATABASE=fresh_database(server))
        assert "tasks of jobs of another database still run on node" in message
        assert "keeps its database, embedded" in message
        started(sandbox)
        assert instance.job(job)["state"] == "RUN"
        instance.ok("stop")


def test_an_identity_of_format_1_keeps_its_database_and_loses_its_password(server: Server) -> None:
    url = fresh_database(server)
    with temporary_sandbox() as sandbox:
        instance = started(sandbox, PENSTOCK_DATABASE=url)
        job = instance.submit("--urgency=hold", "true")
        instance.ok("stop")
        document = json.loads(instance.paths.identity.read_text())
        instance.paths.identity.write_text(json.dumps({**document, "format": 1, "database": url}))
        instance.paths.identity.chmod(0o644)
        instance.paths.database_url.unlink()
        started(sandbox)
        assert instance.job(job)["urgency"] == 0
        assert password_of(url) not in instance.paths.identity.read_text()
        assert stat.S_IMODE(instance.paths.identity.stat().st_mode) == 0o600
        instance.ok("stop")


def test_status_says_that_an_external_database_is_away(server: Server) -> None:
    with started_server() as mortal, temporary_sandbox() as sandbox:
        instance = started(sandbox, PENSTOCK_DATABASE=mortal.url)
        assert instance.json("status", "-o", "json")["database"]["state"] == "up"
        kill_server(mortal)

        def database() -> dict[str, object]:
            found = instance.call("status", "-o", "json")
            return dict(json.loads(found.stdout)["database"])

        wait_until(lambda: database()["state"] == "away", 30.0)
        assert "database" in str(database()["why"])
        status = instance.call("status")
        assert status.returncode == 1
        assert "away (the " in status.stdout
        mortal.embedded.start()
        wait_until(lambda: database()["state"] == "up", 30.0)
        instance.ok("stop")
    del server


@pytest.mark.parametrize("options", [["--database", ""], ["--database-file", os.devnull]])
def test_an_empty_address_is_refused(options: list[str]) -> None:
    with temporary_sandbox() as sandbox:
        message = sandbox.refused("start", *options, code=2)
        assert "empty (expected the URL of a database, or `embedded` for the embedded one)" in message
        assert not sandbox.state.exists()
