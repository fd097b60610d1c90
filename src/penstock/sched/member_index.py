"""Where members are: the job of each, those on each node, those with a kept slot, and refusals by nodes."""

from __future__ import annotations

__all__ = ["MemberIndex"]


class MemberIndex:
    def __init__(self) -> None:
        self._jobs: dict[str, int] = {}
        self._on_node: dict[str, dict[str, None]] = {}  # live members
        self._refusals: dict[str, dict[tuple[int, str], None]] = {}  # by node: job and member
        self._kept_on: dict[str, dict[str, None]] = {}  # by node: ended members whose slots are kept

    def copy(self) -> MemberIndex:
        made = MemberIndex()
        made._jobs = dict(self._jobs)
        made._on_node = {node: dict(members) for node, members in self._on_node.items()}
        made._refusals = {node: dict(refused) for node, refused in self._refusals.items()}
        made._kept_on = {node: dict(members) for node, members in self._kept_on.items()}
        return made

    def __contains__(self, member: str) -> bool:
        return member in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def job_of(self, member: str) -> int:
        """The number of the active job of a member; 0 if it has none."""
        return self._jobs.get(member, 0)

    def add(self, member: str, job: int) -> None:
        self._jobs[member] = job

    def remove(self, member: str) -> None:
        self._jobs.pop(member, None)

    def assign(self, member: str, job: int, node: str) -> None:
        """Notes that a member is on a node, or on its way to it."""
        self._jobs[member] = job
        self._on_node.setdefault(node, {})[member] = None

    def unassign(self, member: str, node: str) -> None:
        members = self._on_node.get(node)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self._on_node[node]

    def on_node(self, node: str) -> list[str]:
        return list(self._on_node.get(node, ()))

    def keep(self, member: str, node: str) -> None:
        """Notes that the slot of an ended member is kept for its replacement."""
        self._kept_on.setdefault(node, {})[member] = None

    def release_kept(self, member: str, node: str) -> None:
        members = self._kept_on.get(node)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self._kept_on[node]

    def has_kept(self) -> bool:
        return bool(self._kept_on)

    def kept_on(self, node: str) -> list[str]:
        return list(self._kept_on.get(node, ()))

    def kept(self) -> dict[str, list[str]]:
        """The members with kept slots by node."""
        return {node: list(members) for node, members in self._kept_on.items()}

    def nodes(self) -> dict[str, list[str]]:
        """The live members by node."""
        return {node: list(members) for node, members in self._on_node.items()}

    def add_refusal(self, node: str, job: int, member: str) -> None:
        self._refusals.setdefault(node, {})[(job, member)] = None

    def take_refusals(self, node: str) -> list[tuple[int, str]]:
        """The members that a node has refused since it last changed."""
        return list(self._refusals.pop(node, ()))
