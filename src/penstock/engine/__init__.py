"""The matcher: a resource graph, bookings over time, and the choice of vertices for a request.

Build a cluster, place a job, and explain a refusal:

    >>> from penstock.engine import Engine, MatchOp, slot_request
    >>> from penstock.engine import cluster_of
    >>> engine = Engine(cluster_of(nodes=2, cores=4), policy="lonode")
    >>> job = engine.match(1, slot_request({"core": 4}, duration_s=60), now=0)
    >>> [str(grant.vertex.path()) for grant in job.slots[0].grants][:2]
    ['/cluster0/node0/core0', '/cluster0/node0/core1']
    >>> engine.match(2, slot_request({"core": 6}), now=0).reason.clause
    'needs 6 cores per slot, the largest node has 4'
    >>> engine.release(1)
"""

from __future__ import annotations

from penstock.engine.allocation import (
    Allocation,
    AllocationKind,
    MatchResult,
    Never,
    NotNow,
    Pick,
    Reason,
    Satisfiable,
    Slot,
)
from penstock.engine.builders import cluster_of
from penstock.engine.engine import Engine, MatchOp
from penstock.engine.filters import DEFAULT_FILTERS
from penstock.engine.graph import CONTAINMENT, BadGraph, Graph, Vertex, VertexSpec, VertexTree
from penstock.engine.graph_updates import Removal
from penstock.engine.policies import NAMED_POLICIES, Policy, parse_policy
from penstock.engine.request import Group, NodeOrder, Placement, Preference, Request, request_of, slot_request
from penstock.model.exclusion_key import ExclusionKey

__all__ = [
    "CONTAINMENT",
    "DEFAULT_FILTERS",
    "NAMED_POLICIES",
    "Allocation",
    "AllocationKind",
    "BadGraph",
    "Engine",
    "ExclusionKey",
    "Graph",
    "Group",
    "MatchOp",
    "MatchResult",
    "Never",
    "NodeOrder",
    "NotNow",
    "Pick",
    "Placement",
    "Policy",
    "Preference",
    "Reason",
    "Removal",
    "Request",
    "Satisfiable",
    "Slot",
    "Vertex",
    "VertexSpec",
    "VertexTree",
    "cluster_of",
    "parse_policy",
    "request_of",
    "slot_request",
]
