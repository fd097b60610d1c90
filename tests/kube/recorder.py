"""A receiver for `reflect` that records and checks what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import Pod
from penstock.kube.watch import Deleted, Relisted, Upserted, WatchBackoff, WatchEvent, WatchState, reflect
from tests.kube.fake_api import FakeApi

QUICK = WatchBackoff(min_s=0.002, max_s=0.01, persistent_error_s=0.02)


class RecordedObjects:
    """A receiver that applies the events. It fails on an event whose version it has already received."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self.events: list[WatchEvent[Pod]] = []
        self.newest = 0
        self.state = WatchState()

    def receive(self, event: WatchEvent[Pod]) -> None:
        self.events.append(event)
        match event:
            case Relisted(items):
                self.pods = {pod.metadata.name: pod.metadata.resource_version for pod in items}
                assert len(self.pods) == len(items), "an object is in a list twice"
                return
            case Upserted(pod):
                self.pods[pod.metadata.name] = pod.metadata.resource_version
            case Deleted(pod):
                assert self.pods.pop(pod.metadata.name, None) is not None, "deleted, but never received"
        version = int(pod.metadata.resource_version)
        assert version > self.newest, "an event was delivered twice or out of order"
        self.newest = version

    def reflect(self, client: KubeClient, **settings: object) -> asyncio.Future[None]:
        given = {"stall_s": 5.0, "backoff": QUICK, "state": self.state, **settings}
        return asyncio.ensure_future(reflect(client, PODS, Pod, self.receive, **given))  # type: ignore[arg-type]

    def event_types(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def current_versions(api: FakeApi) -> dict[str, str]:
    return {name: found["metadata"]["resourceVersion"] for name, found in api.objects.items()}


def faults_at(where: str, *faults: str) -> Callable[[str], str]:
    """Injects these faults, one after the other."""
    left = list(faults)

    def inject_fault(place: str) -> str:
        return left.pop(0) if place == where and left else ""

    return inject_fault
