"""A member event writes the same amount whatever the size of its group, and ended members leave no record."""

from __future__ import annotations

from bench.member_costs import measure_member_event, measure_restore


def test_the_bytes_of_a_member_event_do_not_depend_on_the_group() -> None:
    small, large = measure_member_event(40, 5), measure_member_event(400, 50)
    assert large.written_bytes < small.written_bytes + 50


def test_a_workload_that_has_replaced_members_is_restored() -> None:
    measure_restore(300, live=20)  # It compares the members before and after.


def test_what_a_restore_reads_does_not_grow_with_members_that_were_replaced_one_at_a_time() -> None:
    few = measure_restore(600, live=3, one_at_a_time=True)
    many = measure_restore(1_200, live=3, one_at_a_time=True)
    assert few.events == many.events
