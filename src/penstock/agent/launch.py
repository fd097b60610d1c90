"""From a spec to a running command: directory, output files, environment, and the exec itself.

Everything here happens in the supervisor or in its child. Output files are opened by the supervisor, relative
to the task's directory. A file that the user named is emptied once for each attempt of a job, by whichever
task comes first: all tasks pass a mark (a small locked file) before they write, so nobody empties what
another has written, however late it starts. Why an exec failed comes back through a pipe that exec closes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.agent.processes import TOKEN_VARIABLE, die_with_parent
from penstock.agent.records import Accepted, TaskSpec

__all__ = ["Failure", "Limits", "Outputs", "enter_cwd", "environment_of", "label", "open_outputs", "spawn"]

Limits = tuple[int, int]

NOT_FOUND: Final = 127 << 8
NOT_EXECUTABLE: Final = 126 << 8
CWD_FALLBACK: Final = "/tmp"

_CHUNK: Final = 1 << 16
_LINE_MAX: Final = 1 << 20  # a longer line is cut into labelled pieces


class Failure(Exception):
    """The command was not started; `status` is what a shell would say."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Outputs:
    stdout: int
    stderr: int


def environment_of(accepted: Accepted) -> dict[str, str]:
    """What the job brought along, and what a task of Flux is told."""
    spec = accepted.spec
    found = dict(spec.environment)
    found |= {
        "FLUX_JOB_ID": spec.job_f58,
        "FLUX_JOB_SIZE": str(spec.size),
        "FLUX_JOB_NNODES": str(spec.nnodes),
        "FLUX_TASK_RANK": str(spec.rank),
        "FLUX_TASK_LOCAL_ID": str(spec.local_id),
        "CUDA_VISIBLE_DEVICES": spec.gpus,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PENSTOCK_JOB_ID": str(spec.job),
        "PENSTOCK_ATTEMPT": str(spec.attempt),
        "PENSTOCK_NODE": spec.node,
        "PENSTOCK_CORES": ",".join(map(str, spec.granted)),
        TOKEN_VARIABLE: accepted.token,
    }
    if spec.tmpdir:
        found["FLUX_JOB_TMPDIR"] = spec.tmpdir
    return found


def enter_cwd(spec: TaskSpec, host: str) -> str:
    """Goes to the task's directory, or else to /tmp; returns what the task's stderr should say."""
    try:
        os.chdir(spec.cwd)
    except (OSError, ValueError) as error:
        os.chdir(CWD_FALLBACK)
        why = error.strerror if isinstance(error, OSError) else str(error)
        return f"host {host}: Could not change dir to {spec.cwd}: {why}. Going to {CWD_FALLBACK} instead\n"
    return ""


def open_outputs(spec: TaskSpec) -> Outputs:
    stdout = _open_output(spec, spec.stdout)
    if not spec.stderr or spec.stderr == spec.stdout:
        return Outputs(stdout, stdout)
    return Outputs(stdout, _open_output(spec, spec.stderr))


def _open_output(spec: TaskSpec, path: str) -> int:
    try:
        if spec.marks:
            return _open_marked(spec, path)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return _open_append(path, spec.file_mode)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Failure(NOT_EXECUTABLE, f"could not open output file {path}: {why}") from error


def _open_append(path: str, mode: int) -> int:
    # A pipe without a reader would block for ever: it is an error instead.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, mode)
    os.set_blocking(fd, True)
    return fd


def _open_marked(spec: TaskSpec, path: str) -> int:
    os.makedirs(spec.marks, mode=0o700, exist_ok=True)
    digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:16]
    mark = os.open(f"{spec.marks}/.{spec.attempt}-{digest}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        fd = _open_append(path, spec.file_mode)
        if not os.read(mark, 1):
            with suppress(OSError):  # a device or a pipe cannot be emptied
                os.ftruncate(fd, 0)
            os.write(mark, b"1")
        return fd
    finally:
        os.close(mark)


def spawn(accepted: Accepted, outputs: Outputs, open_files: Limits) -> int:
    """Starts the command in a session of its own; returns its pid, or raises `Failure`."""
    told, tell = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(accepted, outputs, open_files, supervisor)
        except BaseException as error:
            _report_failure(tell, error)
        finally:
            os._exit(127)
    os.close(tell)
    text = b""
    while chunk := os.read(told, 4096):
        text += chunk
    os.close(told)
    if not text:
        return pid
    os.waitpid(pid, 0)
    number, _, why = text.decode(errors="replace").partition(" ")
    status = NOT_FOUND if number == str(errno.ENOENT) else NOT_EXECUTABLE
    raise Failure(status, f"start failed: {accepted.spec.command[0]}: {why}")


def _report_failure(tell: int, error: BaseException) -> None:
    text = f"{error.errno} {error.strerror}" if isinstance(error, OSError) else f"0 {error}"
    os.write(tell, text.encode(errors="replace")[:4000])


def _become(accepted: Accepted, outputs: Outputs, open_files: Limits, supervisor: int) -> None:
    """In the child: everything between fork and exec."""
    spec = accepted.spec
    os.setsid()
    die_with_parent(supervisor)
    os.dup2(outputs.stdout, 1)
    os.dup2(outputs.stderr, 2)
    if spec.cores:
        machine = sorted(os.sched_getaffinity(0))
        with suppress(OSError):
            os.sched_setaffinity(0, {machine[core % len(machine)] for core in spec.cores})
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvpe(spec.command[0], spec.command, environment_of(accepted))


def label(rank: int, outputs: Outputs, keep_out: Callable[[], None]) -> tuple[int, Outputs]:
    """Starts a process that puts `RANK: ` before every line; returns it, and what the command writes to.

    It ends by itself when the last writer is gone, so it survives the supervisor and loses no line.
    """
    read_out, write_out = os.pipe()
    read_err, write_err = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            keep_out()
            os.close(write_out)
            os.close(write_err)
            _copy_labelled(f"{rank}: ".encode(), {read_out: outputs.stdout, read_err: outputs.stderr})
        finally:
            os._exit(0)
    for fd in {read_out, read_err, outputs.stdout, outputs.stderr}:
        os.close(fd)
    return pid, Outputs(write_out, write_err)


def _copy_labelled(prefix: bytes, ways: dict[int, int]) -> None:
    rest = dict.fromkeys(ways, b"")
    poll = select.poll()
    for source in ways:
        poll.register(source, select.POLLIN)
    while rest:
        for source, _ in poll.poll():
            data = os.read(source, _CHUNK)
            lines = (rest[source] + data).split(b"\n")
            if data and len(lines[-1]) <= _LINE_MAX:
                rest[source] = lines.pop()
            else:
                rest[source] = b""
                if not lines[-1]:
                    lines.pop()
            text = b"".join(prefix + line + b"\n" for line in lines)
            with suppress(OSError):  # a full disk must not stop the task: it goes on reading
                while text:
                    text = text[os.write(ways[source], text) :]
            if not data:
                poll.unregister(source)
                del rest[source]
