"""`Decision`: the next runs of a design, and why.

A decision is a pure function of the decisions before it and of what the runs that they asked for measured, up
to the horizons that they asked for. The same results give the same decisions, wherever and in whatever order
runs executed, and decisions can be repeated after a kill, or followed by an audit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from isolaw.fits.cell import Cell
from isolaw.fits.selection import Configuration

RunKey = tuple[int, int, int]  # (B_p, n, seed)


class DecisionStage(StrEnum):
    """What a decision's runs are for."""

    GRID = "grid"  # all runs of a fixed design
    RUNG = "rung"  # every second n, to the next horizon
    NEIGHBOURS = "neighbours"  # those next to the best one, to the target
    SEEDS = "seeds"  # further seeds of those that may be the best
    STOP = "stop"


class CellVerdict(StrEnum):
    """What a decision makes of one configuration."""

    KEPT = "kept"
    WORSE = "worse"  # within ε of the best in too few draws


class Ending(StrEnum):
    """Why a design asks for no more runs."""

    CERTAIN = "certain"  # expected regret is below the tolerance
    SPENT = "spent"  # the next runs would exceed the spend
    COMPLETE = "complete"  # no run is left that the design would make
    FAILED = "failed"  # fewer than three configurations have results


@dataclass(frozen=True, order=True)
class Request(Cell):
    """One run to make, or to continue: up to ``compute`` rollouts in all."""

    seed: int
    compute: int

    @property
    def run(self) -> RunKey:
        """(B_p, n, seed)."""
        return self.problems_per_batch, self.rollouts_per_problem, self.seed

    @property
    def rollouts(self) -> int:
        """What the run generates, from its start: whole steps of B_p · n."""
        batch = self.problems_per_batch * self.rollouts_per_problem
        return self.compute // batch * batch


@dataclass(frozen=True)
class Standing(Cell):
    """A configuration at the horizon of a decision."""

    verdict: CellVerdict
    reward: float | None = None  #: mean of the draws
    expected_regret: float | None = None  #: mean over draws of the best reward minus its own
    probability: float | None = None  #: share of draws in which it is within ε of the best


@dataclass(frozen=True)
class Decision:
    """The runs that come next.

    ``compute`` is the horizon at which configurations were compared, ``spent`` and ``cost`` are rollouts
    before this decision and of its runs; ``best`` is (B_p, n), and ``expected_regret`` its own. ``failed``
    runs did not reach their horizon: what they measured counts, and nothing more is asked of them.
    """

    stage: DecisionStage
    runs: tuple[Request, ...] = ()
    spent: int = 0
    cost: int = 0
    compute: int | None = None
    best: tuple[int, int] | None = None
    expected_regret: float | None = None
    standings: tuple[Standing, ...] = ()
    ending: Ending | None = None
    failed: tuple[RunKey, ...] = ()
    limits: tuple[float, ...] = ()  #: what the user chose when it was made: spend, tolerance, cells, seeds

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """Invert `to_dict`; raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        values = dict(data)
        values["stage"] = DecisionStage(values["stage"])
        values["ending"] = values["ending"] and Ending(values["ending"])
        values["best"] = values["best"] and tuple(values["best"])
        values["limits"] = tuple(values["limits"])
        values["failed"] = tuple((b, n, seed) for b, n, seed in values["failed"])
        values["runs"] = tuple(Request(**run) for run in values["runs"])
        values["standings"] = tuple(
            Standing(**{**own, "verdict": CellVerdict(own["verdict"])}) for own in values["standings"]
        )
        return cls(**values)


class Design(Protocol):
    """A rule that chooses runs."""

    def next(
        self,
        history: Sequence[Decision],
        measured: Sequence[Configuration],
        failed: Collection[RunKey] = (),
    ) -> Decision:
        """Return the decision that follows ``history``.

        ``measured`` holds the runs that were asked for, to the horizons that were asked for and no further;
        ``failed`` the (B_p, n, seed) of runs that failed.
        """


def horizons(history: Iterable[Decision]) -> dict[RunKey, int]:
    """Return how far each run was asked to go, by (B_p, n, seed)."""
    out: dict[RunKey, int] = {}
    for decision in history:
        for request in decision.runs:
            out[request.run] = max(out.get(request.run, 0), request.compute)
    return out


def cost_of(requests: Iterable[Request], made: Mapping[RunKey, int]) -> int:
    """Return the rollouts that these runs still take, of which ``made`` horizons are done."""
    total = 0
    for request in requests:
        before = Request(*request.run, made.get(request.run, 0)).rollouts
        total += max(request.rollouts - before, 0)
    return total
