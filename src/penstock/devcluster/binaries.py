"""The programs of a control plane: pinned versions, location in the cache, version check.

`make controlplane` puts them into the user's cache, in a directory named after the versions, so that
checkouts with different versions do not share it. The versions equal those that `hack/controlplane` pins for
Go; a test compares both.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import Unavailable

__all__ = [
    "BINARIES",
    "ETCD_VERSION",
    "KUBERNETES_VERSION",
    "KWOK_VERSION",
    "Binaries",
    "BinariesMissing",
    "Binary",
    "cache_directory",
    "find_binaries",
    "reports_pinned_version",
]

KUBERNETES_VERSION: Final = "1.36.3"
ETCD_VERSION: Final = "3.6.8"
KWOK_VERSION: Final = "0.8.0"

_VERSION_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Binary:
    """A program, the Go package that it is built from, and the arguments that print its version."""

    name: str
    package: str
    version: str
    version_args: tuple[str, ...] = ("--version",)
    module: str = "."  # the directory of its go.mod, relative to hack/controlplane


_KUBERNETES: Final = "k8s.io/kubernetes/cmd"

BINARIES: Final = (
    Binary("etcd", "go.etcd.io/etcd/server/v3", ETCD_VERSION),
    Binary("kube-apiserver", f"{_KUBERNETES}/kube-apiserver", KUBERNETES_VERSION),
    Binary("kube-controller-manager", f"{_KUBERNETES}/kube-controller-manager", KUBERNETES_VERSION),
    Binary("kube-scheduler", f"{_KUBERNETES}/kube-scheduler", KUBERNETES_VERSION),
    Binary("kubectl", f"{_KUBERNETES}/kubectl", KUBERNETES_VERSION, ("version", "--client")),
    Binary("kwok", "sigs.k8s.io/kwok/cmd/kwok", KWOK_VERSION, module="kwok"),
)


class BinariesMissing(Unavailable):
    """Programs of the control plane are missing from the cache."""

    def __init__(self, missing: tuple[str, ...], directory: Path) -> None:
        self.missing = missing
        self.directory = directory
        super().__init__(
            f"control plane programs are missing: {', '.join(missing)} not found in {directory}; "
            "run `make controlplane`"
        )


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory that contains all programs of a control plane."""

    directory: Path

    def path(self, name: str) -> Path:
        return self.directory / name

    @property
    def kubectl(self) -> Path:
        return self.path("kubectl")


def cache_directory(environ: Mapping[str, str]) -> Path:
    """The cache directory for the pinned versions on this platform. Does not create it."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # The XDG specification says to ignore relative paths.
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    versions = f"kubernetes-{KUBERNETES_VERSION}_etcd-{ETCD_VERSION}_kwok-{KWOK_VERSION}"
    machine = f"{platform.system()}-{platform.machine()}".lower()  # machines can share a home directory
    return Path(base) / "penstock" / "controlplane" / f"{versions}_{machine}"


def find_binaries(environ: Mapping[str, str] | None = None) -> Binaries:
    """The programs in the cache. Raises `BinariesMissing` unless all are executable."""
    directory = cache_directory(os.environ if environ is None else environ)
    missing = tuple(binary.name for binary in BINARIES if not os.access(directory / binary.name, os.X_OK))
    if missing:
        raise BinariesMissing(missing, directory)
    return Binaries(directory)


def reports_pinned_version(binary: Binary, path: Path) -> bool:
    """Whether the program at `path` prints exactly the pinned version."""
    try:
        done = subprocess.run(
            [path, *binary.version_args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    first = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", done.stdout)
    return done.returncode == 0 and first is not None and first[1] == binary.version
