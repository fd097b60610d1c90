"""Starts the command of a task: working directory, output files, environment, and exec.

All of this runs in the supervisor or in its child. The supervisor opens the output files, relative to the
task's directory. A file that the user named is truncated once per attempt of a job, by the first task that
opens it: every task locks a small marker file before it writes, so a task that starts late does not truncate
the output of another. The cause of a failed exec is returned through a pipe that a successful exec closes.
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
from penstock.agent.records import AcceptedTask, TaskSpec

__all__ = [
    "NOT_EXECUTABLE",
    "FileLimits",
    "LaunchError",
    "OutputFds",
    "enter_cwd",
    "environment_of",
    "label",
    "open_outputs",
    "spawn",
]

FileLimits = tuple[int, int]

NOT_FOUND: Final = 127 << 8
NOT_EXECUTABLE: Final = 126 << 8
CWD_FALLBACK: Final = "/tmp"

_CHUNK: Final = 1 << 16
_LINE_MAX: Final = 1 << 20  # a longer line is split into labelled pieces


class LaunchError(Exception):
    """The command was not started; `status` is the exit status that a shell would return."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class OutputFds:
    stdout: int
    stderr: int


def environment_of(accepted: AcceptedTask) -> dict[str, str]:
    """Returns the environment of the command: the user's, plus the variables of Flux and Penstock."""
    spec = accepted.spec
    environment = dict(spec.environment)
    environment |= {
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
        environment["FLUX_JOB_TMPDIR"] = spec.tmpdir
    return environment


def enter_cwd(spec: TaskSpec, host: str) -> str:
    """Changes to the task's directory, or else to /tmp; returns a message for the task's stderr."""
    try:
        os.chdir(spec.cwd)
    except (OSError, ValueError) as error:
        os.chdir(CWD_FALLBACK)
        why = error.strerror if isinstance(error, OSError) else str(error)
        return f"host {host}: Could not change dir to {spec.cwd}: {why}. Going to {CWD_FALLBACK} instead\n"
    return ""


def open_outputs(spec: TaskSpec) -> OutputFds:
    stdout = _open_output(spec, spec.stdout)
    if not spec.stderr or spec.stderr == spec.stdout:
        return OutputFds(stdout, stdout)
    return OutputFds(stdout, _open_output(spec, spec.stderr))


def _open_output(spec: TaskSpec, path: str) -> int:
    try:
        if spec.markers:
            return _open_truncated_once(spec, path)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return _open_append(path, spec.file_mode)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise LaunchError(NOT_EXECUTABLE, f"could not open output file {path}: {why}") from error


def _open_append(path: str, mode: int) -> int:
    # O_NONBLOCK makes a named pipe without a reader an error instead of a block.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, mode)
    os.set_blocking(fd, True)
    return fd


def _open_truncated_once(spec: TaskSpec, path: str) -> int:
    os.makedirs(spec.markers, mode=0o700, exist_ok=True)
    digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:16]
    marker = os.open(f"{spec.markers}/.{spec.attempt}-{digest}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(marker, fcntl.LOCK_EX)
        fd = _open_append(path, spec.file_mode)
        if not os.read(marker, 1):
            with suppress(OSError):  # a device or a pipe cannot be truncated
                os.ftruncate(fd, 0)
            os.write(marker, b"1")
        return fd
    finally:
        os.close(marker)


def spawn(accepted: AcceptedTask, stdin: int, outputs: OutputFds, open_files: FileLimits) -> int:
    """Starts the command in its own session; returns its pid, or raises `LaunchError`."""
    read_end, write_end = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _exec_command(accepted, stdin, outputs, open_files, supervisor)
        except BaseException as error:
            _report_failure(write_end, error)
        finally:
            os._exit(127)
    os.close(write_end)
    text = b""
    while chunk := os.read(read_end, 4096):
        text += chunk
    os.close(read_end)
    if not text:
        return pid
    os.waitpid(pid, 0)
    number, _, why = text.decode(errors="replace").partition(" ")
    status = NOT_FOUND if number == str(errno.ENOENT) else NOT_EXECUTABLE
    raise LaunchError(status, f"start failed: {accepted.spec.command[0]}: {why}")


def _report_failure(pipe: int, error: BaseException) -> None:
    text = f"{error.errno} {error.strerror}" if isinstance(error, OSError) else f"0 {error}"
    os.write(pipe, text.encode(errors="replace")[:4000])


def _exec_command(
    accepted: AcceptedTask, stdin: int, outputs: OutputFds, open_files: FileLimits, supervisor: int
) -> None:
    """Runs in the child, between fork and exec."""
    spec = accepted.spec
    os.setsid()
    die_with_parent(supervisor)
    os.dup2(stdin, 0)
    os.dup2(outputs.stdout, 1)
    os.dup2(outputs.stderr, 2)
    if spec.cores:
        machine = sorted(os.sched_getaffinity(0))
        with suppress(OSError):
            os.sched_setaffinity(0, {machine[core % len(machine)] for core in spec.cores})
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:  # By Python, or by `nohup penstock start`.
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvpe(spec.command[0], spec.command, environment_of(accepted))


def label(rank: int, outputs: OutputFds, close_inherited: Callable[[], None]) -> tuple[int, OutputFds]:
    """Starts a process that prefixes every line with `RANK: `; returns its pid and the command's outputs.

    The process ends when the last writer has closed its output, so it outlives the supervisor and loses no
    line.
    """
    read_out, write_out = os.pipe()
    read_err, write_err = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            close_inherited()
            os.close(write_out)
            os.close(write_err)
            _copy_labelled(f"{rank}: ".encode(), {read_out: outputs.stdout, read_err: outputs.stderr})
        finally:
            os._exit(0)
    for fd in {read_out, read_err, outputs.stdout, outputs.stderr}:
        os.close(fd)
    return pid, OutputFds(write_out, write_err)


def _copy_labelled(prefix: bytes, destinations: dict[int, int]) -> None:
    partial = dict.fromkeys(destinations, b"")
    poll = select.poll()
    for source in destinations:
        poll.register(source, select.POLLIN)
    while partial:
        for source, _ in poll.poll():
            data = os.read(source, _CHUNK)
            lines = (partial[source] + data).split(b"\n")
            if data and len(lines[-1]) <= _LINE_MAX:
                partial[source] = lines.pop()
            else:
                partial[source] = b""
                if not lines[-1]:
                    lines.pop()
            text = b"".join(prefix + line + b"\n" for line in lines)
            with suppress(OSError):  # a full disk must not block the task: keep reading
                while text:
                    text = text[os.write(destinations[source], text) :]
            if not data:
                poll.unregister(source)
                del partial[source]
