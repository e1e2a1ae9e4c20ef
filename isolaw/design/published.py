"""Published n*(C): the sources, and the n* of each source at a given budget. No source is simulated.

The values are in ``published.csv``, which ``python -m benchmarks.published`` condenses from the tables of
``examples/data``.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

FILE = Path(__file__).with_name("published.csv")
COLUMNS = ("source", "problems_per_batch", "compute", "n_star", "low", "high", "reward")
DifficultyKind = Literal["easy", "hard"]


class Basis(StrEnum):
    """How isolaw derived the n* of a source and its range."""

    POINTS = "points"  #: a law through the points of a figure; 95 % prediction interval for a new point
    CURVES = "curves"  #: the highest of the fitted curves that the paper draws; no uncertainty
    RUNS = "runs"  #: a reward surface fitted to recorded runs; 95 % interval over posterior draws


@dataclass(frozen=True)
class Span:
    """A number with its range. An end of the range is None if the source does not bound it."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Source:
    """A published result: its model, its problems, and the derivation of its n*.

    ``size`` is the model size in billions of parameters. ``problems`` is the size of the training set, or
    None if the data do not give it. ``n`` contains the smallest and largest n that the source compares.
    ``batches`` lists its B_p, and is empty if B_p is tuned together with n and not reported.
    """

    key: str
    publication: str
    model: str
    size: float
    difficulty: Literal["easy", "hard", "mixed"]
    problems: int | None
    basis: Basis
    n: tuple[int, int]
    batches: tuple[int, ...]

    def range(self) -> tuple[float, float]:
        """Return the smallest and largest C that the source covers at every one of its B_p."""
        ends = [(p[0].compute, p[-1].compute) for p in map(self._points, self.batches or (None,))]
        return max(low for low, _ in ends), min(high for _, high in ends)

    def at(self, compute: float, problems_per_batch: int | None = None) -> _Point:
        """Return the source's n* at a C within its range, interpolated linearly in log n over log C.

        ``problems_per_batch`` selects one of several B_p; the default is the smallest.
        """
        batch = problems_per_batch or (self.batches[0] if self.batches else None)
        points = self._points(batch)
        table = np.array([(p.compute, p.n.value, p.n.low, p.n.high) for p in points], dtype=float)
        x, *columns = np.log(table).T  # None becomes NaN, as do values interpolated next to it
        log_c = math.log(compute)
        n, low, high = (math.exp(np.interp(log_c, x, column)) for column in columns)
        span = Span(n, None if math.isnan(low) else low, None if math.isnan(high) else high)
        return _Point(self.key, batch, compute, span, float(np.interp(log_c, x, [p.reward for p in points])))

    def _points(self, problems_per_batch: int | None) -> list[_Point]:
        key = self.key, problems_per_batch
        return [point for point in _all_points() if (point.source, point.problems_per_batch) == key]


@dataclass(frozen=True)
class _Point:
    """The n* of a source at one compute and B_p, with the reward there.

    ``problems_per_batch`` is None if the source tunes B_p, and ``reward`` is NaN if the source reports none.
    """

    source: str
    problems_per_batch: int | None
    compute: float
    n: Span
    reward: float


@cache
def _all_points() -> tuple[_Point, ...]:
    points = []
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            batch = int(row["problems_per_batch"]) if row["problems_per_batch"] else None
            low, high = (float(row[end]) if row[end] else None for end in ("low", "high"))
            n = Span(float(row["n_star"]), low, high)
            compute, reward = float(row["compute"]), float(row["reward"] or "nan")
            points.append(_Point(row["source"], batch, compute, n, reward))
    return tuple(points)


_PLAYBOOK = ("arXiv 2603.12151", "Qwen2.5-7B-Instruct", 7.6, "easy", 6000)
_BATCHES = (32, 64, 128, 256, 512, 1024)
SOURCES = (
    Source("isocompute-joint", *_PLAYBOOK, Basis.POINTS, (8, 512), ()),  # type: ignore[arg-type]
    Source("isocompute-32", *_PLAYBOOK, Basis.POINTS, (8, 512), (32,)),  # type: ignore[arg-type]
    Source("isocompute-curves", *_PLAYBOOK, Basis.CURVES, (8, 512), _BATCHES),  # type: ignore[arg-type]
    Source("tan", "arXiv 2509.25300", "Qwen2.5-7B base", 7.6, "mixed", None, Basis.RUNS, (4, 32), (512,)),
    Source("arithmetic-easy", "isolaw", "Qwen2, tiny", 1.3e-4, "easy", 512, Basis.RUNS, (2, 64), (16,)),
    Source("arithmetic-hard", "isolaw", "Qwen2, tiny", 1.3e-4, "hard", 437, Basis.RUNS, (2, 64), (16,)),
)


# What recorded sweeps say about n*, from docs/evidence.md; a test compares them.
RECORDED = (
    "In 13 recorded sweeps (9 groups), the best n rose with C in 5, fell in 3 and stayed in 5.",
    "As a power of C, its mean exponent over the groups is 0.24 ± 0.17, from -0.23 to 1.37 (largest:"
    " IsoCompute).",
    "In 1 of the 9 sweeps with several seeds, the 95 % interval of the exponent excludes 0.",
)
