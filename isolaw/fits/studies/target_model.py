"""Model the rollouts to a target reward as a function of batch size and learning rate.

Let N be the number of rollouts that run k of (B_p, n, lr) generates until its reward reaches target T::

    log N_kT = log N*_T + p log cosh(log lr − log lr*_T) + block + u_k + e_kT
    N*_T  = N_min (1 + B_p / B_crit)    at one n (form ``critical``)
    N*_T  = free for each (B_p, n)      shifted by targets along a plane in log B_p, log n (form ``cells``)
    lr*_T = λ B_p^α n^β

The form ``critical`` is the trade-off of McCandlish et al. (arXiv 1812.06162), (S / S_min − 1) (N / N_min −
1) = 1. In steps it is S = S_min (1 + B_crit / B_p), with S_min = N_min / (n B_crit). N_min is free for every
target, while log B_crit, log λ, α and β are linear in T. The term in lr is a valley in log lr that is
parabolic at its bottom with curvature p; far below lr* it gives N ∝ lr^(−p). A block is a value of any other
hold in which runs differ (such as a code version, or the weight of the KL term), and shifts log N. u_k ~
Normal(0, τ²) is shared by all targets of a run; e ~ Normal(0, σ²) is not. A run that has not reached T by its
end C is censored, and contributes the probability that N > C (Tobin 1958). A run that is above T at its first
evaluation contributes the probability that N < C.

Estimates maximise the likelihood, with u_k integrated out by Gauss-Hermite quadrature. Intervals come from
the profile likelihood (`isolaw.fits.studies.profile`), with the runs that reach a target as observations. u_k
absorbs every deviation of a run from the equations. A single run of each configuration shows the size of
these deviations, but cannot distinguish chance from a wrong equation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, logsumexp

from isolaw.config.run import EXPONENTS
from isolaw.evidence import Quantity
from isolaw.fits.selection import Floats
from isolaw.fits.studies.profile import Profile

Form = Literal["critical", "cells"]
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())
_DEVIATION = (math.log(0.02), math.log(3.0))  # bounds of log σ and log τ
_VALLEY = (math.log(0.1), math.log(5.0))  # bounds of log p
_FAR = math.log(100.0)  # search range of log B_crit beyond the measured B_p
_FARTHEST = 3.0  # largest absolute value of an exponent


@dataclass(frozen=True)
class TargetData:
    """The rollouts that each of K runs needed to reach each of J target rewards."""

    targets: Floats  # target rewards, ascending, (J,)
    # log N, (K, J). For a run that missed the target, log of the rollouts at its end, and for a run that was
    # above it from its first evaluation, at this evaluation.
    log_rollouts: Floats
    reached: NDArray[np.bool_]  # whether each run crossed each target, (K, J)
    problems_per_batch: Floats  # B_p, (K,)
    rollouts_per_problem: Floats  # n, (K,)
    lr: Floats | None  # (K,)
    block: NDArray[np.int64]  # index of each run's block, from 0, (K,)
    # Whether each run was above each target from its first evaluation, (K, J).
    before: NDArray[np.bool_] | bool = False

    @property
    def cells(self) -> tuple[Floats, NDArray[np.int64]]:
        """The distinct (B_p, n), of shape (2, cells), and the index of each run's cell, of shape (K,)."""
        shapes = np.array([self.problems_per_batch, self.rollouts_per_problem])
        cells, cell = np.unique(shapes, axis=1, return_inverse=True)
        return cells, cell.ravel()

    def of(self, runs: NDArray[np.bool_], targets: NDArray[np.bool_]) -> TargetData:
        """Return the data of the runs and targets that the masks of shape (K,) and (J,) select."""
        lr = None if self.lr is None else self.lr[runs]
        both = np.ix_(runs, targets)
        per_run = self.problems_per_batch[runs], self.rollouts_per_problem[runs], lr, self.block[runs]
        before = np.broadcast_to(self.before, self.reached.shape)[both]
        return TargetData(
            self.targets[targets], self.log_rollouts[both], self.reached[both], *per_run, before
        )


