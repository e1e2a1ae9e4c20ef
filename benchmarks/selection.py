"""What the choices of a fit cost in reward, on simulated truth: python benchmarks/selection.py

Truth is the mean reward of 30 seeds of the simulator at each n (its own standard error is about
0.001). Ten fits, from three of those seeds each, name an n for 12 budgets; the table gives the true
reward that this n loses to the truly best one, and how far off it is in doublings of n.
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np

import isolaw
from isolaw.fits.curves import fit_curves
from isolaw.fits.records import WIDTH, record_mask

LEVELS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
BUDGETS = np.geomspace(65_536, 1e7, 12)
SEEDS, EACH = 30, 3


def curves_of(problem_set: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return compute (P,) and avg@4 (seeds, P) of each n."""
    spec = {
        "sweep": {"compute": 1e7, "seeds": SEEDS},
        "grid": {"rollouts_per_problem": LEVELS},
        "problems": {"set": problem_set},
    }
    with tempfile.TemporaryDirectory() as folder:
        points = isolaw.sweep(spec, folder).points
    points = points[points["metric"] == "avg@4"]
    out = {}
    for n, own in points.groupby("rollouts_per_problem"):
        table = own.pivot_table(index="seed", columns="compute", values="value")
        out[int(n)] = table.columns.to_numpy(np.float64), table.to_numpy()
    return out


def main() -> None:
    """Print the table."""
    print(f"{'set':5} {'curve':5} {'records':8} {'regret':>8} {'worst':>8} {'bias of log2 n*':>16}")
    for problem_set in ("easy", "hard"):
        started = time.monotonic()
        data = curves_of(problem_set)
        truth = np.array(
            [np.interp(np.log(BUDGETS), np.log(np.maximum(c, 1)), r.mean(axis=0)) for c, r in data.values()]
        )
        best = truth.argmax(axis=0)
        for family in ("exp", "hill"):
            for width in (WIDTH, None):
                regrets, shifts = [], []
                for first in range(0, SEEDS, EACH):
                    fitted = []
                    for compute, reward in data.values():
                        own = reward[first : first + EACH]
                        mask = record_mask(own, width) if width else np.ones(own.shape, dtype=bool)
                        flat = own.reshape(1, -1), mask.reshape(1, -1).astype(float)
                        fitted.append(fit_curves(np.tile(compute, EACH), *flat, family)(BUDGETS)[0])
                    chosen = np.argmax(fitted, axis=0)
                    columns = np.arange(BUDGETS.size)
                    regrets.append(truth[best, columns] - truth[chosen, columns])
                    shifts.append(np.log2(LEVELS)[chosen] - np.log2(LEVELS)[best])
                print(
                    f"{problem_set:5} {family:5} {'on' if width else 'off':8} {np.mean(regrets):8.4f} "
                    f"{np.mean(regrets, axis=0).max():8.4f} {np.mean(shifts):16.2f}"
                )
        print(f"({problem_set}: {time.monotonic() - started:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
