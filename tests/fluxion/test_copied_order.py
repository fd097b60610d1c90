"""Fluxion's order depends on earlier matches, so a copy of the engine needs its own."""

from __future__ import annotations

from builders import held, placed
from penstock.engine import Engine, cluster_of, slot_request
from penstock.fluxion.order import FluxionOrder


def test_a_copied_engine_searches_in_the_order_that_its_original_had() -> None:
    order = FluxionOrder()
    engine = Engine(cluster_of(nodes=3, cores=2), "first", order=order)
    request = slot_request({"core": 1})
    order.note(placed(engine.match(1, request, 0)), 0)
    engine.release(1)
    other = engine.copy()
    expected = held(engine.match(2, request, 0))
    order.note(engine.allocation(2), 0)
    assert held(other.match(2, request, 0)) == expected
    assert held(engine.match(3, request, 0)) != held(other.match(3, request, 0))
