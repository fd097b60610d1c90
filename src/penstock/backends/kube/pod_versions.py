"""Versions of one pod: which is newer, and whether they differ in what other objects depend on."""

from __future__ import annotations

from penstock.kube.types import ObjectMeta, Pod

__all__ = ["declares_the_same", "resource_version"]


def declares_the_same(before: Pod, after: Pod) -> bool:
    """Whether two versions of a pod have equal relations to other objects."""
    old, new = before.metadata, after.metadata
    return (
        before.spec == after.spec
        and old.labels == new.labels
        and old.annotations == new.annotations
        and old.owner_references == new.owner_references
    )


def resource_version(metadata: ObjectMeta) -> int:
    """The version as a number, which a server increases with every change; 0 if it is none."""
    return int(metadata.resource_version) if metadata.resource_version.isdigit() else 0
