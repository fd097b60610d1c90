"""How many distinct requests the late members of one namespace have in the queue.

Late members are queued one by one, each with its own request, so a started group could bring any number of
shapes. Members with a shape beyond the limit wait outside the queue; when a shape of their namespace is gone,
the one that has waited longest enters, with all members that have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.sched.queue import QueueEntry

__all__ = ["LateShapes", "WaitingMember"]

_Key = tuple[int, str]  # job and member
WaitingMember = tuple[QueueEntry, str, int]  # with its queue and its shape


@dataclass(slots=True)
class _Namespace:
    counts: dict[int, int] = field(default_factory=dict)  # by shape: members in the queue
    outside: dict[int, dict[_Key, WaitingMember]] = field(default_factory=dict)  # by shape

    def copy(self) -> _Namespace:
        return _Namespace(dict(self.counts), {shape: dict(some) for shape, some in self.outside.items()})


class LateShapes:
    def __init__(self, shapes_max: int) -> None:
        self._shapes_max = shapes_max
        self._namespaces: dict[str, _Namespace] = {}
        self._members: dict[_Key, tuple[str, int]] = {}  # its namespace and its shape, inside or outside

    def copy(self) -> LateShapes:
        made = LateShapes(self._shapes_max)
        made._namespaces = {owner: found.copy() for owner, found in self._namespaces.items()}
        made._members = dict(self._members)
        return made

    def add(self, owner: str, waiting: WaitingMember) -> bool:
        """Counts a member that is not counted yet. Returns whether it may enter the queue."""
        entry, _, shape = waiting
        key = (entry.job, entry.member)
        found = self._namespaces.setdefault(owner, _Namespace())
        self._members[key] = (owner, shape)
        if shape not in found.counts and len(found.counts) >= self._shapes_max:
            found.outside.setdefault(shape, {})[key] = waiting
            return False
        found.counts[shape] = found.counts.get(shape, 0) + 1
        return True

    def remove(self, job: int, member: str) -> list[WaitingMember]:
        """Forgets a member. Returns those that enter the queue in its place."""
        known = self._members.pop((job, member), None)
        if known is None:
            return []
        owner, shape = known
        found = self._namespaces[owner]
        entering: list[WaitingMember] = []
        if (job, member) in found.outside.get(shape, {}):
            del found.outside[shape][(job, member)]
            if not found.outside[shape]:
                del found.outside[shape]
        else:
            found.counts[shape] -= 1
            if not found.counts[shape]:
                del found.counts[shape]
                entering = self._enter_next(found)
        if not found.counts and not found.outside:
            del self._namespaces[owner]
        return entering

    def _enter_next(self, found: _Namespace) -> list[WaitingMember]:
        shape = next(iter(found.outside), None)
        if shape is None:
            return []
        entering = list(found.outside.pop(shape).values())
        found.counts[shape] = len(entering)
        return entering

    def outside_shapes(self) -> set[int]:
        return {shape for found in self._namespaces.values() for shape in found.outside}
