"""Claims as the timeline and the metrics show them; to be called through `Instance.query`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from penstock.api.identity import Namespaces, sees
from penstock.api.resource_counts import core_milli, cores
from penstock.api.responses import TimelineSpan
from penstock.engine.vertex_state import TimeView, Window, free_units
from penstock.model.jobid import encode_jobid
from penstock.sched.claim_reasons import claims_in_force
from penstock.sched.records import ClaimSet
from penstock.sched.scheduler import Scheduler

__all__ = ["claim_metrics", "claim_spans"]


def claim_spans(scheduler: Scheduler, now: float, namespaces: Namespaces = None) -> dict[str, TimelineSpan]:
    """By node, the claim in force on it since when, with the cores that are free there at present."""
    spans: dict[str, TimelineSpan] = {}
    for claim in claims_in_force(scheduler.state):
        job = scheduler.jobs[claim.job]
        is_named = sees(namespaces, job.owner)
        since = scheduler.state.claims.in_force_since(claim.job)
        for node, milli in _free_core_milli(scheduler, claim, now).items():
            spans[node] = TimelineSpan(
                job=encode_jobid(claim.job) if is_named else "",
                name=job.spec.name if is_named else "",
                from_=claim.made_at if since is None else since,
                to=None,
                kind="claimed",
                cores=cores(milli),
            )
    return spans


def claim_metrics(scheduler: Scheduler, now: float) -> bytes:
    """The metrics of claims in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=True)
    in_force = claims_in_force(scheduler.state)
    free = sum(sum(_free_core_milli(scheduler, claim, now).values()) for claim in in_force)
    for name, about, value in (
        ("claims", "Jobs that claim nodes.", len(scheduler.claims())),
        ("claimed_nodes", "Nodes of claims that are in force.", sum(len(one.nodes) for one in in_force)),
        ("claimed_idle_cores", "Free cores that claims in force keep.", cores(free)),
    ):
        Gauge(f"penstock_{name}", about, registry=registry).set(value)
    return generate_latest(registry)


def _free_core_milli(scheduler: Scheduler, claim: ClaimSet, now: float) -> dict[str, int]:
    """By node of a claim that is up: thousandths of a core that are free at present."""
    window = Window(int(now), int(now) + 1, int(now), TimeView.NOW)
    nodes = ((node, scheduler.nodes[node].vertex) for node in claim.nodes if node in scheduler.nodes)
    return {
        node: core_milli((part.type, max(0, free_units(part, window))) for part in vertex.below())
        for node, vertex in nodes
        if vertex.up
    }
