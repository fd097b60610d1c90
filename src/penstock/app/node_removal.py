"""Removes nodes from a local instance that was started with fewer nodes than before.

Nothing is placed on such a node, and its jobs run on. It is removed when the scheduler has no member there,
on its way to it included, and the agent has no task. Nothing can be placed there, so this stays true.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.backends.local.backend import LocalBackend
from penstock.errors import Unavailable
from penstock.instance.loop import Instance
from penstock.model.jobid import encode_jobid

__all__ = ["NodeRemoval"]

_LOG: Final = logging.getLogger("penstock.local")
_POLL_S: Final = 1.0
_NAMED_MAX: Final = 3  # nodes, and jobs of one node, in a text


class NodeRemoval:
    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self._is_removing = asyncio.Lock()

    async def run(self, instance: Instance) -> None:
        """Returns when no node leaves any more."""
        while self._backend.leaving():
            await asyncio.sleep(_POLL_S)  # `settle` runs once before, when the instance is ready.
            await self.settle(instance)

    async def settle(self, instance: Instance) -> list[str]:
        """Removes the nodes that are empty, as far as that is possible now; returns a text for others."""
        try:
            return await self._remove_empty(instance)
        except Unavailable:
            pass  # The instance is between two terms.
        except Exception:
            _LOG.exception("cannot remove a node; trying again")
        return []

    async def _remove_empty(self, instance: Instance) -> list[str]:
        """Removes the nodes that are empty; returns a text for each of the others."""
        texts = []
        async with self._is_removing:
            for node in self._backend.leaving():
                members = await instance.query(
                    lambda scheduler, _, node=node: scheduler.members_on(node)  # type: ignore[misc]
                )
                if await self._backend.probe_unknown(node, list(members)) or members:
                    texts.append(f"{node} leaves when its jobs have ended{_named(set(members.values()))}")
                    continue
                await self._backend.remove_node(node)
                _LOG.info("%s has left", node)
        more = len(texts) - _NAMED_MAX
        return [*texts[:_NAMED_MAX], f"so do {more} more nodes"] if more > 1 else texts


def _named(jobs: set[int]) -> str:
    names = [encode_jobid(job) for job in sorted(jobs)[:_NAMED_MAX]]
    more = len(jobs) - len(names)
    return f": {', '.join(names)}{f' and {more} more' if more else ''}" if names else ""
