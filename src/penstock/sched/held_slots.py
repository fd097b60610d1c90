"""The slots of a job that are booked."""

from __future__ import annotations

__all__ = ["HeldSlots"]


class HeldSlots:
    """The part of its allocation and the node of each slot of a job."""

    __slots__ = ("_by_node", "_parts")

    def __init__(self) -> None:
        self._parts: dict[int, tuple[int, str]] = {}
        self._by_node: dict[str, dict[int, None]] = {}

    def copy(self) -> HeldSlots:
        made = HeldSlots()
        made._parts = dict(self._parts)
        made._by_node = {node: dict(slots) for node, slots in self._by_node.items()}
        return made

    def __contains__(self, slot: int) -> bool:
        return slot in self._parts

    def add(self, slot: int, part: int, node: str) -> None:
        self._parts[slot] = (part, node)
        self._by_node.setdefault(node, {})[slot] = None

    def remove(self, slot: int) -> int:
        """Removes a slot. Returns its part."""
        part, node = self._parts.pop(slot)
        slots = self._by_node[node]
        del slots[slot]
        if not slots:
            del self._by_node[node]
        return part

    def on_node(self, node: str) -> list[int]:
        return list(self._by_node.get(node, ()))

    def by_part(self) -> dict[int, set[int]]:
        parts: dict[int, set[int]] = {}
        for slot, (part, _) in self._parts.items():
            parts.setdefault(part, set()).add(slot)
        return parts

    def clear(self) -> None:
        self._parts.clear()
        self._by_node.clear()
