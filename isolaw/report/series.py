"""The series behind the two law figures, for paper and page alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.law import Law
from isolaw.fits.law_document import FrontierPoint, GridEntry, LawDocument
from isolaw.fits.laws.compare import LAWS
from isolaw.fits.quantity import Interval
from isolaw.report import words

Floats = NDArray[np.float64]
# An open end leaves the picture: so far beyond the grid's n it is drawn.
BEYOND = 4


def fitted_curve(law: Law, entry: GridEntry, points: int = 200) -> tuple[Floats, Floats]:
    """Return x and reward of one configuration's curve, over the range in which it was measured."""
    steps = law.document.x.name == "steps"
    b, n = entry.problems_per_batch, entry.rollouts_per_problem
    x = np.geomspace(max(entry.measured[0], entry.step_cost), entry.measured[1], points)
    return x / (b * n) if steps else x, law.curves(b, n)(x)[0]


def law_line(law: Law, x: Floats) -> tuple[Floats | None, Floats | None]:
    """Return n of the law that the rewards prefer at ``x``, (X,), and its pointwise 95 % of draws, (2, X).

    Only the logistic, which is also what stands where laws were not compared, has draws. Both are None where
    no law is preferred.
    """
    if words.preferred(law.document) != "logistic":
        return formula(law.document, x * steps_scale(law.document)), None
    if law.logistic is None:
        return None, None
    # A wild draw goes off the page, not off the scale.
    argument = np.log10(x) if law.document.x.log10 else x
    draws = np.exp2(np.clip(law.logistic(argument), -20, 60))
    return draws[0], np.quantile(draws[1:], [0.025, 0.975], axis=0) if len(draws) > 1 else None


def formula(document: LawDocument, compute: Floats | float) -> Floats | None:
    """Return n of the law that the rewards prefer at C; None of a document without one, or its parameters."""
    name = words.preferred(document)
    theta = document.comparison.laws[name].theta if name in document.comparison.laws else ()
    if name is None or not theta:
        return None
    log2_n = LAWS[name][1](np.log10(np.asarray(compute, np.float64)), np.array(theta))
    return np.asarray(np.exp2(np.clip(log2_n, -20, 60)))


def steps_scale(document: LawDocument) -> int:
    """Return what x is multiplied by to be C: B where x counts steps, else 1."""
    return int(document.fixed["batch_rollouts"]) if document.x.name == "steps" else 1


def n_stars(frontier: Sequence[FrontierPoint]) -> Floats:
    """Return n* along a frontier, (X,)."""
    return np.array([p.n_star.value for p in frontier], np.float64)


def closed(intervals: Sequence[Interval | None], levels: NDArray[np.int64]) -> Floats:
    """Return the ends of intervals of n, (2, X), an open one beyond the picture."""
    beyond = levels[0] / BEYOND, levels[-1] * BEYOND
    filled = [[None, None] if pair is None else pair for pair in intervals]
    return np.array([[b if v is None else v for v, b in zip(p, beyond, strict=True)] for p in filled]).T
