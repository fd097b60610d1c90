"""A changed node costs nothing in proportion to the pods that can never run, unless it can matter to them."""

from __future__ import annotations

from bench.unsatisfiable import measure_node_change


def test_a_label_that_matters_to_no_shape_makes_no_proof() -> None:
    label, added = measure_node_change(300, 20)
    assert label.total_s < added.total_s / 5
    assert added.held_s < added.total_s / 5, "the proofs are made one by one"
