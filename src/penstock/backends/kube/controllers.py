"""Tracks the objects that create pods, their pods, and the workloads that they keep alive.

A pod names its controller by uid, and the two arrive by different watches, in any order. A controller is
*unknown* until its watch or a read delivers it, and *absent* once it is known not to exist. Pods of an
absent controller are not scheduled: the garbage collector deletes them, since a pod that is to outlive its
owner is orphaned first. A controller that wants pods keeps their workload alive even while there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.kube.types import ObjectMeta, OwnerReference, Pod
from penstock.podspec.controller_kinds import ControllerKind
from penstock.podspec.controllers import Controller, controller_ref_of, is_known_controller
from penstock.podspec.grouping import GroupMembership, membership_of
from penstock.podspec.settings import TranslationSettings

__all__ = ["ControllerChain", "ControllerTracker"]

_CHAIN_MAX = 2  # a pod's controller, and the controller of that


@dataclass(frozen=True, slots=True)
class ControllerChain:
    """The known controllers above a pod, nearest first, and the first one that is not known."""

    controllers: tuple[Controller, ...]
    missing: OwnerReference | None = None
    is_absent: bool = False  # the missing one is known not to exist


class ControllerTracker:
    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._controllers: dict[str, Controller] = {}  # by uid, as in all of the following
        self._absent: set[str] = set()  # only those that a tracked pod names
        self._children: dict[str, dict[str, None]] = {}  # controller -> controllers that it owns
        self._pods: dict[str, dict[str, None]] = {}  # controller, known or not -> pods below it
        self._chains: dict[str, tuple[str, ...]] = {}  # pod -> controllers above it
        self._template_memberships: dict[str, GroupMembership] = {}  # what its next pod declares
        self._by_workload: dict[str, dict[str, None]] = {}  # workload -> controllers that keep it alive
        self._dirty: dict[str, None] = {}
        self._to_count: dict[str, None] = {}  # controllers whose pods have changed, or how many they want
        self._short: dict[str, None] = {}  # controllers with fewer pods than they want

    def job_of(self, pod: Pod) -> Controller | None:
        """The Job that has created a pod."""
        owner = controller_ref_of(pod.metadata)
        controller = self._controllers.get(owner.uid) if owner is not None else None
        return controller if controller is not None and controller.kind.name == "Job" else None

    def chain_of(self, metadata: ObjectMeta) -> ControllerChain:
        controllers: list[Controller] = []
        owner = controller_ref_of(metadata)
        while owner is not None and len(controllers) < _CHAIN_MAX and is_known_controller(owner):
            controller = self._controllers.get(owner.uid)
            if controller is None:
                return ControllerChain(tuple(controllers), owner, owner.uid in self._absent)
            controllers.append(controller)
            owner = controller.owner
        return ControllerChain(tuple(controllers))

    def workloads(self) -> Iterable[str]:
        """Those for which a controller wants to create pods."""
        return self._by_workload

    def template_memberships(self, workload: str) -> list[GroupMembership]:
        """What pods that are yet to be created for a workload will declare, ordered by controller."""
        found = self._by_workload.get(workload)
        return [self._template_memberships[uid] for uid in sorted(found)] if found else []

    def short(self) -> list[tuple[str, Controller]]:
        """Controllers of groups with fewer pods than they want, each with its workload."""
        to_count, self._to_count = self._to_count, {}
        for uid in to_count:
            controller, membership = self._controllers.get(uid), self._template_memberships.get(uid)
            if (
                controller is not None
                and membership is not None
                and controller.desired_pods > len(self._pods.get(uid, ()))
            ):
                self._short[uid] = None
            else:
                self._short.pop(uid, None)
        return [(self._template_memberships[uid].workload, self._controllers[uid]) for uid in self._short]

    # Changes from the API server

    def replace_all(self, kind: ControllerKind, controllers: Iterable[Controller]) -> None:
        """A complete list of one kind."""
        listed = {controller.uid: controller for controller in controllers}
        for uid in [uid for uid, one in self._controllers.items() if one.kind is kind and uid not in listed]:
            self.remove(uid)
        for controller in listed.values():
            self.set(controller)

    def set(self, controller: Controller) -> None:
        before = self._controllers.get(controller.uid)
        if before == controller:
            return
        if before is not None and before.owner != controller.owner and before.owner is not None:
            _discard(self._children, before.owner.uid, controller.uid)
        self._controllers[controller.uid] = controller
        self._absent.discard(controller.uid)
        if controller.owner is not None:
            self._children.setdefault(controller.owner.uid, {})[controller.uid] = None
        self._dirty[controller.uid] = None

    def set_from_read(self, controller: Controller) -> None:
        """A controller that was read by itself; ignored if the watch has delivered it or its deletion."""
        uid = controller.uid
        if uid in self._pods and uid not in self._controllers and uid not in self._absent:
            self.set(controller)

    def remove(self, uid: str) -> None:
        controller = self._controllers.pop(uid, None)
        self._short.pop(uid, None)
        if controller is not None and controller.owner is not None:
            _discard(self._children, controller.owner.uid, uid)
        self.mark_absent(uid)

    def mark_absent(self, uid: str) -> None:
        if uid in self._pods:
            self._absent.add(uid)
        self._dirty[uid] = None

    def track_pod(self, uid: str, pod: Pod, controllers: Iterable[Controller]) -> None:
        """Notes which controllers are above a pod; `controllers` are the known ones."""
        owners = (controller_ref_of(pod.metadata), *(controller.owner for controller in controllers))
        self._set_chain(
            uid, tuple(owner.uid for owner in owners if owner is not None and is_known_controller(owner))
        )

    def untrack_pod(self, uid: str) -> None:
        self._set_chain(uid, ())

    def _set_chain(self, uid: str, chain: tuple[str, ...]) -> None:
        before = self._chains.get(uid, ())
        if before == chain:
            return
        if chain:
            self._chains[uid] = chain
        else:
            del self._chains[uid]
        self._to_count.update(dict.fromkeys((*before, *chain)))
        for controller in chain:
            self._pods.setdefault(controller, {})[uid] = None
        for controller in before:
            if controller not in chain:
                _discard(self._pods, controller, uid)
                if controller not in self._pods:
                    self._absent.discard(controller)

    # Consequences

    def take_changes(self) -> tuple[list[str], list[str]]:
        """Pods below controllers that have changed, and workloads whose next pods are affected."""
        if not self._dirty:
            return [], []
        dirty, self._dirty = self._dirty, {}
        workloads: dict[str, None] = {}
        for uid in dirty:
            for one in (uid, *self._children.get(uid, ())):
                self._update_template_membership(one, workloads)
        pods = dict.fromkeys(pod for uid in dirty for pod in self._pods.get(uid, ()))
        return list(pods), list(workloads)

    def _update_template_membership(self, uid: str, workloads: dict[str, None]) -> None:
        self._to_count[uid] = None
        before = self._template_memberships.pop(uid, None)
        if before is not None:
            _discard(self._by_workload, before.workload, uid)
            workloads[before.workload] = None
        membership = self._template_membership(self._controllers.get(uid))
        if membership is not None:
            self._template_memberships[uid] = membership
            self._by_workload.setdefault(membership.workload, {})[uid] = None
            workloads[membership.workload] = None

    def _template_membership(self, controller: Controller | None) -> GroupMembership | None:
        """What the next pod of a controller declares; None if it creates none for us, or single pods."""
        if controller is None or controller.is_finished or controller.desired_pods <= 0:
            return None
        names = self._settings.scheduler_names
        templates = [one.template for one in controller.pod_sets]
        template = next((one for one in templates if one.spec.scheduler_name in names), None)
        if template is None or controller.kind.children:
            return None
        parent = self._controllers.get(controller.owner.uid) if controller.owner is not None else None
        metadata = ObjectMeta(
            namespace=controller.namespace,
            labels=template.metadata.labels,
            annotations=template.metadata.annotations,
        )
        controllers = [controller] if parent is None else [controller, parent]
        membership = membership_of(Pod(metadata=metadata, spec=template.spec), controllers, self._settings)
        return None if membership.is_single else membership


def _discard(index: dict[str, dict[str, None]], key: str, value: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(value, None)
        if not found:
            del index[key]
