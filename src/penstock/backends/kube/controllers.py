"""Jobs, ReplicaSets, StatefulSets and Deployments: who made whom, and which works they keep alive.

A pod names its maker by uid, and the two come by different watches, in any order. A maker is *unknown* until
it is heard of or asked for, and *absent* once it is known not to be there: its pods will be deleted with it,
since a pod that should outlive its owner is disowned first. A maker that wants pods keeps the work of these
alive, also while there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.kube.types import Metadata, Owner, Pod
from penstock.podspec.grouping import Belonging, Maker, belonging_of, controller_of, is_maker
from penstock.podspec.settings import KubeSettings

__all__ = ["Ancestry", "Makers"]

_ABOVE_MAX = 2  # a pod's maker, and the one above that


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The makers of a pod that are known, nearest first, and the first one that should be and is not."""

    makers: tuple[Maker, ...]
    missing: Owner | None = None
    is_absent: bool = False  # the missing one is known not to be there


class Makers:
    def __init__(self, settings: KubeSettings) -> None:
        self._settings = settings
        self._makers: dict[str, Maker] = {}
        self._absent: set[str] = set()  # only such as pods are below
        self._made: dict[str, dict[str, None]] = {}  # maker -> makers that it made
        self._pods: dict[str, dict[str, None]] = {}  # maker -> pods below it, also of unknown makers
        self._above: dict[str, tuple[str, ...]] = {}  # pod -> makers above it
        self._templates: dict[str, Belonging] = {}  # maker -> where its next pods would belong
        self._of_work: dict[str, dict[str, None]] = {}  # work -> makers that keep it alive
        self._dirty: dict[str, None] = {}

    # What is asked

    def job_of(self, pod: Pod) -> Maker | None:
        owner = controller_of(pod.metadata)
        maker = self._makers.get(owner.uid) if owner is not None else None
        return maker if maker is not None and maker.kind == "Job" else None

    def ancestry(self, metadata: Metadata) -> Ancestry:
        makers: list[Maker] = []
        owner = controller_of(metadata)
        while owner is not None and len(makers) < _ABOVE_MAX and is_maker(owner):
            maker = self._makers.get(owner.uid)
            if maker is None:
                return Ancestry(tuple(makers), owner, owner.uid in self._absent)
            makers.append(maker)
            owner = maker.above
        return Ancestry(tuple(makers))

    def works(self) -> Iterable[str]:
        """Those that somebody wants to make pods for."""
        return self._of_work

    def templates(self, work: str) -> list[Belonging]:
        """What the pods would say that are yet to be made for a work, in the order of their makers."""
        found = self._of_work.get(work)
        return [self._templates[uid] for uid in sorted(found)] if found else []

    # What is told

    def listed(self, kind: str, makers: Iterable[Maker]) -> None:
        listed = {maker.uid: maker for maker in makers}
        for uid in [uid for uid, maker in self._makers.items() if maker.kind == kind and uid not in listed]:
            self.gone(uid)
        for maker in listed.values():
            self.set(maker)

    def set(self, maker: Maker) -> None:
        before = self._makers.get(maker.uid)
        if before == maker:
            return
        if before is not None and before.above != maker.above and before.above is not None:
            _discard(self._made, before.above.uid, maker.uid)
        self._makers[maker.uid] = maker
        self._absent.discard(maker.uid)
        if maker.above is not None:
            self._made.setdefault(maker.above.uid, {})[maker.uid] = None
        self._dirty[maker.uid] = None

    def read(self, maker: Maker) -> None:
        """As it was read by itself: no news if it was heard of meanwhile, or is gone by now."""
        if maker.uid in self._pods and maker.uid not in self._makers and maker.uid not in self._absent:
            self.set(maker)

    def gone(self, uid: str) -> None:
        maker = self._makers.pop(uid, None)
        if maker is not None and maker.above is not None:
            _discard(self._made, maker.above.uid, uid)
        self.absent(uid)

    def absent(self, uid: str) -> None:
        if uid in self._pods:
            self._absent.add(uid)
        self._dirty[uid] = None

    def note(self, uid: str, pod: Pod | None, makers: Iterable[Maker] = ()) -> None:
        """Keeps in mind who is above a pod; None: it does not matter any more."""
        above: tuple[str, ...] = ()
        if pod is not None:
            owners = (controller_of(pod.metadata), *(maker.above for maker in makers))
            above = tuple(owner.uid for owner in owners if owner is not None and is_maker(owner))
        before = self._above.get(uid, ())
        if before == above:
            return
        if above:
            self._above[uid] = above
        else:
            del self._above[uid]
        for maker in above:
            self._pods.setdefault(maker, {})[uid] = None
        for maker in before:
            if maker not in above:
                _discard(self._pods, maker, uid)
                if maker not in self._pods:
                    self._absent.discard(maker)  # Nobody asks any more.

    # What follows

    def settle(self) -> tuple[list[str], list[str]]:
        """Pods below makers that have changed, and works that their templates have to do with."""
        if not self._dirty:
            return [], []
        dirty, self._dirty = self._dirty, {}
        works: dict[str, None] = {}
        for uid in dirty:
            for one in (uid, *self._made.get(uid, ())):
                self._place_template(one, works)
        pods = dict.fromkeys(pod for uid in dirty for pod in self._pods.get(uid, ()))
        return list(pods), list(works)

    def _place_template(self, uid: str, works: dict[str, None]) -> None:
        before = self._templates.pop(uid, None)
        if before is not None:
            _discard(self._of_work, before.work, uid)
            works[before.work] = None
        belonging = self._template(self._makers.get(uid))
        if belonging is not None:
            self._templates[uid] = belonging
            self._of_work.setdefault(belonging.work, {})[uid] = None
            works[belonging.work] = None

    def _template(self, maker: Maker | None) -> Belonging | None:
        """Where the pods will belong that a maker makes; None if it makes none, or each is for itself."""
        if maker is None or maker.template is None or maker.is_over or maker.wants <= 0:
            return None
        template = maker.template
        if template.spec.scheduler_name not in self._settings.scheduler_names:
            return None
        above = self._makers.get(maker.above.uid) if maker.above is not None else None
        metadata = Metadata(
            namespace=maker.namespace,
            labels=template.metadata.labels,
            annotations=template.metadata.annotations,
        )
        makers = [maker] if above is None else [maker, above]
        belonging = belonging_of(Pod(metadata=metadata, spec=template.spec), makers, self._settings)
        return None if belonging.is_single else belonging


def _discard(index: dict[str, dict[str, None]], key: str, value: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(value, None)
        if not found:
            del index[key]
