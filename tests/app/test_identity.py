"""The identity file of a state directory, of this version and of earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.app.identity import InstanceIdentity, read_identity, write_identity
from penstock.paths import InstancePaths


def test_an_instance_of_an_earlier_version_has_nodes_without_memory(tmp_path: Path) -> None:
    paths = InstancePaths(tmp_path, tmp_path / "run")
    identity = InstanceIdentity("abc", 2, 4, 0, memory_mib=4096)
    write_identity(paths, identity)
    assert read_identity(paths) == identity
    document = json.loads(paths.identity.read_text())
    del document["memory_mib"]
    paths.identity.write_text(json.dumps(document))
    found = read_identity(paths)
    assert found is not None
    assert (found.nodes, found.cores, found.memory_mib) == (2, 4, 0)
