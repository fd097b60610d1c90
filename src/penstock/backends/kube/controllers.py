"""Jobs, ReplicaSets, StatefulSets and Deployments: who made whom, and which works they keep alive.

A pod names its maker by uid, and the two come by different watches, in any order. A maker is *unknown* until
it is heard of or asked for, and *absent* once it is known not to be there: its pods will be deleted with it,
since a pod that should outlive its owner is disowned first. A maker that wants pods keeps the work of these
alive, also while there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.kube.types import ObjectMeta, OwnerReference, Pod
from penstock.podspec.grouping import (
    Controller,
    GroupMembership,
    controller_ref_of,
    is_known_controller,
    membership_of,
)
from penstock.podspec.settings import TranslationSettings

__all__ = ["Ancestry", "Controllers"]

_ABOVE_MAX = 2  # a pod's maker, and the one above that


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The makers of a pod that are known, nearest first, and the first one that should be and is not."""

    controllers: tuple[Controller, ...]
    missing: OwnerReference | None = None
    is_absent: bool = False  # the missing one is known not to be there


class Controllers:
    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._controllers: dict[str, Controller] = {}
        self._absent: set[str] = set()  # only such as pods are below
        self._made: dict[str, dict[str, None]] = {}  # maker -> makers that it made
        self._pods: dict[str, dict[str, None]] = {}  # maker -> pods below it, also of unknown makers
        self._above: dict[str, tuple[str, ...]] = {}  # pod -> makers above it
        self._templates: dict[str, GroupMembership] = {}  # maker -> where its next pods would belong
        self._of_workload: dict[str, dict[str, None]] = {}  # work -> makers that keep it alive
        self._dirty: dict[str, None] = {}

    # What is asked

    def job_of(self, pod: Pod) -> Controller | None:
        owner = controller_ref_of(pod.metadata)
        controller = self._controllers.get(owner.uid) if owner is not None else None
        return controller if controller is not None and controller.kind == "Job" else None

    def ancestry(self, metadata: ObjectMeta) -> Ancestry:
        controllers: list[Controller] = []
        owner = controller_ref_of(metadata)
        while owner is not None and len(controllers) < _ABOVE_MAX and is_known_controller(owner):
            controller = self._controllers.get(owner.uid)
            if controller is None:
                return Ancestry(tuple(controllers), owner, owner.uid in self._absent)
            controllers.append(controller)
            owner = controller.above
        return Ancestry(tuple(controllers))

    def workloads(self) -> Iterable[str]:
        """Those that somebody wants to make pods for."""
        return self._of_workload

    def templates(self, workload: str) -> list[GroupMembership]:
        """What the pods would say that are yet to be made for a work, in the order of their makers."""
        found = self._of_workload.get(workload)
        return [self._templates[uid] for uid in sorted(found)] if found else []

    # What is told

    def listed(self, kind: str, controllers: Iterable[Controller]) -> None:
        listed = {controller.uid: controller for controller in controllers}
        for uid in [
            uid
            for uid, controller in self._controllers.items()
            if controller.kind == kind and uid not in listed
        ]:
            self.gone(uid)
        for controller in listed.values():
            self.set(controller)

    def set(self, controller: Controller) -> None:
        before = self._controllers.get(controller.uid)
        if before == controller:
            return
        if before is not None and before.above != controller.above and before.above is not None:
            _discard(self._made, before.above.uid, controller.uid)
        self._controllers[controller.uid] = controller
        self._absent.discard(controller.uid)
        if controller.above is not None:
            self._made.setdefault(controller.above.uid, {})[controller.uid] = None
        self._dirty[controller.uid] = None

    def read(self, controller: Controller) -> None:
        """As it was read by itself: no news if it was heard of meanwhile, or is gone by now."""
        if (
            controller.uid in self._pods
            and controller.uid not in self._controllers
            and controller.uid not in self._absent
        ):
            self.set(controller)

    def gone(self, uid: str) -> None:
        controller = self._controllers.pop(uid, None)
        if controller is not None and controller.above is not None:
            _discard(self._made, controller.above.uid, uid)
        self.absent(uid)

    def absent(self, uid: str) -> None:
        if uid in self._pods:
            self._absent.add(uid)
        self._dirty[uid] = None

    def note(self, uid: str, pod: Pod | None, controllers: Iterable[Controller] = ()) -> None:
        """Keeps in mind who is above a pod; None: it does not matter any more."""
        above: tuple[str, ...] = ()
        if pod is not None:
            owners = (controller_ref_of(pod.metadata), *(controller.above for controller in controllers))
            above = tuple(owner.uid for owner in owners if owner is not None and is_known_controller(owner))
        before = self._above.get(uid, ())
        if before == above:
            return
        if above:
            self._above[uid] = above
        else:
            del self._above[uid]
        for controller in above:
            self._pods.setdefault(controller, {})[uid] = None
        for controller in before:
            if controller not in above:
                _discard(self._pods, controller, uid)
                if controller not in self._pods:
                    self._absent.discard(controller)  # Nobody asks any more.

    # What follows

    def settle(self) -> tuple[list[str], list[str]]:
        """Pods below makers that have changed, and works that their templates have to do with."""
        if not self._dirty:
            return [], []
        dirty, self._dirty = self._dirty, {}
        workloads: dict[str, None] = {}
        for uid in dirty:
            for one in (uid, *self._made.get(uid, ())):
                self._place_template(one, workloads)
        pods = dict.fromkeys(pod for uid in dirty for pod in self._pods.get(uid, ()))
        return list(pods), list(workloads)

    def _place_template(self, uid: str, workloads: dict[str, None]) -> None:
        before = self._templates.pop(uid, None)
        if before is not None:
            _discard(self._of_workload, before.workload, uid)
            workloads[before.workload] = None
        membership = self._template(self._controllers.get(uid))
        if membership is not None:
            self._templates[uid] = membership
            self._of_workload.setdefault(membership.workload, {})[uid] = None
            workloads[membership.workload] = None

    def _template(self, controller: Controller | None) -> GroupMembership | None:
        """Where the pods will belong that a maker makes; None if it makes none, or each is for itself."""
        if controller is None or controller.template is None or controller.is_over or controller.wants <= 0:
            return None
        template = controller.template
        if template.spec.scheduler_name not in self._settings.scheduler_names:
            return None
        above = self._controllers.get(controller.above.uid) if controller.above is not None else None
        metadata = ObjectMeta(
            namespace=controller.namespace,
            labels=template.metadata.labels,
            annotations=template.metadata.annotations,
        )
        controllers = [controller] if above is None else [controller, above]
        membership = membership_of(Pod(metadata=metadata, spec=template.spec), controllers, self._settings)
        return None if membership.is_single else membership


def _discard(index: dict[str, dict[str, None]], key: str, value: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(value, None)
        if not found:
            del index[key]
