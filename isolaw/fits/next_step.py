"""`NextStep`: what to do before the budget is spent, with its price, and the final run that the rest buys.

Before the final run, one more run can show whether another allocation is better. Let a be the recommended
allocation, k another candidate, δ = r(k) − r(a) the difference of their rewards at the budget, and y what the
run measures: the reward at its end, with the deviation σ of a single run (or for two runs, the difference).
With mean μ of δ and s = |cov(δ, y)| / √(var y + σ²) over the draws, the run is worth

    v_k = μ Φ(μ / s) + s φ(μ / s) − max(μ, 0)

(the expected value of sample information: Raiffa and Schlaifer, Applied Statistical Decision Theory, 1961).
``paper`` does not estimate σ, and takes the upper bound of v_k, the mean of max(δ, 0) over the draws.
A run that takes the share f of the budget costs r(a, C) − r(a, (1 − f) C) of the final run's reward. isolaw
proposes the run with the largest v_k per unit of the budget, among those worth more than they cost. If there
is none, or if the expected loss is at most the tolerance, it proposes the final run. One step takes at most a
quarter of the budget; only a budget without a recommendation takes more, since three n must then reach a
tenth of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from isolaw import commands
from isolaw.allocation import Allocation, BatchShape, Cell
from isolaw.errors import StoreError
from isolaw.evidence import amount, number
from isolaw.fits.allocations import FAR, CandidateAllocation, reached_compute
from isolaw.fits.document.codec import encoded
from isolaw.fits.document.schema import GridEntry, LawDocument
from isolaw.fits.selection import LEAST_CURVES, Floats
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.slices import Slices
from isolaw.registry import traits
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import Cost, Spent

SHARE = 0.25  # of the budget that one step may take
_LEAST_STEPS = 4  # fewest steps of a run that shows anything
_NORMAL = NormalDist()


@dataclass(frozen=True)
class RunsToTrain(Cell):
    """One run of a configuration, from ``start`` steps on (0: a new run) to ``steps`` steps."""

    start: int
    steps: int
    another_seed: bool = False

    @property
    def rollouts(self) -> int:
        """The rollouts that the run generates."""
        return (self.steps - self.start) * self.batch_rollouts


@dataclass(frozen=True)
class NextStep:
    """The next step: what to do and why, the runs with their price, and what they leave for the final run."""

    what: str
    why: str = ""
    command: str = ""
    runs: tuple[RunsToTrain, ...] = ()
    spent: float = 0.0  #: the part of the budget that the runs take, in the unit of the budget
    final: Allocation | None = None  #: the final run, which the rest of the budget buys
    cost: Spent | None = None  #: hours and price of the runs; None without a cost

    @property
    def rollouts(self) -> int:
        """The rollouts that the runs generate."""
        return sum(run.rollouts for run in self.runs)

    def __str__(self) -> str:
        return f"{self.what} {self.why}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {
            "what": self.what, "why": self.why, "command": self.command,
            "runs": [encoded(run) for run in self.runs], "rollouts": self.rollouts, "spent": self.spent,
            "final": encoded(self.final), "cost": self.cost and self.cost.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class Purse:
    """A budget that pays for runs: its size and unit, and what a step costs in hours and money."""

    budget: int
    unit: str
    cost: Cost | None

    def buy(
        self,
        runs: Sequence[RunsToTrain],
        candidates: Sequence[CandidateAllocation],
        final_run: Allocation | None,
    ) -> NextStep:
        """Return the step that trains these runs, and the ``final_run`` that the rest pays for."""
        step_costs = {c.key: c.step_cost for c in candidates}
        spent = sum((run.steps - run.start) * step_costs[run.key] for run in runs)
        cost = self._hours(runs)
        first_run, n_values = runs[0], {run.rollouts_per_problem for run in runs}
        batches = {run.problems_per_batch for run in runs}
        n_text = ", ".join(f"{level:,}" for level in sorted(n_values))
        batch_text = f" at B_p = {first_run.problems_per_batch:,}" if len(batches) == 1 else ""
        extent = f"to {amount(max(run.steps * run.batch_rollouts for run in runs))} rollouts each"
        if len(runs) == 1:
            extent = f"for {first_run.steps - first_run.start:,} {'more ' * bool(first_run.start)}steps"
        seed_text = "one more seed of " * first_run.another_seed
        price = [f"{amount(sum(run.rollouts for run in runs))} rollouts"]
        price += [f"{number(100 * spent / self.budget)} % of the budget"]
        if cost is not None:
            hours = cost.gpu_hours or cost.hours
            price.append(f"{number(hours.value)} {'GPU ' * bool(cost.gpu_hours)}hours")
            price += [] if cost.money is None else [f"a price of {number(cost.money.value)}"]
        sentence = f"Train {seed_text}n = {n_text}{batch_text} {extent} ({', '.join(price)})."
        final = None
        if final_run is not None:
            shape = final_run.problems_per_batch, final_run.rollouts_per_problem
            final = replace(final_run, steps=int((self.budget - spent) // step_costs[shape]))
        return NextStep(sentence, "", "", tuple(runs), float(spent), final, cost)

    def _hours(self, runs: Sequence[RunsToTrain]) -> Spent | None:
        if self.cost is None:
            return None
        steps = [self.cost.step(*run.key) for run in runs]
        if None in steps:
            return None
        seconds = sum((run.steps - run.start) * step for run, step in zip(runs, steps, strict=True) if step)
        return Spent(self.cost.estimate(seconds), self.cost)


def worth_running(
    cut: Slices,
    document: LawDocument,
    purse: Purse,
    candidates: Sequence[CandidateAllocation],
    recommended: Allocation,
    loss: float,
    fall: float,
    surface: Surface | None,
) -> NextStep | None:
    """Return the run that is worth most for its price; None if none is, or if there are no draws.

    ``cut`` contains the rewards of the ``candidates`` at the budget. ``loss`` is the expected loss of the
    ``recommended`` allocation, and ``fall`` what it loses if the budget shrinks by `SHARE`.
    """
    reward = cut.reward[1:, 0][:, cut.place]
    if len(reward) < 2 or loss <= document.tolerance:
        return None
    shape = recommended.problems_per_batch, recommended.rollouts_per_problem
    best_index = [c.key for c in candidates].index(shape)
    advantage = reward - reward[:, [best_index]]
    values = np.maximum(advantage, 0.0).mean(axis=0)
    mean_advantage = advantage.mean(axis=0)
    mean_advantage[best_index] = -math.inf
    runner_up = int(mean_advantage.argmax())
    # The recommended allocation's own run would show what it is worth.
    values[best_index] = values[runner_up] * (not candidates[best_index].measured)
    best: tuple[float, int, list[RunsToTrain]] | None = None
    grid, by_shape = {entry.key: entry for entry in document.grid}, {c.key: c for c in candidates}
    reach = reached_compute(document.grid)
    ways = []
    for k in np.flatnonzero(values > 0).tolist():
        runs = _cheapest_runs(candidates[k], candidates[best_index], grid, reach, purse.budget)
        price = sum((run.steps - run.start) * by_shape[run.key].step_cost for run in runs)
        least = fall * math.log1p(-min(price / purse.budget, SHARE)) / math.log1p(-SHARE)
        ways += [(k, runs, price, max(least, 0.0))] if runs and values[k] > max(least, 0.0) else []
    if surface is not None and ways:
        trials = [(candidates[runner_up if k == best_index else k], runs) for k, runs, *_ in ways]
        worth = _values(surface, candidates[best_index], trials, by_shape, purse.budget)
        values[[k for k, *_ in ways]] = worth
    for k, runs, price, least in ways:
        if values[k] > least and (best is None or values[k] / price > best[0]):
            best = values[k] / price, k, runs
    if best is None:
        return None
    _, k, runs = best
    step = purse.buy(runs, candidates, recommended)
    if k == best_index:
        why = f"No run has the recommended n = {recommended.rollouts_per_problem:,} yet."
    else:
        fraction = 100 * float((advantage[:, k] > 0).mean())
        rival = "It" if runs[0].key == candidates[k].key else f"n = {candidates[k].rollouts_per_problem:,}"
        why = f"{rival} beats n = {recommended.rollouts_per_problem:,} in {fraction:.0f} % of draws."
        if candidates[k].rollouts_per_problem == recommended.rollouts_per_problem:
            why = f"B_p = {candidates[k].problems_per_batch:,} is better in {fraction:.0f} % of draws."
    remaining = amount(purse.budget - step.spent) + f" {purse.unit}"
    if purse.unit == "seconds":
        gpus = purse.cost.gpus if purse.cost and step.cost and step.cost.gpu_hours else None
        hours = (purse.budget - step.spent) / 3600 * (gpus or 1)
        remaining = f"{number(hours)} {'GPU ' * bool(gpus)}hours"
    return replace(step, why=f"{why} The remaining {remaining} buy M = {step.final.steps:,}.")  # type: ignore[union-attr]


def _values(
    surface: Surface,
    best: CandidateAllocation,
    trials: Sequence[tuple[CandidateAllocation, Sequence[RunsToTrain]]],
    by_shape: Mapping[BatchShape, CandidateAllocation],
    budget: int,
) -> list[float]:
    """Return v_k of each trial: what its runs should show about a rival of the ``best`` allocation."""
    points = [(best, budget * best.rate)]
    for rival, runs in trials:
        cells = [by_shape[run.key] for run in runs]
        ends = [c.rate * run.steps * c.step_cost for c, run in zip(cells, runs, strict=True)]
        points += [(rival, budget * rival.rate), *zip(cells, ends, strict=True)]
    log2_n, log2_b = np.array([cell.place for cell, _ in points]).T
    rewards = surface.rewards(log2_n, log2_b, np.array([compute for _, compute in points]))[1:].T
    values, column = [], 1
    for _, runs in trials:
        measured = rewards[column + 1] - (rewards[column + 2] if len(runs) > 1 else 0.0)
        noise = len(runs) * surface.run_deviation**2
        values.append(_information(rewards[column] - rewards[0], measured, noise))
        column += 1 + len(runs)
    return values


def _information(difference: Floats, measured: Floats, noise: float) -> float:
    """Return v_k from draws of δ and y (D,) and the variance of what is measured about y."""
    covariance, mean = np.cov(difference, measured), float(difference.mean())
    spread = max(abs(covariance[0, 1]) / math.sqrt(covariance[1, 1] + noise + 1e-300), 1e-12)
    return mean * _NORMAL.cdf(mean / spread) + spread * _NORMAL.pdf(mean / spread) - max(mean, 0.0)


def _cheapest_runs(
    rival: CandidateAllocation,
    best: CandidateAllocation,
    grid: Mapping[BatchShape, GridEntry],
    reach: float,
    budget: int,
) -> list[RunsToTrain]:
    """Return the cheapest runs that compare ``rival`` with the ``best`` configuration; empty if none fits.

    It is a new run to the compute that three n reached, which is ``reach``, or two longer runs if the budget
    is far beyond it, or one more seed of the one with fewer runs.
    """
    entry, best_entry = grid.get(rival.key), grid.get(best.key)
    most = SHARE * budget  # in the unit of the budget
    steps = int(min(most, reach / rival.rate) / rival.step_cost + 1e-9)
    if entry is None:
        return _if_long_enough([_run(rival, 0, steps)])
    pairs = [(rival, entry)]
    same_batch, same_n = (a == b for a, b in zip(rival.key, best.key, strict=True))
    if best_entry is not None and same_batch != same_n:  # another configuration of the same line
        pairs.append((best, best_entry))
    longer = [_run(cell, _longest_steps(e), int(most / len(pairs) / cell.step_cost)) for cell, e in pairs]
    if all(run.steps >= 2 * run.start for run in longer):  # far beyond the runs: extend them
        return _if_long_enough(longer)
    cell, cell_entry = min(pairs, key=lambda pair: pair[1].runs)  # its seeds say the least so far
    steps = int(min(most, reach / cell.rate) / cell.step_cost + 1e-9)
    run = _run(cell, 0, min(steps, _longest_steps(cell_entry)))
    return _if_long_enough([replace(run, another_seed=True)])


def _run(cell: Cell, start: int, steps: int) -> RunsToTrain:
    return RunsToTrain(*cell.key, start, steps)


def _if_long_enough(runs: list[RunsToTrain]) -> list[RunsToTrain]:
    return runs if all(run.steps - run.start >= _LEAST_STEPS for run in runs) else []


def _longest_steps(entry: GridEntry) -> int:
    """Return the steps of a configuration's longest run."""
    return round(entry.measured[1] / entry.step_cost)


