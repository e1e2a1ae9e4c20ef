"""Compare the laws of n*(C) by the reward that each loses in every draw.

A fitted law gives an n at each compute. Its loss in a draw is the highest reward of that draw minus the
reward at this n, averaged over log C. One law *beats* another if it loses less in 95 % of draws. A preference
requires three seeds: two runs of a configuration give only one difference, so draws would depend strongly on
which two were run.

The preferred law is the simplest law that beats each of its special cases and that no law beats. A constant
must also lose at most the tolerance, on average over log C, in 95 % of draws. Otherwise no law is preferred.
Claims that n* falls or levels off also require 95 % of draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isolaw.evidence import LEVEL
from isolaw.fits.document.schema import Comparison, LawEntry
from isolaw.fits.frontier import TOLERANCE, Frontier, NStarPath
from isolaw.fits.laws.equations import LAWS, Logistic
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.slices import FLAT, Slices

LEAST_SEEDS = 3  # fewest seeds of each configuration that support a claim
_LEAST_WEIGHT = 1e-3
_LEAST_TURN = 0.5  # smallest fall or rise of n* that counts, in doublings of n
_LEVEL_SHARE = 0.5  # n* levels off if its late slope is below this share of its earlier slope


def judge_logistic(frontier: Frontier, path: NStarPath, has_law: bool, seeds: int) -> Comparison:
    """Return whether the logistic law describes the strict n* of the curves (``paper``), given in ``path``.

    It cannot describe an n* that falls. With fewer than three ``seeds`` of each configuration, there is no
    verdict. ``has_law`` is false if the law was refused.
    """
    monotone = not _falls_after_rise(frontier, path)
    if seeds < LEAST_SEEDS:
        return Comparison(monotone, None, refused="few_seeds", seeds=seeds)
    return Comparison(monotone, "logistic" if has_law and monotone else "no law", seeds=seeds)


def _falls_after_rise(frontier: Frontier, path: NStarPath) -> bool:
    """Return whether n* falls after a rise, with a gain in reward above the tolerance."""
    strict, reward = frontier.strict[0], frontier.reward[0]
    highest = 0
    for x in np.flatnonzero(~path.censored[0]):
        if strict[x] < highest and reward[strict[x], x] - reward[highest, x] > TOLERANCE * frontier.unit:
            return True
        highest = max(highest, int(strict[x]))
    return False


def compare_laws(
    laws: dict[str, FittedLaw],
    path: NStarPath,
    configurations: Sequence[Configuration],
    tolerance: float = TOLERANCE,
) -> Comparison:
    """Return the comparison of laws as the document stores it.

    ``laws`` is empty with ``hold="nothing"``.
    """
    seeds = min(c.runs for c in configurations)
    has_draws = len(path.log2_n) > 1
    monotone = not has_draws or falling_share(path) < LEVEL
    refused: Literal["few_seeds"] | None = "few_seeds" if seeds < LEAST_SEEDS else None
    if not laws:
        return Comparison(monotone, None, refused=refused, seeds=seeds)
    better = better_shares_of(laws) if has_draws else {name: {} for name in laws}
    entries = {name: law.entry(better[name]) for name, law in laws.items()}
    best_law = choose_law(laws, tolerance) if has_draws and refused is None else None
    verdict = "constant" if refused is None and entries["constant"].max_loss <= tolerance else best_law
    return Comparison(monotone, verdict, entries, best_law, refused, seeds)


@dataclass(frozen=True)
class FittedLaw:
    """A fitted law with its losses in each draw."""

    theta: Floats  # parameters of the estimate and of every draw, (1 + D, P)
    # Mean and largest loss over computes of the law with parameters theta[0], in each draw, (1 + D,).
    mean_loss: Floats
    max_loss: Floats

    def entry(self, better_shares: dict[str, float]) -> LawEntry:
        """Return the law's entry for the document."""
        theta, interval = tuple(self.theta[0].tolist()), None
        if len(self.theta) > 1:
            ends = np.quantile(self.theta[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
            interval = tuple((low, high) for low, high in ends.T.tolist())
        return LawEntry(float(self.mean_loss[0]), float(self.max_loss[0]), theta, interval, better_shares)


def fit_laws(
    cut: Slices, path: NStarPath, x: Floats, logistic: Logistic | None = None
) -> dict[str, FittedLaw]:
    """Fit every law to the n* in ``path``, and compute the losses.

    ``x`` (X,) is log10 C or M. ``logistic`` is the logistic law if it was fitted to ``path`` already.
    """
    weight = _curvature(cut, path)
    fitted_laws = {}
    for name, law in LAWS.items():
        if logistic is not None and name == "logistic":
            theta = logistic.theta
        else:
            theta = law.fit(x, path, weight)
        law_losses = losses(cut, law.log2_n(x, theta[:1])[0])
        fitted_laws[name] = FittedLaw(theta, law_losses.mean(axis=1), law_losses.max(axis=1))
    return fitted_laws


def losses(cut: Slices, log2_n: Floats) -> Floats:
    """Return the loss of one n per compute in each draw, as an array of shape (1 + D, X).

    ``log2_n`` (X,) is clipped to the grid. Rewards between grid points are interpolated by parabolas, since a
    law would otherwise lose less at grid points.
    """
    u, inner = cut.along, cut.along.size - 2
    clipped = np.clip(log2_n, u[0], u[-1])
    nearest = np.clip(np.abs(u - clipped[:, None]).argmin(axis=1), 1, inner)
    fitted, _ = _parabola(cut, nearest[None], clipped)
    _, peak = _parabola(cut, np.clip(cut.reward.argmax(axis=2), 1, inner), clipped)
    best = np.maximum(np.maximum(cut.reward.max(axis=2), peak), fitted)
    return np.where(best - fitted > FLAT * np.abs(best), best - fitted, 0.0)  # equal up to rounding


def _parabola(cut: Slices, middle: NDArray[np.int64], x: Floats) -> tuple[Floats, Floats]:
    """Return rewards at ``x`` and at the peak of parabolas through three grid points around ``middle``."""
    rows, columns = np.arange(len(cut.reward))[:, None], np.arange(x.size)
    (a, ra), (b, rb), (c, rc) = (
        (cut.along[middle + k], cut.reward[rows, columns, middle + k]) for k in (-1, 0, 1)
    )
    slope = (rb - ra) / (b - a)
    curvature = ((rc - rb) / (c - b) - slope) / (c - a)
    peak_x = np.where(curvature < 0, (a + b) / 2 - slope / np.where(curvature < 0, 2 * curvature, 1.0), b)
    peak_x = np.clip(peak_x, a, c)
    value, peak = (np.asarray(ra + (point - a) * (slope + (point - b) * curvature)) for point in (x, peak_x))
    return value, peak


def better_shares_of(laws: dict[str, FittedLaw]) -> dict[str, dict[str, float]]:
    """Return the share of draws in which one law loses less than another, keyed by the names of both."""
    losses = {name: law.mean_loss[1:] for name, law in laws.items()}
    return {a: {b: float(np.mean(losses[a] < losses[b])) for b in laws if b != a} for a in laws}


def choose_law(laws: dict[str, FittedLaw], tolerance: float = TOLERANCE) -> str | None:
    """Return the simplest law that beats each of its special cases and that no law beats.

    Returns None if there is none.
    """
    better = better_shares_of(laws)
    names = list(laws)
    for i, name in enumerate(names):
        if any(better[other][name] >= LEVEL for other in names if other != name):
            continue
        if name == "constant":
            if np.mean(laws[name].mean_loss[1:] <= tolerance) >= LEVEL:
                return name
        elif all(better[name][simpler] >= LEVEL for simpler in names[:i] if simpler in LAWS[name].contains):
            return name
    return None


def falling_share(path: NStarPath) -> float:
    """Return the share of draws in which n* falls by more than half a doubling after the estimate's peak.

    The fall is from n* at the compute of the estimate's peak to the last n*.
    """
    peak = int(path.log2_n[0].argmax())
    return float(np.mean(path.log2_n[1:, -1] < path.log2_n[1:, peak] - _LEAST_TURN))


def levelling_share(path: NStarPath) -> float:
    """Return the share of draws in which n* rises, but less than half as fast in the last third of log C."""
    start, end = path.log2_n[1:, 0], path.log2_n[1:, -1]
    late_start = path.log2_n[1:, 2 * path.compute.size // 3]
    early_rise, late_rise = (late_start - start) / 2, end - late_start
    return float(np.mean((early_rise > _LEAST_TURN / 2) & (late_rise < _LEVEL_SHARE * early_rise)))


def _curvature(cut: Slices, path: NStarPath) -> Floats:
    """Return the curvature of the reward in log2 n at n*, divided by its maximum, of shape (X,).

    Values are at least `_LEAST_WEIGHT`.
    """
    u = cut.along
    middle = np.clip(path.log2_n[0], u[0] + 1, u[-1] - 1) if u[-1] - u[0] > 2 else path.log2_n[0]
    neighbours = [np.interp([m, m - 1, m + 1], u, r) for m, r in zip(middle, cut.reward[0], strict=True)]
    c = np.maximum(np.array(neighbours) @ [2.0, -1.0, -1.0], 0.0)
    return np.maximum(c / c.max(), _LEAST_WEIGHT) if c.max() > FLAT else np.ones(c.size)
