"""One problem alone: a softmax bandit with a logit for each of K answers (arXiv 2603.12151, App. H).

π = softmax(θ), θ_a of the right answers start equal, so do those of the wrong ones, and p = Σ_right π_a.
A step draws n answers and makes one plain gradient step of size ℓ = lr(n)::

    θ ← θ + ℓ ĝ                            ĝ: `isolaw.simulators.group`
    ∇p = π_a (r_a − p)                     the exact gradient

What is known, for binary rewards and all n rollouts in the gradient: E ĝ = f(n, p) ∇p with f = 1 without
a baseline and with the leave-one-out one, 1 − 1/n for the group's mean, and for GRPO's
E√(p̂(1 − p̂)) / (p (1 − p)), which grows with n (`factor`); p̂ = right/n. pass@n = 1 − (1 − p)^n.

There is nothing to generalise to: training and validation problem are the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from isolaw.simulators import group
from isolaw.simulators.model import ADVANTAGES, Advantage, Floats, Update, advantages, exchange
from isolaw.simulators.problems import TRAIN, Difficulty

Arrays = NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class Parameters:
    """The model's constants.

    ``arms`` is K, ``correct`` how many of them are right, ``p`` the initial success; without it, p is
    drawn from the problem set.
    """

    arms: int
    correct: int
    lr_easy: float
    lr_hard: float
    kl_easy: float = 0.0
    kl_hard: float = 0.0
    p: float | None = None


PRESETS = {"T": Parameters(arms=8, correct=1, lr_easy=0.02, lr_hard=0.02)}
BOUNDS = {"arms": (2.0, 65536.0), "correct": (1.0, 65535.0), "p": (1e-12, 1.0 - 1e-12)}
SIZES = (1, 1)


class Tabular:
    """The bandit as a `isolaw.simulators.model.Model`.

    >>> bandit = Tabular(p=0.1, arms=8, correct=1)
    >>> bandit.advance(np.zeros((1000, 1), dtype=np.int64), Update(16, 0.2), np.random.default_rng(0))
    >>> bool(bandit.success()[0] > 0.9)
    True
    """

    def __init__(self, p: float, arms: int, correct: int) -> None:
        self.correct = correct
        self.log_pi0: Floats = group.start(p, arms, correct)
        self.theta = self.log_pi0.copy()
        self.made = np.zeros(1, dtype=np.int64)
        self.queue = np.zeros((0, 1, arms + 1), dtype=np.int64)

    def advance(self, batches: NDArray[np.int64], update: Update, rng: np.random.Generator) -> None:
        """Make one step per row of ``batches``; there is but one problem, so their content is not read."""
        if update.staleness and len(self.queue) != update.staleness:
            self.queue = np.zeros((update.staleness, *self.queue.shape[1:]), dtype=np.int64)
        _advance(
            rng,
            len(batches),
            self.theta,
            self.log_pi0,
            self.made,
            self.queue[: update.staleness],
            self.correct,
            update.rollouts_per_problem,
            update.trained,
            update.step_size,
            update.advantage_code,
            update.kl,
            update.entropy,
            update.zero_variance_filter,
        )

    def success(self, train: bool = False) -> Floats:
        """Return p, shape (1,)."""
        log_pi = np.empty_like(self.theta)
        group.softmax(self.theta, log_pi)
        return np.array([np.exp(log_pi[: self.correct]).sum()])

    def drift(self) -> float:
        """Return |θ − θ0|²."""
        return float(np.sum((self.theta - self.log_pi0) ** 2))

    def arrays(self) -> dict[str, Arrays]:
        """Return copies of θ, the number of steps and the rollouts in the queue."""
        return {name: getattr(self, name).copy() for name in ("theta", "made", "queue")}

    def restore(self, arrays: Mapping[str, Arrays]) -> None:
        """Continue from `arrays`."""
        self.theta[:], self.made[:] = arrays["theta"], arrays["made"]
        self.queue = np.array(arrays["queue"], dtype=np.int64)


def create(
    parameters: Parameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> Tabular:
    """Draw the problem from the seed and return the bandit before its first step."""
    p = parameters.p
    if p is None:
        p = float(difficulty.sample(difficulty.stream(seed, TRAIN), 1)[0])
    return Tabular(p, parameters.arms, parameters.correct)


def exact_gradient(theta: Floats, correct: int) -> Floats:
    """Return ∇p = π_a (r_a − p), shape (K,).

    >>> exact_gradient(np.zeros(4), correct=1).tolist()
    [0.1875, -0.0625, -0.0625, -0.0625]
    """
    pi = np.exp(theta - theta.max())
    pi /= pi.sum()
    right = np.arange(theta.size) < correct
    return np.asarray(pi * (right - pi[right].sum()))


def estimates(theta: Floats, correct: int, update: Update, draws: int, rng: np.random.Generator) -> Floats:
    """Return independent draws of ĝ at θ, shape (draws, K), without KL and entropy terms."""
    out = np.empty((draws, theta.size))
    log_pi = np.empty_like(theta)
    group.softmax(theta, log_pi)
    code, n = update.advantage_code, update.rollouts_per_problem
    _estimates(rng, log_pi, correct, n, update.trained, code, out)
    return out


def factor(advantage: Advantage, n: int, p: float) -> float:
    """Return f(n, p) in E ĝ = f(n, p) ∇p, for n rollouts that all enter the gradient.

    f = Σ_k Binomial(k; n, p) [k A₊ (1 − p) − (n − k) A₋ p] / (n p (1 − p)), by enumeration of k. In a
    batch of one problem ``batch_std`` is ``group_std``.

    >>> round(factor("group_std", 2, 0.1), 12), round(factor("group_std", 32, 0.1), 1)
    (1.0, 3.1)
    """
    code = ADVANTAGES.index("group_std" if advantage == "batch_std" else advantage)
    total = 0.0
    for k in range(n + 1):
        ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        probability = np.exp(ways + xlogy(k, p) + xlogy(n - k, 1 - p))
        right, wrong = advantages(code, k, n, 0.0)
        total += probability * (k * right * (1 - p) - (n - k) * wrong * p)
    return float(total / (n * p * (1 - p)))


@numba.njit(cache=True, nogil=True)
def _estimates(rng, log_pi, correct, n, trained, code, out):  # type: ignore[no-untyped-def]
    counts = np.empty(log_pi.size, dtype=np.int64)
    for i in range(out.shape[0]):
        right = group.sample(rng, log_pi, correct, n, trained, counts)
        std = np.sqrt(right / n * (1.0 - right / n))
        group.gradient(log_pi, log_pi, correct, counts, right, n, code, std, 0.0, 0.0, out[i])


@numba.njit(cache=True, nogil=True)
def _advance(  # type: ignore[no-untyped-def]
    rng, steps, theta, log_pi0, made, queue, correct, n, trained, step_size, code, kl, entropy, filtered
):
    arms = theta.size
    log_pi, slope = np.empty(arms), np.empty(arms)
    batch = np.empty((1, arms + 1), dtype=np.int64)
    for _ in range(steps):
        group.softmax(theta, log_pi)
        batch[0, arms] = group.sample(rng, log_pi, correct, n, trained, batch[0, :arms])
        ready = exchange(queue, made[0], batch)
        made[0] += 1
        right = batch[0, arms]
        if not ready or (filtered and not 0 < right < n):
            continue
        std = np.sqrt(right / n * (1.0 - right / n))
        group.gradient(log_pi, log_pi0, correct, batch[0, :arms], right, n, code, std, kl, entropy, slope)
        for a in range(arms):
            theta[a] += step_size * slope[a]
