"""Puts the parts of a control plane into the user's cache: `make controlplane`.

A part that lies in KUBEBUILDER_ASSETS or on PATH is copied if it reports exactly the pinned version (a copy,
because what is found there can become another version tomorrow). The others are built with Go from the
modules in this directory. Each is built under another name and renamed when it is whole, and whoever wants
the cache while somebody fills it waits for the lock, so there is never a half of anything. What is there
already stays.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.devcluster.binaries import (
    BINARIES,
    KUBERNETES_VERSION,
    Binary,
    cache_directory,
    reports_pinned_version,
)
from penstock.errors import PenstockError, Unavailable

_HERE: Final = Path(__file__).resolve().parent
_OUTPUT_LINES: Final = 15
_STEP_S: Final = 30.0  # a build that takes longer says so, this often


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    try:
        directory = cache_directory(os.environ)
        with _locked(directory):
            fill(directory, os.environ)
    except PenstockError as error:
        sys.stderr.write(f"controlplane: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("controlplane: interrupted; what is built stays, the next run goes on from there\n")
        return 130
    say(f"ready: {directory}")
    return 0


def fill(directory: Path, environ: Mapping[str, str]) -> None:
    """Brings what is missing, found parts first: Go is asked for only if something must be built."""
    missing = [part for part in BINARIES if not os.access(directory / part.name, os.X_OK)]
    if not missing:
        return
    found = {part: path for part in missing if (path := _found_elsewhere(part, environ)) is not None}
    to_build = [part for part in missing if part not in found]
    go = _usable_go(environ, to_build) if to_build else ""
    for part in missing:
        number = f"{BINARIES.index(part) + 1} of {len(BINARIES)}"
        temporary = directory / f".{part.name}.unfinished"
        try:
            if part in found:
                say(f"[{number}] {part.name} {part.version}: copying {found[part]}")
                shutil.copy2(found[part], temporary)
            else:
                say(f"[{number}] {part.name} {part.version}: building")
                began = time.monotonic()
                _build(go, part, temporary, environ)
                say(f"[{number}] {part.name} {part.version}: built in {time.monotonic() - began:.0f} s")
            os.replace(temporary, directory / part.name)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot write into {directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run fills the cache; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _found_elsewhere(part: Binary, environ: Mapping[str, str]) -> Path | None:
    places = [environ.get("KUBEBUILDER_ASSETS", ""), *environ.get("PATH", "").split(os.pathsep)]
    for place in filter(None, places):
        path = Path(place) / part.name
        if os.access(path, os.X_OK) and path.is_file() and reports_pinned_version(part, path):
            return path
    return None


def _usable_go(environ: Mapping[str, str], to_build: list[Binary]) -> str:
    """The Go that builds; an error that says what would help if there is none, or too old a one."""
    needed = re.search(r"^go (\d+)\.(\d+)", (_HERE / "go.mod").read_text("utf-8"), re.MULTILINE)
    assert needed is not None, "go.mod names no version of Go"
    least = (int(needed[1]), int(needed[2]))
    names = ", ".join(part.name for part in to_build)
    advice = (
        f"To build {names}, install Go {least[0]}.{least[1]} or newer and put it on PATH; or put these "
        "programs, in the pinned versions, into a directory that KUBEBUILDER_ASSETS names"
    )
    go = shutil.which("go", path=environ.get("PATH", ""))
    if go is None:
        raise Unavailable(f"there is no Go on PATH. {advice}")
    # Asked outside of any module, so that it is the version of this program and not of one it would fetch.
    done = subprocess.run([go, "version"], cwd="/", capture_output=True, text=True, check=False)
    version = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    if version is None:
        raise Unavailable(f"`{go} version` does not tell a version: {done.stdout or done.stderr}. {advice}")
    if (int(version[1]), int(version[2])) < least:
        raise Unavailable(f"{go} is Go {version[1]}.{version[2]}, which is too old. {advice}")
    return go


def _build(go: str, part: Binary, target: Path, environ: Mapping[str, str]) -> None:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    flags = f"-s -w -X {version}.gitVersion=v{KUBERNETES_VERSION}"
    flags += f" -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    argv = [go, "build", "-trimpath", "-ldflags", flags, "-o", str(target), part.package]
    building = subprocess.Popen(
        argv,
        cwd=_HERE / part.module,
        env={**environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    began = time.monotonic()
    try:
        while True:
            try:
                output, _ = building.communicate(timeout=_STEP_S)
                break
            except subprocess.TimeoutExpired:
                say(f"         {part.name}: {time.monotonic() - began:.0f} s so far")
    except BaseException:
        building.kill()
        building.wait()
        raise
    if building.returncode != 0:
        last = "\n".join(output.splitlines()[-_OUTPUT_LINES:])
        raise Unavailable(f"building {part.name} failed (exit {building.returncode}):\n{last}")


if __name__ == "__main__":
    sys.exit(main())
