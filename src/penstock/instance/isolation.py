"""What follows from an unexpected exception: its culprit is quarantined, logged once, and counted.

The state in memory may be half changed after it, so the term ends (`TermAborted`); the next one starts from
the recorded state, without the culprit. If there is no culprit, or if there are too many, the fault is ours:
the term ends with `AtFault`, the instance is not ready meanwhile, and everything is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import PenstockError, Unavailable
from penstock.instance.metrics import InstanceMetrics
from penstock.instance.quarantine import Quarantine
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact, MemberSet, NodeSet, WorkloadSet
from penstock.sched.records import IntentNew, JobRow
from penstock.sched.scheduler import Scheduler
from penstock.sched.subjects import Culprit, CulpritKind, Fault

__all__ = ["AtFault", "FaultIsolation", "TermAborted"]

_LOG: Final = logging.getLogger("penstock.instance")
_ORDER: Final = (NodeSet, WorkloadSet, MemberSet)  # in which facts can be handled; others come last


class TermAborted(PenstockError):
    """The state in memory must be dropped. Commands that wait are executed in the next term."""


class AtFault(Unavailable):
    """An unexpected exception without a culprit, or with too many of them."""


class FaultIsolation:
    def __init__(self) -> None:
        self.quarantine: Final = Quarantine()
        self.metrics: Final = InstanceMetrics()

    def isolate(self, fault: Fault, inputs: Iterable[Fact | Command], now: float) -> None:
        """Quarantines the culprit. Raises `AtFault` if there is none, or if the fault is ours."""
        subject, quarantine = fault.subject, self.quarantine
        if subject is None or subject in quarantine:
            _LOG.error("%s", fault, exc_info=fault.error)
            raise AtFault(str(fault)) from fault
        _LOG.error("%s; it is set aside", fault, exc_info=fault.error)
        self.metrics.quarantined(subject.kind)
        if subject.kind is CulpritKind.COMMAND:
            return
        error = f"{type(fault.error).__name__}: {fault.error}"
        if not quarantine.add(subject, error, inputs, now):
            quarantine.forget_all()
            raise AtFault(
                f"more than 10 objects failed within a minute, so the fault is Penstock's: {fault}"
            ) from fault

    def reason_of(self, row: JobRow) -> str:
        """Why a recorded job is not to be restored; empty if it is to be."""
        return self.quarantine.reason_of(row.new.id, row.new.workload)

    def is_set_aside(self, intent: IntentNew) -> bool:
        """Whether a recorded intent of no active job is not to be restored."""
        return Culprit(CulpritKind.INTENT, str(intent.id)) in self.quarantine

    def admit(
        self, inputs: Sequence[Fact | Command], scheduler: Scheduler, now: float
    ) -> list[Fact | Command]:
        """The inputs without those about quarantined objects, and with the facts about those to be retried.

        Raises `TermAborted` if an object can only be tried again from the recorded state.
        """
        admitted = self.quarantine.admit(inputs)
        for found in self.quarantine.take_changed(now) if len(self.quarantine) else ():
            _LOG.info("%s has changed and is tried again", found.subject)
            if scheduler.state.set_aside.has_workload(found.subject.key):
                raise TermAborted(f"{found.subject} has changed and is tried again")
            facts: list[Fact] = sorted(found.facts.values(), key=_position)
            admitted += facts
        return admitted


def _position(fact: Fact) -> int:
    return next((index for index, kind in enumerate(_ORDER) if isinstance(fact, kind)), len(_ORDER))
