"""`plan`: compare sweeps on simulated truths before spending anything, and recommend one.

In each truth (`isolaw.design.truths`), each candidate design (`isolaw.design.candidate_sweeps`) chooses its
runs, receives their simulated measurements, and recommends a cell (B_p, n). The loss of such a *play* is

    loss = max over cells of the truth's reward at the target − the recommended cell's reward

The expected loss is the weighted mean over truths and over repetitions with different seeds and noise. Its
interval contains 90 % of the plays: among m plays, the i-th smallest loss is the quantile i / (m + 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.arguments import checked
from isolaw.children import each
from isolaw.commands import option
from isolaw.config import SweepSpec
from isolaw.design import truths as library
from isolaw.design import weights
from isolaw.design.candidate_sweeps import LEAST, CandidateSweep, shorter
from isolaw.design.ensemble import truths_of
from isolaw.design.play import play
from isolaw.design.question import Question, question
from isolaw.design.truths import Sample, Truth
from isolaw.errors import DataError, InputError
from isolaw.evidence import Simulated
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.metric import choose
from isolaw.fits.reward_unit import PERCENT
from isolaw.fits.selection import (
    Configuration,
    Floats,
    configurations_of,
    differing,
    measured_points,
    rows_with,
)
from isolaw.metrics import is_accuracy
from isolaw.registry import Shown
from isolaw.runs import Runs, full_names
from isolaw.simulators.presets import Preset, read_preset
from isolaw.step_cost import HOUR_S

ALIKE = 0.0005  # expected losses that differ by less count as equal; the cheapest design wins
INTERVAL = (0.05, 0.95)
FROM_RUNS = 4  # number of truths drawn from the surface of the user's runs
FROM_RUNS_WEIGHT = 0.5  # total weight of the truths drawn from the user's runs

Progress = Callable[[float], None]


class Play(NamedTuple):
    """One play of a design in one truth: the spend, the recommended cell ``best``, and its loss."""

    truth: int
    loss: float
    best: BatchShape | None
    rollouts: int
    runs: int
    work_s: float | None = None
    wall_s: float | None = None


class Range(NamedTuple):
    """The mean of a quantity over all plays of a design, with its central 90 % interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {"value": self.value, "interval": [self.low, self.high]}


@dataclass(frozen=True)
class DesignOutcome:
    """The expected spend and loss of one candidate design in a plan."""

    candidate: CandidateSweep
    plays: tuple[Play, ...]
    loss: Range
    within: float  #: weighted share of plays whose loss is at most 0.005
    rollouts: Range
    runs: Range
    work_s: Range | None  #: total seconds of all runs; None without a cost
    wall_s: Range | None


@dataclass(frozen=True)
class SweepForecast(Shown):
    """The forecasts for all candidate designs of one plan."""

    TEXT = "plan"

    question: Question
    truths: tuple[Truth, ...]
    weights: Floats
    rows: tuple[DesignOutcome, ...]
    repetitions: int
    compared: int = 0  #: number of configurations in the user's runs, from which the truths are weighted
    from_runs: int = 0  #: number of truths fitted to these runs
    preset: Preset | None = None  #: calibrated preset whose members replace isolaw's own truths
    #: A forecast is simulated even if some truths are fitted to real runs, since it executes no sweep.
    simulated: ClassVar[Simulated] = Simulated.YES

    @property
    def recommended(self) -> DesignOutcome | None:
        """The design with the least expected loss within the hours; of nearly equal designs, the cheapest.

        A design whose runs end before the target qualifies only if no design reaches the target.
        """
        hours = self.question.budget.hours
        fits = [
            row
            for row in self.rows
            if hours is None or row.wall_s is None or row.wall_s.high <= hours * HOUR_S
        ]
        fits = [row for row in fits if not row.candidate.cut_short(self.question.target)] or fits
        if not fits:
            return None
        least = min(row.loss.value for row in fits)
        near = [row for row in fits if row.loss.value <= least + ALIKE]
        return min(near, key=lambda row: (row.rollouts.value, row.loss.value))

    @property
    def effective_truths(self) -> float:
        """The effective number of truths, 1 / Σ w², for their weights w."""
        return weights.effective(self.weights)

    def losses(self, row: DesignOutcome) -> list[tuple[Truth, float, float]]:
        """Return each truth, its weight and the design's mean loss in it, largest weighted loss first."""
        out = []
        for i, truth in enumerate(self.truths):
            own = [play.loss for play in row.plays if play.truth == i]
            out.append((truth, float(self.weights[i]), float(np.mean(own))))
        return sorted(out, key=lambda item: -item[1] * item[2])

    @property
    def unreliable(self) -> bool:
        """Whether the spend is so small that no design is reliable."""
        return self.question.budget.rollouts < self.question.unreliable_below


