"""`calibrate`: fit the constants of the simulator to runs, as an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.discrepancy import Discrepancy
from benchmarks.calibration.observed import Observed, observe
from benchmarks.calibration.rounds import FIRST, MEMBERS, NEXT, ROUNDS, Posterior, hash_of, search, simulated
from benchmarks.calibration.space import EDGE, IDENTIFIED, parameters
from isolaw.documents.reading import toml_text
from isolaw.runs import Runs
from isolaw.simulators.model import Floats
from isolaw.simulators.presets import FORMAT

VERSION = 5
HEAD = "# A population of isolaw's simulator, fitted to runs. Its rewards are simulated, not measured.\n"
BANDS = (0.05, 0.95)
_REPLAYED = 2**20  # first index of the random streams of replays, distinct from the streams of the rounds


@dataclass(frozen=True)
class Constant:
    """The posterior of one constant: its median and 90 % interval, and how much the runs narrow the prior.

    ``identified`` is true if the posterior standard deviation of the constant's coordinate x, which is 1
    under the prior, is below one half. ``at_edge`` is true if the median is outside the central 95 % of the
    prior.
    """

    name: str
    meaning: str
    value: float
    interval: tuple[float, float]
    identified: bool
    at_edge: bool


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration: an ensemble of equally likely constants.

    ``x`` has shape (E, d), for E members and the d coordinates of ``observed.space``. The first member is the
    central one. ``replayed`` has shape (E, P) and contains the rewards that each member measures when it
    repeats the runs.
    """

    observed: Observed
    posterior: Posterior
    x: Floats
    replayed: Floats

    @property
    def constants(self) -> list[Constant]:
        """The posterior of each constant."""
        out = []
        for i, c in enumerate(self.observed.space.coordinates):
            x = self.posterior.draws[:, i]
            low, high = (float(c.value(np.quantile(x, share))) for share in BANDS)
            median, identified = float(np.median(x)), bool(x.std() < IDENTIFIED)
            edge = abs(median) > EDGE
            out.append(Constant(c.name, c.meaning, float(c.value(median)), (low, high), identified, edge))
        return out

    @property
    def error(self) -> float:
        """Root mean square difference between the measured rewards and the ensemble's mean."""
        return float(np.sqrt(np.mean(self._left**2)))

    @property
    def covered(self) -> float:
        """Share of measured rewards inside the ensemble's 90 % band, which includes the noise of runs."""
        low, high = np.quantile(self.replayed, BANDS, axis=0)
        return float(np.mean((self.observed.reward >= low) & (self.observed.reward <= high)))

    @property
    def discrepancy(self) -> Discrepancy:
        """The model discrepancy: the part of the rewards that the ensemble's mean does not reproduce."""
        cells = self.observed.protocol.cells
        return Discrepancy.of(self.posterior.discrepancy, cells, self._left, self.posterior.covariance)

    @property
    def _left(self) -> Floats:
        return np.asarray(self.observed.reward - self.replayed.mean(axis=0))

    def save(self, path: str | Path) -> None:
        """Write the preset file."""
        Path(path).write_text(HEAD + self.toml(), encoding="utf-8")

    def toml(self) -> str:
        """Return the text of the preset file."""
        members = [self.observed.space.member(x) for x in self.x]
        central = parameters(self.observed.space.values(self.x[0]))
        cells = self.observed.protocol.cells
        provenance = {
            "made": datetime.now(UTC).date().isoformat(),
            "calibration": VERSION,
            "source": self.observed.runs.source,
            "reward": f"{self.observed.metric} on {self.observed.eval_set}",
            "cells": [list(c.key) for c in cells],
            "runs": sum(c.runs for c in cells),
            "compute": [min(self.observed.ends), max(self.observed.ends)],
            "error": round(self.error, 5),
            "noise": round(self.posterior.noise, 5),
            "discrepancy": round(self.posterior.discrepancy, 5),
            "covered": round(self.covered, 3),
            "simulations": FIRST + (ROUNDS - 1) * NEXT + MEMBERS,
            "assumed": list(self.observed.assumed),
        }
        return toml_text(
            {
                "preset": {
                    "format": FORMAT,
                    "model": "interference",
                    "problems": members[0]["problems"],
                    "n_train": self.observed.protocol.n_train,
                },
                "recipe": self.observed.recipe,
                "constants": {k: _rounded(v) for k, v in asdict(central).items()},
                "provenance": provenance,
                "discrepancy": self.discrepancy.to_dict(),
                "ensemble": {name: [_rounded(member[name]) for member in members] for name in members[0]},
            }
        )


def calibrate(
    runs: Runs,
    metric: str | None = None,
    eval_set: str | None = None,
    where: Mapping[str, Any] | None = None,
    problems: str | None = None,
    n_train: int | None = None,
    until: float | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> Calibration:
    """Fit the interference population (`isolaw.simulators.interference`) to runs.

    Parameters
    ----------
    metric, eval_set
        the reward, which must be a mean of successes, and its evaluation set; by default ``avg@4`` on
        ``validation``.
    where
        use only runs with these values, such as ``{"lr": 1e-3}``.
    problems
        the difficulty of the problems, if known, in the form of ``problems.set``; by default it is fitted.
    n_train
        the number of training problems D, if the runs did not record it.
    until
        use only the checkpoints up to this C.
    out
        the preset file to write.
    jobs
        number of processes; by default one per core.

    Raises `DataError`, `InputError` or `Refused` before it simulates anything.
    """
    seen = observe(runs, metric, eval_set, where, problems, n_train, until)
    posterior = search(seen.protocol, seen.space, seen.reward, seed, jobs)
    x = _ensemble(posterior.draws, seed)
    seeds = [hash_of(seed, _REPLAYED + i) for i in range(len(x))]
    result = Calibration(seen, posterior, x, simulated(seen.protocol, seen.space, x, seeds, jobs))
    if out is not None:
        result.save(out)
    return result


def _ensemble(draws: Floats, seed: int) -> Floats:
    """Draw the ensemble from the posterior, with the draw nearest to the mean first."""
    rng = np.random.default_rng([seed, _REPLAYED])
    chosen = draws[rng.choice(len(draws), MEMBERS, replace=False)]
    away = (chosen - draws.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(draws.T))).T
    first = int(np.argmin(np.sum(away**2, axis=1)))
    return np.concatenate([chosen[[first]], np.delete(chosen, first, axis=0)])


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
