"""A count-only oracle of queue policies: one pool of equal units, jobs in order of arrival.

It plans on a step function of free units and knows nothing of graphs, vertices or engines. `reservations`
says how many waiting jobs get a start of their own: none is FCFS, one is EASY, all is conservative.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OracleJob", "oracle_starts"]


@dataclass(frozen=True)
class OracleJob:
    arrives: int
    units: int
    limit_s: int  # what it says
    runs_s: int  # what it does; at most the limit


class _Free:
    """Free units over time; `steps` are (from, units), the last one for ever."""

    def __init__(self, now: int, free: int) -> None:
        self.steps: list[tuple[int, int]] = [(now, free)]

    def shift(self, start: int, end: int | None, units: int) -> None:
        times = {start, *([] if end is None else [end])} | {at for at, _ in self.steps}
        told: list[tuple[int, int]] = []
        for at in sorted(times):
            topology_level = next(
                (free for since, free in reversed(self.steps) if since <= at), self.steps[0][1]
            )
            inside = at >= start and (end is None or at < end)
            told.append((at, topology_level + (units if inside else 0)))
        self.steps = told

    def earliest(self, now: int, duration: int, units: int) -> int | None:
        for start in [now, *(at for at, _ in self.steps if at > now)]:
            topology_levels = [
                free
                for place, (at, free) in enumerate(self.steps)
                if at < start + duration
                and (place + 1 == len(self.steps) or self.steps[place + 1][0] > start)
            ]
            if all(free >= units for free in topology_levels):
                return start
        return None


def oracle_starts(jobs: list[OracleJob], units: int, reservations: int) -> dict[int, int]:
    """When each job starts, by its place in the list; jobs that are too large never do."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    waiting: list[int] = []
    arrivals = sorted(range(len(jobs)), key=lambda place: (jobs[place].arrives, place))
    while arrivals or ends:
        now = min([jobs[arrivals[0]].arrives] if arrivals else [], default=1 << 60)
        now = min([now, *ends.values()])
        ends = {place: end for place, end in ends.items() if end > now}
        while arrivals and jobs[arrivals[0]].arrives <= now:
            place = arrivals.pop(0)
            if jobs[place].units <= units:
                waiting.append(place)
        free = _Free(now, units)
        for place in ends:
            free.shift(now, starts[place] + jobs[place].limit_s, -jobs[place].units)
        left, is_blocked = reservations, False
        for place in list(waiting):
            job = jobs[place]
            if is_blocked:
                break
            start = free.earliest(now, job.limit_s, job.units)
            if start == now:
                waiting.remove(place)
                starts[place], ends[place] = now, now + job.runs_s
                free.shift(now, now + job.limit_s, -job.units)
            elif reservations == 0:
                is_blocked = True
            elif left > 0 and start is not None:
                left -= 1
                free.shift(start, start + job.limit_s, -job.units)
    return starts