@checked
def plan(
    sweep: SweepSpec | Mapping[str, Any] | str | Path,
    *,
    target: float | None = None,
    spend: float | str | None = None,
    gpus: int | None = None,
    hours: float | None = None,
    cost: Any = None,
    runs: Any = None,
    where: Mapping[str, Any] | None = None,
    preset: Preset | str | Path | None = None,
    settings: Sequence[str] = (),
    repetitions: int = 2,
    seed: int = 0,
    jobs: int | None = None,
    progress: Progress = lambda _: None,
) -> SweepForecast:
    """Compare sweeps over the grid of a sweep file on **simulated** truths, and recommend one.

    isolaw uses the grid, seeds, limits, evaluation and sizes in the file. The model, the problems and the
    GPUs named there need not exist.

    Parameters
    ----------
    sweep
        a sweep file, a `SweepSpec`, or a mapping of its sections.
    target
        the budget C, in rollouts, for which you need an allocation; by default ``sweep.compute``.
    spend
        limit on the sweep: a share of the grid's rollouts (``"20%"``, ``0.2``), a number of rollouts, or,
        with ``cost``, GPU hours (``"384gpuh"``); by default ``design.spend``, or what ``hours`` allow.
    gpus, hours
        the number of GPUs, and the wall time on them. With a ``cost`` they limit the sweep; without one the
        forecast reports the throughput that they require. Without ``gpus`` runs execute one at a time.
    cost
        anything that `isolaw.read_cost` accepts.
    runs
        earlier runs, in any form that `isolaw.read` accepts; truths that disagree with them get less weight.
    where
        use only the ``runs`` with these values, such as ``{"lr": 1e-3}``.
    preset
        a file from `isolaw.calibrate`; the members of its ensemble become the truths. Not together with
        ``runs``.
    settings
        ``section.key=value`` pairs that override the file.
    repetitions
        number of plays of each design in each truth, with different seeds and noise.
    jobs
        number of processes; by default one per core.

    Raises
    ------
    SpecError, InputError
        the sweep file or an argument is wrong; the error lists every issue.
    Refused
        the target is more than 100 times the compute that the preset was fitted to.
    """
    if repetitions < 1:
        raise InputError(f"repetitions: found {repetitions}; expected at least 1")
    if preset is not None and runs is not None:
        raise InputError(
            "preset: found both a preset and runs; expected one of them, since a preset is already fitted to "
            "its runs"
        )
    given = read_preset(preset) if isinstance(preset, str | Path) else preset
    asked = question(sweep, target, spend, gpus, hours, cost, tuple(settings))
    known = _configurations(runs, where or {})
    designs = asked.candidates()
    if not designs:
        raise InputError(
            f"spend: found {asked.budget.rollouts:,} rollouts; expected at least "
            f"{len(asked.cells) * asked.target // LEAST:,}, which trains all configurations to a tenth of "
            "the target"
        )
    found: Sequence[Truth]
    if given is None:
        found, weight, from_runs = _truths(asked, known, seed)
    else:
        found = truths_of(given, asked.cells, asked.target, jobs, lambda share: progress(share / 2))
        weight, from_runs = np.full(len(found), 1 / len(found)), 0
    first = 0.0 if given is None else 0.5  # share of the progress bar for simulating the truths

    def played_share(share: float) -> None:
        progress(first + (1 - first) * share)

    plays = _played(asked, found, designs, repetitions, seed, jobs, played_share)
    rows = [_row(design, own, weight) for design, own in zip(designs, plays, strict=True)]
    for i, row in enumerate(rows):  # a race has to be played before its duration is known
        less = shorter(row.candidate, row.wall_s and row.wall_s.high, asked.budget)
        if less is not None:
            (own,) = _played(asked, found, [less], repetitions, seed, jobs, lambda _: None)
            rows[i] = _row(less, own, weight)
    ordered = tuple(sorted(rows, key=lambda row: row.loss.value))
    return SweepForecast(asked, tuple(found), weight, ordered, repetitions, len(known), from_runs, given)


def _configurations(source: Any, where: Mapping[str, Any]) -> list[Configuration]:
    """Return the configurations of the user's runs, or an empty list without runs.

    Raises `DataError` if the runs differ in more than B_p, n and seed.
    """
    if source is None:
        return []
    from isolaw.readers.read import read

    runs = source if isinstance(source, Runs) else read(source)
    metric, eval_set, _ = choose(runs, None, None)
    points = measured_points(runs, metric, eval_set)
    table = runs.table().loc[lambda t: t.index.isin(points["run_id"])]
    table = rows_with(table, full_names(where))
    if names := differing(table):
        values = sorted({str(value) for value in table[names[0]]})
        raise DataError(
            f"{runs.source}: the runs differ in {names[0]} ({', '.join(values)}); choose with "
            + option("where", names[0], values[0])
        )
    return _as_shares(configurations_of(points, table, []), metric, runs.source)


