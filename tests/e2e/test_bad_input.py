"""What is wrong is refused: one clear sentence on stderr, a documented exit code, nothing left half-done.

Exit codes: 1 the operation failed, 2 wrong usage or request, 3 no instance or it cannot answer now.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg.conninfo
import pytest

from penstock.cli.client import RequestRefused
from tests.e2e.instances import NODE_OPTIONS, Running, Sandbox, left_behind, temporary_sandbox, wait_until
from tests.store.servers import started_server

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk or give files away")


# The command line

FLAGS = [
    (["submit", "--nods=2", "true"], 2, "--nodes"),
    (["submit", "-N0", "true"], 2, "0"),
    (["submit", "-Nmany", "true"], 2, "many"),
    (["submit"], 2, "penstock: no command (expected COMMAND [ARGUMENTS...], or --jobspec FILE)"),
    (["submit", "-N4", "-n2", "true"], 2, "node count must not be greater than task count"),
    (["submit", "-x", "true"], 2, "--exclusive: it needs a number of nodes"),
    (["submit", "-n2", "--cores=2", "true"], 2, "do not mix"),
    (["submit", "-t", "soon", "true"], 2, "soon"),
    (["submit", "-t", "inf", "true"], 2, "finite"),
    (["submit", "--urgency=99", "true"], 2, "0 to 31"),
    (["submit", "--begin-time=whenever", "true"], 2, "--begin-time: invalid time (found 'whenever'; "),
    (["submit", "--begin-time=+long", "true"], 2, "--begin-time: invalid time (found '+long'; "),
    (
        ["submit", "-t5x", "true"],
        2,
        "--time-limit: invalid time limit (found '5x'; expected minutes such as 30",
    ),
    (["submit", "--signal=USR1@x", "true"], 2, "--signal: invalid duration (found 'x'; "),
    (["submit", "-qnosuch", "true"], 2, "--queue: no such queue (found 'nosuch'; expected batch, debug)"),
    (["jobs", "--since=foo"], 2, "--since: invalid time (found 'foo'; "),
    (["timeline", "--since=abc"], 2, "--since: invalid duration (found 'abc'; expected seconds such as 30"),
    (["submit", "--cc=5-3", "true"], 2, "--cc: descending range (found '5-3'; "),
    (["submit", "--cc=1-999999999", "true"], 2, "too many ids"),
    (["submit", "--signal=NOPE", "true"], 2, "unknown signal"),
    (["submit", "--requires=(a", "true"], 2, "parenthesis"),
    (["submit", "--requires=cpu:7", "true"], 2, "cpu:7"),
    (["submit", "--requires=a,", "true"], 2, "--requires: a property name is missing (found 'a,'; "),
    (["submit", "--env==x", "true"], 2, "invalid variable"),
    (["submit", "--dependency=afterok", "true"], 2, "SCHEME:VALUE"),
    (["submit", "--jobspec=/nonexistent"], 2, "/nonexistent: cannot read the jobspec: No such file"),
    (["run", "--nope", "true"], 2, "--nope"),
    (["jobs", "-f", "runing"], 2, "did you mean running?"),
    (["jobs", "-o", "{nope}"], 2, "unknown field"),
    (["jobs", "-o", "{id"], 2, "invalid format"),
    (["job", "show", "f0"], 2, "not a job id"),
    (["job", "show", "ƒzzzzzzzzzzzzz"], 2, "not a job id"),
    (["job", "wait", "-t", "long", "f1"], 2, "--timeout: invalid duration (found 'long'; "),
    (["cancel"], 2, "no job ids (expected IDS or --all)"),
    (["resource", "drain", "node[0-", "x"], 2, "invalid node list"),
    (
        ["timeline", "--svg", "/nonexistent/plan.svg"],
        1,
        "/nonexistent/plan.svg: cannot write the image: No such file",
    ),
    (["urgency", "f1", "very"], 2, "invalid urgency"),
    (
        ["submit", "ls", "caf\udce9"],
        2,
        "command[1]: not UTF-8 (found 'caf\\xe9'; expected UTF-8 text, because requests are JSON)",
    ),
    (["run", "--name=\udcff", "true"], 2, "name: not UTF-8 (found '\\xff'; "),
    (["jobs", "--name=\udcff"], 2, "name: not UTF-8 (found '\\xff'; "),
    (["resource", "drain", "node0", "\udcff"], 2, "reason: not UTF-8 (found '\\xff'; "),
    (["job", "show", "\udcff"], 2, "not a job id"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), FLAGS, ids=lambda value: str(value)[:50])
def test_an_invalid_command_line_is_explained(
    instance: Running, arguments: list[str], code: int, words: str
) -> None:
    assert words in instance.refused(*arguments, code=code)
    assert instance.client.get("/v1/jobs", states="active")["jobs"] == []


# Jobspecs

GOOD = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "t", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "t", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 60}},
}
PER_CORE = {"shell": {"options": {"per-resource": {"type": "core"}}}}
JOBSPECS = [
    ("not JSON and not YAML: [", "neither JSON nor YAML"),
    ("[]", "a jobspec is an object"),
    (json.dumps({**GOOD, "version": "seven"}), "version"),
    (json.dumps({**GOOD, "resources": []}), "resources"),
    (json.dumps({**GOOD, "resources": [{"type": "core", "count": -1}]}), "resources[0].count"),
    (json.dumps({**GOOD, "tasks": [{"command": [], "slot": "t", "count": {"per_slot": 1}}]}), "command"),
    (json.dumps({**GOOD, "tasks": [{"command": ["a"], "slot": "u", "count": {"per_slot": 1}}]}), "slot"),
    (json.dumps({**GOOD, "attributes": {"system": {"duration": "long"}}}), "duration"),
    (json.dumps({**GOOD, "attributes": {"system": {"dependencies": "afterok:f1"}}}), "dependencies"),
    (json.dumps({**GOOD, "attributes": {"system": {"queue": "nope"}}}), "queue"),
    (json.dumps({**GOOD, "attributes": {"system": {"job": {"name": "a\0b"}}}}), "attributes.system.job.name"),
    (json.dumps({**GOOD, "attributes": {"system": {"environment": {"A": "\0"}}}}), "environment.A"),
    (json.dumps({**GOOD, "attributes": {"system": PER_CORE}}), "per-resource"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), JOBSPECS, ids=lambda value: str(value)[-40:])
def test_an_invalid_jobspec_is_refused_with_the_path_of_the_error(
    instance: Running, text: str, words: str
) -> None:
    done = instance.call("submit", "--jobspec", "-", stdin=text)
    assert done.returncode in (1, 2), done
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert words in done.stderr
    assert instance.client.get("/v1/jobs", states="active")["jobs"] == []


# Control characters


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/jobs", {"jobs": [{"jobspec": GOOD}], "key": "a\0b"}, "key"),
        ("/v1/jobs/cancel", {"all": True, "note": "a\0b"}, "note"),
        ("/v1/resources/drain", {"targets": "0", "reason": "a\nb"}, "reason"),
        ("/v1/queues/-/stop", {"reason": "\u001b[2J"}, "reason"),
    ],
)
def test_control_characters_are_refused_and_the_instance_goes_on(
    instance: Running, path: str, body: dict[str, object], where: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        instance.client.post(path, body)
    assert (refused.value.status, refused.value.where) == (400, where)
    assert instance.client.get("/v1/status")["instance"]["ready"]
    assert instance.ok("run", "true") == ""


# Dependencies


def test_impossible_dependencies_are_refused(instance: Running) -> None:
    message = instance.refused("submit", "--dependency=afterok:f1234", "true", code=1)
    assert "--dependency afterok:f1234: no such job" in message
    message = instance.refused("submit", "--dependency=afterok:soon!", "true", code=2)
    assert (
        "--dependency: invalid job id (found 'afterok:soon!'; expected a job id, for example afterok:ƒ1"
        in message
    )
    message = instance.refused("submit", "--dependency=whenever:f1", "true", code=2)
    assert "--dependency: unknown dependency scheme (found 'whenever'; expected afterstart, " in message
    held = instance.submit("--urgency=hold", "true")
    itself = int(instance.job(held)["id_dec"]) + (1 << 30)  # No job has that id yet.
    message = instance.refused("submit", f"--dependency=afterany:{itself}", "true", code=1)
    assert f"--dependency afterany:{itself}: no such job" in message
    assert [job["id"] for job in instance.client.get("/v1/jobs", states="active")["jobs"]] == [held]


# What can never run

NEVER = [
    (
        ["-N9"],
        "needs 9 nodes with 1 core each, the cluster fits at most 4; with 4 nodes instead of 9 it would fit",
    ),
    (["-n9"], "with 8 slots instead of 9 it would fit"),
    (["-c3"], "with 2 cores instead of 3 it would fit"),
    (["-g1"], "gpu"),
    (["--requires=rank:9"], "without its constraint it would fit"),
    (["--requires=fast"], "without its constraint it would fit"),
]


@pytest.mark.parametrize(("options", "words"), NEVER, ids=lambda value: str(value)[:20])
def test_an_unsatisfiable_job_is_refused_with_the_closest_size_that_fits(
    instance: Running, options: list[str], words: str
) -> None:
    message = instance.refused("submit", *options, "true", code=1)
    assert message.startswith("penstock: unsatisfiable request: ")
    assert words in message
    assert "(" not in message
    assert instance.client.get("/v1/jobs", states="active")["jobs"] == []


def test_a_batch_of_jobs_is_accepted_completely_or_not_at_all(instance: Running) -> None:
    instance.refused("submit", "--cc=1-9", "--requires=rank:{cc}", "true", code=1)
    assert instance.client.get("/v1/jobs", states="active")["jobs"] == []


# The state directory


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with temporary_sandbox() as made:
        yield made
        assert not left_behind(made)


def tree(sandbox: Sandbox) -> dict[str, bytes]:
    found = (path for path in sandbox.directory.rglob("*") if path.is_file())
    return {str(path.relative_to(sandbox.directory)): path.read_bytes() for path in found}


def test_a_directory_with_other_content_is_not_changed(sandbox: Sandbox) -> None:
    sandbox.state.mkdir()
    (sandbox.state / "thesis.tex").write_text("precious")
    before = tree(sandbox)
    message = sandbox.refused("start", *NODE_OPTIONS, code=1)
    assert f"{sandbox.state} is not the state directory of an instance: it contains 'thesis.tex'" in message
    assert "--state" in message
    assert tree(sandbox) == before


def test_a_directory_of_a_newer_version_is_not_changed(sandbox: Sandbox) -> None:
    sandbox.state.mkdir()
    (sandbox.state / "instance.json").write_text('{"format": 99, "made_by": "7.0"}')
    before = tree(sandbox)
    message = sandbox.refused("start", code=1)
    assert f"{sandbox.state} was written by a newer Penstock (7.0); " in message
    assert "use that version, or another --state" in message
    assert tree(sandbox) == before


NO_CORES = '{"format": 1, "id": "a", "nodes": 3, "cores": 0, "gpus": 0, "database": ""}'


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": "x"}', '{"format": 1}', NO_CORES, "\udcff"],
)
def test_a_corrupt_identity_file_is_refused(sandbox: Sandbox, text: str) -> None:
    sandbox.state.mkdir()
    (sandbox.state / "instance.json").write_bytes(os.fsencode(text))
    before = tree(sandbox)
    message = sandbox.refused("start", code=1)
    assert f"{sandbox.state}/instance.json is corrupt (" in message
    assert "restore it from a backup, or use another --state" in message
    assert tree(sandbox) == before


def test_a_state_that_is_a_file_is_left_alone(sandbox: Sandbox) -> None:
    sandbox.state.write_text("a file")
    message = sandbox.refused("start", code=1)
    assert f"{sandbox.state} is not a directory" in message
    assert sandbox.state.read_text() == "a file"
    assert "no instance runs in" in sandbox.refused("jobs", code=3)


def test_a_state_below_a_file_is_refused(sandbox: Sandbox) -> None:
    (sandbox.directory / "file").write_text("a file")
    message = sandbox.refused("start", "--state", str(sandbox.directory / "file" / "state"), code=1)
    assert f"{sandbox.directory}/file is not a directory" in message


@AS_ROOT
def test_a_directory_of_another_user_is_not_changed(sandbox: Sandbox) -> None:
    sandbox.state.mkdir(mode=0o755)
    os.chown(sandbox.state, 65534, 65534)
    message = sandbox.refused("start", code=1)
    assert f"{sandbox.state} belongs to user 65534, not to user 0" in message
    assert list(sandbox.state.iterdir()) == []
    assert sandbox.state.stat().st_mode & 0o777 == 0o755


@AS_ROOT
def test_a_directory_that_the_database_cannot_reach_is_named(sandbox: Sandbox) -> None:
    sandbox.directory.chmod(0o700)
    message = sandbox.refused("start", code=1)
    assert f"{sandbox.directory} is not accessible to the account 'penstock-postgres'" in message
    assert f"chmod o+x {sandbox.directory}" in message
    sandbox.directory.chmod(0o755)


# Sockets


def test_a_runtime_directory_with_too_long_a_path_is_refused(sandbox: Sandbox) -> None:
    deep = f"/tmp/{'d' * 100}"
    message = sandbox.refused("start", code=2, PENSTOCK_RUNTIME=deep)
    assert "PENSTOCK_RUNTIME: the path of the runtime directory is too long for a socket" in message
    assert "at most 107 bytes; set PENSTOCK_RUNTIME to a short directory" in message
    assert not sandbox.state.exists()
    assert not Path(deep).exists()


def test_a_socket_of_another_process_is_not_replaced(sandbox: Sandbox) -> None:
    path = sandbox.paths.socket
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        message = sandbox.refused("start", *NODE_OPTIONS, code=1)
        assert f"another instance is listening on {path}" in message
        assert path.is_socket()
    assert not (sandbox.state / "db").exists()


def test_a_file_at_the_path_of_the_socket_is_not_removed(sandbox: Sandbox) -> None:
    path = sandbox.paths.socket
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    message = sandbox.refused("start", *NODE_OPTIONS, code=1)
    assert str(path) in message
    assert path.read_text() == "precious"


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999"])
def test_an_address_that_cannot_be_listened_on_is_named(sandbox: Sandbox, address: str) -> None:
    done = sandbox.call("start", *NODE_OPTIONS, "--listen", address)
    assert done.returncode in (1, 2), done
    assert done.stderr.startswith("penstock: ")
    assert address in done.stderr
    assert "Traceback" not in done.stderr


# The configuration

CONFIGURATIONS = [
    ("policy = ", "not a TOML file"),
    (
        "polcy = 'easy'",
        "polcy: unknown key (expected one of claim_backfill_max, forecast_depth, gang_repair_timeout, ",
    ),
    (
        "whole = '2m'",
        "whole: unknown key (expected one of claim_backfill_max, forecast_depth, gang_repair_timeout, ",
    ),
    (
        "[kube]\nassemble = '1h'",
        "kube.assemble: unknown key (expected one of assembly_timeout, ",
    ),
    ("policy = 'fastest'", "fastest"),
    ("match_policy = 'best'", "best"),
    ("queue_depth = 0", "queue_depth"),
    ("queue_depth = 'all'", "queue_depth"),
    ("[[queues]]\nname = 'a'\n[[queues]]\nname = 'a'", "duplicate queue"),
    ("[[queues]]\nname = 'a b'", "a b"),
    (
        "[[queues]]\nname = 'a'\nduration_max = 'long'",
        "queues.a.duration_max: invalid duration (found 'long'",
    ),
    ("grace = '5x'", "grace: invalid duration (found '5x'"),
    ("[queues.a]", "queues: expected array, got object"),
    ("[[queues]]\nname = 'a'\nrequires = {colour = ['red']}", "colour"),
]


@pytest.mark.parametrize(("text", "words"), CONFIGURATIONS, ids=lambda value: value[:30])
def test_an_invalid_configuration_is_refused_before_anything_is_created(
    sandbox: Sandbox, text: str, words: str
) -> None:
    config = sandbox.directory / "penstock.toml"
    config.write_text(text)
    message = sandbox.refused("start", "--config", str(config), code=2)
    assert words in message
    assert str(config) in message
    assert not sandbox.state.exists()


def test_a_missing_configuration_file_is_named(sandbox: Sandbox) -> None:
    message = sandbox.refused("start", "--config", f"{sandbox.directory}/none.toml", code=2)
    assert f"{sandbox.directory}/none.toml: cannot read the file (found No such file or directory)" in message
    assert not sandbox.state.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "0"], "0"),
        (["--cores", "-1"], "-1"),
        (["--policy", "fastest"], "--policy: no such queue policy (found 'fastest'; "),
        (["--match-policy", "best"], "--match-policy: invalid policy option: best"),
        (["--database", "mysql://x"], "mysql"),
    ],
    ids=str,
)
def test_invalid_options_of_start_are_refused_before_anything_is_created(
    sandbox: Sandbox, options: list[str], words: str
) -> None:
    refusal = sandbox.refused("start", *options, code=2)
    assert words in refusal
    assert sandbox.refused("start", "--foreground", *options, code=2) == refusal
    assert not sandbox.state.exists()


# The database


def test_start_waits_for_an_unreachable_database_with_one_message(sandbox: Sandbox) -> None:
    """`start` reports it once; the instance responds, and is ready when the database is."""
    with started_server() as server, bound_socket() as kept:
        known = psycopg.conninfo.conninfo_to_dict(server.url)
        there = f"{known['host']}/.s.PGSQL.{known.get('port', 5432)}"
        port = kept.getsockname()[1]
        url = psycopg.conninfo.make_conninfo(server.url, host="127.0.0.1", port=port)
        with bound_socket(port) as first, forwarded(first, there):
            done = sandbox.call("start", *NODE_OPTIONS, PENSTOCK_DATABASE=url)
            assert (done.returncode, done.stderr) == (0, "")
            assert sandbox.call("stop").returncode == 0
        process = sandbox.launch("start")
        assert process.stderr is not None
        message = process.stderr.readline()
        assert message.startswith("penstock: not ready yet: the database ")
        assert message.endswith("127.0.0.1 (database penstock) answers: check that PostgreSQL runs there\n")
        assert str(known["password"]) not in message
        status = sandbox.call("status")
        assert status.returncode == 1
        assert "not ready (the database " in status.stdout
        assert "the instance is not ready: the database " in sandbox.refused("submit", "true", code=3)
        with bound_socket(port) as again, forwarded(again, there):
            out, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, "")
            assert "ready: 4 nodes" in out
            assert sandbox.call("run", "true").returncode == 0
            assert sandbox.call("stop").returncode == 0


def bound_socket(port: int = 0) -> socket.socket:
    """A socket that does not listen. While one exists, no connection gets its port as a local port."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


