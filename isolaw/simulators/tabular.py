"""Simulate a single problem: a softmax bandit with a logit for each of K answers (arXiv 2603.12151, App. H).

The policy is π = softmax(θ), and p = Σ_right π_a is the success probability. All right answers start with one
value of θ_a, and all wrong answers with another. The first ``right_arms`` answers are right (reward 1), the
others wrong (reward 0). A step draws n answers and makes one plain gradient step of size ℓ = lr(n)::

    θ ← θ + ℓ ĝ
    ĝ_a = (1/n') (x_a A_a − π_a Σ_b x_b A_b) − β π_a (log π_a/π0_a − KL) − γ π_a (log π_a + H)
    ∇p = π_a (r_a − p)                     the exact gradient, with reward r_a of answer a

x_a of the n' ≤ n answers that enter the gradient are answer a (an "arm"), with advantage A_a
(`model.advantages`). π0 is the initial policy, and β and γ are the weights of the KL penalty and of the
entropy bonus. KL = Σ_a π_a log π_a/π0_a and H = −Σ_a π_a log π_a are exact, not sampled.

For binary rewards, and with all n rollouts in the gradient, E ĝ = f(n, p) ∇p. The factor f is 1 without a
baseline and with the leave-one-out baseline, and 1 − 1/n with the group's mean as the baseline. For GRPO it
is E√(p̂(1 − p̂)) / (p (1 − p)), which grows with n. Here p̂ = right/n, and pass@n = 1 − (1 − p)^n. The same
problem is used for validation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from isolaw.simulators.draws import successes
from isolaw.simulators.model import Floats, Integers, Model, Update, advantages, exchange
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

    >>> bandit = Tabular(p=0.1, arms=8, right_arms=1)
    >>> bandit.advance(np.zeros((1000, 1), dtype=np.int64), Update(16, 0.2), np.random.default_rng(0))
    >>> bool(bandit.success()[0] > 0.9)
    True
    """

    state = ("theta",)

    def __init__(self, p: float, arms: int, right_arms: int) -> None:
        super().__init__(1, arms + 1)
        self.right_arms = right_arms
        self.log_pi0: Floats = initial_log_policy(p, arms, right_arms)
        self.theta = self.log_pi0.copy()

    def advance(self, batches: Integers, update: Update, rng: np.random.Generator) -> None:
        """Make one update step for each row of ``batches``.

        The content of the rows has no effect, since there is only one problem.
        """
        state = self.theta, self.log_pi0, self.made, self.queue_of(update, 1, self.theta.size + 1)
        _advance(rng, len(batches), *state, self.right_arms, *update.for_kernel)

    def success(self, train: bool = False) -> Floats:
        """Return the success probability p of the problem, as an array of shape (1,)."""
        log_pi = np.empty_like(self.theta)
        log_softmax(self.theta, log_pi)
        return np.array([np.exp(log_pi[: self.right_arms]).sum()])

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
def log_softmax(logits, log_pi):  # type: ignore[no-untyped-def]
    """Write log softmax(``logits``) into ``log_pi``."""
    largest = logits.max()
    total = 0.0
    for a in range(logits.size):
        total += np.exp(logits[a] - largest)
    log_total = largest + np.log(total)
    for a in range(logits.size):
        log_pi[a] = logits[a] - log_total


@numba.njit(cache=True, nogil=True)
def sample_group(rng, log_pi, right_arms, n, trained_count, counts):  # type: ignore[no-untyped-def]
    """Draw n answers, and return how many are right; ``counts`` gets x_a of the first ``trained_count``."""
    arms = log_pi.size
    right_count = 0
    remaining, remaining_share = trained_count, 1.0
    for a in range(arms):
        probability = np.exp(log_pi[a])
        is_last = a == arms - 1 or probability >= remaining_share
        counts[a] = remaining if is_last else successes(rng, remaining, probability / remaining_share)
        remaining -= counts[a]
        remaining_share -= probability
        if a < right_arms:
            right_count += counts[a]
    if trained_count < n:
        p = 0.0
        for a in range(right_arms):
            p += np.exp(log_pi[a])
        right_count += successes(rng, n - trained_count, min(p, 1.0))
    return right_count


@numba.njit(cache=True, nogil=True)
def gradient(  # type: ignore[no-untyped-def]
    log_pi, log_pi0, right_arms, counts, right_count,
    n, advantage_code, batch_std, kl_weight, entropy_weight, gradient_out,
):  # fmt: skip
    """Write the gradient in the logits into ``gradient_out``, an array of shape (K,)."""
    arms = log_pi.size
    advantage_right, advantage_wrong = advantages(advantage_code, right_count, n, batch_std)
    trained_count, total = 0, 0.0
    divergence, policy_entropy = 0.0, 0.0
    for a in range(arms):
        trained_count += counts[a]
        gradient_out[a] = counts[a] * (advantage_right if a < right_arms else advantage_wrong)
        total += gradient_out[a]
        if kl_weight > 0.0 or entropy_weight > 0.0:
            probability = np.exp(log_pi[a])
            divergence += probability * (log_pi[a] - log_pi0[a])
            policy_entropy -= probability * log_pi[a]
    for a in range(arms):
        probability = np.exp(log_pi[a])
        gradient_out[a] = (gradient_out[a] - probability * total) / trained_count
        if kl_weight > 0.0:
            gradient_out[a] -= kl_weight * probability * (log_pi[a] - log_pi0[a] - divergence)
        if entropy_weight > 0.0:
            gradient_out[a] -= entropy_weight * probability * (log_pi[a] + policy_entropy)


def initial_log_policy(p, arms: int, right_arms: int):  # type: ignore[no-untyped-def]
    """Return log π0 of policies with success probability p, uniform over right and over wrong answers.

    For p of shape (…), the result has shape (…, K).

    >>> np.exp(initial_log_policy(np.array([0.6]), arms=4, right_arms=2)).round(2).tolist()
    [[0.3, 0.3, 0.2, 0.2]]
    """
    p = np.asarray(p, dtype=np.float64)[..., None]
    is_right = np.arange(arms) < right_arms
    return np.where(is_right, np.log(p / right_arms), np.log((1 - p) / (arms - right_arms)))


@numba.njit(cache=True, nogil=True)
def _advance(  # type: ignore[no-untyped-def]
    rng, steps, theta, log_pi0, steps_made, queue, right_arms,
    n, trained_count, step_size, advantage_code, kl_weight, entropy_weight, filtered,
):  # fmt: skip
    arms = theta.size
    log_pi, gradient_out = np.empty(arms), np.empty(arms)
    batch = np.empty((1, arms + 1), dtype=np.int64)
    for _ in range(steps):
        log_softmax(theta, log_pi)
        batch[0, arms] = sample_group(rng, log_pi, right_arms, n, trained_count, batch[0, :arms])
        has_batch = exchange(queue, steps_made[0], batch)
        steps_made[0] += 1
        right_count = batch[0, arms]
        if not has_batch or (filtered and not 0 < right_count < n):
            continue
        std = np.sqrt(right_count / n * (1.0 - right_count / n))
        gradient(
            log_pi, log_pi0, right_arms, batch[0, :arms], right_count,
            n, advantage_code, std, kl_weight, entropy_weight, gradient_out,
        )  # fmt: skip
        for a in range(arms):
            theta[a] += step_size * gradient_out[a]