def three_longer_runs(
    document: LawDocument, purse: Purse, candidates: Sequence[CandidateAllocation], reward: Floats
) -> NextStep | None:
    """Return the step after which the budget has a recommendation: three n reach a tenth of it.

    These n have the highest ``reward`` of the ``candidates``.
    """
    candidates_by_shape = {c.key: c for c in candidates}
    reward_by_shape = dict(zip(candidates_by_shape, reward, strict=True))
    entries_by_batch: dict[int, list[GridEntry]] = {}
    for entry in document.grid:
        if entry.key in candidates_by_shape:
            entries_by_batch.setdefault(entry.problems_per_batch, []).append(entry)
    entries = max(entries_by_batch.values(), key=len)
    entries = sorted(entries, key=lambda entry: -reward_by_shape[entry.key])[:LEAST_CURVES]
    runs = []
    for entry in entries:
        goal = math.ceil(purse.budget / FAR / candidates_by_shape[entry.key].step_cost)
        runs += [_run(entry, done, goal)] if (done := _longest_steps(entry)) < goal else []
    if len(entries) < LEAST_CURVES or not runs:
        return None
    step = purse.buy(runs, candidates, None)
    symbol = SYMBOL_OF[document.axis]
    why = f"A recommendation needs three {symbol} that reach a tenth of the budget."
    if step.spent > purse.budget:
        why += " This takes more than the budget."
    return replace(step, why=why)


