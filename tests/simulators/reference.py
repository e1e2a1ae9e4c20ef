"""One step of `interference` in plain NumPy: its equations, and nothing else.

Tests compare the compiled kernel with it, `benchmarks/simulators.py` compares their speed. It is vectorised
over the batch and uses the names of the equations.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from isolaw.simulators.interference import InterferenceParameters
from isolaw.simulators.model import Floats, Update
from isolaw.simulators.problems import Population

EMA = 0.98


class Reference:
    """The population, step by step. Attributes are those of the equations in `interference`."""

    def __init__(self, problems: Population, parameters: InterferenceParameters) -> None:
        self.problems, self.parameters = problems, parameters
        self.w, self.a, self.W = np.zeros(problems.phi.shape[1]), np.zeros(problems.b.size), 0.0
        self.ema, self.updates = 0.0, 0
        self.waiting: deque[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = deque()

    def drift_cost(self) -> float:
        """½ c |θ|²."""
        return float(0.5 * self.parameters.c * (self.w @ self.w + self.a @ self.a + self.W))

    def logits(self, i: NDArray[np.int64]) -> Floats:
        """z_i of training problems."""
        memorised = np.sqrt(self.parameters.kappa) * self.a[i]
        return np.asarray(self.problems.b[i] + self.problems.phi[i] @ self.w + memorised - self.drift_cost())

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
        h = h - update.kl * p * (1 - p) * (z - self.problems.b[i] - self.drift_cost())
        h = h - update.entropy * p * (1 - p) * z
        pull = P.c * (np.sum(h) + update.kl * np.sum(1 - p + P.rho * p) / (1 - P.rho))
        diversity = P.rho * right_trained * of_right**2 + wrong_trained * of_wrong**2
        noise = P.sigma2 * np.sum(diversity) / trained**2
        G_w = h @ self.problems.phi[i] - pull * self.w
        G_a = np.asarray(-pull * self.a)
        np.add.at(G_a, i, np.sqrt(P.kappa) * h)
        square = float(G_w @ G_w + G_a @ G_a) + pull**2 * self.W + noise
        self.ema = EMA * self.ema + (1 - EMA) * square / i.size**2
        self.updates += 1
        v = self.ema / (1 - EMA**self.updates)
        rate = update.step_size * v ** (-P.q / 2) if v > 0 else 0.0
        self.w = self.w + rate * G_w / i.size
        self.a = self.a + rate * G_a / i.size
        self.W = (1 - rate * pull / i.size) ** 2 * self.W + rate**2 * noise / i.size**2


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
