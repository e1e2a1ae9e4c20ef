"""Compute n*, B_p* and M* at a budget, and the n of a law. At an end of the grid, each is only a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isolaw.evidence import REFUSED, Quantity, Status, from_draws
from isolaw.fits.allocations import FAR, INTERVALS, CandidateAllocation
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.draws import LawPosterior
from isolaw.fits.flags import Code, Flag
from isolaw.fits.laws.equations import LAWS
from isolaw.fits.selection import HELD, LEAST_CURVES, Floats, varies_in_batch
from isolaw.fits.surface.slices import Slices
from isolaw.runs import SYMBOL_OF

Ints = NDArray[np.int64]
_EDGE = 1e-6  # values this close to an end of the grid, in doublings, count as being at the end
_BEYOND = 0.025  # isolaw flags n* if it is at the grid's end in more than this share of draws


def optimum(
    cut: Slices,
    document: LawDocument,
    budget: int,
    candidates: Sequence[CandidateAllocation],
    factor: float,
    flags: list[Flag],
) -> tuple[Quantity, Quantity, Quantity]:
    """Return n*, B_p* and M* at the single compute of ``cut``.

    At an end of the available range, each is only a bound. For a budget in hours, the allocations of ``cut``
    are the ``candidates``.
    """
    best, flat = cut.best[:, 0], cut.flat[:, 0]
    if flat[0]:
        text = f"at this budget no measured {SYMBOL_OF[document.axis]} is better than another"
        flags.append(Flag(Code.FLAT, text))
        return REFUSED, REFUSED, REFUSED
    n, b = cut.log2_n[best], cut.log2_b[best]
    paper = document.method == "paper"
    levels = np.unique([e.level(document.axis) for e in candidates]) if paper else None
    far = factor > FAR
    bound = paper and factor > INTERVALS
    along = cut.log2_b if document.hold == "n" else cut.log2_n
    star = _star(np.where(flat, np.nan, along[best]), along, far, bound, levels)
    if not paper:
        star = _to_measured(star, document)
    _edges(along, best, document, flags)
    hours = any(c.rate != 1.0 for c in candidates)
    batch = math.log2(budget) - cut.log2_n - cut.log2_b  # log2 M of each allocation
    if hours:
        batch = math.log2(budget) - np.log2([c.step_cost for c in candidates])
    steps = batch[best]
    counted = hours or document.x.unit in ("rollouts", "steps")
    if document.hold in ("n", "B_p"):
        value = float(document.fixed[HELD[document.hold]])
        held, m_star = Quantity(value), REFUSED
        if hours:
            m_star = _star(steps, batch, far, bound)
        elif counted and value:
            m_star = _over(budget / value, star)
        return (star, held, m_star) if document.hold == "B_p" else (held, star, m_star)
    if document.hold == "B":
        held = Quantity(float(np.exp2(steps[0]) if hours else budget / document.fixed["batch_rollouts"]))
        return star, _over(document.fixed["batch_rollouts"], star), held
    at_end = np.zeros(best.size, dtype=bool)
    for x, grid in ((n, cut.log2_n), (b, cut.log2_b)):
        at_end |= np.isclose(x, grid.min()) | np.isclose(x, grid.max())
    # If n* or B_p* is a bound, so is M*: a lower bound if M* is large, and an upper bound otherwise.
    ends = np.where(steps > np.median(steps), batch.max(), batch.min())
    m_star = _star(np.where(at_end, ends, steps), batch, far, bound, None, float(np.exp2(steps[0])))
    star = _of_cells(star, cut.log2_n)
    if np.ptp(cut.log2_b) <= _EDGE:  # runs with one B_p give no information about other B_p
        return star, REFUSED, REFUSED
    b_star = _of_cells(_star(b, cut.log2_b, far, bound), cut.log2_b)
    return star, b_star, m_star if counted else REFUSED


def _of_cells(q: Quantity, log2: Floats) -> Quantity:
    """Widen a quantity's interval by half a grid cell, since a joint grid has no draws between grid points.

    >>> print(_of_cells(Quantity(16.0, (8.0, 32.0)), np.array([2.0, 3.0, 4.0, 5.0])))
    16 (95 % interval: 5.66–45.3)
    """
    if q.interval is None or np.unique(log2).size < 2:
        return q
    half = float(np.exp2(np.median(np.diff(np.unique(np.round(log2, 9)))) / 2))
    low, high = q.interval
    return Quantity(q.value, (low and low / half, high and high * half), q.status)


def _over(total: float, q: Quantity) -> Quantity:
    """Return ``total`` divided by a quantity, which swaps the ends of its interval.

    >>> print(_over(1000, Quantity(10.0, (5.0, None), "lower_bound")))
    100, perhaps less (95 % bound: at most 200)
    """
    if q.value is None:
        return q
    turned: dict[Status, Status] = {"lower_bound": "upper_bound", "upper_bound": "lower_bound"}
    ends = q.interval and (q.interval[1] and total / q.interval[1], q.interval[0] and total / q.interval[0])
    return Quantity(total / q.value, ends, turned.get(q.status, q.status))


def _to_measured(star: Quantity, document: LawDocument) -> Quantity:
    """Move the only end of n*'s interval to the next measured n if it is in the outermost gap of the grid.

    In this gap, measurements exist on one side only, so draws underestimate the uncertainty of the end.
    """
    if star.interval is None or star.value is None:
        return star
    low, high = star.interval
    n = sorted({e.level(document.axis) for e in document.grid})
    if len(n) < LEAST_CURVES:
        return star
    if high is None and low is not None and low > n[-2]:
        low = float(n[-2])
    if low is None and high is not None and high < n[1]:
        high = float(n[1])
    return Quantity(star.value, (low, high), star.status)


def _star(
    log2: Floats,
    grid: Floats,
    far: bool,
    bound: bool = False,
    levels: Ints | None = None,
    value: float | None = None,
) -> Quantity:
    """Return n* with an interval, which is open on a side where draws are at the end of the grid."""
    low, high = float(grid.min()), float(grid.max())
    at = float(np.exp2(log2[0])) if value is None else value
    if far or math.isnan(at):
        return Quantity(at if math.isfinite(at) else None, None, "not_identified")
    ends = np.where(log2 >= high - _EDGE, np.inf, np.where(log2 <= low + _EDGE, -np.inf, np.exp2(log2)))
    status: Status = "ok"
    if value is None and np.isinf(ends[0]):
        status = "lower_bound" if ends[0] > 0 else "upper_bound"
    elif bound:
        status = "lower_bound" if np.log2(at) > (low + high) / 2 else "upper_bound"
    quantity = from_draws(at, ends[1:], status, levels)
    if quantity.interval is None:
        return quantity
    a, b = quantity.interval
    return Quantity(at, (a and min(a, at), b and max(b, at)), quantity.status)


def _edges(grid: Floats, best: Ints, document: LawDocument, flags: list[Flag]) -> None:
    """Flag an n* that is or could be outside the measured and affordable range. ``grid`` contains log2 n."""
    log2_n, n = grid[best], SYMBOL_OF[document.axis]
    measured = [g.level(document.axis) for g in document.grid]
    smallest, largest = min(measured), max(measured)
    low, high = (float(np.exp2(v)) for v in (grid.min(), grid.max()))
    top, bottom = min(high, largest), max(low, smallest)
    above, below = log2_n >= np.log2(top) - _EDGE, log2_n <= np.log2(bottom) + _EDGE
    if above[0]:
        fits = (
            f"{n} whose runs did not diverge" if document.diverged else f"measured {n} that fits this budget"
        )
        where = f"measured {n}" if top == largest else fits
        text = f"the best {n} may be larger than {top:,g}, the largest {where}"
    elif below[0]:
        text = f"the best {n} may be smaller than {bottom:g}, the smallest measured {n}"
    elif top == largest and above.size > 1 and above[1:].mean() > _BEYOND:
        text = (
            f"in {100 * above[1:].mean():.0f} % of draws, {n}* is {top:g}, the largest measured {n}, or more"
        )
    else:
        return
    flags.append(Flag(Code.GRID_EDGE, text))


def may_be_outside(cut: Slices) -> bool:
    """Return whether n*, or an independently varying B_p*, is or could be at an end of the available range.

    An optimum could be at an end if it is there in more than 2.5 % of draws. Returns False if all n are
    equally good.
    """
    if cut.flat[0, 0]:
        return False
    axes = [cut.along]
    if varies_in_batch(cut.log2_n, cut.log2_b):
        axes.append(cut.log2_b)
    for along in axes:
        best = along[cut.best[:, 0]]
        at_end = (best >= along.max() - _EDGE) | (best <= along.min() + _EDGE)
        if at_end[0] or (at_end.size > 1 and at_end[1:].mean() > _BEYOND):
            return True
    return False


def law_n(law: LawPosterior, budget: int, factor: float) -> Quantity:
    """Return the preferred law's n at a budget, with the status ``refused`` if no law is preferred."""
    document = law.document
    name = document.comparison.preferred
    theta = None if name is None else law.theta(name)
    x = float(budget // document.fixed["batch_rollouts"] if document.hold == "B" else budget)
    if name is None or theta is None or x < 1:
        return REFUSED
    if LAWS[name].turns and budget > max(e.end for e in document.grid):
        return REFUSED  # a parabola predicts nothing beyond the data that show its turn
    log2_n = LAWS[name].log2_n(np.array([math.log10(x) if document.x.log10 else x]), theta)[:, 0]
    bound = factor > INTERVALS
    return _star(np.clip(log2_n, *np.log2(law.levels[[0, -1]])), np.log2(law.levels), factor > FAR, bound)