def one_more_seed(document: LawDocument, best: Allocation, level: int) -> tuple[RunsToTrain, ...]:
    """Return runs of the ``best`` configuration and of that with this n (or B_p); empty if one never ran."""
    same_batch_last = sorted(document.grid, key=lambda e: e.problems_per_batch == best.problems_per_batch)
    entries = {entry.level(document.axis): entry for entry in same_batch_last}
    levels = sorted({level, getattr(best, document.axis)})
    if not entries.keys() >= set(levels):
        return ()
    return tuple(
        replace(_run(e, 0, _longest_steps(e)), another_seed=True) for e in map(entries.get, levels) if e
    )


def with_command(step: NextStep, document: LawDocument) -> NextStep:
    """Return the step with the command that trains its runs, if they are of a sweep that can continue."""
    sweep = sweep_of(document)
    batches = sorted({run.problems_per_batch for run in step.runs})
    n_values = sorted({run.rollouts_per_problem for run in step.runs})
    if not sweep or not step.runs or len(batches) * len(n_values) != len(step.runs):
        return step
    from isolaw.store import SweepStore

    store = SweepStore(sweep)
    spec, first_run = store.read_spec(), step.runs[0]
    trained = {run.seed for run in store.specs()[0].values() if run.shape == first_run.key}
    seed = min(trained, default=spec.sweep.seeds[0])
    if first_run.another_seed:  # runs of one seed share their problems, so seeds of other runs go first
        new_seeds = [seed for seed in spec.sweep.seeds if seed not in trained]
        seed = new_seeds[0] if new_seeds else max({*spec.sweep.seeds, *trained}) + 1
    changes: dict[str, Any] = {
        "grid.problems_per_batch": batches, "grid.rollouts_per_problem": n_values, "sweep.seeds": [seed],
        "sweep.compute": max(run.steps * run.batch_rollouts for run in step.runs),
    }  # fmt: skip
    if spec.design.kind == "race":
        changes["design.kind"] = "grid"
    settings = [f"{key}={value}".replace(" ", "") for key, value in changes.items()]
    return replace(step, command=str(commands.extend_sweep(sweep, settings)))


def sweep_of(document: LawDocument) -> str:
    """Return the directory of the sweep that made the runs, if it can continue; otherwise empty."""
    source = document.sources[0] if len(document.sources) == 1 else ""
    if not source or not os.path.lexists(os.path.join(source, "sweep.json")):
        return ""
    from isolaw.store import SweepStore  # imported here, since most logs are of no sweep

    try:
        return "" if traits(SweepStore(source).read_spec().sweep.backend).recorded else source
    except (StoreError, OSError):
        return ""
