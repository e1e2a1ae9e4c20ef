"""`calibrate`: fit the constants of the simulator to runs, as an ensemble."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from isolaw.calibration.discrepancy import Discrepancy
from isolaw.calibration.observed import Observed, observe
from isolaw.calibration.rounds import (
    FIRST,
    MEMBERS,
    NEXT,
    ROUNDS,
    Posterior,
    Round,
    hash_of,
    search,
    simulated,
)
from isolaw.calibration.space import EDGE, IDENTIFIED, Space, parameters
from isolaw.config.writing import toml_text
from isolaw.documents.reading import parse_toml, read_npz
from isolaw.documents.seal import canonical_json
from isolaw.errors import InputError
from isolaw.evidence import Simulated
from isolaw.files import check_replaceable, replacing
from isolaw.registry import Shown
from isolaw.runs import Runs
from isolaw.simulators import preset_file
from isolaw.simulators.model import Floats
from isolaw.simulators.preset_file import FORMAT
from isolaw.simulators.presets import is_preset

VERSION = 5
HEAD = "# A population of isolaw's simulator, fitted to runs. Its rewards are simulated, not measured.\n"
SIMULATIONS = FIRST + (ROUNDS - 1) * NEXT + MEMBERS
BANDS = (0.05, 0.95)
MOVED = 3.0
_REPLAYED = 2**20  # first index of the random streams of replays, distinct from the streams of the rounds

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Constant:
    """The posterior of one constant: its median and 90 % interval, and how much the runs narrow the prior.

    ``narrowed`` is the posterior standard deviation of the constant's coordinate x, which is 1 under the
    prior. ``identified`` is true if ``narrowed`` is below one half, and ``at_edge`` if the median is outside
    the central 95 % of the prior.
    """

    name: str
    meaning: str
    value: float
    interval: tuple[float, float]
    prior: tuple[float, float]
    narrowed: float
    identified: bool
    at_edge: bool


@dataclass(frozen=True)
class Calibration(Shown):
    """The result of a calibration: an ensemble of equally likely constants.

    ``x`` has shape (E, d), for E members and the d coordinates of ``observed.space``. The first member is the
    central one. ``replayed`` has shape (E, P) and contains the rewards that each member measures when it
    repeats the runs.
    """

    TEXT = "calibration"

    observed: Observed
    posterior: Posterior
    x: Floats
    replayed: Floats
    name: str = "calibrated"

    @property
    def space(self) -> Space:
        """The constants that the calibration varies, with their prior."""
        return self.observed.space

    @property
    def simulated(self) -> Simulated:
        """The label of results that combine the runs and the ensemble: simulated or partly simulated."""
        return Simulated.among([self.observed.runs.simulated, Simulated.YES])

    @property
    def members(self) -> list[dict[str, Any]]:
        """The constants and the problem set of each member."""
        return [self.space.member(x) for x in self.x]

    @property
    def constants(self) -> list[Constant]:
        """The posterior of each constant."""
        out = []
        for i, c in enumerate(self.space.coordinates):
            x = self.posterior.draws[:, i]
            low, high = (float(c.value(np.quantile(x, share))) for share in BANDS)
            prior = (float(c.value(-1.645)), float(c.value(1.645)))
            value, sd = float(c.value(np.median(x))), float(x.std())
            edge = bool(abs(np.median(x)) > EDGE)
            out.append(Constant(c.name, c.meaning, value, (low, high), prior, sd, sd < IDENTIFIED, edge))
        return out

    @property
    def error(self) -> float:
        """Root mean square difference between the measured rewards and the ensemble's mean."""
        return float(np.sqrt(np.mean((self.replayed.mean(axis=0) - self.observed.reward) ** 2)))

    @property
    def covered(self) -> float:
        """Share of measured rewards inside the ensemble's 90 % band, which includes the noise of runs."""
        low, high = np.quantile(self.replayed, BANDS, axis=0)
        return float(np.mean((self.observed.reward >= low) & (self.observed.reward <= high)))

    @property
    def moved(self) -> bool:
        """Whether training changed the reward of at least one configuration by more than noise.

        A change is the difference between the mean of the first three evaluations and the mean of any three
        later ones. A change counts as more than noise if it exceeds `MOVED` standard deviations of the same
        difference over simulated repetitions of the runs.
        """
        end = 0
        for cell in self.observed.protocol.cells:
            begin, end = end, end + len(cell.steps)
            k = max(min(3, len(cell.steps) // 2), 1)
            for at in range(end - k, begin + k - 1, -k):
                weights = np.zeros(len(self.observed.reward))
                weights[begin : begin + k] = -1 / k
                weights[at : at + k] = 1 / k
                sd = np.sqrt(weights @ self.posterior.covariance @ weights)
                if abs(weights @ self.observed.reward) > MOVED * sd:
                    return True
        return False

    @property
    def seeds_apart(self) -> tuple[float, float] | None:
        """Measured and simulated spread over seeds if the measured one is `MOVED` times larger, or None.

        The spread is the standard deviation of a run's mean reward over the runs of one configuration. Since
        the ensemble describes only the mean over seeds, it does not explain a much larger measured spread.
        """
        between, cells = self.observed.between, self.observed.protocol.cells
        known = np.isfinite(between)
        if not known.any():
            return None
        ends = np.cumsum([len(cell.steps) for cell in cells])
        expected = []
        for cell, end in zip(cells, ends, strict=True):
            own = np.arange(end - len(cell.steps), end)[np.array(cell.steps) > 0]
            expected.append(cell.runs * self.posterior.covariance[np.ix_(own, own)].mean())
        degrees = np.array([cell.runs - 1 for cell in cells])[known]
        measured, simulated = (
            float(np.sqrt(np.average(np.array(of)[known], weights=degrees))) for of in (between, expected)
        )
        return (measured, simulated) if measured > MOVED * simulated else None

    @property
    def discrepancy(self) -> Discrepancy:
        """The model discrepancy: the part of the rewards that the ensemble's mean does not reproduce."""
        left = self.observed.reward - self.replayed.mean(axis=0)
        of = self.posterior
        return Discrepancy.of(of.discrepancy, self.observed.protocol.cells, left, of.covariance)

    def save(self, path: str | Path) -> None:
        """Write the preset file; raise `DataError` if ``path`` is another kind of file."""
        file = Path(path)
        check_replaceable(file, "a preset", "preset.toml", is_preset)
        text = HEAD + self.toml()
        with replacing(file) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def toml(self) -> str:
        """Return the text of the preset file."""
        members = self.members
        central = parameters(self.space.values(self.x[0]))
        cells = self.observed.protocol.cells
        columns: dict[str, list[Any]] = {
            name: [_rounded(member[name]) for member in members] for name in members[0]
        }
        source = {
            "made": datetime.now(UTC).date().isoformat(),
            "calibration": VERSION,
            "source": self.observed.runs.source,
            "reward": f"{self.observed.metric} on {self.observed.eval_set}",
            "problems_per_batch": sorted({c.problems_per_batch for c in cells}),
            "rollouts_per_problem": sorted({c.rollouts_per_problem for c in cells}),
            "cells": [list(c.key) for c in cells],
            "runs": sum(c.runs for c in cells),
            "compute": [min(self.observed.ends), max(self.observed.ends)],
            "ends": list(self.observed.ends),
            "error": round(self.error, 5),
            "noise": round(self.posterior.noise, 5),
            "discrepancy": round(self.posterior.discrepancy, 5),
            "covered": round(self.covered, 3),
            "moved": self.moved,
            "simulations": SIMULATIONS,
            "assumed": list(self.observed.assumed),
        }
        data: dict[str, Any] = {
            "preset": {
                "format": FORMAT,
                "model": "interference",
                "problems": members[0]["problems"],
                "n_train": self.observed.protocol.n_train,
            },
            "recipe": self.observed.recipe,
            "constants": {k: _rounded(v) for k, v in asdict(central).items()},
            "provenance": source,
            "discrepancy": self.discrepancy.to_dict(),
            "ensemble": columns,
        }
        # The checksum covers the data as they are read back, since keys without a value are not written.
        data["preset"]["crc"] = preset_file.checksum(parse_toml(toml_text(data), "the preset"))
        return toml_text(data)


def calibrate(
    source: Any,
    *,
    metric: str | None = None,
    eval_set: str | None = None,
    where: Mapping[str, Any] | None = None,
    problems: str | None = None,
    n_train: int | None = None,
    until: float | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    jobs: int | None = None,
    progress: Progress = lambda _: None,
) -> Calibration:
    """Fit the interference population (`isolaw.simulators.interference`) to runs.

    Parameters
    ----------
    source
        `Runs`, or anything that `isolaw.read` accepts.
    metric, eval_set
        the reward, which must be a mean of successes, and its evaluation set; by default ``avg@4`` on
        ``validation``.
    where
        use only runs with these values, such as ``{"lr": 1e-3}``.
    problems
        the difficulty of the problems, if known, in the form of ``problems.set``; by default isolaw fits it.
    n_train
        the number of training problems D, if the runs did not record it.
    until
        use only the checkpoints up to this C.
    out
        the preset file to write. Rounds are stored next to it, so that a killed calibration can continue.
    jobs
        number of processes; by default one per core.

    Returns a `Calibration`. Raises `DataError`, `InputError` or `Refused` before it simulates anything.
    """
    from isolaw.readers.read import read

    runs = source if isinstance(source, Runs) else read(source)
    seen = observe(runs, metric, eval_set, where, problems, n_train, until)
    if out is not None:
        check_replaceable(Path(out), "a preset", "preset.toml", is_preset)
    kept = None if out is None else Path(out).with_name(f".{Path(out).name}.rounds.npz")
    mark = _mark(seen, seed)
    done = [] if kept is None else _done(kept, mark, seen)

    def report(count: int) -> None:
        progress(count / SIMULATIONS)

    def keep(rounds: list[Round]) -> None:
        if kept is not None:
            _keep(kept, mark, rounds)

    posterior = search(seen.protocol, seen.space, seen.reward, seed, done, keep, jobs, report)
    x = _ensemble(posterior.draws, seed)
    before = SIMULATIONS - MEMBERS
    seeds = [hash_of(seed, _REPLAYED + i) for i in range(len(x))]
    replayed = simulated(seen.protocol, seen.space, x, seeds, jobs, lambda i: report(before + i))
    result = Calibration(seen, posterior, x, replayed)
    if out is not None and kept is not None:
        result = replace(result, name=Path(out).stem)
        result.save(out)
        kept.unlink(missing_ok=True)
    return result


def _ensemble(draws: Floats, seed: int) -> Floats:
    """Draw the ensemble from the posterior, with the draw nearest to the mean first."""
    rng = np.random.default_rng([seed, _REPLAYED])
    chosen = draws[rng.choice(len(draws), MEMBERS, replace=False)]
    away = (chosen - draws.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(draws.T))).T
    first = int(np.argmin(np.sum(away**2, axis=1)))
    return np.concatenate([chosen[[first]], np.delete(chosen, first, axis=0)])


def _mark(seen: Observed, seed: int) -> str:
    """Return a hash of everything that determines the result of a calibration."""
    protocol = asdict(seen.protocol)
    space = [asdict(c) for c in seen.space.coordinates], seen.space.problems
    key = [VERSION, FIRST, NEXT, ROUNDS, seed, protocol, space, [float(v) for v in seen.reward]]
    return hashlib.sha256(canonical_json(json.loads(json.dumps(key, default=float))).encode()).hexdigest()


def _keep(path: Path, mark: str, done: list[Round]) -> None:
    arrays = {f"{name}{i}": getattr(r, name) for i, r in enumerate(done) for name in ("x", "rewards")}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, mark=np.array(mark), **arrays)  # type: ignore[arg-type]


def _done(path: Path, mark: str, seen: Observed) -> list[Round]:
    """Return the stored rounds of an earlier call with the same input, or an empty list."""
    if not path.is_file():
        return []
    try:
        data = read_npz(path)
        if str(data.pop("mark")) != mark:
            return []
        found = [Round(data[f"x{i}"], data[f"rewards{i}"]) for i in range(len(data) // 2)]
        width, shape = seen.space.size, seen.reward.shape
        for one in found:
            whole = np.isfinite(one.x).all() and np.isfinite(one.rewards).all()
            if one.x.shape[1:] != (width,) or one.rewards.shape != (len(one.x), *shape) or not whole:
                raise ValueError("arrays of other shapes, or numbers that are not finite")
        return found
    except (InputError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{path}: cannot be read ({error}); isolaw simulates its rounds again", stacklevel=3)
        return []


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
