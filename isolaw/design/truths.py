"""Truths: assumed rewards of all cells of a grid, from which isolaw draws simulated runs.

For each cell (B_p, n) and each C up to the target, a truth has the mean reward m and the effects f_k shared
by runs with the same seed. A truth also has the standard deviation σ of a single run's deviation, and the
noise of an evaluation:

    p_s(C) = m(C) + Σ_k z_sk f_k(C) + σ(C) e(C)
    measured = p_s(C) + noise of variance v(C) m (1 − m) / answers

For a seed s, z_sk is standard normal and the same in every cell. e is standard normal and varies slowly, over
`WIDTH` decades of C. ``answers`` is the number of answers in an evaluation, and v = E[q (1 − q)] / (m (1 −
m)) over problems with success probability q.

`presets` reads the truths shipped with isolaw, which reach 3e6 rollouts (``benchmarks/calibration`` writes
the file). Seven truths on an easy and seven on a hard problem set come from the interference simulator with
jittered constants. Four on each set are members of the ensembles published-easy and published-hard, which are
calibrated to the paper's runs, and in which n* rises more steeply. All truths are **simulated**. For another
target isolaw rescales C: a truth learns as fast relative to the target as it does relative to 3e6. A cell
outside the n and B_p of the truths has the rewards of the nearest cell inside.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.config import SweepSpec
from isolaw.design.decisions import RunKey
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.estimate import estimate
from isolaw.registry import traits

FILE = Path(__file__).with_name("presets.npz")
KINDS = ("easy", "hard")
WIDTH = 0.18  # decades of C over which the deviation of a single run varies
PROBLEMS = 300  # number of validation problems, if the sweep file does not give it
SHARED, OWN, SPREAD = 0.017, 0.005, 0.5  # parts of truths fitted to runs, similar to those of the presets
_KNOTS = np.arange(0.0, 14.0, 0.1)  # values of log10 C
_POINTS = 24  # number of C at which truths fitted to runs are drawn


@dataclass(frozen=True)
class Truth:
    """A truth: its rewards in the K cells of a grid at P values of C, from 0 to the target."""

    name: str
    cells: tuple[BatchShape, ...]
    compute: Floats  # of shape (P,), ascending
    mean: Floats  # of shape (K, P)
    shared: Floats  # of shape (F, K, P)
    own: Floats  # of shape (K, P)
    spread: Floats  # v, of shape (K, P)

    def rewards(self) -> dict[BatchShape, float]:
        """Return the mean reward of each cell (B_p, n) at the target."""
        return dict(zip(self.cells, self.mean[:, -1].tolist(), strict=True))

    @property
    def best(self) -> BatchShape:
        """The cell with the highest mean reward at the target; the first one in a tie."""
        return self.cells[int(self.mean[:, -1].argmax())]


@dataclass
class Sample:
    """One draw of all runs of a grid from a truth, in which `isolaw.design.play.play` plays designs.

    ``checkpoints`` maps each cell to the C of its evaluations. ``answers`` is the number of answers in an
    evaluation; 0 means exact evaluations. ``stream`` seeds the draws.
    """

    truth: Truth
    checkpoints: Mapping[BatchShape, Floats]
    answers: int
    stream: Sequence[int]
    made: dict[RunKey, tuple[Floats, Floats]] = field(default_factory=dict)

    def run(self, key: RunKey) -> tuple[Floats, Floats]:
        """Return compute and measured reward of run (B_p, n, seed) up to the target, each of shape (P,)."""
        if key not in self.made:
            b, n, seed = key
            truth, k = self.truth, self.truth.cells.index((b, n))
            stream = [*self.stream, zlib.crc32(truth.name.encode())]
            z = np.random.default_rng([*stream, seed]).standard_normal(len(truth.shared))
            rng = np.random.default_rng([*stream, seed, b, n])
            compute = self.checkpoints[b, n]
            deviation = truth.own[k] * _slow(rng, truth.compute) + z @ truth.shared[:, k]
            p, own = (np.interp(compute, truth.compute, row) for row in (truth.mean[k], deviation))
            p = np.clip(p + own, 0.0, 1.0)
            if self.answers:
                share = np.interp(compute, truth.compute, truth.spread[k])
                noise = np.sqrt(share * p * (1 - p) / self.answers) * rng.standard_normal(p.size)
                p = np.clip(np.round((p + noise) * self.answers) / self.answers, 0.0, 1.0)
            self.made[key] = compute, p
        return self.made[key]


def _slow(rng: np.random.Generator, compute: Floats) -> Floats:
    """Return a slowly varying random function of C with variance 1."""
    x = np.log10(np.maximum(compute, 1.0))
    weights = np.exp(-0.5 * ((x[:, None] - _KNOTS) / WIDTH) ** 2)
    return np.asarray(weights @ rng.standard_normal(_KNOTS.size) / np.linalg.norm(weights, axis=1))


def kinds_of(spec: SweepSpec) -> tuple[str, ...]:
    """Return the difficulties of presets suited to a sweep: its own difficulty if known, otherwise both."""
    named = spec.problems.difficulty or (spec.problems.set if traits(spec.sweep.backend).simulated else None)
    return (named,) if named in KINDS else KINDS


def answers_of(spec: SweepSpec) -> int:
    """Return the number of answers in one evaluation of a sweep, or 0 if evaluations are exact."""
    return (spec.problems.n_validation or PROBLEMS) * spec.evaluation.samples


def simulator_version() -> int:
    """Return the version of the simulator that made the presets."""
    return int(_file()["simulator"])


def presets(cells: Sequence[BatchShape], target: int, kinds: Sequence[str] = KINDS) -> list[Truth]:
    """Return the truths shipped with isolaw, over these cells and rescaled to this target."""
    data = _file()
    batch = _place(data["batches"], [b for b, _ in cells])
    level = _place(data["levels"], [n for _, n in cells])

    def at(values: Floats) -> Floats:  # (…, B, N, P) to (…, K, P), linear in log B_p and log n
        total = np.zeros((*values.shape[:-3], len(cells), values.shape[-1]))
        for i, share in batch:
            for j, part in level:
                total += (share * part)[:, None] * values[..., i, j, None, :]
        return total

    compute = data["compute"] * (target / data["compute"][-1])
    spread = np.broadcast_to(data["spread"][:, None], data["mean"].shape)
    return [
        Truth(
            str(name), tuple(cells), compute, at(data["mean"][t]), at(data["shared"][t]), at(data["own"][t]),
            at(spread[t]),
        )
        for t, name in enumerate(data["names"])
        if str(data["kinds"][t]) in kinds
    ]  # fmt: skip


def outside(cells: Sequence[BatchShape]) -> list[BatchShape]:
    """Return the cells whose B_p or n is outside the range of the presets."""
    data = _file()
    (low_b, high_b), (low_n, high_n) = ((v[0], v[-1]) for v in (data["batches"], data["levels"]))
    return [(b, n) for b, n in cells if not (low_b <= b <= high_b and low_n <= n <= high_n)]


def fitted_to_runs(
    configurations: Sequence[Configuration], cells: Sequence[BatchShape], target: int, draws: int, seed: int
) -> list[Truth]:
    """Return truths drawn from a surface fitted to runs.

    Returns an empty list unless the runs reach the target, and their range of B_p and n contains all cells.
    """
    known = list(zip(*(c.key for c in configurations), strict=True))
    inside = all(min(own) <= v <= max(own) for cell in cells for v, own in zip(cell, known, strict=True))
    if not inside or min(c.end for c in configurations) < target:
        return []
    return drawn_from(configurations, cells, target, draws, seed)


def drawn_from(
    configurations: Sequence[Configuration], cells: Sequence[BatchShape], target: int, draws: int, seed: int
) -> list[Truth]:
    """Return posterior draws of a surface fitted to runs, as truths over these cells."""
    surface = estimate(configurations, draws, seed, (0.0, 1.0))
    start = min(c.checkpoints[c.checkpoints > 0][0] for c in configurations)
    compute = np.geomspace(start, target, _POINTS)
    b, n = (np.repeat(np.log2([cell[i] for cell in cells]), _POINTS) for i in range(2))
    drawn = surface.rewards(n, b, np.tile(compute, len(cells)))[1:].reshape(draws, len(cells), _POINTS)
    anchors = [c.mean[0] for c in configurations if c.checkpoints[0] == 0]
    compute, first = np.append(0.0, compute), np.mean(anchors) if anchors else drawn[:, :, 0].mean()
    mean = np.concatenate([np.full((draws, len(cells), 1), first), drawn], axis=2)
    room = np.minimum(np.sqrt(mean * (1 - mean)) / 0.45, 1.0)
    return [
        Truth(f"your runs {i}", tuple(cells), compute, m, SHARED * r[None], OWN * r, np.full(m.shape, SPREAD))
        for i, (m, r) in enumerate(zip(mean, room, strict=True))
    ]


@cache
def _file() -> dict[str, Any]:
    with np.load(FILE, allow_pickle=False) as data:
        found = {name: data[name] for name in data}
    return {n: v.astype(float) if v.dtype.kind == "f" else v for n, v in found.items()}


def _place(axis: Floats, values: Sequence[int]) -> list[tuple[int, Floats]]:
    """Return the weight of each point of an axis in a log-linear interpolation at the given values."""
    x, at = np.log2(axis), np.clip(np.log2(values), np.log2(axis[0]), np.log2(axis[-1]))
    return [(i, np.interp(at, x, np.eye(len(x))[i])) for i in range(len(x))]
