"""`Clock`: the time that the runs requested by a design take on given GPUs.

The runs of one decision execute in parallel, longest first, as many at a time as the GPUs allow. The next
decision waits for all these runs. Continuing a run costs its start-up time once more, and each evaluation in
a run's schedule also takes time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from isolaw.design.decisions import Decision, Request, RunKey
from isolaw.step_cost import Cost


class Time(NamedTuple):
    """The total seconds of all runs, and the seconds until the last run ends."""

    work_s: float
    wall_s: float


@dataclass(frozen=True)
class Clock:
    """A model of the time that runs take if ``places`` runs execute at a time.

    ``evaluated`` maps each cell (B_p, n) to the steps at which its runs are evaluated.
    """

    cost: Cost
    places: int
    evaluated: Mapping[tuple[int, int], Sequence[int]]

    def time(self, history: Iterable[Decision]) -> Time:
        """Return the time that the runs of these decisions take, if the decisions follow each other."""
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
        assert found is not None  # `question` rejects costs that were timed at a single step size
        return float(found)

    def _together(self, seconds: Iterable[float]) -> float:
        free = [0.0] * self.places
        for own in sorted(seconds, reverse=True):
            heapq.heappush(free, heapq.heappop(free) + own)
        return max(free)
