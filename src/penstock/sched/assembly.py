"""The ready members of a group that has not started, in order, and those of them that start together.

The first members by index, then in the order in which they came, start together: as many as the workload
needs. A group can be large and its members come, change and leave one at a time, so each of these events
costs what it changes: a binary search in the sorted members, and at most one member that crosses the limit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.sched.jobspec import MemberRequest

__all__ = ["Assembly"]

_Position: TypeAlias = tuple[int, int, str]  # index, number and key of a member


@dataclass(slots=True)
class Assembly:
    size: int = 1  # how many members start together; changed by `set_size`
    _requests: dict[str, tuple[_Position, MemberRequest]] = field(default_factory=dict)
    _order: list[_Position] = field(default_factory=list)  # sorted
    _starting: dict[MemberRequest, list[_Position]] = field(default_factory=dict)  # sorted; none is empty

    def copy(self) -> Assembly:
        starting = {request: list(members) for request, members in self._starting.items()}
        return Assembly(self.size, dict(self._requests), list(self._order), starting)

    def __len__(self) -> int:
        """How many members are ready."""
        return len(self._order)

    def __contains__(self, key: str) -> bool:
        return key in self._requests

    def add(self, key: str, index: int, number: int, request: MemberRequest) -> None:
        """Adds a ready member, or changes its request."""
        known = self._requests.get(key)
        if known is not None:
            if known[1] == request:
                return
            self.remove(key)
        position = (index, number, key)
        self._requests[key] = (position, request)
        insort(self._order, position)
        if bisect_left(self._order, position) < self.size:
            self._start(position)
            if len(self._order) > self.size:
                self._stay(self._order[self.size])

    def remove(self, key: str) -> None:
        """Removes a member that is not ready any more. Another one is ignored."""
        known = self._requests.get(key)
        if known is None:
            return
        at = bisect_left(self._order, known[0])
        if at < self.size:
            self._stay(known[0])
            if len(self._order) > self.size:
                self._start(self._order[self.size])
        del self._order[at], self._requests[key]

    def clear(self) -> None:
        """Forgets all members: the group has started."""
        self._requests.clear()
        self._order.clear()
        self._starting.clear()

    def set_size(self, size: int) -> None:
        """Sets how many members start together, at least one."""
        before, self.size = self.size, max(size, 1)
        for position in self._order[before : self.size]:
            self._start(position)
        for position in self._order[self.size : before]:
            self._stay(position)

    @property
    def is_complete(self) -> bool:
        return len(self._order) >= self.size

    def groups(self) -> list[tuple[MemberRequest, int]]:
        """The distinct requests of the members that start together, in order, and how many have each."""
        return [(request, len(members)) for request, members in self._in_order()]

    def group_numbers(self) -> dict[str, int]:
        """The members that start together, and the position in `groups` of the request of each."""
        return {key: group for group, (_, members) in enumerate(self._in_order()) for _, _, key in members}

    def _in_order(self) -> list[tuple[MemberRequest, list[_Position]]]:
        return sorted(self._starting.items(), key=lambda one: one[1][0])

    def _start(self, position: _Position) -> None:
        insort(self._starting.setdefault(self._requests[position[2]][1], []), position)

    def _stay(self, position: _Position) -> None:
        request = self._requests[position[2]][1]
        members = self._starting[request]
        del members[bisect_left(members, position)]
        if not members:
            del self._starting[request]
