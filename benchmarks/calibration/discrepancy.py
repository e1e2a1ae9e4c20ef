"""Extrapolate the model discrepancy, the part of the reward that no constants of the simulator reproduce.

Let e_p be the p-th measured reward minus the ensemble's mean, at compute C in the cell (B_p, n). The model is

    e_p = d_p + level + level of the cell + noise,    d ~ GP(0, δ² r)
    r = exp(−|Δ log C| / l_C − |Δ log n| / l − |Δ log B_p| / l)

(Kennedy and O'Hagan 2001, JRSS B 63, 425), where d is the discrepancy, δ its standard deviation, r its
correlation, and Δ the difference between two points. The calibration determines δ. The variances of level,
cell level and noise come from simulated repetitions of the runs. The length scales l_C and l maximise the
marginal likelihood of e under the priors log l_C ~ N(log 2, ½) and log l ~ N(0, ½). Each forecast adds a draw
of d given e. A forecast therefore starts where the runs ended, and returns to the simulated mechanism within
about l_C in log C, or l in log n. If δ = 0, the discrepancy adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from benchmarks.calibration.simulation import SimulatedCell
from isolaw.allocation import BatchShape
from isolaw.simulators.model import Floats

_LENGTHS, _LENGTHS_SD = np.log([2.0, 1.0]), np.sqrt(0.5)  # prior of log l_C and log l
_NAMES = "compute", "rollouts_per_problem", "problems_per_batch"
_LEAST = 1e-8  # variance added to each reward, so that covariances can be factored


@dataclass(frozen=True)
class Discrepancy:
    """The discrepancy d, given the residuals of the runs.

    ``size`` is δ. ``left`` contains the residuals e, of shape (P,). ``where``, of shape (P, 3), contains the
    logs of C, n and B_p at these points. ``noise`` contains the variances of the level, of a cell's level and
    of the noise, and ``lengths`` the length scales l_C and l.
    """

    size: float
    left: Floats
    where: Floats
    noise: tuple[float, float, float] = (0.0, 0.0, 0.0)
    lengths: tuple[float, float] = (2.0, 1.0)

    @classmethod
    def of(cls, size: float, cells: Sequence[SimulatedCell], left: Floats, noise: Floats) -> Discrepancy:
        """Return d given the residuals ``left`` of the rewards of all ``cells``, concatenated to shape (P,).

        ``noise``, of shape (P, P), is the covariance of the rewards over repetitions of the runs. Rewards
        before the first step are ignored.
        """
        where = np.concatenate([_where(c.key, c.compute) for c in cells])
        later = np.concatenate([c.steps for c in cells]) > 0
        noises = _parts(where[later], noise[np.ix_(later, later)])
        unfitted = cls(size, left[later], where[later], noises)
        return unfitted._fitted() if size > 0 else unfitted

    @classmethod
    def read(cls, size: float, data: Mapping[str, Any]) -> Discrepancy:
        """Return the discrepancy encoded by `to_dict`; if ``data`` is empty, it has only its size.

        Raises `KeyError`, `TypeError` or `ValueError` for any other data.
        """
        if not data:
            return cls(size, np.zeros(0), np.zeros((0, 3)))
        columns = [np.array(data[name], dtype=np.float64) for name in (*_NAMES, "left")]
        table = np.stack(columns, axis=1)
        level, of_cell, rest = map(float, data["noise"])
        along, across = map(float, data["lengths"])
        if not (np.isfinite(table).all() and (table[:, :3] > 0).all() and min(along, across) > 0):
            raise ValueError("numbers that are no rewards, or not positive")
        return cls(size, table[:, 3], np.log(table[:, :3]), (level, of_cell, rest), (along, across))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as lists of numbers, with C, n and B_p instead of their logs."""
        where = {name: np.exp(logs).round().tolist() for name, logs in zip(_NAMES, self.where.T, strict=True)}
        left = [float(f"{v:.4g}") for v in self.left]
        numbers = {k: [float(f"{v:.4g}") for v in getattr(self, k)] for k in ("noise", "lengths")}
        return {**numbers, **where, "left": left}

    def draws(
        self, cells: Sequence[BatchShape], compute: Floats, members: int, rng: np.random.Generator
    ) -> Floats:
        """Return draws of d given e, of shape (E, K, P), in K cells at C of shape (K, P).

        The draws of the E members average to the posterior mean of d.
        """
        shape = members, *compute.shape
        if self.size == 0:
            return np.zeros(shape)
        there = np.concatenate([_where(key, at) for key, at in zip(cells, compute, strict=True)])
        prior, cross = self._covariance(there, there), self._covariance(there, self.where)
        known = self._covariance(self.where, self.where) + self._noise()
        gain = np.linalg.solve(known, cross.T).T
        mean = gain @ self.left
        values, axes = np.linalg.eigh(prior - gain @ cross.T)
        normal = rng.standard_normal((members, len(there)))
        normal -= normal.mean(axis=0)
        return np.asarray((mean + normal @ (axes * np.sqrt(np.maximum(values, 0))).T).reshape(shape))

    def _covariance(self, a: Floats, b: Floats) -> Floats:
        along, across = self.lengths
        away = np.abs(a[:, None] - b[None]) / [along, across, across]
        return np.asarray(self.size**2 * np.exp(-away.sum(axis=-1)))

    def _noise(self) -> Floats:
        level, of_cell, rest = self.noise
        return level + of_cell * _same(self.where) + (rest + _LEAST) * np.eye(len(self.left))

    def _fitted(self) -> Discrepancy:
        """Return the discrepancy with the most probable length scales."""

        def minus_log(logs: Floats) -> float:
            tried = replace(self, lengths=(float(np.exp(logs[0])), float(np.exp(logs[1]))))
            factor = cho_factor(tried._covariance(tried.where, tried.where) + tried._noise())
            value = 0.5 * tried.left @ cho_solve(factor, tried.left) + np.log(np.diag(factor[0])).sum()
            return float(value + 0.5 * np.sum(((logs - _LENGTHS) / _LENGTHS_SD) ** 2))

        best = minimize(minus_log, _LENGTHS, method="Nelder-Mead")
        return replace(self, lengths=(float(np.exp(best.x[0])), float(np.exp(best.x[1]))))


def _where(key: BatchShape, compute: Floats) -> Floats:
    b, n = key
    logs = np.full((len(compute), 3), [0.0, np.log(n), np.log(b)])
    logs[:, 0] = np.log(np.maximum(compute, b * n))
    return logs


def _same(where: Floats) -> Floats:
    """Return a (P, P) matrix that is 1 where two points belong to the same cell, and 0 elsewhere."""
    return np.asarray((where[:, None, 1:] == where[None, :, 1:]).all(axis=-1), dtype=np.float64)


def _parts(where: Floats, noise: Floats) -> tuple[float, float, float]:
    """Split a (P, P) covariance into the variances of the level, of a cell's level and of the noise."""
    same, single = _same(where) > 0, np.eye(len(where), dtype=bool)
    means = [noise[mask].mean() if mask.any() else 0.0 for mask in (~same, same & ~single, single)]
    level = max(means[0], 0.0)
    of_cell = max(means[1] - level, 0.0)
    return float(level), float(of_cell), float(max(means[2] - level - of_cell, 0.0))
