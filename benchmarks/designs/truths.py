"""Truths: known functions for the mean reward of an allocation.

    r(log2 n, log2 B_p, C), in [0, 1]

Each truth has a learning curve of its own family, and loses reward with the distance from the best
allocation, as sweeps of language models do: about .005 at one doubling of n from n* and .015 at two, at the
largest C of the sweeps, `COMPUTE`. Where B_p varies, it has an optimum, too, and n* falls as B_p rises.

The estimator is tuned on the truths of `TUNING` alone; claims about it are measured on `JUDGING`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.designs import simulated

Floats = NDArray[np.float64]

COMPUTE = 3e6  # rollouts, the longest run of a sweep
B_P = 32  # problems in a batch, where they do not vary
R0 = 0.35  # reward before training, but of runs that begin at almost nothing
TUNING = ("constant", "kinked", "unsaturated", "cliff", "late", "easy", "critical")
JUDGING = (
    "flat", "step_limited", "not_monotone", "two_peaks", "valley", "hard", "staircase", "falls",
    "batch_limited", "even", "falling_ceilings", "steady", "plateau",
)  # fmt: skip
SIMULATED = ("easy", "hard")

_TIED = 1e-7  # of reward: as good as the best


@dataclass(frozen=True)
class Truth:
    """A mean reward.

    Attributes
    ----------
    reward
        r(log2 n, log2 B_p, C), shapes broadcast.
    joint
        whether it is defined for B_p other than 32.
    """

    name: str
    reward: Callable[[Floats, Floats, Floats], Floats]
    joint: bool = True

    def __call__(self, log2_n: ArrayLike, log2_b: ArrayLike, compute: ArrayLike) -> Floats:
        """Return the mean reward at log2 n, log2 B_p and C rollouts; shapes broadcast."""
        u, b, c = (np.asarray(v, dtype=np.float64) for v in (log2_n, log2_b, compute))
        return np.clip(self.reward(u, b, c), 0.0, 1.0)


# Learning curves: 0 at C = 0 and 1 where nothing more is to be learnt (but for logarithms).


def _exponential(c: Floats, scale: float, power: float = 1.0) -> Floats:
    return 1 - np.exp(-((c / scale) ** power))


def _hill(c: Floats, scale: float, power: float = 1.0) -> Floats:
    return c**power / (c**power + scale**power)


def _logarithm(c: Floats, scale: float) -> Floats:
    return np.log1p(c / scale)


# Losses, of a distance in doublings.


def _bowl(d: Floats, width: float = 3.0, lean: float = 0.0) -> Floats:
    """d² about 0 that goes over into a straight line; ``lean`` > 0: steeper below than above."""
    return (1 - lean * np.tanh(d)) * d**2 / np.sqrt(1 + (d / width) ** 2)


def _decades(c: Floats) -> Floats:
    """log10 C; runs of less than a thousand rollouts have learnt nothing that matters."""
    return np.log10(np.maximum(c, 1e3))


def _batch(b: Floats, c: Floats, learnt: Floats) -> Floats:
    """Return the loss of a B_p away from its optimum (57 at `COMPUTE`, a little more at larger C)."""
    best = 5.83 + 0.5 * (_decades(c) - np.log10(COMPUTE))
    return 0.004 * learnt * _bowl(b - best)


def _across(u: Floats, b: Floats, slope: float = 0.5) -> Floats:
    """Return the effective log2 n: larger batches of problems need fewer rollouts of each."""
    return u + slope * (b - np.log2(B_P))


def _constant(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _hill(c, 3.5e5, 0.9)
    return R0 + 0.36 * learnt - learnt * 0.0055 * _bowl(_across(u, b) - 6.4, lean=0.35) - _batch(b, c, learnt)


def _flat(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _exponential(c, 7e5, 0.75)
    return R0 + 0.30 * learnt - _batch(b, c, learnt) + 0 * u


def _kinked(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _exponential(c, 5e5, 0.6)
    best = 7.6 + 2.6 * np.minimum(_decades(c) - np.log10(1.5e6), 0.0)
    distance = np.abs(_across(u, b) - best)
    return R0 + 0.33 * learnt - learnt * 0.0075 * distance - _batch(b, c, learnt)


def _unsaturated(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _logarithm(c, 4e4) / _logarithm(np.asarray(COMPUTE), 4e4)
    best = np.log2(1500) + 0.72 * np.log2(10) * (_decades(c) - np.log10(3 * COMPUTE))
    loss = 0.0048 * _bowl(_across(u, b) - best, lean=0.15)
    return R0 + 0.27 * learnt - learnt * loss - _batch(b, c, learnt)


def _step_limited(u: Floats, b: Floats, c: Floats) -> Floats:
    steps = c / np.exp2(u + b)
    ceiling = 0.41 - 0.110 * np.exp2(-0.30 * (u - 3)) - 0.030 * np.exp2(-0.7 * (b - 4))
    return R0 + ceiling * _exponential(steps, 42.0, 0.55)


def _not_monotone(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _hill(c, 2.5e5, 1.2)
    best = 5.0 + 3.4 * np.exp(-0.5 * ((_decades(c) - 5.85) / 0.4) ** 2)
    return R0 + 0.28 * learnt - learnt * 0.0048 * _bowl(_across(u, b) - best) - _batch(b, c, learnt)


def _two_peaks(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _hill(c, 2.0e5, 1.1)
    at = _across(u, b, 0.25)
    # The peak at the smaller n is the higher one early on.
    low = 0.026 * learnt + 0.06 * learnt * (1 - learnt) ** 2
    peaks = low * np.exp(-0.5 * ((at - 4.5) / 1.25) ** 2) + 0.036 * learnt * np.exp(
        -0.5 * ((at - 8.5) / 1.25) ** 2
    )
    return R0 + 0.27 * learnt + peaks - _batch(b, c, learnt)


def _cliff(u: Floats, b: Floats, c: Floats) -> Floats:
    learnt = _exponential(c, 6e5, 0.7)
    at = _across(u, b, 0.25)
    best = 7.0 + 0.7 * (_decades(c) - np.log10(COMPUTE))
    fallen = 0.24 / (1 + np.exp((at - 4.45) / 0.1))
    return R0 + 0.34 * learnt - learnt * (0.0045 * _bowl(at - best) + fallen) - _batch(b, c, learnt)


def _late(u: Floats, b: Floats, c: Floats) -> Floats:
    """Flat for long, then a steep rise; a larger n rises later and ends higher."""
    begins = 4e5 * np.exp2(0.33 * (_across(u, b) - 3))
    ceiling = 0.46 + 0.012 * (u - 3) - 0.0012 * (u - 3) ** 2
    learnt = _hill(c, begins, 2.2)
    return 0.04 + ceiling * learnt - _batch(b, c, learnt)


def _valley(u: Floats, b: Floats, c: Floats) -> Floats:
    """One ceiling for all n, which those nearest to 45 reach first."""
    begins = 2e5 * np.exp2(0.55 * _bowl(_across(u, b) - 5.5, width=1.5))
    learnt = _exponential(c, begins, 1.3)
    return 0.1 + 0.4 * learnt - _batch(b, c, learnt)


def _staircase(u: Floats, b: Floats, c: Floats) -> Floats:
    """Two rises with a plateau between them; a larger n begins each later and ends higher."""
    later = 0.12 * (_across(u, b) - 6.0)
    at = _decades(c) - later
    learnt = 0.55 / (1 + np.exp(-(at - 5.0) / 0.12)) + 0.45 / (1 + np.exp(-(at - 6.4) / 0.15))
    ceiling = 0.36 - 0.09 * np.exp2(-0.45 * (_across(u, b) - 3.0))
    learnt = learnt * c / (c + 1e3)
    return R0 + ceiling * learnt - _batch(b, c, learnt)


def _falls(u: Floats, b: Floats, c: Floats) -> Floats:
    """Rewards fall again after some 4,000 steps, first at small n, whose steps cost less."""
    learnt = _hill(c, 3e5, 1.0)
    steps = c / np.exp2(u + b)
    fallen = 0.10 / (1 + (4e3 / np.maximum(steps, 1e-9)) ** 2)
    loss = 0.0045 * _bowl(_across(u, b) - 5.6) + fallen
    return R0 + 0.34 * learnt - learnt * loss - _batch(b, c, learnt)


def _critical(u: Floats, b: Floats, c: Floats) -> Floats:
    """What a step learns grows as √B up to a critical batch of 65,536 rollouts, and no further."""
    ceiling = 0.55 / (1 + np.exp2(8 - _across(u, b)))
    steps = c / np.exp2(u + b)
    return 0.2 + ceiling * _exponential(steps * np.exp2(0.5 * np.minimum(u + b - 16, 0.0)), 23.5)


def _batch_limited(u: Floats, b: Floats, c: Floats) -> Floats:
    """The steps to a reward fall with 1 + B_crit / B (arXiv 1812.06162, eq. 2.11), with B_crit = 40,000."""
    ceiling = 0.42 - 0.20 * np.exp2(-0.4 * (_across(u, b) - 3))
    return R0 + ceiling * _hill(c, 30 * (np.exp2(u + b) + 4e4), 1.3)


# Like real sweeps (docs/evidence.md): n hardly matters, ceilings fall with n, n* does not move, lr limits.


def _even(u: Floats, b: Floats, c: Floats) -> Floats:
    """Every n from 8 to 256 is within .004: a larger n starts a little later and ends a little higher."""
    learnt = _exponential(c, 4e5 * np.exp2(0.12 * (u - 6)), 0.6)
    return R0 + (0.30 + 0.002 * (u - 6) - 0.0006 * (u - 6) ** 2) * learnt - _batch(b, c, learnt)


def _falling_ceilings(u: Floats, b: Floats, c: Floats) -> Floats:
    """A larger n learns later and ends lower, as in the sums of docs/real-sweep.md."""
    learnt = _hill(c, 1.5e5 * np.exp2(0.3 * (u - 3)), 0.9)
    return R0 + (0.40 - 0.012 * (u - 3)) * learnt - _batch(b, c, learnt)


def _steady(u: Floats, b: Floats, c: Floats) -> Floats:
    """n = 48 is best at every C, with learning that goes on as a power law."""
    learnt = 1 - (1 + c / 6e4) ** -0.35
    return R0 + 0.5 * learnt - 0.006 * learnt * _bowl(_across(u, b) - 5.6) - _batch(b, c, learnt)


def _plateau(u: Floats, b: Floats, c: Floats) -> Floats:
    """A learning rate that is too high for small n limits them late: one by one, they stop rising."""
    learnt = _exponential(c, 5e5, 0.6)
    limit = 0.62 + 0.03 * (_across(u, b) - 3)
    below = 0.38 * learnt
    lost = np.logaddexp(0, (below + R0 - limit) / 0.02) - np.logaddexp(0, (R0 - limit) / 0.02)
    return R0 + below - 0.02 * lost - _batch(b, c, learnt)


ANALYTIC = {
    "even": _even,
    "falling_ceilings": _falling_ceilings,
    "steady": _steady,
    "plateau": _plateau,
    "critical": _critical,
    "batch_limited": _batch_limited,
    "staircase": _staircase,
    "falls": _falls,
    "constant": _constant,
    "flat": _flat,
    "kinked": _kinked,
    "unsaturated": _unsaturated,
    "step_limited": _step_limited,
    "not_monotone": _not_monotone,
    "two_peaks": _two_peaks,
    "cliff": _cliff,
    "late": _late,
    "valley": _valley,
}


@cache
def truth(name: str) -> Truth:
    """Return a truth by its name."""
    if name in SIMULATED:
        return Truth(name, simulated.surface(name), joint=False)
    return Truth(name, ANALYTIC[name])


@dataclass(frozen=True)
class Optimum:
    """The best allocation within the range that a sweep measured.

    Attributes
    ----------
    n, problems_per_batch, steps
        n*, B_p* and M* = C / (n* B_p*), real numbers.
    reward
        theirs.
    tied
        the smallest and the largest n that is as good: far apart where n does not matter.
    """

    n: float
    problems_per_batch: float
    steps: float
    reward: float
    tied: tuple[float, float]


def optimum(
    truth: Truth,
    compute: float,
    log2_n: tuple[float, float],
    log2_b: tuple[float, float] = (5.0, 5.0),
    batch_rollouts: float | None = None,
) -> Optimum:
    """Return the best allocation of ``compute`` with n and B_p in these closed ranges, by search.

    ``batch_rollouts`` holds B = B_p · n, and B_p then follows from n.
    """
    low, high = np.array([log2_n[0], log2_b[0]]), np.array([log2_n[1], log2_b[1]])
    held = None if batch_rollouts is None else np.log2(batch_rollouts)
    if held is not None:
        low[1] = high[1] = log2_b[0]
    # The grid first, so that of several peaks the highest is found; then twice about its best point.
    us, best = _lines(low, high, 801), np.empty(0)
    for _ in range(3):
        u, b = np.meshgrid(*us, indexing="ij")
        reward = truth(u, b if held is None else held - u, np.asarray(compute))
        if best.size == 0:
            tied = u[reward >= reward.max() - _TIED]
        i, j = np.unravel_index(reward.argmax(), reward.shape)
        best = np.array([u[i, j], b[i, j]])
        step = np.array([s[1] - s[0] if s.size > 1 else 0.0 for s in us])
        us = _lines(np.maximum(low, best - step), np.minimum(high, best + step), 41)
    own_b = best[1] if held is None else held - best[0]
    n, size = float(np.exp2(best[0])), float(np.exp2(own_b))
    found = float(truth(best[0], own_b, compute))
    ends = float(min(np.exp2(tied.min()), n)), float(max(np.exp2(tied.max()), n))
    return Optimum(n, size, compute / (n * size), found, ends)


def _lines(low: Floats, high: Floats, points: int) -> list[Floats]:
    # Of two axes the grid is coarser.
    if np.all(high > low):
        points = min(points, 161)
    return [np.linspace(a, b, points) if b > a else np.array([a]) for a, b in zip(low, high, strict=True)]


def loss(truth: Truth, best: Optimum, compute: float, n: float, problems_per_batch: float = B_P) -> float:
    """Return the loss of this allocation against the best one."""
    return best.reward - float(truth(np.log2(n), np.log2(problems_per_batch), compute))
