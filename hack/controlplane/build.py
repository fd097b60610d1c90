"""`make controlplane`: puts the programs of a control plane into the user's cache.

A program in KUBEBUILDER_ASSETS or on PATH is copied if it reports exactly the pinned version (copied, because
the original may be upgraded later). The others are built with Go from the modules in this directory. Each is
written under a temporary name and renamed when it is complete, and a lock serializes concurrent runs, so the
cache never contains an incomplete program. Programs that are already in the cache are kept.
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
_STEP_S: Final = 30.0  # interval at which a long build reports its elapsed time


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
        sys.stderr.write(
            "controlplane: interrupted; programs that are built are kept, run it again to continue\n"
        )
        return 130
    say(f"ready: {directory}")
    return 0


def fill(directory: Path, environ: Mapping[str, str]) -> None:
    """Adds the missing programs. Go is needed only if one of them must be built."""
    missing = [binary for binary in BINARIES if not os.access(directory / binary.name, os.X_OK)]
    if not missing:
        return
    found = {binary: path for binary in missing if (path := _found_elsewhere(binary, environ)) is not None}
    to_build = [binary for binary in missing if binary not in found]
    go = _usable_go(environ, to_build) if to_build else ""
    for binary in missing:
        number = f"{BINARIES.index(binary) + 1} of {len(BINARIES)}"
        temporary = directory / f".{binary.name}.unfinished"
        try:
            if binary in found:
                say(f"[{number}] {binary.name} {binary.version}: copying {found[binary]}")
                shutil.copy2(found[binary], temporary)
            else:
                say(f"[{number}] {binary.name} {binary.version}: building")
                began = time.monotonic()
                _build(go, binary, temporary, environ)
                say(f"[{number}] {binary.name} {binary.version}: built in {time.monotonic() - began:.0f} s")
            os.replace(temporary, directory / binary.name)
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
            say("another run is filling the cache; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _found_elsewhere(binary: Binary, environ: Mapping[str, str]) -> Path | None:
    directories = [environ.get("KUBEBUILDER_ASSETS", ""), *environ.get("PATH", "").split(os.pathsep)]
    for directory in filter(None, directories):
        path = Path(directory) / binary.name
        if os.access(path, os.X_OK) and path.is_file() and reports_pinned_version(binary, path):
            return path
    return None


def _usable_go(environ: Mapping[str, str], to_build: list[Binary]) -> str:
    """The path of Go. Raises `Unavailable` with advice if Go is missing or too old."""
    needed = re.search(r"^go (\d+)\.(\d+)", (_HERE / "go.mod").read_text("utf-8"), re.MULTILINE)
    assert needed is not None, "go.mod names no version of Go"
    least = (int(needed[1]), int(needed[2]))
    names = ", ".join(binary.name for binary in to_build)
    advice = (
        f"To build {names}, install Go {least[0]}.{least[1]} or newer and put it on PATH; or put these "
        "programs, in the pinned versions, into a directory and set KUBEBUILDER_ASSETS to it"
    )
    go = shutil.which("go", path=environ.get("PATH", ""))
    if go is None:
        raise Unavailable(f"Go is not on PATH. {advice}")
    # Run outside of any module: inside one, Go may report the version of a toolchain that it would download.
    done = subprocess.run([go, "version"], cwd="/", capture_output=True, text=True, check=False)
    version = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    if version is None:
        raise Unavailable(f"`{go} version` prints no version: {done.stdout or done.stderr}. {advice}")
    if (int(version[1]), int(version[2])) < least:
        raise Unavailable(f"{go} is Go {version[1]}.{version[2]}, which is too old. {advice}")
    return go


def _build(go: str, binary: Binary, target: Path, environ: Mapping[str, str]) -> None:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    flags = f"-s -w -X {version}.gitVersion=v{KUBERNETES_VERSION}"
    flags += f" -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    argv = [go, "build", "-trimpath", "-ldflags", flags, "-o", str(target), binary.package]
    building = subprocess.Popen(
        argv,
        cwd=_HERE / binary.module,
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
                say(f"         {binary.name}: {time.monotonic() - began:.0f} s so far")
    except BaseException:
        building.kill()
        building.wait()
        raise
    if building.returncode != 0:
        last = "\n".join(output.splitlines()[-_OUTPUT_LINES:])
        raise Unavailable(f"building {binary.name} failed (exit {building.returncode}):\n{last}")


if __name__ == "__main__":
    sys.exit(main())
