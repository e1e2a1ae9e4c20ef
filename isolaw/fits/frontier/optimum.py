"""n*, B_p* and M* at a budget, and the n of a law, as quantities: bounds where they are ends of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.document.flags import Code, Flag
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.frontier.candidates import FAR, INTERVALS, Candidate
from isolaw.fits.law import Law
from isolaw.fits.laws.equations import LAWS
from isolaw.fits.quantity import REFUSED, Quantity, Status, from_draws
from isolaw.fits.selection import Floats
from isolaw.fits.surface.slices import Slices

Ints = NDArray[np.int64]
_EDGE = 1e-6  # doublings: as near to an end of the grid is there
_BEYOND = 0.025  # share of draws with the best n at the grid's end that is worth a word


def optimum(
    cut: Slices,
    document: LawDocument,
    budget: int,
    candidates: Sequence[Candidate],
    factor: float,
    flags: list[Flag],
) -> tuple[Quantity, Quantity, Quantity]:
    """Return n*, B_p* and M* at the one compute of ``cut``; bounds at ends of what can be chosen.

    In a budget of hours the allocations of ``cut`` are the candidates.
    """
    best, flat = cut.best[:, 0], cut.flat[:, 0]
    if flat[0]:
        flags.append(Flag(Code.FLAT, "at this budget no measured n is better than another"))
        return REFUSED, REFUSED, REFUSED
    n, b = cut.log2_n[best], cut.log2_b[best]
    paper = document.method == "paper"
    levels = np.unique([e.rollouts_per_problem for e in candidates]) if paper else None
    star = _star(np.where(flat, np.nan, n), cut.log2_n, factor, levels)
    _edges(n, cut, document, flags)
    hours = any(c.rate != 1.0 for c in candidates)
    batch = math.log2(budget) - cut.log2_n - cut.log2_b  # log2 M of each allocation
    if hours:
        batch = math.log2(budget) - np.log2([c.step_cost for c in candidates])
    steps = batch[best]
    counted = hours or document.x.unit in ("rollouts", "steps")
    if document.setting == "fixed-b":
        held = Quantity(float(np.exp2(steps[0]) if hours else budget / document.fixed["batch_rollouts"]))
        return star, _star(b, cut.log2_b, factor), held
    if document.setting == "fixed-bp":
        held = Quantity(float(document.fixed["problems_per_batch"]))
        return star, held, _star(steps, batch, factor) if counted else REFUSED
    at_end = np.any(
        [
            np.isclose(x, end)
            for x, grid in ((n, cut.log2_n), (b, cut.log2_b))
            for end in (grid.min(), grid.max())
        ],
        axis=0,
    )
    # Where n* or B_p* is a bound, so is M*, on the side of the smaller or of the larger batches.
    ends = np.where(steps > np.median(steps), batch.max(), batch.min())
    m_star = _star(np.where(at_end, ends, steps), batch, factor, None, float(np.exp2(steps[0])))
    return star, _star(b, cut.log2_b, factor), m_star if counted else REFUSED


def _star(
    log2: Floats, grid: Floats, factor: float, levels: Ints | None = None, value: float | None = None
) -> Quantity:
    """2^log2 of the estimate, with the interval of its draws, an end open where they are at the grid's."""
    low, high = float(grid.min()), float(grid.max())
    at = float(np.exp2(log2[0])) if value is None else value
    if factor > FAR or math.isnan(at):
        return Quantity(at if math.isfinite(at) else None, None, "not_identified")
    ends = np.where(log2 >= high - _EDGE, np.inf, np.where(log2 <= low + _EDGE, -np.inf, np.exp2(log2)))
    status: Status = "ok"
    if value is None and np.isinf(ends[0]):
        status = "lower_bound" if ends[0] > 0 else "upper_bound"
    elif factor > INTERVALS:
        status = "lower_bound" if np.log2(at) > (low + high) / 2 else "upper_bound"
    found = from_draws(at, ends[1:], status, levels)
    if found.interval is None:
        return found
    a, b = found.interval
    return Quantity(at, (a and min(a, at), b and max(b, at)), found.status)


def _edges(log2_n: Floats, cut: Slices, document: LawDocument, flags: list[Flag]) -> None:
    """Flag an n* that is, or may be, beyond an end of the grid."""
    low, high = (float(np.exp2(v)) for v in (cut.log2_n.min(), cut.log2_n.max()))
    largest = max(g.rollouts_per_problem for g in document.grid)
    at_top, at_bottom = (np.isclose(log2_n, v) for v in (np.log2(high), np.log2(low)))
    if at_top[0]:
        where = "measured" if high == largest else "that was measured here and fits"
        text = f"the best n may be larger than {high:g}, the largest {where}"
    elif at_bottom[0]:
        text = f"the best n may be smaller than {low:g}, the smallest measured"
    elif high == largest and at_top.size > 1 and at_top[1:].mean() > _BEYOND:
        text = f"in {at_top[1:].mean():.0%} of draws n* is the largest measured, {high:g}, or more"
    else:
        return
    flags.append(Flag(Code.GRID_EDGE, text))


def law_n(law: Law, budget: int, factor: float) -> Quantity:
    """The n of the preferred law at the budget."""
    document = law.document
    name = document.comparison.preferred
    theta = None if name is None else law.theta(name)
    x = float(budget // document.fixed["batch_rollouts"] if document.setting == "fixed-b" else budget)
    if name is None or theta is None or x < 1:
        return REFUSED
    if name == "non-monotone" and budget > max(e.end for e in document.grid):
        return REFUSED  # a parabola says nothing of what comes after its turn
    log2_n = LAWS[name](np.array([math.log10(x) if document.x.log10 else x]), theta)[:, 0]
    return _star(np.clip(log2_n, *np.log2(law.levels[[0, -1]])), np.log2(law.levels), factor)
