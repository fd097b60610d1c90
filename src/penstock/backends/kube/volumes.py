"""Tracks claims and volumes, and which pods use which claim.

The nodes on which a pod may run depend on its claims, so every change returns the pods to examine again.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.kube.types import PersistentVolume, PersistentVolumeClaim, Pod

__all__ = ["VolumeTracker"]

_ClaimKey = tuple[str, str]  # namespace and name


class VolumeTracker:
    def __init__(self) -> None:
        self._claims: dict[_ClaimKey, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._claims_of: dict[str, set[_ClaimKey]] = {}  # volume -> claims that name it
        self._pods: dict[_ClaimKey, dict[str, None]] = {}  # claim -> pods that use it
        self._claims_by_pod: dict[str, tuple[_ClaimKey, ...]] = {}

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.get(name)

    def track_pod(self, uid: str, pod: Pod) -> None:
        keys: tuple[_ClaimKey, ...] = ()
        if pod.spec.volumes:
            keys = tuple(
                (pod.metadata.namespace, volume.persistent_volume_claim.claim_name)
                for volume in pod.spec.volumes
                if volume.persistent_volume_claim is not None
            )
        self._set_claims(uid, keys)

    def untrack_pod(self, uid: str) -> None:
        self._set_claims(uid, ())

    def _set_claims(self, uid: str, keys: tuple[_ClaimKey, ...]) -> None:
        before = self._claims_by_pod.get(uid, ())
        if before == keys:
            return
        for key in before:
            pods = self._pods.get(key, {})
            pods.pop(uid, None)
            if not pods:
                self._pods.pop(key, None)
        for key in keys:
            self._pods.setdefault(key, {})[uid] = None
        if keys:
            self._claims_by_pod[uid] = keys
        else:
            del self._claims_by_pod[uid]

    def replace_claims(self, claims: Iterable[PersistentVolumeClaim]) -> list[str]:
        self._claims, self._claims_of = {}, {}
        for claim in claims:
            self.set_claim(claim)
        return list(self._claims_by_pod)

    def set_claim(self, claim: PersistentVolumeClaim, *, gone: bool = False) -> list[str]:
        key = (claim.metadata.namespace, claim.metadata.name)
        before = self._claims.pop(key, None)
        if before is not None:
            keys = self._claims_of.get(before.spec.volume_name, set())
            keys.discard(key)
            if not keys:
                self._claims_of.pop(before.spec.volume_name, None)
        if not gone:
            self._claims[key] = claim
            if claim.spec.volume_name:
                self._claims_of.setdefault(claim.spec.volume_name, set()).add(key)
        return list(self._pods.get(key, ()))

    def replace_volumes(self, volumes: Iterable[PersistentVolume]) -> list[str]:
        self._volumes = {one.metadata.name: one for one in volumes}
        return list(self._claims_by_pod)

    def set_volume(self, volume: PersistentVolume, *, gone: bool = False) -> list[str]:
        name = volume.metadata.name
        if gone:
            self._volumes.pop(name, None)
        else:
            self._volumes[name] = volume
        keys = sorted(self._claims_of.get(name, ()))
        return list(dict.fromkeys(uid for key in keys for uid in self._pods.get(key, ())))
