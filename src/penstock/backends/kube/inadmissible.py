"""Works that were given up: their job has ended while pods of theirs still wait for somebody to act.

We remember who waited then. When somebody comes who did not, the work is tried again, with all of them. After
a restart the pods themselves say it: if all that wait do, the work was given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.backends.kube.pod_status import GIVEN_UP, Problem, given_up_text
from penstock.kube.types import Pod

__all__ = ["GivenUp"]


class GivenUp:
    """`waiting_pods` are those of a work, `touch` is called with pods that are to be looked at again."""

    def __init__(
        self, waiting_pods: Callable[[str], list[Pod]], touch: Callable[[Iterable[str]], None]
    ) -> None:
        self._waiting_pods = waiting_pods
        self._touch = touch
        self._works: dict[str, tuple[frozenset[str], Problem]] = {}  # its pods then, and why

    def works(self) -> Iterable[str]:
        return self._works

    def add(self, work: str, problem: Problem) -> None:
        waiting = [pod.metadata.uid for pod in self._waiting_pods(work)]
        if waiting:
            self._works[work] = (frozenset(waiting), problem)
            self._touch(waiting)

    def inherit(self, before: GivenUp) -> None:
        self._works = dict(before._works)

    def forget(self, work: str) -> None:
        self._works.pop(work, None)

    def why(self, pod: Pod, work: str) -> Problem | None:
        """Whether the work of a waiting pod was given up, by our memory or by what all of its pods say."""
        found = self._works.get(work)
        if found is None and not given_up_text(pod):
            return None
        pods = self._waiting_pods(work)
        waiting = [one.metadata.uid for one in pods]
        if found is None:
            if not all(map(given_up_text, pods)):
                return None
            found = self._works[work] = (frozenset(waiting), Problem(GIVEN_UP, given_up_text(pod)))
        if found[0].issuperset(waiting):
            return found[1]
        del self._works[work]  # Somebody has come since: it is tried again, with all of them.
        self._touch(waiting)
        return None