@contextlib.contextmanager
def forwarded(listening: socket.socket, path: str) -> Iterator[None]:
    """Connections to the socket reach the Unix socket at `path`."""
    listening.listen(16)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(path)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def test_waiting_for_a_database_can_be_interrupted(sandbox: Sandbox) -> None:
    with started_server() as server:
        done = sandbox.call("start", *NODE_OPTIONS, PENSTOCK_DATABASE=server.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert sandbox.call("stop").returncode == 0
    process = sandbox.launch("start")
    assert process.stderr is not None
    assert "not ready yet: the database " in process.stderr.readline()
    assert sandbox.call("stop").returncode == 0
    process.communicate(timeout=20)
    assert process.returncode == 3
    assert not left_behind(sandbox)


# The disk


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    at.mkdir(exist_ok=True)
    options = f"size={size},mode=0755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", at], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def fill(directory: Path) -> Path:
    path = directory / "filling"
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"\0" * 4096)
    return path


@AS_ROOT
def test_a_start_on_a_full_disk_says_so_and_leaves_nothing(sandbox: Sandbox) -> None:
    with small_disk(sandbox.state, "2m"):
        message = sandbox.refused("start", *NODE_OPTIONS, code=3)
        assert "No space left on device" in message
        assert not left_behind(sandbox)


@AS_ROOT
def test_submissions_on_a_full_disk_are_refused_and_nothing_is_lost(sandbox: Sandbox) -> None:
    with small_disk(sandbox.state, "400m"):
        sandbox.ok("start", *NODE_OPTIONS)
        running = Running(sandbox.directory, sandbox.state)
        try:
            before = [running.submit("--urgency=hold", "true") for _ in range(3)]
            filling = fill(sandbox.state)
            taken, message = list(before), ""
            for _ in range(200):  # What is allocated already can still be written to.
                done = running.call("submit", "--urgency=hold", "--env=PAD=" + "x" * 60_000, "true")
                if done.returncode != 0:
                    message = done.stderr
                    assert done.returncode == 3, done
                    break
                taken += done.stdout.split()
            assert message.startswith("penstock: ")
            assert "space" in message or "not ready" in message, message
            filling.unlink()
            wait_until(lambda: running.call("submit", "--urgency=hold", "true").returncode == 0, 30.0)
            known = {job["id"] for job in running.client.get("/v1/jobs", states="active")["jobs"]}
            assert set(taken) <= known
        finally:
            assert running.call("stop").returncode == 0
        assert not left_behind(sandbox)
