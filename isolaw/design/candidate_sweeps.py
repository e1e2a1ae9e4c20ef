"""Candidate sweeps: the designs that a plan compares, each within the allowed spend.

A cell is one (B_p, n) of the grid. The candidates are

- the grid: all seeds of all cells;
- all cells with fewer seeds;
- every second n, with as many seeds as the spend allows;
- all n at one B_p;
- the race.

If the spend is too small for a design's runs up to the target, the runs end earlier, and the fit
extrapolates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from isolaw.allocation import BatchShape
from isolaw.config import RunSpec, SweepSpec
from isolaw.design.cell_rewards import compare
from isolaw.design.clock import Clock
from isolaw.design.decisions import Decision, DecisionStage, Ending, Request, RunKey, cost_of
from isolaw.design.directory import race_of
from isolaw.design.race import Race, described
from isolaw.fits.selection import LEAST_CURVES, Configuration
from isolaw.step_cost import HOUR_S

_SHORTER = 0.9  # ratio of successive horizons that isolaw tries
LEAST = 10  # the shortest horizon is target / LEAST; with less, `isolaw predict` recommends nothing


class DesignKind(StrEnum):
    """The kinds of design that a plan compares."""

    RACE = "race"
    GRID = "grid"
    ALL = "all n"
    HALF = "every second n"
    LINE = "all n at one B_p"


@dataclass(frozen=True)
class Fixed:
    """A design that requests all its runs at once, like a grid.

    It runs all seeds of all ``cells`` to the target, then compares the ``compared`` cells, measured or not.

    If ``horizon`` is given, the runs end there and isolaw extrapolates the rewards to the target.
    """

    cells: tuple[BatchShape, ...]
    seeds: tuple[int, ...]
    target: int
    compared: tuple[BatchShape, ...]
    seed: int = 0  # seed of the draws
    horizon: int | None = None

    @property
    def end(self) -> int:
        """The horizon of all runs."""
        return self.horizon or self.target

    def next(
        self,
        history: Sequence[Decision],
        measured: Sequence[Configuration],
        failed: Collection[RunKey] = (),
    ) -> Decision:
        """Return the decision that follows ``history`` (see `isolaw.design.decisions.Design`)."""
        if not history:
            runs = tuple(Request(*key, seed, self.end) for key in self.cells for seed in self.seeds)
            return Decision(DecisionStage.GRID, runs, cost=cost_of(runs, {}))
        found = compare(measured, self.compared, self.target, self.seed)
        ended = Decision(DecisionStage.STOP, spent=history[0].cost, ending=Ending.COMPLETE)
        return described(ended, found, found.cells)


@dataclass(frozen=True)
class CandidateSweep:
    """A design that a plan compares, and its kind."""

    kind: DesignKind
    design: Fixed | Race

    @property
    def cells(self) -> tuple[BatchShape, ...]:
        """The (B_p, n) that the design may run."""
        return self.design.cells

    @property
    def seeds(self) -> int:
        """The number of seeds that the design may run in each cell."""
        return len(self.design.seeds)

    @property
    def horizon(self) -> int | None:
        """The horizon of all runs, or None if the design decides for itself how long each run is."""
        return self.design.end if isinstance(self.design, Fixed) else None

    @property
    def name(self) -> str:
        """The name of the design in tables.

        >>> CandidateSweep(DesignKind.HALF, Fixed(((32, 8),), (0, 1), 10**6, ())).name
        'every second n × 2'
        """
        return (
            str(self.kind)
            if self.kind in (DesignKind.RACE, DesignKind.GRID)
            else f"{self.kind} × {self.seeds}"
        )

    def cut_short(self, target: int) -> bool:
        """Return whether the runs of the design end before the target."""
        return self.horizon is not None and self.horizon < target


@dataclass(frozen=True)
class Budget:
    """The limits of a sweep: rollouts and, if a clock can time its runs, hours. None means no limit."""

    rollouts: int
    hours: float | None = None
    clock: Clock | None = None

    def pays_for(self, requests: tuple[Request, ...]) -> bool:
        """Return whether these runs together stay within both limits."""
        if sum(request.rollouts for request in requests) > self.rollouts:
            return False
        if self.clock is None or self.hours is None:
            return True
        return self.clock.time([Decision(DecisionStage.GRID, requests)]).wall_s <= self.hours * HOUR_S


def shorter(candidate: CandidateSweep, wall_s: float | None, budget: Budget) -> CandidateSweep | None:
    """Return a race with proportionally less spend if its simulated duration exceeds the hours.

    Returns None if the candidate is not a race, if it fits into the hours, or if the smaller spend is not
    enough for a race.
    """
    race = candidate.design
    if not isinstance(race, Race) or budget.hours is None or wall_s is None:
        return None
    share = budget.hours * HOUR_S / wall_s
    if share >= 1:
        return None
    spend = int(race.spend * share)
    if spend < race.least:
        return None
    return replace(candidate, design=replace(race, spend=spend))


def candidates(spec: SweepSpec, runs: list[RunSpec], budget: Budget) -> list[CandidateSweep]:
    """Return the designs over the grid of ``runs`` that the budget allows, shortened if necessary."""
    race = race_of(spec, runs)
    found = [*_fixed(race, budget)]
    if budget.rollouts >= race.least:
        found.append(CandidateSweep(DesignKind.RACE, replace(race, spend=budget.rollouts)))
    return found


def _fixed(race: Race, budget: Budget) -> Iterator[CandidateSweep]:
    line = tuple(key for key in race.cells if key[0] == race.start)
    rows = [[key for key in race.cells if key[0] == b] for b in sorted({b for b, _ in race.cells})]
    half = tuple(sorted(key for row in rows for key in row[::-2]))
    most = len(race.seeds)

    def design(kind: DesignKind, cells: tuple[BatchShape, ...], seeds: int, horizon: int) -> CandidateSweep:
        compared = cells if kind is DesignKind.LINE else race.cells
        own = Fixed(cells, race.seeds[:seeds], race.target, compared, race.seed, horizon)
        return CandidateSweep(kind, own)

    def pays(cells: tuple[BatchShape, ...], seeds: int, horizon: int) -> bool:
        asked = tuple(Request(*key, seed, horizon) for key in cells for seed in race.seeds[:seeds])
        return budget.pays_for(asked)

    def longest(cells: tuple[BatchShape, ...], seeds: int) -> int | None:
        """Return the longest horizon that the budget allows, or None if even the shortest costs too much."""
        end = float(race.target)
        while end >= race.target / LEAST:
            if pays(cells, seeds, int(end)):
                return int(end)
            end *= _SHORTER
        return None

    if (horizon := longest(race.cells, most)) is not None:
        yield design(DesignKind.GRID, race.cells, most, horizon)
    for kind, cells in ((DesignKind.ALL, race.cells), (DesignKind.HALF, half), (DesignKind.LINE, line)):
        if kind is DesignKind.LINE and cells == race.cells:
            continue
        if len({n for _, n in cells}) < LEAST_CURVES:
            continue
        counts = [k for k in range(most, 0, -1) if pays(cells, k, race.target)]
        if counts and not (kind is DesignKind.ALL and counts[0] == most):  # with all seeds, it is the grid
            yield design(kind, cells, counts[0], race.target)
        elif not counts and most > 1 and (end := longest(cells, 1)) is not None:
            yield design(kind, cells, 1, end)
