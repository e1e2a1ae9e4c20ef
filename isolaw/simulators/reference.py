"""One step of `interference` in plain NumPy: its equations, and nothing else.

For tests and benchmarks: the compiled kernel must agree with it in distribution and be faster.
Vectorised over the batch as one would write it, with the same names as the equations.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from isolaw.simulators.interference import Parameters
from isolaw.simulators.model import Floats, Update
from isolaw.simulators.problems import ProblemSet, spectrum

EMA = 0.98


class Reference:
    """The population, step by step. Attributes are those of the equations in `interference`."""

    def __init__(self, problems: ProblemSet, parameters: Parameters) -> None:
        r = problems.phi.shape[1]
        self.problems, self.parameters = problems, parameters
        self.c = parameters.c / np.arange(1, r + 1)
        self.spec = np.sqrt(spectrum(r))
        self.w, self.u, self.W = np.zeros(r), np.zeros(problems.b.size), 0.0
        self.ema, self.updates = 0.0, 0
        self.waiting: deque[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = deque()

    def drift_cost(self) -> float:
        """½ Σ c_k w_k² + ½ c⊥ W."""
        return float(0.5 * self.c @ self.w**2 + 0.5 * self.parameters.c_perp * self.W)

    def logits(self, i: NDArray[np.int64]) -> Floats:
        """z_i of training problems."""
        shared = self.problems.phi[i] @ self.w
        return np.asarray(self.problems.b[i] + shared + self.u[i] - self.drift_cost())

    def success(self, train: bool = False) -> Floats:
        """p_i of the validation problems, or of the training problems."""
        if train:
            z = self.logits(np.arange(self.problems.b.size))
        else:
            z = self.problems.b_val + self.problems.phi_val @ self.w - self.drift_cost()
        return np.asarray(1 / (1 + np.exp(-z)))

    def step(self, i: NDArray[np.int64], update: Update, rng: np.random.Generator) -> None:
        """One step on training problems ``i``, shape (B_p,)."""
        n, trained = update.rollouts_per_problem, update.trained
        p = 1 / (1 + np.exp(-self.logits(i)))
        right_trained = rng.binomial(trained, p)
        right = right_trained + rng.binomial(n - trained, p)
        self.waiting.append((i, right, right_trained))
        if len(self.waiting) > update.staleness:
            self.learn(*self.waiting.popleft(), update, rng)

    def learn(
        self,
        i: NDArray[np.int64],
        right: NDArray[np.int64],
        right_trained: NDArray[np.int64],
        update: Update,
        rng: np.random.Generator,
    ) -> None:
        """Update on a batch of rollouts: of problem i, ``right`` of n, ``right_trained`` of n' used."""
        P, n, trained = self.parameters, update.rollouts_per_problem, update.trained
        of_right, of_wrong = advantages(update.advantage, right / n, n)
        if update.zero_variance_filter:
            kept = (right > 0) & (right < n)
            i, right_trained = i[kept], right_trained[kept]
            of_right, of_wrong = of_right[kept], of_wrong[kept]
        if i.size == 0:
            return
        wrong_trained = trained - right_trained
        z = self.logits(i)
        p = 1 / (1 + np.exp(-z))
        h = (right_trained * of_right * (1 - p) - wrong_trained * of_wrong * p) / trained
        h = h - update.kl * p * (1 - p) * (z - self.problems.b[i])
        noise = P.sigma2 * np.sum(right_trained * of_right**2 + wrong_trained * of_wrong**2) / trained**2
        G = h @ (self.problems.phi[i] - self.c * self.w)
        G = G + np.sqrt(P.f_in * noise) * self.spec * rng.standard_normal(self.w.size)
        self.ema = EMA * self.ema + (1 - EMA) * (G @ G + (1 - P.f_in) * noise) / i.size**2
        self.updates += 1
        v = self.ema / (1 - EMA**self.updates)
        rate = update.step_size * v ** (-P.q / 2) if v > 0 else 0.0
        self.w = self.w + rate * G / i.size
        np.add.at(self.u, i, P.kappa * rate * h / i.size)
        self.W *= (1 - rate * P.c_perp * np.sum(h) / i.size) ** 2
        self.W += rate**2 * (1 - P.f_in) * noise / i.size**2


def advantages(kind: str, mean: Floats, n: int) -> tuple[Floats, Floats]:
    """Advantages of the right and of the wrong rollouts of each group with mean reward ``mean``.

    >>> advantages("centred", np.array([0.25]), 4)
    (array([0.75]), array([-0.25]))
    """
    if kind == "none":
        return np.ones_like(mean), np.zeros_like(mean)
    if kind == "leave_one_out":
        scale = np.full_like(mean, n / (n - 1))
    elif kind == "centred":
        scale = np.ones_like(mean)
    elif kind == "group_std":
        std = np.sqrt(mean * (1 - mean))
        scale = np.divide(1, std, out=np.zeros_like(std), where=std > 0)
    elif kind == "batch_std":
        std = np.sqrt(mean.mean() * (1 - mean.mean()))
        scale = np.full_like(mean, 1 / std if std > 0 else 0.0)
    else:
        raise ValueError(kind)
    return (1 - mean) * scale, -mean * scale
