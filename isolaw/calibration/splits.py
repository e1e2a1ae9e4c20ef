"""`predict_by_simulation`: recommend an allocation from a calibrated preset, and compare it with a law.

A law's reward surface describes rewards near the measurements. A preset's ensemble extrapolates a simulated
mechanism (`isolaw.calibration.ahead`) to budgets up to a hundred times the measured compute, and to n up to
four times the largest measured n. If there are recommendations from both, `isolaw.calibration.disagreement`
decides whether they contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isolaw import metrics
from isolaw.allocation import BatchShape
from isolaw.calibration.ahead import FARTHEST, RewardForecast, check_reach, forecast
from isolaw.calibration.disagreement import disagreements
from isolaw.errors import InputError
from isolaw.evidence import REFUSED, Quantity, from_draws
from isolaw.fits.allocations import CandidateAllocation, cost_flags
from isolaw.fits.cell import Cell
from isolaw.fits.flags import Code, Flag
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.predict import Prediction, options_of, seconds_of
from isolaw.fits.selection import Floats, varies_in_batch
from isolaw.fits.surface.slices import Slices
from isolaw.simulators.presets import Preset, read_preset
from isolaw.step_cost import Cost, checked_price, parse_budget

MISSED = 3.0  # an ensemble misfits its runs if its error exceeds noise and discrepancy by this factor
POOR = TOLERANCE  # with a larger discrepancy, a preset cannot resolve relevant differences in reward


def predict_by_simulation(
    preset: Preset | str | Path,
    compute: float | str,
    law: Law | str | Path | None = None,
    *,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
    cost: Cost | None = None,
    price: float | None = None,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Prediction:
    """Recommend an allocation for a budget from a calibrated preset. The result is **simulated**.

    The measured configurations compete with configurations of two and four times the largest measured n. The
    larger n have the same B_p or, if all measured configurations have the same B, the same B.

    Parameters
    ----------
    preset
        a file from `isolaw.calibrate`, the name of a preset that ships with isolaw, or a `Preset`.
    compute
        C in rollouts, up to 100 times the largest measured C; with ``cost`` also hours, as in `Law.predict`.
    law
        a law fitted to the same runs, or its file, to compare with.
    max_batch_rollouts
        the hardware's cap on B_p · n.
    n_train_problems
        the number of training problems D; by default the preset's.
    cost, price
        as in `Law.predict`.
    seed
        random seed of the simulations.
    jobs
        number of processes; by default one per core.

    Raises
    ------
    InputError
        the budget is below one step, or the law is for another reward or not in rollouts.
    Refused
        the budget is more than 100 times the largest measured compute.
    """
    preset = preset if isinstance(preset, Preset) else read_preset(preset)
    law = law if law is None or isinstance(law, Law) else Law.load(law)
    compute = parse_budget(compute)
    asked = compute if isinstance(compute, str) else ""
    if not isinstance(compute, str) and not compute >= 1:
        raise InputError(f"compute: found {compute:g}; expected a number of rollouts")
    budget = seconds_of(asked, cost) if asked else float(int(compute))
    if n_train_problems is not None:
        if n_train_problems < 1:
            raise InputError(f"n_train_problems: found {n_train_problems}; expected a positive number")
        preset = replace(preset, n_train=n_train_problems)
    flags = _flags_of(preset)
    found: Prediction | None = None
    unstable: set[int] = set()
    measured = set(preset.cells)
    if law is not None:
        _check(law)
        limits: dict[str, Any] = {"max_batch_rollouts": max_batch_rollouts, "cost": cost, "price": price}
        found = law.predict(compute, n_train_problems=n_train_problems, **limits)
        measured |= {entry.key for entry in law.document.grid}
        unstable = {e.problems_per_batch for e in law.document.health.batches if e.reason}
    cells = extended(measured)
    if found is not None and (a := found.allocation) is not None:
        cells |= {(a.problems_per_batch, a.rollouts_per_problem)}
    rates = _rates(cells, unstable, budget, max_batch_rollouts, cost if asked else None)
    factor = check_reach(preset, max(budget * rate for rate in rates.values()))
    if factor > 1:
        flags.append(
            Flag(Code.EXTRAPOLATION, f"the budget is {factor:.3g} times the largest measured compute")
        )
    flags += _short_of(preset, {key: budget * rate for key, rate in rates.items()}, factor)
    ahead = forecast(preset, budget, [*rates], seed, jobs, progress, [*rates.values()])
    candidates = [
        CandidateAllocation(b, n, b * n / rates[b, n], (b, n) in measured, rates[b, n])
        for b, n in ahead.cells
    ]
    cut = _cut(ahead)
    options = options_of(cut, candidates, int(budget))
    best = options[0].allocation
    b, n = best.problems_per_batch, best.rollouts_per_problem
    if not options[0].measured:
        flags.append(
            Flag(
                Code.GRID_EDGE, f"no run has B_p = {b}, n = {n}; run this configuration before you rely on it"
            )
        )
    if cost is not None:
        flags += cost_flags(cost, Cell(b, n))
    if law is not None and found is not None:
        flags += disagreements(ahead, law, found, rates)
    n_star, b_star, m_star = (
        _star(own, cut) for own in (np.exp2(cut.log2_n), np.exp2(cut.log2_b), np.array(ahead.steps))
    )
    return Prediction(
        int(budget),
        "seconds" if asked else "rollouts",
        options,
        n_star,
        b_star,
        m_star,
        REFUSED,
        b * best.steps / preset.n_train,
        int(FARTHEST * preset.measured),
        flags,
        asked,
        cost,
        checked_price(price),
        (min(n for _, n in ahead.cells), max(n for _, n in ahead.cells)),
        _batches(cut),
        preset=preset,
        members=len(ahead.rewards),
        law=found,
    )


def _cut(ahead: RewardForecast) -> Slices:
    """Return an ensemble's rewards at the budget in the form used for laws: the mean, then the members."""
    log2_b, log2_n = np.log2(ahead.cells).T
    reward = np.vstack([ahead.final.mean(axis=0), ahead.final])
    return Slices(ahead.compute[-1:], log2_n, log2_b, reward[:, None], np.arange(len(ahead.cells)))


