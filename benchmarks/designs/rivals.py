"""Alternatives to isolaw: each rival's allocation for a budget, from the same sweep.

    process        scikit-learn's Gaussian process about a line: Matérn, a length scale for each axis
    best measured  the configuration with the highest mean over the last tenth of its checkpoints
    best measured  the configuration with the highest mean at the largest compute that three reached
    half slope     the same with half of the line's slope beyond the runs

The process chooses among the allocations that isolaw compares beyond the runs. IsoFLOP and half slope choose
n at the B_p of the best measured configuration (with fixed B, at the B_p that follows).
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

import isolaw
from benchmarks.designs.cells import BATCH, Cell
from isolaw.fits.allocations import LEAST_STEPS, REACH
from isolaw.fits.selection import LEAST_CURVES

NAMES = ("process", "best measured", "isoflop", "half slope")

Floats = NDArray[np.float64]


def allocations(cell: Cell, compute: float) -> list[tuple[int, int]]:
    """Return every (n, B_p) that a rival may choose: n of 2^k and 3 · 2^k, measured, between and beyond.

    If B_p varies, half the smallest and twice the largest measured one compete, too.
    """
    low, high = cell.levels[0], cell.levels[-1]
    found = []
    for n in sorted({f << k for f in (1, 3) for k in range(20)} | set(cell.levels)):
        inside = low <= n <= high
        if not (inside or max(low / REACH, 2) <= n <= high * REACH):
            continue
        if cell.hold == "B" and BATCH % n:
            continue
        batches = [BATCH // n] if cell.hold == "B" else cell.batches
        if cell.hold == "nothing":
            batches = [cell.batches[0] // 2, *cell.batches, cell.batches[-1] * 2]
        inside_b = {b: b in cell.batches or cell.hold == "B" for b in batches}
        found += [
            (n, b) for b in batches if compute >= n * b * (1 if inside and inside_b[b] else LEAST_STEPS)
        ]
    return found


def chosen(cell: Cell, law: isolaw.Law, compute: float) -> dict[str, list[int]]:
    """Return the (n, B_p) of every rival at a budget; without scikit-learn, of those that can do without."""
    surface = law.surface
    if surface is None:
        return {}
    places = allocations(cell, compute)
    u, v = np.log2(np.array(places, dtype=float)).T
    out = {}
    if find_spec("sklearn") is not None:
        at = process(surface.model.observations, u, v, np.log(np.full(u.size, compute)))
        out["process"] = list(places[int(at.argmax())])
    rules = law.document.rules
    best = next(e for e in law.document.grid if e.key == rules.best)
    out["best measured"] = [best.rollouts_per_problem, best.problems_per_batch]
    if rules.isoflop is not None:
        reached = sorted({e.rollouts_per_problem: e.end for e in law.document.grid}.values())[-LEAST_CURVES]
        n = rules.choices(compute)["isoflop"]
        half = float(np.sqrt(n * rules.choices(min(compute, reached))["isoflop"]))
        for name, wanted in (("isoflop", n), ("half slope", half)):
            line = [p for p in places if cell.hold == "B" or p[1] == best.problems_per_batch]
            out[name] = list(min(line, key=lambda p: abs(np.log2(p[0] / wanted))))
    return out


def process(observations: object, u: Floats, v: Floats, t: Floats) -> Floats:
    """Return predictions of scikit-learn's process, given the mean rewards that the surface is fitted to."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    o = observations
    axes = np.stack([o.log2_n, o.log2_b, o.t], axis=1)  # type: ignore[attr-defined]
    reward = o.reward  # type: ignore[attr-defined]
    new = np.stack([u, v, t], axis=1)
    varies = np.ptp(axes, axis=0) > 0
    axes, new = axes[:, varies], new[:, varies]
    line, *_ = np.linalg.lstsq(np.column_stack([np.ones(len(axes)), axes]), reward, rcond=None)
    left = reward - line[0] - axes @ line[1:]
    scale = max(float(left.std()), 1e-9)
    lengths = np.full(axes.shape[1], 2.0)
    kernel = ConstantKernel(1.0) * Matern(lengths, (0.1, 100.0), nu=2.5) + WhiteKernel(0.01, (1e-5, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0)
        model.fit(axes, left / scale)
    return np.asarray(line[0] + new @ line[1:] + scale * model.predict(new))
