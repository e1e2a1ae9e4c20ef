"""A population of softmax policies over K answers with shared features: the cross-check of `interference`.

Problem i has K answers, the first of them right. One vector w ∈ R^r is learned for all problems::

    log π_i(a) = b_ia + w·φ_ia − log Σ_a' exp(b_ia' + w·φ_ia'),      p_i = Σ_right π_i(a)
    φ_ia = φ_i + √(ρ S) ε_ia  (right),   √S ε_ia  (wrong),           ε_ia ~ N(0, I),  S = σ²/r

φ_i is what being right has in common between problems (drawn as for `interference`), ε_ia the style of
an answer, about which the reward says nothing. A step takes B_p problems with n rollouts each::

    G  = Σ_i Σ_a ĝ_ia φ_ia                ĝ_ia: the group's gradient in the logits (`group`)
    ℓ  = lr(B) · v̂^(−q/2)                 v̂: bias-corrected EMA(0.98) of |G/B_p|²
    w += ℓ G / B_p

Every answer is sampled and every softmax is exact: nothing is reduced to one logit per problem, the
noise of rollouts is that of the answers drawn, and drift costs what the softmax makes it cost. How this
relates to `interference`, which knows answers by their number right, and styles by S and ρ:

- With two answers and S = 0 both are the same process, for every recipe (`interference` with σ² = c =
  κ = 0): there is then but one logit.
- With infinitely many answers, and many directions that only styles have, they are the same process again
  (c = (1 − ρ) S, κ = 0, without KL and entropy, which are here those of all answers): the sum over the
  answers becomes the integral over styles from which `interference` is derived.
- Elsewhere they differ. A few answers have few styles, so that w may pick one of them and the policy
  collapse onto it. `interference` remembers single problems (κ) and drifts in directions without number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
from numpy.typing import NDArray

from isolaw.simulators import group
from isolaw.simulators.model import Floats, Update, exchange
from isolaw.simulators.problems import TRAIN, VALIDATION, Difficulty, population

Arrays = NDArray[np.float64] | NDArray[np.int64]
_EMA = 0.98
_SECOND_MOMENT, _UPDATES = range(2)


@dataclass(frozen=True)
class Parameters:
    """The model's constants (symbols as in the module's docstring).

    ``arms`` is K, ``correct`` how many of them are right, ``sigma2`` σ² and ``rho`` ρ, the variance of style
    in all r directions and what right answers have of it; ``s`` and ``m`` are the strengths of a problem's
    own and of the common part of φ_i; the rest as for `interference`.
    """

    q: float
    sigma2: float
    s: float
    m: float
    kl_easy: float
    kl_hard: float
    lr_easy: float
    lr_hard: float
    rho: float = 0.3
    arms: int = 8
    correct: int = 1
    r: int = 64


PRESETS = {
    "L": Parameters(q=1.0, sigma2=2.0, s=1.5, m=0.3, kl_easy=0.1, kl_hard=0.0, lr_easy=0.01, lr_hard=0.02),
}
BOUNDS = {"rho": (0.0, 1.0), "r": (1.0, 4096.0), "arms": (2.0, 4096.0), "correct": (1.0, 4095.0)}
SIZES = (2000, 1000)


@dataclass(frozen=True)
class ProblemSet:
    """Problems of the population: log π0 of the answers, (D, K) and (V, K); features (D, K, r), (V, K, r)."""

    b: Floats
    phi: Floats
    b_val: Floats
    phi_val: Floats


class Arms:
    """The population as a `isolaw.simulators.model.Model`."""

    def __init__(self, problems: ProblemSet, correct: int, q: float) -> None:
        self.problems, self.correct, self.q = problems, correct, q
        self.w = np.zeros(problems.phi.shape[2])
        self.scalars = np.zeros(2)
        self.made = np.zeros(1, dtype=np.int64)
        self.queue = np.zeros((0, 0, 0), dtype=np.int64)

    def advance(self, batches: NDArray[np.int64], update: Update, rng: np.random.Generator) -> None:
        """Make one step per row of ``batches``."""
        shape = (batches.shape[1], self.problems.b.shape[1] + 2)
        if update.staleness and self.queue.shape != (update.staleness, *shape):
            self.queue = np.zeros((update.staleness, *shape), dtype=np.int64)
        _advance(
            rng,
            batches,
            self.problems.b,
            self.problems.phi,
            self.w,
            self.scalars,
            self.made,
            self.queue if update.staleness else np.zeros((0, *shape), dtype=np.int64),
            self.correct,
            self.q,
            update.rollouts_per_problem,
            update.trained,
            update.step_size,
            update.advantage_code,
            update.kl,
            update.entropy,
            update.zero_variance_filter,
        )

    def success(self, train: bool = False) -> Floats:
        """Return p_i of the validation or of the training problems."""
        p = self.problems
        out = np.empty(len(p.b if train else p.b_val))
        _success(p.b if train else p.b_val, p.phi if train else p.phi_val, self.w, self.correct, out)
        return out

    def drift(self) -> float:
        """Return |w|²."""
        return float(self.w @ self.w)

    def arrays(self) -> dict[str, Arrays]:
        """Return copies of w, v, the number of steps and the rollouts in the queue."""
        return {name: getattr(self, name).copy() for name in ("w", "scalars", "made", "queue")}

    def restore(self, arrays: Mapping[str, Arrays]) -> None:
        """Continue from `arrays`."""
        for name in ("w", "scalars", "made"):
            getattr(self, name)[:] = arrays[name]
        self.queue = np.array(arrays["queue"], dtype=np.int64)


def create(
    parameters: Parameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> Arms:
    """Draw the problems from the seed and return the model before its first step."""
    problems = draw(parameters, difficulty, seed, n_train, n_validation)
    return Arms(problems, parameters.correct, parameters.q)


@lru_cache(maxsize=8)  # the seeds of a configuration follow one another
def draw(
    parameters: Parameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> ProblemSet:
    """Draw a problem set; p_i and φ_i are those of `problems.population` under the same seed."""
    p = parameters
    base = population(difficulty, seed, n_train, n_validation, p.s, p.m, p.r)
    is_right = (np.arange(p.arms) < p.correct)[:, None]
    scale = np.sqrt(p.sigma2 / p.r * np.where(is_right, p.rho, 1.0))

    def features(part: int, phi: Floats) -> Floats:
        style = difficulty.stream(seed, part).spawn(3)[2].standard_normal((len(phi), p.arms, p.r))
        return np.asarray(is_right * phi[:, None, :] + scale * style)

    def log_pi(b: Floats) -> Floats:
        return group.start(1 / (1 + np.exp(-b)), p.arms, p.correct)

    return ProblemSet(
        log_pi(base.b), features(TRAIN, base.phi), log_pi(base.b_val), features(VALIDATION, base.phi_val)
    )


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _policy(b, phi, w, logits, log_pi):  # type: ignore[no-untyped-def]
    """Write log π of one problem into ``log_pi``; b (K,), phi (K, r)."""
    for a in range(b.size):
        z = b[a]
        for k in range(w.size):
            z += phi[a, k] * w[k]
        logits[a] = z
    group.softmax(logits, log_pi)


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
    batch = np.empty((size, arms + 2), dtype=np.int64)  # answers that are trained on, right ones, problem
    for t in range(steps):
        for j in range(size):
            i = batches[t, j]
            _policy(b[i], phi[i], w, logits, log_pi[j])
            batch[j, arms] = group.sample(rng, log_pi[j], correct, n, trained, batch[j, :arms])
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
            if len(queue) > 0:  # another problem than the one just sampled
                _policy(b[i], phi[i], w, logits, log_pi[j])
            group.gradient(log_pi[j], b[i], correct, batch[j, :arms], right, n, code, std, kl, entropy, slope)
            for a in range(arms):
                for k in range(r):
                    gradient[k] += slope[a] * phi[i, a, k]
        if groups == 0:
            continue
        norm2 = 0.0
        for k in range(r):
            gradient[k] /= groups
            norm2 += gradient[k] * gradient[k]
        scalars[_UPDATES] += 1.0
        scalars[_SECOND_MOMENT] = _EMA * scalars[_SECOND_MOMENT] + (1.0 - _EMA) * norm2
        v = scalars[_SECOND_MOMENT] / (1.0 - _EMA ** scalars[_UPDATES])
        # A batch without any signal leaves v at zero, and nothing to step along.
        rate = step_size * v ** (-0.5 * q) if v > 0.0 else 0.0
        for k in range(r):
            w[k] += rate * gradient[k]
