"""The series of the two law figures, on paper and on the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.document.schema import FrontierPoint, GridEntry, LawDocument
from isolaw.fits.law import Law
from isolaw.fits.laws.equations import LAWS
from isolaw.fits.quantity import Interval
from isolaw.report.text.law import preferred

Floats = NDArray[np.float64]
BEYOND = 4  # an open end of an interval is drawn this factor beyond the grid's n, outside the picture


def fitted_curve(law: Law, entry: GridEntry, points: int = 200) -> tuple[Floats, Floats]:
    """Return x and reward of one configuration's curve, over its measured range."""
    steps = law.document.x.name == "steps"
    b, n = entry.problems_per_batch, entry.rollouts_per_problem
    x = np.geomspace(max(entry.measured[0], entry.step_cost), entry.measured[1], points)
    return x / (b * n) if steps else x, law.curves(b, n)(x)[0]


def law_line(law: Law, x: Floats) -> tuple[Floats | None, Floats | None]:
    """Return n of the preferred law at ``x``, (X,), and its pointwise 95 % interval, (2, X).

    Both are None without a preferred law, the interval also without draws.
    """
    document = law.document
    name = preferred(document)
    argument = np.log10(x) if document.x.log10 else x
    if document.method == "paper":
        log2_n = None if law.logistic is None else law.logistic(argument)
    else:
        theta = None if name is None else law.theta(name)
        log2_n = None if name is None or theta is None else LAWS[name](argument, theta)
    if log2_n is None:
        return None, None
    draws = np.exp2(np.clip(log2_n, -20, 60))
    return draws[0], np.quantile(draws[1:], [0.025, 0.975], axis=0) if len(draws) > 1 else None


def steps_scale(document: LawDocument) -> int:
    """Return the factor from x to C: B if x counts steps, else 1."""
    return int(document.fixed["batch_rollouts"]) if document.x.name == "steps" else 1


def n_stars(frontier: Sequence[FrontierPoint]) -> Floats:
    """Return n* along a frontier, (X,)."""
    return np.array([p.n_star.value for p in frontier], np.float64)


def closed(intervals: Sequence[Interval | None], levels: NDArray[np.int64]) -> Floats:
    """Return the ends of intervals of n, (2, X), open ends outside the picture."""
    beyond = levels[0] / BEYOND, levels[-1] * BEYOND
    filled = [[None, None] if pair is None else pair for pair in intervals]
    return np.array([[b if v is None else v for v, b in zip(p, beyond, strict=True)] for p in filled]).T
