"""`Clock`: how long the decisions of a design take on given GPUs.

Runs of one decision execute in parallel, as many at a time as the GPUs allow, longest first; the next
decision waits for all of them. A continued run pays its start-up again, and each run is evaluated on its
schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from isolaw.design.decisions import Decision, Request, RunKey
from isolaw.step_cost import Cost


class Time(NamedTuple):
    """Seconds of all runs summed, and seconds until the last one ends."""

    work_s: float
    wall_s: float


@dataclass(frozen=True)
class Clock:
    """The time that runs take if ``places`` of them execute at a time.

    ``evaluated`` has the steps at which each cell is evaluated.
    """

    cost: Cost
    places: int
    evaluated: Mapping[tuple[int, int], Sequence[int]]

    def time(self, history: Iterable[Decision]) -> Time:
        """Return the time of the runs of these decisions."""
        made: dict[RunKey, int] = {}
        work = wall = 0.0
        for decision in history:
            seconds = [self._seconds(request, made.get(request.run, 0)) for request in decision.runs]
            made |= {request.run: request.compute for request in decision.runs}
            work += sum(seconds)
            wall += self._together(seconds)
        return Time(work, wall)

    def _seconds(self, request: Request, before: int) -> float:
        b, n, _ = request.run
        first, last = before // (b * n), request.compute // (b * n)
        evaluations = sum(first < step <= last for step in self.evaluated[b, n]) + (before == 0)
        found = self.cost.seconds(b, n, last - first, evaluations=evaluations, starts=1)
        assert found is not None  # costs timed at a single step size were refused before
        return found.value

    def _together(self, seconds: Iterable[float]) -> float:
        free = [0.0] * self.places
        for own in sorted(seconds, reverse=True):
            heapq.heappush(free, heapq.heappop(free) + own)
        return max(free)
