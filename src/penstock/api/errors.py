"""The errors that a service method raises on purpose, beyond the families of `penstock.errors`.

The scheduler defines these types where it raises them. They are collected here so that a protocol adapter
(HTTP, gRPC) can map each of them to a status of its protocol without importing the scheduler.
"""

from __future__ import annotations

from penstock.sched.commands import CanNeverRun, QueueRefused, UnknownJobId, UnknownNode, UnknownObject
from penstock.sched.dependencies import DependencyRefused

__all__ = ["CanNeverRun", "DependencyRefused", "QueueRefused", "UnknownJobId", "UnknownNode", "UnknownObject"]
