"""Data series for figures and for the charts of the page: fitted rewards, n*(C) and the law."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from isolaw.evidence import Quantity
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.law import Law
from isolaw.fits.laws.equations import LAWS
from isolaw.fits.surface.slices import slices
from isolaw.report.text.law import preferred

Floats = NDArray[np.float64]
_WIDTH = 0.1  # decades of x over which n* is smoothed
_ROOM = 1.4  # the axis of n extends beyond the smallest and largest n by this factor


def fitted_curves(law: Law, points: int = 200) -> list[tuple[Floats, Floats]]:
    """Return (x, fitted reward) of every configuration in the grid, over its measured range.

    If the law has a surface, the rewards come from the surface, like the recommendations, so that no curve
    exceeds the frontier. With ``method="paper"`` they come from the learning curves.
    """
    document, scale = law.document, steps_scale(law.document)
    low, high = (end * scale for end in document.x.range)
    x = np.geomspace(low, high, points)
    reward = None
    if law.surface is not None:
        cut = slices(law.surface, x)
        reward = cut.reward[0][:, cut.place]  # (X, N)
    out = []
    for i, entry in enumerate(document.grid):
        start = max(entry.measured[0], entry.step_cost)
        if reward is None:
            compute = np.geomspace(start, entry.measured[1], points)
            fitted = law.curves(entry.problems_per_batch, entry.rollouts_per_problem)(compute)[0]
        else:
            inside = (x >= start) & (x <= entry.measured[1] * (1 + 1e-9))
            compute, fitted = x[inside], reward[inside, i]
        out.append((compute / scale, fitted))
    return out


def law_line(law: Law, x: Floats) -> tuple[Floats | None, Floats | None]:
    """Return n of the preferred law at each ``x``, and its pointwise 95 % interval.

    For x of shape (X,), n has shape (X,) and the interval has shape (2, X). Without a preferred law both are
    None. Without draws only the interval is None.
    """
    document = law.document
    name = preferred(document)
    argument = np.log10(x) if document.x.log10 else x
    if document.method == "paper":
        log2_n = None if law.logistic is None else law.logistic(argument)
    else:
        theta = None if name is None else law.theta(name)
        log2_n = None if name is None or theta is None else LAWS[name].log2_n(argument, theta)
    if log2_n is None:
        return None, None
    draws = np.exp2(np.clip(log2_n, -20, 60))
    return draws[0], np.quantile(draws[1:], [0.025, 0.975], axis=0) if len(draws) > 1 else None


def steps_scale(document: LawDocument) -> int:
    """Return the factor from x to C: B if x counts steps, else 1."""
    return int(document.fixed["batch_rollouts"]) if document.x.name == "steps" else 1


def stars(law: Law) -> Floats:
    """Return x, n* and the ends of its interval along the frontier of a law, smoothed by `star_line`.

    The array has shape (4, X).
    """
    frontier, levels = law.document.frontier, law.levels
    return star_line([p.x for p in frontier], [p.n_star for p in frontier], n_ends(levels))


def n_ends(levels: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis that contains all these n."""
    known = list(levels)
    return min(known) / _ROOM, max(known) * _ROOM


def star_line(x: Sequence[float], quantities: Sequence[Quantity], ends: tuple[float, float]) -> Floats:
    """Return x, n* and the two ends of its 95 % interval at each x where n* is known.

    The array has shape (4, X). An unbounded interval ends at the limit of the axis, given by ``ends``; a
    missing interval is NaN. Since n* comes from a grid of n, it changes in steps. A local linear fit over log
    x, with a normal kernel of a tenth of a decade, smooths log n* and the logs of both ends.

    >>> result = [Quantity(8.0, (None, 16.0)), Quantity(64.0, (32.0, 128.0))]
    >>> star_line([1e5, 1e6], result, (4.0, 256.0)).round()
    array([[1.00e+05, 1.00e+06],
           [8.00e+00, 6.40e+01],
           [4.00e+00, 3.20e+01],
           [1.60e+01, 1.28e+02]])
    """
    rows = []
    for at, q in zip(x, quantities, strict=True):
        if q.value is None or q.status in ("refused", "not_identified"):
            continue
        low, high = (np.nan, np.nan) if q.interval is None else q.interval
        rows.append((at, q.value, ends[0] if low is None else low, ends[1] if high is None else high))
    if not rows:
        return np.empty((4, 0))
    at, *lines = np.array(rows, dtype=np.float64).T
    smooth = [np.clip(_smoothed(np.log10(at), np.clip(line, *ends)), *ends) for line in lines]
    return np.array([at, *smooth])


def _smoothed(t: Floats, values: Floats) -> Floats:
    """Fit a weighted line to the logs of the values around each t and return its value at t."""
    out = np.full(values.size, np.nan)
    known = np.isfinite(values)
    at, y = t[known], np.log2(values[known])
    for i in np.flatnonzero(known):
        weight = np.exp(-0.5 * ((at - t[i]) / _WIDTH) ** 2)
        middle, mean = np.average(at, weights=weight), np.average(y, weights=weight)
        spread = weight @ (at - middle) ** 2
        slope = weight @ ((at - middle) * (y - mean)) / spread if spread > 1e-12 else 0.0
        out[i] = mean + slope * (t[i] - middle)
    return np.asarray(np.exp2(out))
