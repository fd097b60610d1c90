"""Exclusion keys: what members of a cluster have to themselves on a node, a rack, a zone.

A member *brings* keys, which are in use while it is there, and *forbids* keys: it is not placed where one of
them is in use. A host port is brought and forbidden by the same member; of an anti-affinity rule, the pods
that have the rule forbid what the selected pods bring, and the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ExclusionKey"]


@dataclass(frozen=True, slots=True, order=True)
class ExclusionKey:
    level: str  # the type of the vertices at which it applies: `node`, or a topology level such as `rack`
    name: str  # for users: `host port 80/TCP`, `anti-affinity with app=db`
    scope: str = ""  # what else identifies it, if several keys have one name
