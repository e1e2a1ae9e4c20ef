"""The interference population: problems that share features, learned by GRPO, O(B_p · r) a step.

Problem i succeeds with probability p_i = σ(z_i), where

    z_i = b_i + w·φ_i + u_i − ½ Σ_k c_k w_k² − ½ c⊥ W

w is what problems share (transfer and interference), u_i what is memorised of a training problem,
the quadratic terms are competence lost to drift, and W is the squared drift in directions that no
reward looks at. A step takes B_p problems, n rollouts each:

    k_i ~ Binomial(n, p_i),  p̂_i = k_i / n
    g_i = √(p̂_i (1 − p̂_i))                       GRPO with the group's standard deviation: Σ A = 0, Σ A² = n
    h_i = g_i − β p_i (1 − p_i)(z_i − b_i)         β weighs the KL to the initial policy
    G   = Σ_i h_i (φ_i − c∘w) + N(0, f_in σ² F/n · spec²)
    ℓ   = lr(B) · v̂^(−q/2)                        v̂: bias-corrected EMA(0.98) of the whole |G/B_p|²
    w  += ℓ G / B_p
    u_i += κ ℓ h_i / B_p
    W   = (1 − ℓ c⊥ Σh/B_p)² W + ℓ² (1 − f_in) σ² F / (n B_p²)

F is the number of groups that are neither all right nor all wrong, and the rollout noise is σ²/n for
each. lr(B) is η √B under the square-root rule. q = 0 is SGD, q = 1 a scalar Adam. Everything is
sampled; no learning curve is written in.

Assumed, not derived: one scalar stands for a problem's policy; noise is Gaussian and isotropic up to
``spec``; a share ``f_in`` of it falls on directions that matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from isolaw.simulators.model import Update
from isolaw.simulators.problems import Difficulty, ProblemSet, population, spectrum

Floats = NDArray[np.float64]
_EMA = 0.98
# Entries of the scalar state.
_DRIFT, _SECOND_MOMENT, _UPDATES = range(3)


@dataclass(frozen=True)
class Parameters:
    """The model's constants (symbols as in the module's docstring).

    ``c`` and ``c_perp`` are the costs of drift (c_k = c / k); ``sigma2`` is σ², ``kappa`` κ;
    ``kl_easy``, ``kl_hard``, ``lr_easy``, ``lr_hard`` are the recipe's β and η when it names none.
    """

    q: float
    sigma2: float
    s: float
    m: float
    kappa: float
    c_perp: float
    f_in: float
    kl_easy: float
    kl_hard: float
    lr_easy: float
    lr_hard: float
    c: float = 0.1
    r: int = 128


# Picked after seeing results: a preset is a population under which findings exist, not a measurement.
PRESETS = {
    "I": Parameters(
        q=0.75,
        sigma2=200.0,
        s=1.5,
        m=0.3,
        kappa=1.0,
        c_perp=0.003,
        f_in=0.02,
        kl_easy=0.5,
        kl_hard=0.0,
        lr_easy=0.02,
        lr_hard=0.05,
    ),
}
PARAMETER_NAMES = tuple(f.name for f in fields(Parameters))
SIZES = (2000, 1000)
BOUNDS = {"f_in": (0.0, 1.0), "r": (1.0, 4096.0)}


class Interference:
    """The population as a `isolaw.simulators.model.Model`."""

    def __init__(self, problems: ProblemSet, parameters: Parameters) -> None:
        self.problems, self.parameters = problems, parameters
        self.state = State.initial(problems.b.size, parameters.r)

    def advance(self, batches: NDArray[np.int64], update: Update, rng: np.random.Generator) -> None:
        """Make one step per row of ``batches``."""
        advance(
            self.state,
            self.problems,
            batches,
            self.parameters,
            rollouts_per_problem=update.rollouts_per_problem,
            step_size=update.step_size,
            kl=update.kl,
            rng=rng,
        )

    def success(self, train: bool = False) -> Floats:
        """Return p_i of the validation or of the training problems."""
        return success(self.state, self.problems, self.parameters, train)

    def drift(self) -> float:
        """Return |w|² + |u|² + W."""
        s = self.state
        return float(s.w @ s.w + s.u @ s.u + s.scalars[_DRIFT])

    def arrays(self) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """Return copies of w, u and the scalars."""
        return {name: getattr(self.state, name).copy() for name in ("w", "u", "scalars")}

    def restore(self, arrays: Mapping[str, NDArray[np.float64] | NDArray[np.int64]]) -> None:
        """Continue from `arrays`."""
        for name in ("w", "u", "scalars"):
            getattr(self.state, name)[:] = arrays[name]


def create(
    parameters: Parameters, difficulty: Difficulty, seed: int, n_train: int, n_validation: int
) -> Interference:
    """Draw the problems and return the model before its first step."""
    p = parameters
    return Interference(population(difficulty, seed, n_train, n_validation, p.s, p.m, p.r), p)


@dataclass
class State:
    """All that changes during a run: w (r,), u (D,), and the scalars W, v, number of updates."""

    w: Floats
    u: Floats
    scalars: Floats

    @classmethod
    def initial(cls, n_train: int, r: int) -> State:
        """Return the state before the first step."""
        return cls(np.zeros(r), np.zeros(n_train), np.zeros(3))


def advance(
    state: State,
    problems: ProblemSet,
    batches: NDArray[np.int64],
    parameters: Parameters,
    *,
    rollouts_per_problem: int,
    step_size: float,
    kl: float,
    rng: np.random.Generator,
) -> None:
    """Make one update per row of ``batches``, in place.

    Parameters
    ----------
    state
        changed in place.
    problems
        the training problems are used.
    batches
        indices of training problems, shape (steps, B_p).
    rollouts_per_problem
        n.
    step_size
        lr(B) = η √B under the square-root rule.
    kl
        β.
    rng
        the run's rollout stream; advanced.

    >>> from isolaw.simulators.problems import difficulty, population
    >>> problems = population(difficulty("easy"), seed=0, n_train=64, n_validation=8, s=1.5, m=0.3, r=16)
    >>> state = State.initial(64, 16)
    >>> advance(state, problems, np.arange(64).reshape(2, 32), PRESETS["I"], rollouts_per_problem=8,
    ...         step_size=0.3, kl=0.5, rng=np.random.default_rng(0))
    >>> bool(np.any(state.w != 0))
    True
    """
    p = parameters
    _advance(
        rng,
        batches,
        problems.b,
        problems.phi,
        p.c / np.arange(1, state.w.size + 1),
        np.sqrt(spectrum(state.w.size)),
        state.w,
        state.u,
        state.scalars,
        rollouts_per_problem,
        step_size,
        kl,
        p.q,
        p.sigma2,
        p.kappa,
        p.c_perp,
        p.f_in,
    )


def success(state: State, problems: ProblemSet, parameters: Parameters, train: bool = False) -> Floats:
    """Return p_i of the validation problems, shape (V,), or of the training problems, shape (D,).

    >>> from isolaw.simulators.problems import difficulty, population
    >>> problems = population(difficulty("easy"), seed=0, n_train=64, n_validation=8, s=1.5, m=0.3, r=16)
    >>> p = success(State.initial(64, 16), problems, PRESETS["I"])
    >>> bool(np.all((p >= 0.3) & (p <= 0.6)))
    True
    """
    c = parameters.c / np.arange(1, state.w.size + 1)
    with np.errstate(over="ignore", invalid="ignore"):  # a diverged state gives values that are not finite
        return _success(state, problems, parameters, c, train)


def _success(state: State, problems: ProblemSet, parameters: Parameters, c: Floats, train: bool) -> Floats:
    drift = 0.5 * float(c @ state.w**2) + 0.5 * parameters.c_perp * state.scalars[_DRIFT]
    if train:
        z = problems.b + problems.phi @ state.w + state.u - drift
    else:
        z = problems.b_val + problems.phi_val @ state.w - drift
    return np.asarray(expit(z))


@numba.njit(cache=True, nogil=True)
def _advance(rng, batches, b, phi, c, spec, w, u, scalars, n, step_size, kl, q, sigma2, kappa, c_perp, f_in):  # type: ignore[no-untyped-def]
    steps, batch = batches.shape
    r = w.size
    gradient = np.empty(r)
    h = np.empty(batch)
    for t in range(steps):
        drift = 0.5 * c_perp * scalars[_DRIFT]
        for k in range(r):
            drift += 0.5 * c[k] * w[k] * w[k]
            gradient[k] = 0.0
        mixed = 0
        sum_h = 0.0
        for j in range(batch):
            i = batches[t, j]
            z = b[i] + u[i] - drift
            for k in range(r):
                z += phi[i, k] * w[k]
            p = 1.0 / (1.0 + np.exp(-z))
            right = rng.binomial(n, p)
            if 0 < right < n:
                mixed += 1
            mean = right / n
            h[j] = np.sqrt(mean * (1.0 - mean)) - kl * p * (1.0 - p) * (z - b[i])
            sum_h += h[j]
            for k in range(r):
                gradient[k] += h[j] * phi[i, k]
        noise = sigma2 * mixed / n
        amplitude = np.sqrt(f_in * noise)
        norm2 = (1.0 - f_in) * noise
        for k in range(r):
            gradient[k] += amplitude * spec[k] * rng.standard_normal() - sum_h * c[k] * w[k]
            norm2 += gradient[k] * gradient[k]
        norm2 /= batch * batch
        scalars[_UPDATES] += 1.0
        scalars[_SECOND_MOMENT] = _EMA * scalars[_SECOND_MOMENT] + (1.0 - _EMA) * norm2
        v = scalars[_SECOND_MOMENT] / (1.0 - _EMA ** scalars[_UPDATES])
        # A batch without any signal leaves v at zero, and nothing to step along.
        rate = step_size * v ** (-0.5 * q) if v > 0.0 else 0.0
        for k in range(r):
            w[k] += rate * gradient[k] / batch
        for j in range(batch):
            u[batches[t, j]] += kappa * rate * h[j] / batch
        shrink = 1.0 - rate * c_perp * sum_h / batch
        scalars[_DRIFT] = shrink * shrink * scalars[_DRIFT] + rate * rate * (1.0 - f_in) * noise / (
            batch * batch
        )
