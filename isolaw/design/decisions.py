"""`Decision`: which runs a race requests next, and why.

A decision depends only on earlier decisions and on the measurements of the requested runs up to their
requested horizons. The same results therefore give the same decisions, regardless of where and in which order
the runs execute. Decisions can be audited, and reproduced after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from isolaw.allocation import Cell
from isolaw.fits.document.codec import Encoded

RunKey = tuple[int, int, int]  # (B_p, n, seed)


class DecisionStage(StrEnum):
    """The reason why a decision requests its runs."""

    RUNG = "rung"  # every second n, to the next horizon
    NEIGHBOURS = "neighbours"  # grid neighbours of the best cell, to the target
    SEEDS = "seeds"  # more seeds of cells that may be the best
    STOP = "stop"


class CellVerdict(StrEnum):
    """The conclusion of a decision about one configuration (B_p, n)."""

    KEPT = "kept"
    WORSE = "worse"  # within ε of the best in too few draws


class Ending(StrEnum):
    """The reason why a race requests no more runs."""

    CERTAIN = "certain"  # the expected loss is at most the tolerance
    SPENT = "spent"  # the next runs would exceed the limit on the spend
    COMPLETE = "complete"  # no runs are left to request
    FAILED = "failed"  # fewer than three configurations have results


@dataclass(frozen=True, order=True)
class Request(Cell):
    """A run to start or continue until it has generated ``compute`` rollouts in total."""

    seed: int
    compute: int

    @property
    def run(self) -> RunKey:
        """The run's key (B_p, n, seed)."""
        return self.problems_per_batch, self.rollouts_per_problem, self.seed

    @property
    def rollouts(self) -> int:
        """The rollouts that the whole run generates: ``compute`` rounded down to a multiple of B_p · n."""
        batch = self.problems_per_batch * self.rollouts_per_problem
        return self.compute // batch * batch


@dataclass(frozen=True)
class Standing(Cell):
    """The reward and verdict of one configuration, at the compute of a decision's comparison."""

    verdict: CellVerdict
    reward: float | None = None  #: mean reward over the draws
    expected_loss: float | None = None  #: mean over draws of the best reward minus this reward
    probability: float | None = None  #: share of draws in which the reward is within ε of the best


@dataclass(frozen=True)
class Decision(Encoded):
    """The runs that a race requests next, and the comparison of configurations that led to them.

    ``compute`` is the C at which configurations were compared. ``spent`` counts the rollouts requested before
    this decision, and ``cost`` the rollouts that its own runs add. ``best`` is the best (B_p, n), with the
    expected loss ``expected_loss``. The runs in ``failed`` did not reach their horizon: isolaw uses their
    measurements, but does not continue them.
    """

    stage: DecisionStage
    runs: tuple[Request, ...] = ()
    spent: int = 0
    cost: int = 0
    compute: int | None = None
    best: tuple[int, int] | None = None
    expected_loss: float | None = None
    standings: tuple[Standing, ...] = ()
    ending: Ending | None = None
    failed: tuple[RunKey, ...] = ()
    limits: tuple[
        int | float, ...
    ] = ()  #: the user's limits at this decision: spend, tolerance, cells, seeds


def horizons(history: Iterable[Decision]) -> dict[RunKey, int]:
    """Return the longest horizon requested for each run (B_p, n, seed), in rollouts."""
    out: dict[RunKey, int] = {}
    for decision in history:
        for request in decision.runs:
            out[request.run] = max(out.get(request.run, 0), request.compute)
    return out


def cost_of(requests: Iterable[Request], made: Mapping[RunKey, int]) -> int:
    """Return the rollouts that these runs add to the previously requested horizons in ``made``."""
    total = 0
    for request in requests:
        before = Request(*request.run, made.get(request.run, 0)).rollouts
        total += max(request.rollouts - before, 0)
    return total
