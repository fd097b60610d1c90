"""Claims and volumes as far as they are known, and which pods wait for them.

Where a pod may go depends on its claims: whatever changes says which pods are to be looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.kube.types import PersistentVolume, PersistentVolumeClaim, Pod

__all__ = ["Volumes"]

_Key = tuple[str, str]  # the namespace and the name of a claim


class Volumes:
    def __init__(self) -> None:
        self._claims: dict[_Key, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._claims_on: dict[str, set[_Key]] = {}  # volume -> claims that name it
        self._claimants: dict[_Key, dict[str, None]] = {}  # claim -> pods
        self._claimed: dict[str, tuple[_Key, ...]] = {}  # pod -> claims

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.get(name)

    def note(self, uid: str, pod: Pod | None) -> None:
        """Keeps in mind what a pod claims; None: it does not matter any more."""
        claimed: tuple[_Key, ...] = ()
        if pod is not None and pod.spec.volumes:
            claimed = tuple(
                (pod.metadata.namespace, volume.persistent_volume_claim.claim_name)
                for volume in pod.spec.volumes
                if volume.persistent_volume_claim is not None
            )
        before = self._claimed.get(uid, ())
        if before == claimed:
            return
        for key in before:
            pods = self._claimants.get(key, {})
            pods.pop(uid, None)
            if not pods:
                self._claimants.pop(key, None)
        for key in claimed:
            self._claimants.setdefault(key, {})[uid] = None
        if claimed:
            self._claimed[uid] = claimed
        else:
            del self._claimed[uid]

    def claims_listed(self, claims: Iterable[PersistentVolumeClaim]) -> list[str]:
        self._claims, self._claims_on = {}, {}
        for claim in claims:
            self.claim_set(claim)
        return list(self._claimed)

    def claim_set(self, claim: PersistentVolumeClaim, *, gone: bool = False) -> list[str]:
        key = (claim.metadata.namespace, claim.metadata.name)
        before = self._claims.pop(key, None)
        if before is not None:
            on = self._claims_on.get(before.spec.volume_name, set())
            on.discard(key)
            if not on:
                self._claims_on.pop(before.spec.volume_name, None)
        if not gone:
            self._claims[key] = claim
            if claim.spec.volume_name:
                self._claims_on.setdefault(claim.spec.volume_name, set()).add(key)
        return list(self._claimants.get(key, ()))

    def volumes_listed(self, volumes: Iterable[PersistentVolume]) -> list[str]:
        self._volumes = {one.metadata.name: one for one in volumes}
        return list(self._claimed)

    def volume_set(self, volume: PersistentVolume, *, gone: bool = False) -> list[str]:
        name = volume.metadata.name
        if gone:
            self._volumes.pop(name, None)
        else:
            self._volumes[name] = volume
        keys = sorted(self._claims_on.get(name, ()))
        return list(dict.fromkeys(uid for key in keys for uid in self._claimants.get(key, ())))
