"""Learn the priors of the reward model from real sweeps: ``python -m benchmarks.priors``.

A prior of `isolaw.fits.surface.model` is normal, and describes how sweeps differ: θ_s ~ N(m, σ²) for each
hyperparameter, and likewise for the ceilings A0 to A2 and for the slopes past the runs. m and σ maximise the
likelihood of all sweeps by expectation and maximisation (Dempster, Laird & Rubin 1977): each sweep's
posterior is found under the present priors (`moments`; its mode with the curvature there), and then

    m = Σ w_s E[θ_s],    σ² = Σ w_s (Var[θ_s] + (E[θ_s] − m)²)

The weights w are equal for groups of related sweeps. To teach what follows past the runs, each sweep enters
once for each of the `SHARES`: the model takes the scale and the end of the runs from this share of C, and
sees all evaluations up to C. `BEFORE` counts as `PSEUDO` groups, and the rounds stop early: half of the
groups are of one tiny model, and further rounds only move what the data hardly determine.

``priors.json`` also has the priors without each group; `benchmarks.evidence` judges every group with those.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from benchmarks.evidence import SHARES, SWEEPS, RealSweep, configurations_of, cut, horizon
from isolaw.errors import IsolawError
from isolaw.fits import ESTIMATOR
from isolaw.fits.blas import one_blas_thread
from isolaw.fits.metric import bounds, choose, unit_of
from isolaw.fits.surface import estimate, model
from isolaw.runs import Runs

KEPT = Path(__file__).with_suffix(".json")
ROUNDS, PSEUDO = 4, 3.0
_SLOPES = ("slope", "slope of n")
_CEILINGS = ("rise", "A1", "A2")
# What is assumed before any sweep: centres and standard deviations.
BEFORE = {
    **dict.fromkeys(("common", "smooth", "walk", "run", "drift", "noise"), (-4.0, 1.5)),
    **dict.fromkeys(("tau", "critical", "rise"), (0.5, 1.5)),
    **dict.fromkeys(("b", "w", "ceilings"), (0.0, 0.7)),
    "kappa": (0.15, 0.3),
    "across": (1.0, 0.3),
    "b_u": (0.0, 0.1),
    "A1": (0.0, 0.05),
    "A2": (0.0, 0.02),
    **dict.fromkeys(_SLOPES, (0.0, 0.1)),
}
Moments = dict[str, tuple[float, float]]  # the posterior mean and variance by name


class Ahead(model.StructuralModel):
    """The model of all observations, in the units of those up to an earlier end of the runs."""

    def __init__(self, whole: model.StructuralModel, start: model.StructuralModel) -> None:
        vars(self).update(vars(whole))
        z, slope = whole.link.inverse(whole.observations.reward)
        self.scale, self.best_trend, self.last_t = start.scale, start.best_trend, start.last_t
        self.y, self.link_slope = (z - self.best_trend) / self.scale, slope / self.scale
        first = float(whole.link.inverse(whole.observations.trend)[0][0])
        self.linear_prior_mean, self.linear_prior_deviation = self._linear(first)
        o = whole.observations
        self.points = self._points(o.log2_n, o.log2_b, o.t)
        self.kernels = self._kernels(self.points, self.points)


def cases() -> Iterator[tuple[RealSweep, float]]:
    """Yield every sweep that counts, with each share of C."""
    for sweep in SWEEPS:
        if sweep.group and sweep.path.exists():
            yield from ((sweep, share) for share in SHARES)


def models(sweep: RealSweep, share: float) -> Ahead:
    """Return the model of a sweep up to C, as it is seen at a share of C."""
    runs = sweep.runs()
    end = horizon(runs, sweep)

    def of(part: Runs) -> model.StructuralModel:
        metric, _, _ = choose(part, sweep.reading.get("metric"))
        configurations = configurations_of(part, sweep)
        return model.build_model(
            configurations, bounds(metric, configurations), unit_of(metric, configurations)
        )

    return Ahead(of(cut(runs, end)), of(cut(runs, share * end)))


def moments(case: tuple[RealSweep, float], priors: Mapping[str, tuple[float, float]]) -> Moments | None:
    """Return the posterior of one case under these priors, or None if isolaw refuses so few evaluations."""
    with using(priors), one_blas_thread():
        try:
            m = models(*case)
        except IsolawError:
            return None
        theta = estimate._mode(m)
        centre, unit = m.prior.T
        root = estimate._root(m, (theta - centre) / unit)
        out = {
            name: (float(theta[i]), float(v))
            for i, (name, v) in enumerate(zip(m.names, unit**2 * np.diag(root @ root.T), strict=True))
        }
        p = m.by_name(theta)
        covariance, left = m.data_covariance(theta)
        factor = cho_factor(covariance, lower=True)
        alpha = cho_solve(factor, left)

        def given(across: Any, variance: Any) -> tuple[Any, Any]:
            return across.T @ alpha, variance - np.einsum("oi,oi->i", across, cho_solve(factor, across))

        design, variance = m._design(m._learnt(p, m.points), m.points), m._variance(p)
        used = [1, 2, 3, -1]
        change, spread = given(design[:, used] * variance[used], variance[used])
        shrunk = np.exp(-p["ceilings"] * np.array([0, 1, 1, 0]))
        for name, k, moved, v in zip(
            (*_CEILINGS, "slope"), used, change * shrunk, spread * shrunk**2, strict=True
        ):
            out[name] = float(m.linear_prior_mean[k] + moved), float(v)
        places = np.unique(m.observations.places, axis=0)
        at = m._points(*places.T, np.full(len(places), m.last_t + 1.0))
        value, v = given(m._kernels(m.points, at).slopes, priors["slope of n"][1] ** 2)
        out["slope of n"] = 0.0, float(np.mean(value**2 + v))
    return out


@contextmanager
def using(priors: Mapping[str, tuple[float, float]]) -> Iterator[None]:
    """Let the model use these priors."""
    hyper = {**model.PRIORS, **{k: v for k, v in priors.items() if k in model.PRIORS}}
    ceilings = tuple(tuple(priors[name]) for name in _CEILINGS)
    slopes = tuple(tuple(priors[name]) for name in _SLOPES)
    with patch.multiple(model, PRIORS=hyper, CEILINGS=ceilings, SLOPES=slopes):
        yield


def maximised(by_group: Mapping[str, list[Moments]]) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation over the groups and `BEFORE`."""
    out = {}
    for name, (centre, deviation) in BEFORE.items():
        rows = [(centre, deviation**2, PSEUDO)]
        for group in by_group.values():
            known = [m[name] for m in group if name in m]
            rows += [(*row, 1 / len(known)) for row in known]
        value, variance, weight = np.array(rows).T
        mean = 0.0 if name == "slope of n" else float(weight @ value / weight.sum())
        out[name] = mean, float(np.sqrt(weight @ (variance + (value - mean) ** 2) / weight.sum()))
    return out


def learnt(rounds: int = ROUNDS) -> tuple[dict[str, Any], dict[str, list[Moments]]]:
    """Return the priors that all groups teach, and the groups' moments in the last round."""
    priors = dict(BEFORE)
    every = list(cases())
    by_group: dict[str, list[Moments]] = {}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for number in range(rounds):
            results = list(pool.map(moments, every, [priors] * len(every)))
            by_group = {}
            for (sweep, _), result in zip(every, results, strict=True):
                if result is not None:
                    by_group.setdefault(sweep.group, []).append(result)
            priors = maximised(by_group)
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            print({k: tuple(round(x, 3) for x in v) for k, v in priors.items()}, file=sys.stderr, flush=True)
    return priors, by_group


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.priors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    priors, by_group = learnt(options.rounds)
    without = {group: maximised({k: v for k, v in by_group.items() if k != group}) for group in by_group}
    KEPT.write_text(json.dumps({"estimator": ESTIMATOR, "all": priors, "without": without}, indent=1) + "\n")


if __name__ == "__main__":
    main()
