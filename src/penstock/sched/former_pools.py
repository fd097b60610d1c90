"""Exclusion keys of recorded allocations in which a pool on every node stood for each key.

Such a pool is named `hostport/<protocol>/<port>`, with one unit, or `anti-affinity/<namespace>/<selector>`:
a pod that has the rule was granted all units, a pod that is only selected by it one. A pod that has the rule
may be selected by it or not; it counts as selected, because it had the pool for itself. The keys equal those
that `podspec` makes, so members that were recorded in either way exclude each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.model.exclusion_key import ExclusionKey

__all__ = ["keys_of_pool", "split_grants"]

# At a location `NODE:RESOURCE`, or as a resource alone. No resource of Kubernetes has two slashes.
_HOST_PORT: Final = re.compile(r"(?:[^/:]+:)?hostport/([A-Z]+)/([0-9]+)")
_ANTI_AFFINITY: Final = re.compile(r"(?:[^/:]+:)?anti-affinity/([^/]+)/(.+)", re.DOTALL)


def keys_of_pool(location: str, units: int) -> tuple[ExclusionKey, ...]:
    """The keys that a grant stands for; none if it is of a real resource."""
    port = _HOST_PORT.fullmatch(location)
    if port is not None:
        return (ExclusionKey("node", f"host port {port[2]}/{port[1]}"),)
    rule = _ANTI_AFFINITY.fullmatch(location)
    if rule is None:
        return ()
    carrier, selected = (
        ExclusionKey("node", f"anti-affinity with {rule[2]}", f"{rule[1]}/{side}")
        for side in ("carrier", "selected")
    )
    return (carrier, selected) if units > 1 else (selected,)


def split_grants(
    grants: Iterable[tuple[str, int]],
) -> tuple[list[tuple[str, int]], tuple[ExclusionKey, ...]]:
    """The grants of a recorded slot on real resources, and the keys that the others stand for."""
    left: list[tuple[str, int]] = []
    keys: set[ExclusionKey] = set()
    for location, units in grants:
        found = keys_of_pool(location, units)
        keys.update(found)
        if not found:
            left.append((location, units))
    return left, tuple(sorted(keys))