def _as_shares(known: list[Configuration], metric: str, source: str) -> list[Configuration]:
    """Return runs with rewards in [0, 1], as in the presets; raise `DataError` if that is impossible."""
    low, high = min(float(c.reward.min()) for c in known), max(float(c.reward.max()) for c in known)
    if low >= 0 and high <= 1:
        return known
    if low >= 0 and high <= PERCENT and is_accuracy(metric):
        return [replace(c, reward=c.reward / PERCENT) for c in known]
    raise DataError(
        f"{source}: found {metric} from {low:.4g} to {high:.4g}; expected shares from 0 to 1, or accuracies "
        "in percent, since plan compares runs with simulated accuracies. Without runs, isolaw plans from the "
        "presets"
    )


def _truths(asked: Question, known: Sequence[Configuration], seed: int) -> tuple[list[Truth], Floats, int]:
    """Return the truths, their weights, and the number of truths fitted to the user's runs."""
    found = library.presets(asked.cells, asked.target, library.kinds_of(asked.spec))
    weight = np.full(len(found), 1 / len(found))
    if not known:
        return found, weight, 0
    at = library.presets([c.key for c in known], asked.target, library.kinds_of(asked.spec))
    weight = weights.agreement(known, at, library.answers_of(asked.spec))
    from_runs = library.fitted_to_runs(known, asked.cells, asked.target, FROM_RUNS, seed)
    if from_runs:
        weight = np.append(
            weight * (1 - FROM_RUNS_WEIGHT), np.full(len(from_runs), FROM_RUNS_WEIGHT / len(from_runs))
        )
    return found + from_runs, weight, len(from_runs)


def _played(
    asked: Question, found: Sequence[Truth], designs: Sequence[CandidateSweep], repetitions: int, seed: int,
    jobs: int | None, progress: Progress,
) -> list[list[Play]]:  # fmt: skip
    """Return the plays of each design, ordered by truth and repetition."""
    tasks = [(i, repetition) for i in range(len(found)) for repetition in range(repetitions)]
    arguments = [(asked, found[i], i, designs, (seed, repetition)) for i, repetition in tasks]
    plays = each(played, arguments, jobs, lambda done: progress(done / len(tasks)))
    return [[own[j] for own in plays] for j in range(len(designs))]


def played(
    asked: Question, truth: Truth, index: int, designs: Sequence[CandidateSweep], stream: tuple[int, int]
) -> list[Play]:
    """Play each design in one truth. All designs get the same runs."""
    sample = Sample(truth, asked.checkpoints, library.answers_of(asked.spec), stream)
    rewards = truth.rewards()
    top = max(rewards.values())
    out = []
    for candidate in designs:
        history = play(replace(candidate.design, seed=stream[0] + stream[1]), sample)
        best = history[-1].best
        # A design that recommends nothing has the mean loss of all cells.
        loss = top - (rewards[best] if best else float(np.mean(list(rewards.values()))))
        made = {request.run for decision in history for request in decision.runs}
        clock = asked.budget.clock
        time = clock.time(history) if clock else (None, None)
        out.append(Play(index, loss, best, history[-1].spent, len(made), *time))
    return out


def _row(candidate: CandidateSweep, plays: Sequence[Play], of_truth: Floats) -> DesignOutcome:
    """Return the outcome of a design over its plays, which are weighted like their truths."""
    weight = np.array([of_truth[play.truth] for play in plays])
    weight /= weight.sum()

    def over(name: str) -> Range:
        return spread(np.array([getattr(play, name) for play in plays]), weight)

    within = min(float(weight @ np.array([play.loss <= TOLERANCE for play in plays])), 1.0)
    timed = plays[0].wall_s is not None
    work, wall = (over("work_s"), over("wall_s")) if timed else (None, None)
    own = tuple(plays)
    return DesignOutcome(candidate, own, over("loss"), within, over("rollouts"), over("runs"), work, wall)


def spread(values: Floats, weight: Floats) -> Range:
    """Return the weighted mean of values and their central 90 % interval (see the module's docstring)."""
    order = np.argsort(values, kind="stable")
    size = weights.effective(weight)
    at = np.cumsum(weight[order]) * size / (size + 1)
    low, high = np.interp(INTERVAL, at, values[order])
    return Range(float(values @ weight), float(low), float(high))
