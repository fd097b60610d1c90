"""`make controlplane` with a fake Go: building, copying, locking, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.devcluster.binaries import BINARIES, cache_directory, find_binaries

SCRIPT = Path(__file__).resolve().parents[2] / "hack" / "controlplane" / "build.py"
TIMEOUT_S = 60

FAKE_GO = """#!/bin/sh
echo "$*" >> "$CALLS"
if [ "$1" = version ]; then echo "go version go$GO_IS linux/amd64"; exit 0; fi
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
case "$3" in *$FAILS) echo "some/file.go: does not compile"; exit 2;; esac
sleep "$TAKES_S"
"""


class Machine:
    """A user with a cache directory and a PATH with known programs only."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("sh", "sleep", "chmod"):
            (self.bin / name).symlink_to(f"/bin/{name}")
        self.environ = {
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PATH": str(self.bin),
            "CALLS": str(self.calls),
            "GO_IS": "1.26.8",
            "TAKES_S": "0",
            "FAILS": "nothing",
        }

    def install(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, SCRIPT],
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **environ: str) -> tuple[int, str, str]:
        return ended(self.start(**environ))

    def builds(self) -> list[str]:
        """The packages that Go has built."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.rpartition(" ")[2] for line in lines if line.startswith("build ")]

    def cached(self) -> set[str]:
        directory = cache_directory(self.environ)
        return {name for name in os.listdir(directory) if name != ".lock"} if directory.exists() else set()


def ended(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = running.communicate(timeout=TIMEOUT_S)
    return running.returncode, out, err


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def with_go(machine: Machine) -> Machine:
    machine.install(machine.bin / "go", FAKE_GO)
    return machine


def test_all_programs_are_built_once_with_progress_messages(with_go: Machine) -> None:
    code, out, err = with_go.run()
    assert (code, err) == (0, "")
    for number, binary in enumerate(BINARIES, 1):
        assert f"[{number} of 6] {binary.name} {binary.version}: building" in out
        assert f"[{number} of 6] {binary.name} {binary.version}: built in 0 s" in out
    assert with_go.builds() == [binary.package for binary in BINARIES]
    assert find_binaries(with_go.environ).directory == cache_directory(with_go.environ)
    code, out, _ = with_go.run()
    assert (code, out) == (0, f"ready: {cache_directory(with_go.environ)}\n")
    assert len(with_go.builds()) == len(BINARIES)


def test_builds_set_the_version(with_go: Machine) -> None:
    with_go.run()
    lines = [line for line in with_go.calls.read_text().splitlines() if line.startswith("build ")]
    assert all("-trimpath" in line and "version.gitVersion=v1.36.3" in line for line in lines)


def test_two_runs_at_once_build_once(with_go: Machine) -> None:
    first = with_go.start(TAKES_S="0.3")
    assert first.stdout is not None
    first.stdout.readline()
    second = with_go.start(TAKES_S="0.3")
    results = [ended(first), ended(second)]
    assert [code for code, _, _ in results] == [0, 0]
    assert "another run is filling the cache; waiting for it" in results[1][1]
    assert len(with_go.builds()) == len(BINARIES)


def test_only_a_missing_program_is_built_again(with_go: Machine) -> None:
    with_go.run()
    (cache_directory(with_go.environ) / "kwok").unlink()
    assert with_go.run()[0] == 0
    assert with_go.builds()[6:] == ["sigs.k8s.io/kwok/cmd/kwok"]


def test_without_go_the_error_names_it_and_gives_advice(machine: Machine) -> None:
    code, _, err = machine.run()
    assert code == 1
    assert "Go is not on PATH" in err
    assert "install Go 1.26 or newer" in err
    assert "KUBEBUILDER_ASSETS" in err
    assert machine.cached() == set()


def test_too_old_a_go_is_rejected_with_the_same_advice(with_go: Machine) -> None:
    code, _, err = with_go.run(GO_IS="1.25.3")
    assert code == 1
    assert "is Go 1.25, which is too old" in err
    assert "install Go 1.26 or newer" in err
    assert with_go.builds() == []


def test_a_failed_build_leaves_no_file_and_keeps_complete_programs(with_go: Machine) -> None:
    code, _, err = with_go.run(FAILS="kube-scheduler")
    assert code == 1
    assert "building kube-scheduler failed (exit 2):\nsome/file.go: does not compile" in err
    assert with_go.cached() == {"etcd", "kube-apiserver", "kube-controller-manager"}
    assert with_go.run()[0] == 0


def test_installed_programs_of_the_pinned_version_are_copied(machine: Machine, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    for binary in BINARIES[:3]:
        machine.install(assets / binary.name, f"#!/bin/sh\necho 'Version: v{binary.version}'\n")
    for binary in BINARIES[3:]:
        machine.install(machine.bin / binary.name, f"#!/bin/sh\necho '{binary.version}'\n")
    code, out, err = machine.run(KUBEBUILDER_ASSETS=str(assets))
    assert (code, err) == (0, "")  # Go is not needed.
    assert f"[1 of 6] etcd 3.6.8: copying {assets / 'etcd'}" in out
    assert machine.cached() == {binary.name for binary in BINARIES}


def test_installed_programs_of_another_version_are_not_copied(with_go: Machine, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    for binary in BINARIES:
        with_go.install(assets / binary.name, "#!/bin/sh\necho 'Version: v1.33.0'\n")
    assert with_go.run(KUBEBUILDER_ASSETS=str(assets))[0] == 0
    assert len(with_go.builds()) == len(BINARIES)


def test_an_unwritable_cache_is_an_error(with_go: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = with_go.run(XDG_CACHE_HOME=str(tmp_path / "file"))
    assert code == 1
    assert "cannot write into" in err
