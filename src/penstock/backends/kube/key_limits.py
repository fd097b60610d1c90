"""How many exclusion keys the waiting pods of one namespace may have together.

Every key of a waiting pod is looked up on every node that is considered for it, so many keys in one namespace
slow down the scheduling of all. Host ports and anti-affinity rules count, each once for the namespace (the
two keys of a rule have one name). Pods that would exceed the limit are kept back until keys of others are not
needed any more. Pods on nodes do not count: their keys cost nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.problems import LIMIT_EXCEEDED, PodProblem

__all__ = ["KeyLimits"]

_RETRIED_MAX: Final = 8  # pods that are tried again when a key becomes unused


@dataclass(slots=True)
class _Namespace:
    counts: dict[str, int] = field(default_factory=dict)  # by the name of a key: waiting pods that have it
    kept_back: dict[str, None] = field(default_factory=dict)  # pods


class KeyLimits:
    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._namespaces: dict[str, _Namespace] = {}
        self._pods: dict[str, tuple[str, frozenset[str]]] = {}  # pod -> its namespace and its keys
        self._kept_back: dict[str, str] = {}  # pod -> its namespace
        self._dirty: dict[str, None] = {}

    def set(self, uid: str, namespace: str, keys: Iterable[ExclusionKey]) -> PodProblem | None:
        """Counts the keys of a waiting pod, or returns why it is kept back; it then counts for nothing."""
        names = frozenset(key.name for key in keys)
        known = self._pods.get(uid)
        if known is not None and known[1] == names:
            return None
        self.remove(uid)
        if not names:
            return None
        found = self._namespaces.setdefault(namespace, _Namespace())
        total = len(found.counts) + sum(1 for name in names if name not in found.counts)
        if total <= self._keys_max:
            self._pods[uid] = (namespace, names)
            for name in names:
                found.counts[name] = found.counts.get(name, 0) + 1
            return None
        if len(names) > self._keys_max:
            self._drop_if_empty(namespace)
            return PodProblem(LIMIT_EXCEEDED, f"the pod has {self._text(len(names))}")
        found.kept_back[uid] = None
        self._kept_back[uid] = namespace
        text = f"with this pod, the waiting pods of namespace {namespace} have {self._text(total)}"
        return PodProblem(LIMIT_EXCEEDED, text)

    def _text(self, count: int) -> str:
        limit = f"at most {self._keys_max} (limits.exclusion_keys_max)"
        return f"{count} exclusion keys (host ports and anti-affinity rules), {limit}"

    def remove(self, uid: str) -> None:
        """A pod no longer waits, or is about to be counted again."""
        namespace = self._kept_back.pop(uid, None)
        if namespace is not None:
            del self._namespaces[namespace].kept_back[uid]
            self._drop_if_empty(namespace)
        known = self._pods.pop(uid, None)
        if known is None:
            return
        namespace, names = known
        found = self._namespaces[namespace]
        before = len(found.counts)
        for name in names:
            found.counts[name] -= 1
            if not found.counts[name]:
                del found.counts[name]
        if len(found.counts) < before:
            self._dirty.update(dict.fromkeys(islice(found.kept_back, _RETRIED_MAX)))
        self._drop_if_empty(namespace)

    def _drop_if_empty(self, namespace: str) -> None:
        found = self._namespaces[namespace]
        if not found.counts and not found.kept_back:
            del self._namespaces[namespace]

    def take_dirty(self) -> Iterable[str]:
        """Pods that were kept back and may be tried again."""
        dirty, self._dirty = self._dirty, {}
        return dirty
