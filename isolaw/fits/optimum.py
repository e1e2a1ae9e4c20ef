"""Compute n*, B_p* and M* at a budget. At an end of the grid, each is only a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isolaw.evidence import REFUSED, Quantity, Status, from_draws
from isolaw.fits.allocations import FAR, INTERVALS, CandidateAllocation
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.flags import Code, Flag
from isolaw.fits.selection import COLUMN_OF_HOLD, LEAST_CURVES, Floats, varies_in_batch
from isolaw.fits.surface.slices import Slices
from isolaw.runs import SYMBOL_OF

Ints = NDArray[np.int64]
_EDGE = 1e-6  # values this close to an end of the grid, in doublings, count as being at the end
_EDGE_SHARE = 0.025  # isolaw flags n* if it is at the grid's end in more than this share of draws


def optimum(
    cut: Slices,
    document: LawDocument,
    budget: int,
    candidates: Sequence[CandidateAllocation],
    times: float,
    flags: list[Flag],
) -> tuple[Quantity, Quantity, Quantity]:
    """Return n*, B_p* and M* at the single compute of ``cut``.

    At an end of the available range, each is only a bound. For a budget in hours, the allocations of ``cut``
    are the ``candidates``.
    """
    best, is_flat = cut.best[:, 0], cut.flat[:, 0]
    if is_flat[0]:
        n = SYMBOL_OF[document.axis]
        text = f"at this budget no measured {n} is better than another"
        if len(candidates) == 1:
            text = f"only {n} = {candidates[0].level(document.axis):,} fits into this budget"
        flags.append(Flag(Code.FLAT, text))
        return REFUSED, REFUSED, REFUSED
    best_n, best_b = cut.log2_n[best], cut.log2_b[best]
    is_paper = document.method == "paper"
    levels = np.unique([candidate.level(document.axis) for candidate in candidates]) if is_paper else None
    is_far = times > FAR
    is_bound = is_paper and times > INTERVALS
    axis = cut.log2_b if document.hold == "n" else cut.log2_n
    n_star = _best_level(np.where(is_flat, np.nan, axis[best]), axis, is_far, is_bound, levels)
    if not is_paper:
        n_star = to_measured_level(widen(n_star, axis), document)
    _flag_edges(axis, best, document, flags)
    in_hours = any(candidate.rate != 1.0 for candidate in candidates)
    log2_m = math.log2(budget) - cut.log2_n - cut.log2_b  # log2 M of each allocation
    if in_hours:
        log2_m = math.log2(budget) - np.log2([candidate.step_cost for candidate in candidates])
    steps, best_m = log2_m[best], float(np.exp2(log2_m[best[0]]))
    counts_rollouts = in_hours or document.x.unit in ("rollouts", "steps")
    if document.hold in ("n", "B_p"):
        value = float(document.fixed[COLUMN_OF_HOLD[document.hold]])
        held, m_star = Quantity(value), REFUSED
        if in_hours:
            m_star = _best_level(steps, log2_m, is_far, is_bound)
        elif counts_rollouts and value:
            m_star = _divide(budget / value, n_star)
        return (n_star, held, m_star) if document.hold == "B_p" else (held, n_star, m_star)
    if document.hold == "B":
        held = Quantity(best_m if in_hours else budget / document.fixed["batch_rollouts"])
        return n_star, _divide(document.fixed["batch_rollouts"], n_star), held
    at_end = np.zeros(best.size, dtype=bool)
    for log2_best, grid in ((best_n, cut.log2_n), (best_b, cut.log2_b)):
        at_end |= np.isclose(log2_best, grid.min()) | np.isclose(log2_best, grid.max())
    # If n* or B_p* is a bound, so is M*: a lower bound if M* is large, and an upper bound otherwise.
    ends = np.where(steps > np.median(steps), log2_m.max(), log2_m.min())
    m_star = _best_level(np.where(at_end, ends, steps), log2_m, is_far, is_bound, None, best_m)
    if np.ptp(cut.log2_b) <= _EDGE:  # runs with one B_p give no information about other B_p
        return n_star, REFUSED, REFUSED
    b_star = widen(_best_level(best_b, cut.log2_b, is_far, is_bound), cut.log2_b)
    return n_star, b_star, m_star if counts_rollouts else REFUSED


def widen(quantity: Quantity, log2: Floats) -> Quantity:
    """Widen a quantity's interval by half a grid cell, since draws of the best level are grid points.

    >>> print(widen(Quantity(16.0, (8.0, 32.0)), np.array([2.0, 3.0, 4.0, 5.0])))
    16 (95 % interval: 5.66–45.3)
    """
    if quantity.interval is None or np.unique(log2).size < 2:
        return quantity
    half_cell = float(np.exp2(np.median(np.diff(np.unique(np.round(log2, 9)))) / 2))
    low, high = quantity.interval
    return Quantity(quantity.value, (low and low / half_cell, high and high * half_cell), quantity.status)


def _divide(total: float, q: Quantity) -> Quantity:
    """Return ``total`` divided by a quantity, which swaps the ends of its interval.

    >>> print(_divide(1000, Quantity(10.0, (5.0, None), "lower_bound")))
    100, perhaps less (95 % bound: at most 200)
    """
    if q.value is None:
        return q
    opposite: dict[Status, Status] = {"lower_bound": "upper_bound", "upper_bound": "lower_bound"}
    ends = q.interval and (q.interval[1] and total / q.interval[1], q.interval[0] and total / q.interval[0])
    return Quantity(total / q.value, ends, opposite.get(q.status, q.status))


def to_measured_level(n_star: Quantity, document: LawDocument) -> Quantity:
    """Move the only end of n*'s interval to the next measured n if it is in the outermost gap of the grid.

    In this gap, measurements exist on one side only, so draws underestimate the uncertainty of the end.
    """
    if n_star.interval is None or n_star.value is None:
        return n_star
    low, high = n_star.interval
    levels = sorted({entry.level(document.axis) for entry in document.grid})
    if len(levels) < LEAST_CURVES:
        return n_star
    if high is None and low is not None and low > levels[-2]:
        low = float(levels[-2])
    if low is None and high is not None and high < levels[1]:
        high = float(levels[1])
    return Quantity(n_star.value, (low, high), n_star.status)


def _best_level(
    log2: Floats,
    grid: Floats,
    is_far: bool,
    is_bound: bool = False,
    levels: Ints | None = None,
    value: float | None = None,
) -> Quantity:
    """Return n* with an interval, which is open on a side where draws are at the end of the grid."""
    low, high = float(grid.min()), float(grid.max())
    point = float(np.exp2(log2[0])) if value is None else value
    if is_far or math.isnan(point):
        return Quantity(point if math.isfinite(point) else None, None, "not_identified")
    values = np.where(log2 >= high - _EDGE, np.inf, np.where(log2 <= low + _EDGE, -np.inf, np.exp2(log2)))
    status: Status = "ok"
    if value is None and np.isinf(values[0]):
        status = "lower_bound" if values[0] > 0 else "upper_bound"
    elif is_bound:
        status = "lower_bound" if np.log2(point) > (low + high) / 2 else "upper_bound"
    quantity = from_draws(point, values[1:], status, levels)
    if quantity.interval is None:
        return quantity
    a, b = quantity.interval
    return Quantity(point, (a and min(a, point), b and max(b, point)), quantity.status)


def _flag_edges(grid: Floats, best: Ints, document: LawDocument, flags: list[Flag]) -> None:
    """Flag an n* that is or could be outside the measured and affordable range. ``grid`` contains log2 n."""
    log2_n, n = grid[best], SYMBOL_OF[document.axis]
    levels = [entry.level(document.axis) for entry in document.grid]
    smallest, largest = min(levels), max(levels)
    low, high = (float(np.exp2(end)) for end in (grid.min(), grid.max()))
    top, bottom = min(high, largest), max(low, smallest)
    is_top, is_bottom = log2_n >= np.log2(top) - _EDGE, log2_n <= np.log2(bottom) + _EDGE
    if is_top[0]:
        limit = (
            f"{n} whose runs did not diverge" if document.diverged else f"measured {n} that fits this budget"
        )
        limit_text = f"measured {n}" if top == largest else limit
        text = f"the best {n} may be larger than {top:,g}, the largest {limit_text}"
    elif is_bottom[0]:
        text = f"the best {n} may be smaller than {bottom:g}, the smallest measured {n}"
    elif top == largest and is_top.size > 1 and is_top[1:].mean() > _EDGE_SHARE:
        text = f"in {100 * is_top[1:].mean():.0f} % of draws, {n}* is at least {top:,g}"
        text += f", the largest measured {n}"
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
    for axis_values in axes:
        best_values = axis_values[cut.best[:, 0]]
        at_end = (best_values >= axis_values.max() - _EDGE) | (best_values <= axis_values.min() + _EDGE)
        if at_end[0] or (at_end.size > 1 and at_end[1:].mean() > _EDGE_SHARE):
            return True
    return False