def _batches(cut: Slices) -> tuple[int, int] | None:
    """Return the smallest and largest B_p if B_p varies independently of n, else None."""
    low, high = (round(float(np.exp2(v))) for v in (cut.log2_b.min(), cut.log2_b.max()))
    return (low, high) if varies_in_batch(cut.log2_n, cut.log2_b) else None


def _star(values: Floats, cut: Slices) -> Quantity:
    """Return the n, B_p or M with the highest reward, as a bound if it is the smallest or largest value."""
    levels = np.unique(np.round(values)).astype(np.int64)
    best = np.round(values[cut.best[:, 0]])
    return from_draws(best[0], best[1:], levels=levels) if levels.size > 1 else Quantity(float(levels[0]))


def extended(measured: Collection[BatchShape]) -> set[BatchShape]:
    """Return the measured cells (B_p, n), and cells with 2 and 4 times the largest n.

    The additional cells have the same B_p, or the same B = B_p · n if B is constant over the measured cells.

    >>> sorted(extended({(32, 8), (32, 16)}))
    [(32, 8), (32, 16), (32, 32), (32, 64)]
    >>> sorted(extended({(32, 8), (16, 16)}))
    [(4, 64), (8, 32), (16, 16), (32, 8)]
    """
    out = set(measured)
    batches = {b * n for b, n in measured}
    largest = {b: max(n for of, n in measured if of == b) for b, _ in measured}
    if len(batches) == 1 and len(measured) > 1:
        batch, most = max(batches), max(largest.values())
        return out | {(batch // n, n) for n in (2 * most, 4 * most) if batch % n == 0}
    return out | {(b, factor * most) for b, most in largest.items() for factor in (2, 4)}


def _check(law: Law) -> None:
    """Raise `InputError` unless the law's reward is a mean of successes and its budgets are in rollouts."""
    document = law.document
    if (parsed := metrics.parse(document.metric)) is not None and parsed[0] != "avg":
        raise InputError(f"law: found the reward {document.metric}; expected a mean of successes, e.g. avg@4")
    if document.hold != "B" and document.x.unit != "rollouts":
        raise InputError(f"law: found budgets in {document.x.unit}; expected a law in rollouts")


def _flags_of(preset: Preset) -> list[Flag]:
    found = (
        (
            not preset.moved,
            Code.HARDLY_MOVED,
            f"training hardly moved the rewards of the runs behind {preset.name}, so the prior and not the "
            "runs determines how they continue",
        ),
        (
            preset.missed > MISSED,
            Code.PRESET_MISFIT,
            f"the ensemble of {preset.name} differs from its runs by {preset.missed:.1f} times the noise of "
            "the runs. Calibrate again with another --seed, and compare the results",
        ),
        (
            preset.discrepancy > POOR,
            Code.PRESET_MISFIT,
            f"apart from noise, preset {preset.name} is {preset.discrepancy:.3f} in reward away from its "
            "runs; the prediction keeps this difference, and its intervals include it",
        ),
    )
    return [Flag(code, text) for applies, code, text in found if applies]


def _short_of(preset: Preset, spent: dict[BatchShape, float], factor: float) -> list[Flag]:
    """Return a flag if some runs ended so early that they are extrapolated twice as far as the longest."""
    ends = preset.ends
    far = {key: spent[key] / ends[key] for key in sorted(ends.keys() & spent.keys())}
    short = [key for key, times in far.items() if times > 2 * max(factor, 1.0)]
    if not short:
        return []
    names = ", ".join(f"B_p = {b}, n = {n} (to {ends[b, n]:,.0f})" for b, n in short)
    most = max(far[key] for key in short)
    text = f"runs of {names} ended before others; isolaw continues them up to {most:.3g} times as far"
    return [Flag(Code.EXTRAPOLATION, text)]


def _rates(
    cells: set[BatchShape], unstable: set[int], budget: float, cap: int | None, cost: Cost | None
) -> dict[BatchShape, float]:
    """Return the cells that the cap and the budget allow, with their rollouts per unit of the budget."""
    found: dict[BatchShape, float] = {}
    for b, n in sorted(cells):
        step = cost.step(b, n) if cost else b * n
        if step and step <= budget and (cap is None or b * n <= cap):
            found[b, n] = b * n / step
    if not found:
        limit = f"a cap of {cap:,} rollouts" if cap else "this budget"
        raise InputError(f"compute: {limit} does not allow a step of any configuration of the preset")
    return {key: rate for key, rate in found.items() if key[0] not in unstable} or found
