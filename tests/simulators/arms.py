"""Simulate a population of softmax policies over K answers with shared features, to check `interference`.

Problem i has K answers with base logits b_ia, and the first ``correct`` answers are right. All problems share
one learned vector w ∈ R^r::

    log π_i(a) = b_ia + w·φ_ia − log Σ_a' exp(b_ia' + w·φ_ia'),      p_i = Σ_right π_i(a)
    φ_ia = φ_i + √(ρ S) ε_ia  (right),   √S ε_ia  (wrong),           ε_ia ~ N(0, I),  S = σ²/r

φ_i are the features that the right answers to a problem share, drawn as for `interference`. ε_ia is the style
of an answer, which does not affect the reward. ρ is the style variance of right answers relative to wrong
answers. A step uses B_p problems with n rollouts each::

    G  = Σ_i Σ_a ĝ_ia φ_ia                ĝ_ia: the group's gradient in the logits (`tabular`)
    ℓ  = lr(B) · v̂^(−q/2)                 v̂: bias-corrected EMA(0.98) of |G/B_p|²; q: 0 SGD, 1 Adam
    w += ℓ G / B_p

Every answer is sampled and every softmax is exact, so the noise of rollouts and the cost of drift are exact.
`interference` reduces answers to the number of right answers, and styles to S and ρ. With two answers and S =
0, the two models are the same process for every recipe (`interference` with σ² = c = κ = 0). The two models
also agree in the limit of infinitely many answers and many directions that only styles use (c = (1 − ρ) S, κ
= 0, without the KL and entropy terms, which here are over all answers). Otherwise they differ. Here, a few
answers have few styles, so w can select one answer, onto which the policy collapses. `interference`, in
contrast, memorises single problems (κ) and drifts in infinitely many directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np

from isolaw.simulators import tabular
from isolaw.simulators.model import Floats, Integers, Model, Update, exchange, learning_rate
from isolaw.simulators.problems import TRAIN, VALIDATION, Constants, Difficulty, Population, population


@dataclass(frozen=True, kw_only=True)
class ArmsParameters(Constants):
    """The model's constants. ``arms`` is K, and ``correct`` is the number of right answers."""

    arms: int = 8
    correct: int = 1
    r: int = 64


PRESETS = {
    "L": ArmsParameters(
        q=1.0, sigma2=2.0, s=1.5, m=0.3, kl_easy=0.1, kl_hard=0.0, lr_easy=0.01, lr_hard=0.02
    ),
}
BOUNDS = {"rho": (0.0, 1.0), "r": (1.0, 4096.0), "arms": (2.0, 4096.0), "correct": (1.0, 4095.0)}
SIZES = (2000, 1000)


class Arms(Model):
    """The population of policies. ``scalars`` contains the second moment v and the number of updates."""

    state = ("w", "scalars")

    def __init__(self, problems: Population, correct: int, q: float) -> None:
        super().__init__(0, 0)
        self.problems, self.correct, self.q = problems, correct, q
        self.w = np.zeros(problems.phi.shape[2])
        self.scalars = np.zeros(2)

    def advance(self, batches: Integers, update: Update, rng: np.random.Generator) -> None:
        """Make one update step for each row of ``batches`` (steps, B_p)."""
        p = self.problems
        queue = self.queue_of(update, batches.shape[1], p.b.shape[1] + 2)
        state = self.w, self.scalars, self.made, queue
        _advance(rng, batches, p.b, p.phi, *state, self.correct, self.q, *update.for_kernel)

    def success(self, train: bool = False) -> Floats:
        """Return the success probabilities p_i of the validation problems, or of the training problems."""
        p = self.problems
        b, phi = (p.b, p.phi) if train else (p.b_val, p.phi_val)
        out = np.empty(len(b))
        _success(b, phi, self.w, self.correct, out)
        return out

    def drift(self) -> float:
        """Return |w|², the squared distance of the parameters from their start."""
        return float(self.w @ self.w)


