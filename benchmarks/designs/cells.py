"""Cells, each a truth, a grid, seeds, noise and horizons; and the sweeps sampled from them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import isolaw
from benchmarks.designs import simulated
from benchmarks.designs.noise import KINDS, SAMPLES, Noise, rewards, slow
from benchmarks.designs.truths import B_P, COMPUTE, JUDGING, TUNING, truth

CHECKPOINTS = 60
LEAST = 5  # checkpoints of at least one run of each configuration
BATCH = 8192  # rollouts in a step, with B held fixed
GRIDS = {
    "9n": tuple(2**k for k in range(3, 12)),
    "7n": tuple(2**k for k in range(4, 11)),
    "5nx4": (8, 32, 128, 512, 2048),
    "4nx4": (16, 64, 256, 1024),
    "5nx2": (32, 64, 128, 256, 512),
}
BATCHES = (16, 32, 64, 128, 256)
OFF_CENTRE = {"low": (4, 8, 16, 32), "high": (64, 128, 256, 512)}  # the best B_p lies outside, or at the edge
HORIZONS = ("equal", "sqrt", "steps", "rounded")
OWN = "simulator"  # its own runs, with the noise that they have

Hold = Literal["B_p", "B", "nothing"]


@dataclass(frozen=True)
class Cell:
    """A design: a truth, the runs, and their noise.

    Attributes
    ----------
    levels, batches
        the n and the B_p of the grid; with ``hold="B"`` B_p follows from n.
    seeds
        how many, the same for every configuration.
    noise
        a key of `noise.KINDS`, or `OWN`.
    horizon
        how far the runs go: ``equal`` C; C ∝ √n or C ∝ n (equal ``steps``) with the largest n at `COMPUTE`;
        ``rounded``: equal, the last step begun being finished.
    sparse
        a checkerboard of the joint grid, and its middle row and column.
    """

    name: str
    truth: str
    levels: tuple[int, ...]
    batches: tuple[int, ...] = (B_P,)
    seeds: int = 3
    noise: str = "white"
    horizon: str = "equal"
    hold: Hold = "B_p"
    sparse: bool = False

    @property
    def half(self) -> str:
        """``tuning`` or ``judging``."""
        return "tuning" if self.truth in TUNING else "judging"

    @property
    def grid(self) -> list[tuple[int, int]]:
        """The configurations of the grid, as (n, B_p)."""
        if self.hold == "B":
            return [(n, BATCH // n) for n in self.levels]
        middle = len(self.levels) // 2, len(self.batches) // 2
        return [
            (n, b)
            for i, n in enumerate(self.levels)
            for j, b in enumerate(self.batches)
            if not self.sparse or (i + j) % 2 == 0 or i == middle[0] or j == middle[1]
        ]


def _cell(
    true: str, grid: str, seeds: int = 3, noise: str = "white", horizon: str = "equal", kind: str = ""
) -> Cell:
    """Return a cell, named after its parts."""
    hold: Hold = "nothing" if kind.startswith("joint") else "B" if kind else "B_p"
    batches = OFF_CENTRE.get(kind.removeprefix("joint-"), BATCHES) if hold == "nothing" else (B_P,)
    rest = [part for part in (noise, horizon) if part not in ("white", "equal")]
    name = "-".join([true, kind or grid, f"{seeds}s", *(rest or ["white"])])
    return Cell(name, true, GRIDS[grid], batches, seeds, noise, horizon, hold, sparse=kind == "joint-sparse")


def _main() -> list[Cell]:
    cells = [_cell(name, "9n") for name in (*TUNING, *JUDGING)]
    return [
        *cells,
        # tuning
        _cell("constant", "4nx4", 2),
        _cell("constant", "9n", 3, "drift"),
        _cell("constant", "9n", 3, "diverging"),
        _cell("constant", "7n", 5, "shared", "sqrt"),
        _cell("constant", "5nx4", 3, kind="joint"),
        _cell("constant", "4nx4", 3, kind="joint-low"),
        _cell("unsaturated", "4nx4", 2, kind="joint-high"),
        _cell("kinked", "5nx2", 1),
        _cell("kinked", "7n", 3, "shrinking", "rounded"),
        _cell("kinked", "9n", 3, "missing"),
        _cell("kinked", "7n", 3, kind="B"),
        _cell("unsaturated", "5nx4", 2, "few_problems"),
        _cell("unsaturated", "9n", 5, horizon="steps"),
        _cell("unsaturated", "9n", 3, horizon="sqrt"),
        _cell("unsaturated", "9n", 3, "missing", kind="joint-sparse"),
        _cell("cliff", "5nx4", 1),
        _cell("cliff", "9n", 3, "few_problems", "sqrt"),
        _cell("late", "4nx4", 2),
        _cell("late", "9n", 3, "white", "sqrt"),
        _cell("late", "5nx4", 3, kind="joint"),
        _cell("critical", "7n", 3),
        _cell("critical", "4nx4", 2),
        _cell("easy", "7n", 2),
        # judging
        _cell("flat", "4nx4", 2),
        _cell("flat", "9n", 3, "drift", "sqrt"),
        _cell("flat", "5nx4", 3, kind="joint"),
        _cell("flat", "4nx4", 2, kind="joint-low"),
        _cell("not_monotone", "4nx4", 3, kind="joint-high"),
        _cell("step_limited", "4nx4", 3, kind="joint-low"),
        _cell("step_limited", "5nx4", 1, "shrinking"),
        _cell("step_limited", "9n", 3, "missing"),
        _cell("step_limited", "7n", 3, horizon="steps"),
        _cell("step_limited", "9n", 3, horizon="sqrt"),
        _cell("step_limited", "9n", 3, "diverging"),
        _cell("staircase", "4nx4", 2),
        _cell("falls", "7n", 3, "few_problems"),
        _cell("step_limited", "9n", 3, "missing", kind="joint-sparse"),
        _cell("not_monotone", "5nx2", 2),
        _cell("not_monotone", "9n", 5, "shared", "rounded"),
        _cell("not_monotone", "7n", 3, kind="B"),
        _cell("two_peaks", "5nx4", 2, "few_problems"),
        _cell("two_peaks", "9n", 3, "drift"),
        _cell("batch_limited", "7n", 3),
        _cell("batch_limited", "4nx4", 2),
        _cell("valley", "4nx4", 2),
        _cell("valley", "7n", 3, "missing"),
        _cell("valley", "9n", 3, "few_problems", "sqrt"),
        _cell("hard", "4nx4", 2),
        *(_cell(name, "7n", 3) for name in ("even", "falling_ceilings", "steady", "plateau")),
        *(_cell(name, "4nx4", 2) for name in ("even", "falling_ceilings", "steady", "plateau")),
    ]


def _all() -> list[Cell]:
    """Return the main list, and every truth with every grid, number of seeds, noise and horizon in turn."""
    found = {cell.name: cell for cell in _main()}
    for name in (*TUNING, *JUDGING):
        more = [_cell(name, grid, seeds) for grid in GRIDS for seeds in (1, 2, 3, 5)]
        more += [_cell(name, "9n", 3, noise) for noise in KINDS]
        more += [_cell(name, "9n", 3, "white", horizon) for horizon in HORIZONS]
        if name not in simulated.SETS:
            more += [_cell(name, "5nx4", 3, kind="joint"), _cell(name, "9n", 3, kind="joint-sparse")]
            more += [_cell(name, "7n", 3, kind="B")]
        found |= {cell.name: cell for cell in more}
    return list(found.values())


def cells(pattern: str = "*", half: str = "", every: bool = False) -> list[Cell]:
    """Return the cells whose name matches a shell pattern, of a half or of both."""
    chosen = _all() if every else _main()
    return [c for c in chosen if fnmatch(c.name, pattern) and half in ("", c.half)]


def sample(cell: Cell, index: int) -> isolaw.Runs:
    """Return sweep ``index`` of a cell, the same at every call and in any order of calls."""
    rng = np.random.default_rng([zlib.crc32(cell.name.encode()), index])
    noise = KINDS.get(cell.noise, Noise())
    start = min(n * b for n, b in cell.grid)
    schedule = np.geomspace(start, COMPUTE, CHECKPOINTS) * (1 + 1e-12)
    true, parts = truth(cell.truth), []
    seed_of = np.random.default_rng(rng.integers(2**63))
    effects = slow(seed_of, schedule, cell.seeds, constant=0.7)
    at = np.log(schedule)
    for n, b in cell.grid:
        if cell.noise == OWN:
            compute, own = simulated.own(cell.truth)[n]
            reward = own[index * cell.seeds : (index + 1) * cell.seeds]
        else:
            compute = _checkpoints(cell, n, b, schedule)
            mean = true(np.log2(n), np.log2(b), compute)
            x = np.log(np.maximum(compute, start))
            seeds = np.array([np.interp(x, at, e) for e in effects])
            reward = rewards(noise, rng, mean, compute.astype(float), n, seeds)
        lengths = _lengths(noise, rng, cell.seeds, compute.size)
        for seed, length in enumerate(lengths):
            if length:
                parts.append((n, b, seed, compute[:length], reward[seed, :length]))
    return _runs(parts, "easy" if cell.truth not in simulated.SETS else cell.truth, noise.problems)


def sweeps(cell: Cell, wanted: int) -> int:
    """Return how many of these sweeps can exist, since each of the simulator's own runs is used once."""
    return min(wanted, len(simulated.SEEDS["own"]) // cell.seeds) if cell.noise == OWN else wanted


def _checkpoints(cell: Cell, n: int, b: int, schedule: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the evaluated C of a configuration, as in `isolaw.config.RunSpec.schedule`."""
    largest, size = max(cell.levels), n * b
    share = {"sqrt": np.sqrt(n / largest), "steps": n / largest}.get(cell.horizon, 1.0)
    end = COMPUTE * share
    last = int(np.ceil(end / size)) if cell.horizon == "rounded" else int(end // size)
    steps = np.minimum(schedule // size, last).astype(np.int64)
    return np.unique(np.concatenate([[0], steps, [last]])) * size


def _lengths(noise: Noise, rng: np.random.Generator, runs: int, points: int) -> list[int]:
    """Return how many checkpoints each run of a configuration made; 0 if the run is missing."""
    lengths = np.full(runs, points)
    if noise.missing:
        gone = rng.random(runs) < noise.missing
        made = np.where(rng.random(runs) < 0.5, 0, rng.integers(1, points, runs))
        lengths = np.where(gone, made, points)
        if lengths.max() < min(LEAST, points):
            lengths[rng.integers(runs)] = points
    return [int(length) for length in lengths]


def _runs(parts: Iterable[tuple], problem_set: str, problems: int) -> isolaw.Runs:
    """Return the runs in the form of validated `isolaw.Runs`; the validation takes ten times as long."""
    named = sorted((f"{b}x{n}-{seed}", n, b, seed, compute, value) for n, b, seed, compute, value in parts)
    run_id, n, b, seed, compute, value = zip(*named, strict=True)
    sizes = [c.size for c in compute]
    which = np.repeat(np.arange(len(sizes)), sizes)
    points, spent = which.size, np.concatenate(compute)
    batches, levels = np.array(b)[which], np.array(n)[which]
    columns = {
        "run_id": pd.array(np.array(run_id, dtype=object), dtype="str").take(which),
        "problem_set": _same(problem_set, points),
        "algorithm": _same("grpo", points),
        "problems_per_batch": batches,
        "rollouts_per_problem": levels,
        "seed": np.array(seed)[which],
        "step": spent // (batches * levels),
        "compute": spent,
        "tokens": pd.array([pd.NA], dtype="Int64").take(np.zeros(points, dtype=int)),
        "wall_s": np.full(points, np.nan),
        "eval_set": _same("validation", points),
        "metric": _same(f"avg@{SAMPLES}", points),
        "value": np.concatenate(value),
        "n_problems": pd.array(np.full(points, problems), dtype="Int64"),
        "n_samples": pd.array(np.full(points, SAMPLES), dtype="Int64"),
    }
    runs = isolaw.Runs.__new__(isolaw.Runs)
    runs.points, runs.attributes = pd.DataFrame(columns), {}
    runs.diverged = runs.points[:0]
    runs.source, runs.notes, runs.problems = "", (), None
    return runs


def _same(text: str, size: int) -> pd.api.extensions.ExtensionArray:
    return pd.array([text], dtype="str").take(np.zeros(size, dtype=int))