class TargetModel:
    """The maximum-likelihood fit of the model, with intervals.

    >>> b = np.repeat([4.0, 16.0, 64.0, 256.0, 1024.0], 3)
    >>> lr = 1e-6 * np.sqrt(b) * np.tile([0.5, 1.0, 2.0], 5)
    >>> noise = np.random.default_rng(1).normal(0, 0.05, 15)
    >>> log_n = np.log(1e5 * (1 + b / 100)) + 0.8 * np.log(np.cosh(np.log(lr / 1e-6 / b**0.5))) + noise
    >>> seen = np.ones((15, 1), bool)
    >>> one = TargetData(np.array([0.5]), log_n[:, None], seen, b, np.full(15, 8.0), lr, np.zeros(15, int))
    >>> model = TargetModel(one, "critical")
    >>> low, high = model.critical_batch(0).interval
    >>> low < 100 < high, round(model.exponent("alpha", 0).value, 1)
    (True, 0.5)
    """

    def __init__(self, data: TargetData, form: Form) -> None:
        if form == "cells":  # drop cells in which no run reaches a target: their level is undetermined
            _, cell = data.cells
            any_run = np.bincount(cell, data.reached.any(axis=1)) > 0
            data = data.of(any_run[cell], np.ones(data.targets.size, dtype=bool))
        self.data, self.form = data, form
        self.log_b, self.log_n = np.log(data.problems_per_batch), np.log(data.rollouts_per_problem)
        self._middle, self._span = float(data.targets.mean()), float(np.ptp(data.targets)) or 1.0
        several = data.targets.size > 1
        self.trend = self._scaled(data.targets)  # 1 and, with several targets, T scaled: (J, 1 or 2)
        columns = self._linear(several)
        self.linear = np.stack([column for _, column in columns], axis=-1)  # (K, J, L)
        names = [name for name, _ in columns]
        varied = _varied(data)
        self.with_lr = bool(varied)
        names += ["p"] if varied else []
        self.lines: dict[str, slice] = {}  # the positions in θ of each parameter that is linear in T
        for name in [*(["bc"] if form == "critical" else []), *varied]:
            self.lines[name] = slice(len(names), len(names) + self.trend.shape[1])
            names += [name, f"{name}_t"][: self.trend.shape[1]]
        self.deviations = ["sigma", *(["tau"] if several else [])]
        self.names = [*names, *self.deviations]
        self.at = {name: i for i, name in enumerate(self.names)}
        bounds = np.tile([-np.inf, np.inf], (len(self.names), 1))
        bounds[[self.at[name] for name in self.deviations]] = _DEVIATION
        if varied:
            bounds[self.at["p"]] = _VALLEY
        for name in self.lines.keys() & {"alpha", "beta"}:
            bounds[self.lines[name]] = -_FARTHEST, _FARTHEST
        self.runs = int(data.reached.any(axis=1).sum())  # number of runs that reach a target
        self.freedom = self.runs - len(names)
        self.profile = Profile(self.loss_and_slope, bounds, self._starts(), self.runs, self.freedom)

    def has(self, exponent: str) -> bool:
        """Return whether the data determine ``alpha`` (``beta``), i.e. several lr ran at several B_p (n)."""
        return exponent in self.lines

    def _means(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return the mean of log N without u_k and e, (K, J), and its derivatives in θ, (K, J, P)."""
        size, log_b, log_n = self.linear.shape[2], self.log_b[:, None], self.log_n[:, None]
        mean = self.linear @ theta[:size]
        jacobian = np.zeros((*mean.shape, theta.size))
        jacobian[:, :, :size] = self.linear
        if self.form == "critical":
            x = log_b - self._line(theta, "bc")
            mean = mean + np.logaddexp(0.0, x)
            jacobian[:, :, self.lines["bc"]] = -expit(x)[:, :, None] * self.trend
        if self.with_lr:
            assert self.data.lr is not None
            away = np.log(self.data.lr)[:, None] - self._log_best_lr(theta, log_b, log_n)
            p = math.exp(theta[self.at["p"]])
            valley = np.logaddexp(away, -away) - math.log(2)
            mean = mean + p * valley
            jacobian[:, :, self.at["p"]] = p * valley
            down = -p * np.tanh(away)
            for name, of in (("lr", 1.0), ("alpha", log_b), ("beta", log_n)):
                if name in self.lines:
                    jacobian[:, :, self.lines[name]] = (down * of)[:, :, None] * self.trend
        return mean, jacobian

    def loss_and_slope(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log likelihood of θ and its gradient."""
        d, at = self.data, self.at
        mean, jacobian = self._means(theta)
        sigma = math.exp(theta[at["sigma"]])
        left = d.log_rollouts - mean
        nodes, shift = np.zeros((1, len(left))), np.zeros(len(left))
        logs = np.zeros((1, 1))
        if tau := math.exp(theta[at["tau"]]) if "tau" in at else 0.0:
            # u_k is normal given the targets that a run reached. Missed targets require the quadrature nodes.
            variance = 1 / (d.reached.sum(axis=1) / sigma**2 + 1 / tau**2)
            shift = variance * np.where(d.reached, left, 0.0).sum(axis=1) / sigma**2
            nodes, logs = shift + np.sqrt(variance) * _NODES[:, None], _LOG_WEIGHTS[:, None]
            shift = 0.5 * shift**2 / variance + 0.5 * np.log(variance / tau**2)
        z = (left - nodes[:, :, None]) / sigma  # (Q, K, J)
        side = np.where(d.before, -1.0, 1.0)
        beyond = log_ndtr(-side * z)
        of_node = np.where(d.reached, 0.0, beyond).sum(axis=2) + logs  # (Q, K)
        log_beyond = logsumexp(of_node, axis=0)
        share = np.exp(of_node - log_beyond)[:, :, None]
        normal = np.where(d.reached, -0.5 * (left / sigma) ** 2 - theta[at["sigma"]], 0.0).sum(axis=1)
        # φ(z) divided by the probability beyond z (before it: below z); finite even if both underflow
        hazard = np.exp(np.minimum(-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - beyond, 50.0))
        by_z = np.where(d.reached, z, side * hazard)
        pull = (share * by_z).sum(axis=0) / sigma  # derivative with respect to the mean, (K, J)
        slope = -np.einsum("kj,kjp->p", pull, jacobian)
        slope[at["sigma"]] = float(d.reached.sum() - (share * by_z * z).sum())
        if tau:
            slope[at["tau"]] = float(np.sum(1 - (share[:, :, 0] * nodes**2).sum(axis=0) / tau**2))
        return -float((normal + shift + log_beyond).sum()), slope

    @property
    def theta(self) -> Floats:
        """The most likely parameters in the order of ``names``, an array of shape (P,)."""
        return self.profile.theta

    def critical_batch(self, target: int) -> Quantity:
        """Return the critical batch B_crit at a target reward, in problems per step."""
        search = float(self.log_b.min()) - _FAR, float(self.log_b.max()) + _FAR
        return self.profile.quantity(self._of_target("bc", target), search).through(math.exp)

    def least_rollouts(self, target: int) -> Quantity:
        """Return N_min, the smallest number of rollouts that reach a target reward."""
        return self.profile.quantity(self._weights(f"N{target}")).through(math.exp)

    def least_steps(self, target: int) -> Quantity:
        """Return S_min, the smallest number of steps that reach a target reward, for the n of the data."""
        share = 1 / float(self.data.rollouts_per_problem[0])
        quantity = self.profile.quantity(self._weights(f"N{target}") - self._of_target("bc", target))
        return quantity.through(lambda log_steps: math.exp(log_steps) * share)

    def exponent(self, name: str, target: int) -> Quantity:
        """Return α (``alpha``) or β (``beta``) at a target."""
        return self.profile.quantity(self._of_target(name, target), (-_FARTHEST, _FARTHEST))

    def p_values(self) -> dict[str, float]:
        """Return the p-value of each rule of ``recipe.lr_scaling``.

        A rule is tested at the mean target. The exponents can change with the target, as in the data.
        """
        is_free = np.array([self.has("alpha"), self.has("beta")])
        if not is_free.any() or self.freedom < 1:
            return {}
        g = np.array([self._weights(name) for name in ("alpha", "beta") if self.has(name)])
        return {rule: self.profile.p_value(g, np.array(value)[is_free]) for rule, value in EXPONENTS.items()}

    def best_lr(self, problems: float, rollouts: float, target: float) -> float:
        """Return lr* at (B_p, n) for a target reward, which can be beyond the data."""
        log_b, log_n = math.log(problems), math.log(rollouts)
        return math.exp(self._log_best_lr(self.theta, log_b, log_n, self._scaled(target))[0])

    def _scaled(self, targets: Floats | float) -> Floats:
        """Return the factors of a line in T at J targets: 1, and with several measured targets T, scaled."""
        t = (np.atleast_1d(targets) - self._middle) / self._span
        return np.asarray(np.vander(t, min(self.data.targets.size, 2), increasing=True), np.float64)

    def _linear(self, several: bool) -> list[tuple[str, Floats]]:
        """Return the names of the linear parameters, each with its factors of shape (K, J)."""
        d = self.data
        shape = d.reached.shape
        of_target = [(f"N{j}", np.broadcast_to(np.arange(shape[1]) == j, shape)) for j in range(shape[1])]
        if self.form == "critical":
            out = of_target
        else:
            _, cell = d.cells
            cells = [np.broadcast_to((cell == i)[:, None], shape) for i in range(cell.max() + 1)]
            out = [(f"cell{i}", column) for i, column in enumerate(cells)] + of_target[1:]
            for name, x in (("b_t", self.log_b), ("n_t", self.log_n)) if several else ():
                for power in range(1, min(np.unique(x).size, 3)):
                    out.append((f"{name}{power}", ((x - x.mean()) ** power)[:, None] * self.trend[:, 1]))
        # The first block that reaches a target is the reference; a block that reaches none has no offset.
        blocks = [g for g in np.unique(d.block) if d.reached[d.block == g].any()]
        out += [(f"block{g}", np.broadcast_to((d.block == g)[:, None], shape)) for g in blocks[1:]]
        return [(name, column.astype(np.float64)) for name, column in out]

    def _line(self, theta: Floats, name: str, trend: Floats | None = None) -> Floats:
        """Return a parameter that is linear in the target, at J targets, or 0 if the model lacks it."""
        trend = self.trend if trend is None else trend
        return np.asarray(trend @ theta[self.lines[name]] if name in self.lines else np.zeros(len(trend)))

    def _weights(self, name: str) -> Floats:
        """Return one parameter as a combination of all, an array of shape (P,)."""
        return np.eye(len(self.names))[self.at[name]]

    def _of_target(self, name: str, target: int) -> Floats:
        """Return a parameter that is linear in T, at a target, as a combination of all, of shape (P,)."""
        weights = np.zeros(len(self.names))
        weights[self.lines[name]] = self.trend[target]
        return weights

    def _log_best_lr(
        self, theta: Floats, log_b: Floats | float, log_n: Floats | float, trend: Floats | None = None
    ) -> Floats:
        lr, alpha, beta = (self._line(theta, name, trend) for name in ("lr", "alpha", "beta"))
        return np.asarray(lr + alpha * log_b + beta * log_n)

    def _starts(self) -> list[Floats]:
        """Return starting points: a small and a large critical batch, each with three rules of the lr.

        The rules are that the best lr is constant, or grows as the square root of B_p and n, or as B_p and n.
        One start is not enough, since the likelihood can have several maxima. The remaining parameters are
        those with the least squared error of the runs that reach a target.
        """
        d, at = self.data, self.at
        low, high = float(self.log_b.min()), float(self.log_b.max())
        starts = []
        for share in (0.3, 0.9) if self.form == "critical" else (0.0,):
            for exponent in (0.0, 0.5, 1.0) if self.with_lr else (0.0,):
                theta = np.zeros(len(self.names))
                theta[[at[name] for name in self.deviations]] = math.log(0.3)
                if self.form == "critical":
                    theta[at["bc"]] = low + share * (high - low)
                if self.with_lr:
                    assert d.lr is not None
                    theta[[at[name] for name in ("alpha", "beta") if self.has(name)]] = exponent
                    best_lr = self._log_best_lr(theta, self.log_b[:, None], self.log_n[:, None])
                    theta[at["lr"]] = np.mean(np.log(d.lr)[:, None] - best_lr)
                left = (d.log_rollouts - self._means(theta)[0])[d.reached]
                theta[: self.linear.shape[2]] = np.linalg.lstsq(self.linear[d.reached], left)[0]
                starts.append(theta)
        return starts


def _varied(data: TargetData) -> list[str]:
    """Return the names of the parameters of the lr's law that the data determine."""
    if data.lr is None:
        return []
    cells, cell = data.cells
    has_several = np.array([np.unique(data.lr[cell == i]).size > 1 for i in range(cells.shape[1])])
    if not has_several.any():
        return []
    b_and_n = zip(("alpha", "beta"), cells[:, has_several], strict=True)
    return ["lr", *(name for name, levels in b_and_n if np.unique(levels).size > 1)]
