"""Pinned versions, cache, certificates, stages and ports: everything that needs no control plane."""

from __future__ import annotations

import base64
import re
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.devcluster import binaries
from penstock.devcluster.binaries import (
    BINARIES,
    Binaries,
    BinariesMissing,
    Binary,
    cache_directory,
    find_binaries,
)
from penstock.devcluster.certificates import make_credentials
from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.commands import choose_ports, write_stages
from penstock.errors import Conflict, Unavailable
from tests.clusters import REQUIRE_VARIABLE, needs_controlplane

MODULES = Path(__file__).resolve().parents[2] / "hack" / "controlplane"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_versions_equal_those_in_go_mod() -> None:
    text = "".join((MODULES / name / "go.mod").read_text() for name in (".", "kwok"))
    required = dict(re.findall(r"^(?:require|\t)\s*(\S+) v(\S+)$", text, re.MULTILINE))
    assert required["k8s.io/kubernetes"] == binaries.KUBERNETES_VERSION
    assert required["go.etcd.io/etcd/server/v3"] == binaries.ETCD_VERSION
    assert required["sigs.k8s.io/kwok"] == binaries.KWOK_VERSION


def test_tools_go_imports_the_package_of_every_program() -> None:
    text = "".join((MODULES / name / "tools.go").read_text() for name in (".", "kwok"))
    assert [binary.name for binary in BINARIES if f'"{binary.package}"' not in text] == []


def test_other_versions_have_another_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_directory({"HOME": "/h"})
    assert before.parent == Path("/h/.cache/penstock/controlplane")
    for name in ("KUBERNETES_VERSION", "ETCD_VERSION", "KWOK_VERSION"):
        with monkeypatch.context() as patch:
            patch.setattr(binaries, name, "9.9.9")
            assert cache_directory({"HOME": "/h"}) != before


def test_the_cache_follows_xdg_cache_home() -> None:
    assert cache_directory({"HOME": "/h", "XDG_CACHE_HOME": "/c"}).is_relative_to("/c/penstock")
    assert cache_directory({"HOME": "/h", "XDG_CACHE_HOME": "not/absolute"}).is_relative_to("/h/.cache")


def test_missing_programs_are_named_with_advice(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    directory = cache_directory(environ)
    for binary in BINARIES[1:]:
        program(directory / binary.name, "true")
    with pytest.raises(BinariesMissing, match="make controlplane") as raised:
        find_binaries(environ)
    assert raised.value.missing == ("etcd",)
    assert isinstance(raised.value, Unavailable)
    program(directory / "etcd", "true")
    assert find_binaries(environ) == Binaries(directory)


@pytest.mark.parametrize(
    ("output", "is_pinned"),
    [
        ("etcd Version: 3.6.8", True),
        ("kwok version v3.6.8 go1.26.8 (linux/amd64)", True),
        ("etcd Version: 3.6.80", False),
        ("etcd Version: 3.6.8-rc.1", False),
        ("etcd Version: 3.5.1", False),
        ("no version", False),
    ],
)
def test_only_the_exact_pinned_version_is_accepted(tmp_path: Path, output: str, is_pinned: bool) -> None:
    path = program(tmp_path / "etcd", f"echo '{output}'")
    assert binaries.reports_pinned_version(Binary("etcd", "-", "3.6.8"), path) is is_pinned


def test_a_program_that_cannot_run_is_not_accepted(tmp_path: Path) -> None:
    assert not binaries.reports_pinned_version(BINARIES[0], tmp_path / "nothing")
    assert not binaries.reports_pinned_version(BINARIES[0], program(tmp_path / "fails", "echo 3.6.8; exit 1"))


def test_penstock_has_the_name_and_groups_of_its_service_account(tmp_path: Path) -> None:
    credentials = make_credentials(tmp_path / "credentials", "https://127.0.0.1:1")
    config = yaml.safe_load(credentials.kubeconfig("penstock").read_text())
    data = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    subject = x509.load_pem_x509_certificate(data).subject
    (name,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert name.value == "system:serviceaccount:penstock-system:penstock"
    assert [group.value for group in groups] == [
        "system:serviceaccounts",
        "system:serviceaccounts:penstock-system",
    ]


def test_only_the_owner_can_read_credentials(tmp_path: Path) -> None:
    credentials = make_credentials(tmp_path / "credentials", "https://127.0.0.1:1")
    assert stat.S_IMODE(credentials.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in credentials.directory.iterdir()} == {0o600}


def test_the_stages_are_yaml_without_placeholders(tmp_path: Path) -> None:
    path = tmp_path / "stages.yaml"
    write_stages(path)
    documents = list(yaml.safe_load_all(path.read_text()))
    assert [document["kind"] for document in documents] == [
        "KwokConfiguration",
        *["Stage"] * (len(documents) - 1),
    ]
    assert len(documents) == 9
    assert not re.search(r"@\w+@", path.read_text())


def test_three_ports_below_the_ephemeral_range_are_chosen() -> None:
    ports = choose_ports()
    assert len({ports.api, ports.etcd, ports.etcd_peer}) == 3
    assert max(ports.api, ports.etcd, ports.etcd_peer) < 32_768


def test_a_directory_that_is_not_empty_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(Conflict, match="not empty"):
        DevCluster(tmp_path, binaries=Binaries(tmp_path)).start()
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_failed_start_reports_the_cause_and_leaves_no_files(tmp_path: Path) -> None:
    for name in ("etcd", "kube-apiserver"):
        program(tmp_path / "bin" / name, f"echo {name} says no; exit 7")
    cluster = DevCluster(tmp_path / "cluster", binaries=Binaries(tmp_path / "bin"))
    with pytest.raises(Unavailable, match="etcd exited with code 7: etcd says no"):
        cluster.start()
    assert not cluster.directory.exists()
    with pytest.raises(Conflict, match="is not running"):
        cluster.kubectl("version")


def test_tests_that_need_the_control_plane_skip_loudly_or_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(REQUIRE_VARIABLE, raising=False)
    reason = "because the control plane is not built: run make controlplane"
    with pytest.raises(pytest.skip.Exception, match=f"SKIPPED {reason}"):
        needs_controlplane()
    monkeypatch.setenv(REQUIRE_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match=f"FAILED {reason}"):
        needs_controlplane()
