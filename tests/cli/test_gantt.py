"""The size of the timeline's chart."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.gantt import ASCII_FILLS, draw


def document(nodes: int, jobs_per_node: int, busy: int | None = None) -> dict[str, Any]:
    def spans(node: int) -> list[dict[str, Any]]:
        if busy is not None and node >= busy:
            return []
        names = [f"f{node}x{job}" for job in range(jobs_per_node)]
        return [{"job": name, "name": "a", "kind": "running", "from": 0.0, "to": 100.0} for name in names]

    return {
        "from": -10.0,
        "to": 100.0,
        "now": 0.0,
        "nodes": [{"name": f"node{node}", "spans": spans(node)} for node in range(nodes)],
    }


@pytest.mark.parametrize(("nodes", "jobs"), [(1, 500), (8, 63), (100, 5), (500, 1), (2000, 8)])
def test_the_chart_of_many_jobs_fits_into_the_limit_and_says_what_is_missing(nodes: int, jobs: int) -> None:
    everything = draw(document(nodes, jobs), 80, ASCII_FILLS)
    limited = draw(document(nodes, jobs), 80, ASCII_FILLS, lines_max=48)
    legend = len(everything.lines) - everything.lines.index("")
    assert len(limited.lines) <= 2 + 48 + 1 + legend
    assert len(limited.lines) == len(limited.bars)
    drawn = {bar.job for bars in limited.bars for bar in bars}
    drawn_nodes = sum(line.startswith("node") for line in limited.lines)
    rest = [line for line in limited.lines if "--all draws everything" in line]
    if nodes > drawn_nodes:
        assert f"{nodes - drawn_nodes} more nodes" in rest[0]
    assert len(drawn) < nodes * jobs
    assert [line for line in limited.lines[: limited.lines.index("")] if " more" in line]


def test_nodes_without_jobs_are_left_out_first() -> None:
    chart = draw(document(100, 1, busy=40), 80, ASCII_FILLS, lines_max=48)
    assert sum(bool(bars) for bars in chart.bars) == 40
    assert "... and 52 more nodes; --all draws everything" in chart.lines


def test_a_small_chart_is_complete() -> None:
    small = document(4, 6)
    assert draw(small, 80, ASCII_FILLS, lines_max=48) == draw(small, 80, ASCII_FILLS)
