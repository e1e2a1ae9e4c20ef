"""Simulate a single problem: a softmax bandit with a logit for each of K answers (arXiv 2603.12151, App. H).

The policy is π = softmax(θ), and p = Σ_right π_a is the success probability. All right answers start with one
value of θ_a, and all wrong answers with another. A step draws n answers and makes one plain gradient step of
size ℓ = lr(n)::

    θ ← θ + ℓ ĝ                            ĝ: `isolaw.simulators.group`
    ∇p = π_a (r_a − p)                     the exact gradient, with reward r_a of answer a

For binary rewards, and with all n rollouts in the gradient, E ĝ = f(n, p) ∇p. The factor f is 1 without a
baseline and with the leave-one-out baseline, and 1 − 1/n with the group's mean as the baseline. For GRPO it
is E√(p̂(1 − p̂)) / (p (1 − p)), which grows with n. Here p̂ = right/n, and pass@n = 1 − (1 − p)^n. The same
problem is used for validation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from isolaw.simulators import group
from isolaw.simulators.model import Floats, Integers, Model, Update, exchange
from isolaw.simulators.problems import TRAIN, Difficulty


@dataclass(frozen=True)
class TabularParameters:
    """The model's constants."""

    arms: int  # K, the number of answers
    correct: int  # number of right answers
    lr_easy: float
    lr_hard: float
    kl_easy: float = 0.0
    kl_hard: float = 0.0
    p: float | None = None  # initial success probability; None draws it from the problem set


PRESETS = {"T": TabularParameters(arms=8, correct=1, lr_easy=0.02, lr_hard=0.02)}
BOUNDS = {"arms": (2.0, 65536.0), "correct": (1.0, 65535.0), "p": (1e-12, 1.0 - 1e-12)}
SIZES = (1, 1)


class Tabular(Model):
    """The bandit: its logits, and the updates that change them.

    >>> bandit = Tabular(p=0.1, arms=8, correct=1)
    >>> bandit.advance(np.zeros((1000, 1), dtype=np.int64), Update(16, 0.2), np.random.default_rng(0))
    >>> bool(bandit.success()[0] > 0.9)
    True
    """

    state = ("theta",)

    def __init__(self, p: float, arms: int, correct: int) -> None:
        super().__init__(1, arms + 1)
        self.correct = correct
        self.log_pi0: Floats = group.start(p, arms, correct)
        self.theta = self.log_pi0.copy()

    def advance(self, batches: Integers, update: Update, rng: np.random.Generator) -> None:
        """Make one update step for each row of ``batches``.

        The content of the rows has no effect, since there is only one problem.
        """
        state = self.theta, self.log_pi0, self.made, self.queue_of(update, 1, self.theta.size + 1)
        _advance(rng, len(batches), *state, self.correct, *update.for_kernel)

    def success(self, train: bool = False) -> Floats:
        """Return the success probability p of the problem, as an array of shape (1,)."""
        log_pi = np.empty_like(self.theta)
        group.softmax(self.theta, log_pi)
        return np.array([np.exp(log_pi[: self.correct]).sum()])

    def drift(self) -> float:
        """Return |θ − θ0|², the squared distance of the logits from their start."""
        return float(np.sum((self.theta - self.log_pi0) ** 2))


def create(
    parameters: TabularParameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> Tabular:
    """Draw the problem from the seed, and return the bandit before its first step."""
    p = parameters.p
    if p is None:
        p = float(difficulty.sample(difficulty.stream(seed, TRAIN), 1)[0])
    return Tabular(p, parameters.arms, parameters.correct)


@numba.njit(cache=True, nogil=True)
def _advance(  # type: ignore[no-untyped-def]
    rng, steps, theta, log_pi0, steps_made, queue, correct, n, trained, step_size, code, kl, entropy, filtered
):
    arms = theta.size
    log_pi, slope = np.empty(arms), np.empty(arms)
    batch = np.empty((1, arms + 1), dtype=np.int64)
    for _ in range(steps):
        group.softmax(theta, log_pi)
        batch[0, arms] = group.sample(rng, log_pi, correct, n, trained, batch[0, :arms])
        has_batch = exchange(queue, steps_made[0], batch)
        steps_made[0] += 1
        right = batch[0, arms]
        if not has_batch or (filtered and not 0 < right < n):
            continue
        std = np.sqrt(right / n * (1.0 - right / n))
        group.gradient(log_pi, log_pi0, correct, batch[0, :arms], right, n, code, std, kl, entropy, slope)
        for a in range(arms):
            theta[a] += step_size * slope[a]
