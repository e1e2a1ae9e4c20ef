"""The truths of the simulator: the mean reward over many seeds, smoothed; and its own runs.

`make` simulates in chunks of seeds and keeps them under ``benchmarks/.designs``; it makes none of them twice.
The smoothed mean at `LEVELS` values of n and `POINTS` of C is small and committed, in ``simulated.json``: the
truths need no simulation. Sweeps of the simulator's own runs (`own`) do. All takes ten minutes on one core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator, make_interp_spline
from scipy.signal import savgol_filter

import isolaw
from isolaw.backends.bandit import _Bandit

Floats = NDArray[np.float64]

VERSION = _Bandit.version
KEPT = Path(__file__).parents[1] / ".designs"
FOLDER = KEPT / f"simulator-{VERSION}"
SUMMARY = Path(__file__).with_name("simulated.json")
END = 9e6  # rollouts, to which the truth is known
OWN_END = 3e6
LEVELS = sorted({int(round(2 ** (k / 2) / 2) * 2) for k in range(6, 23)})
OWN_LEVELS = [2**k for k in range(3, 12)]
POINTS = np.concatenate([[0.0], np.geomspace(1024, END, 48)])
SEEDS = {"truth": range(100_000, 100_200), "own": range(300)}
SETS = ("easy", "hard")
CHUNK = 50
VALIDATION = 300  # problems
WIDTH, EARLY = 0.35, 30.0  # of the trend in log C: an epoch or more; steps before which it is narrower
ACROSS = 9  # half doublings of n that a local cubic is fitted to


def chunks() -> Iterator[tuple[str, str, int]]:
    """Return the chunks to simulate: problem set, truth or own runs, and first seed."""
    for kind, seeds in SEEDS.items():
        for name in SETS:
            yield from ((name, kind, first) for first in seeds[::CHUNK])


def make() -> Iterator[str]:
    """Simulate the missing chunks, and write the summary; yield each finished chunk."""
    for name, kind, first in chunks():
        if not _path(name, kind, first).exists():
            simulate(name, kind, first)
            yield f"simulated {name} {kind} {first}"
    SUMMARY.write_text(json.dumps({"version": VERSION, **{n: _smoothed(n) for n in SETS}}) + "\n")


def simulate(name: str, kind: str, first: int) -> None:
    """Run one chunk of seeds and keep its rewards: for the truth their sums, else each."""
    samples = 64 if kind == "truth" else 4
    metric = f"avg@{samples}"
    spec = {
        "sweep": {
            "compute": END if kind == "truth" else OWN_END,
            "seeds": list(range(first, first + CHUNK)),
        },
        "grid": {"rollouts_per_problem": LEVELS if kind == "truth" else OWN_LEVELS},
        "problems": {"set": name, "n_validation": VALIDATION},
        "evaluation": {"samples": samples, "metrics": [metric]},
        "executor": {"kind": "inline"},
    }
    points = isolaw.sweep(spec).points
    points = points[(points["metric"] == metric) & (points["eval_set"] == "validation")]
    out = {}
    for n, rows in points.groupby("rollouts_per_problem"):
        table = rows.pivot_table(index="seed", columns="compute", values="value")
        rewards = table.to_numpy(float)
        out[f"compute-{n}"] = table.columns.to_numpy(float)
        out[f"reward-{n}"] = rewards.sum(axis=0) if kind == "truth" else rewards.astype(np.float32)
    path = _path(name, kind, first)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        np.savez(file, **out)
    temporary.replace(path)


@cache
def own(name: str) -> dict[int, tuple[NDArray[np.int64], Floats]]:
    """Return compute (P,) and rewards (seeds, P) of each n, of the runs that sweeps are put together from."""
    paths = [_path(name, "own", first) for first in SEEDS["own"][::CHUNK]]
    if not all(path.exists() for path in paths):
        raise SystemExit("no simulated runs: python -m benchmarks.designs simulate")
    parts = [np.load(path) for path in paths]
    return {
        n: (
            parts[0][f"compute-{n}"].astype(np.int64),
            np.concatenate([p[f"reward-{n}"] for p in parts]).astype(float),
        )
        for n in OWN_LEVELS
    }


def surface(name: str) -> Callable[[Floats, Floats, Floats], Floats]:
    """Return the smoothed mean reward as a function of log2 n, log2 B_p (which it ignores) and C."""
    data = _summary()[name]
    axes = (np.log2(LEVELS), np.log1p(POINTS))
    # Cubic in both would ring about the first step; along C the points are close.
    levels = np.log2(LEVELS)
    fine = np.linspace(levels[0], levels[-1], 401)
    table = np.array(data)
    dense = make_interp_spline(axes[0], table, k=3)(fine)
    look_up = RegularGridInterpolator((fine, axes[1]), dense)

    def reward(u: Floats, b: Floats, c: Floats) -> Floats:
        u, b, c = np.broadcast_arrays(u, b, c)
        inside = np.clip(u, fine[0], fine[-1]), np.minimum(np.log1p(c), axes[1][-1])
        return np.asarray(look_up(np.stack(inside, axis=-1))).reshape(u.shape)

    return reward


@cache
def _summary() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SUMMARY.read_text())
    return found


def _smoothed(name: str) -> list[list[float]]:
    """Return the mean over seeds at `LEVELS` and `POINTS`, smoothed over both.

    Rewards oscillate with the epochs, by .02 on the easy set, and at one C every n is elsewhere in its epoch.
    The estimator has to find the trend.
    """
    parts = [np.load(_path(name, "truth", first)) for first in SEEDS["truth"][::CHUNK]]
    start = np.mean([sum(p[f"reward-{n}"][0] for p in parts) for n in LEVELS]) / len(SEEDS["truth"])
    table = []
    for n in LEVELS:
        compute = parts[0][f"compute-{n}"]
        mean = sum(p[f"reward-{n}"] for p in parts) / len(SEEDS["truth"])
        table.append(_trend(compute[1:], mean[1:], start))
    smooth = savgol_filter(np.array(table), ACROSS, 3, axis=0)
    smooth[:, 0] = start
    return [[round(float(v), 5) for v in row] for row in smooth]


def _trend(compute: Floats, reward: Floats, start: float) -> Floats:
    """Return a local line in log C, at `POINTS`; narrower over the first steps, where rewards rise fast."""
    known = compute[0] <= POINTS
    trend = []
    for at in POINTS[known]:
        width = WIDTH * np.clip(at / compute[0] / EARLY, 0.3, 1.0)
        x = np.log(compute / at)
        line = np.polynomial.Polynomial.fit(x, reward, 1, w=np.exp(-0.25 * (x / width) ** 2))
        trend.append(float(line(0.0)))
    ends = np.concatenate([[0.0], POINTS[known]])
    return np.interp(np.log1p(POINTS), np.log1p(ends), [start, *trend])


def _path(name: str, kind: str, first: int) -> Path:
    return FOLDER / f"{name}-{kind}-{first}.npz"
