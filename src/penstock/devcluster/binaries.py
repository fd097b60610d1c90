"""The programs of a control plane: which versions are meant, where they are kept, how one tells its version.

They are kept in the user's cache, in a directory whose name says the versions, so that a checkout with other
versions does not meet them. `make controlplane` puts them there. The versions are those that
`hack/controlplane` pins for Go; a test compares both. Nothing here runs longer than a `--version`.
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
    """A program: its name, the Go package that it is built from, and how it is asked for its version."""

    name: str
    package: str
    version: str
    ask: tuple[str, ...] = ("--version",)
    module: str = "."  # the directory of its go.mod, below hack/controlplane


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
    """Programs of the control plane are not there."""

    def __init__(self, missing: tuple[str, ...], directory: Path) -> None:
        self.missing = missing
        self.directory = directory
        super().__init__(
            f"the control plane is not built: {', '.join(missing)} not in {directory}; "
            "run `make controlplane`"
        )


@dataclass(frozen=True, slots=True)
class Binaries:
    """All programs of a control plane, each in place."""

    directory: Path

    def path(self, name: str) -> Path:
        return self.directory / name

    @property
    def kubectl(self) -> Path:
        return self.path("kubectl")


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the programs of these versions for this machine are kept. Makes nothing."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # a relative one is to be ignored, says the standard
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    versions = f"kubernetes-{KUBERNETES_VERSION}_etcd-{ETCD_VERSION}_kwok-{KWOK_VERSION}"
    machine = f"{platform.system()}-{platform.machine()}".lower()  # a home can be shared between machines
    return Path(base) / "penstock" / "controlplane" / f"{versions}_{machine}"


def find_binaries(environ: Mapping[str, str] | None = None) -> Binaries:
    """The programs in the cache; `BinariesMissing` unless all are there."""
    directory = cache_directory(os.environ if environ is None else environ)
    missing = tuple(part.name for part in BINARIES if not os.access(directory / part.name, os.X_OK))
    if missing:
        raise BinariesMissing(missing, directory)
    return Binaries(directory)


def reports_pinned_version(part: Binary, path: Path) -> bool:
    """Whether the program at `path` says that it is exactly the version that is meant."""
    try:
        done = subprocess.run(
            [path, *part.ask],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    first = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", done.stdout)
    return done.returncode == 0 and first is not None and first[1] == part.version