def create(
    parameters: ArmsParameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> Arms:
    """Draw the problems from the seed, and return the model before its first step."""
    problems = draw(parameters, difficulty, seed, n_train, n_validation)
    return Arms(problems, parameters.correct, parameters.q)


@lru_cache(maxsize=8)  # consecutive runs share a seed
def draw(
    parameters: ArmsParameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> Population:
    """Draw a problem set with the same p_i and φ_i as `problems.population` with the same seed."""
    p = parameters
    base = population(difficulty, seed, n_train, n_validation, p.s, p.m, p.r)
    is_right = (np.arange(p.arms) < p.correct)[:, None]
    scale = np.sqrt(p.sigma2 / p.r * np.where(is_right, p.rho, 1.0))

    def answers(part: int, b: Floats, phi: Floats) -> tuple[Floats, Floats]:
        style = difficulty.stream(seed, part).spawn(3)[2].standard_normal((len(phi), p.arms, p.r))
        log_pi = tabular.initial_log_policy(1 / (1 + np.exp(-b)), p.arms, p.correct)
        return log_pi, np.asarray(is_right * phi[:, None, :] + scale * style)

    train = answers(TRAIN, base.b, base.phi)
    return Population(*train, *answers(VALIDATION, base.b_val, base.phi_val))


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _policy(b, phi, w, logits, log_pi):  # type: ignore[no-untyped-def]
    """Write log π of one problem with base logits b (K,) and features phi (K, r) into ``log_pi``."""
    for a in range(b.size):
        z = b[a]
        for k in range(w.size):
            z += phi[a, k] * w[k]
        logits[a] = z
    tabular.log_softmax(logits, log_pi)


@numba.njit(cache=True, nogil=True)
def _success(b, phi, w, correct, out):  # type: ignore[no-untyped-def]
    logits, log_pi = np.empty(b.shape[1]), np.empty(b.shape[1])
    for i in range(b.shape[0]):
        _policy(b[i], phi[i], w, logits, log_pi)
        out[i] = min(1.0, np.exp(log_pi[:correct]).sum())


@numba.njit(cache=True, nogil=True)
def _advance(  # type: ignore[no-untyped-def]
    rng, batches, b, phi, w, scalars, made, queue, correct, q,
    n, trained, step_size, code, kl, entropy, filtered,
):  # fmt: skip
    steps, size = batches.shape
    arms, r = b.shape[1], w.size
    logits, slope, gradient = np.empty(arms), np.empty(arms), np.empty(r)
    log_pi = np.empty((size, arms))
    batch = np.empty((size, arms + 2), dtype=np.int64)  # counts of trained answers, right answers, problem
    for t in range(steps):
        for j in range(size):
            i = batches[t, j]
            _policy(b[i], phi[i], w, logits, log_pi[j])
            batch[j, arms] = tabular.sample_group(rng, log_pi[j], correct, n, trained, batch[j, :arms])
            batch[j, arms + 1] = i
        ready = exchange(queue, made[0], batch)
        made[0] += 1
        if not ready:
            continue
        mean = batch[:, arms].sum() / (n * size)
        std = np.sqrt(mean * (1.0 - mean))
        gradient[:] = 0.0
        groups = 0
        for j in range(size):
            right, i = batch[j, arms], batch[j, arms + 1]
            if filtered and not 0 < right < n:
                continue
            groups += 1
            if len(queue) > 0:  # the queue returned a different problem than the one just sampled
                _policy(b[i], phi[i], w, logits, log_pi[j])
            tabular.gradient(
                log_pi[j], b[i], correct, batch[j, :arms], right, n, code, std, kl, entropy, slope
            )
            for a in range(arms):
                for k in range(r):
                    gradient[k] += slope[a] * phi[i, a, k]
        if groups == 0:
            continue
        norm2 = 0.0
        for k in range(r):
            gradient[k] /= groups
            norm2 += gradient[k] * gradient[k]
        rate = learning_rate(step_size, q, norm2, scalars)
        for k in range(r):
            w[k] += rate * gradient[k]
