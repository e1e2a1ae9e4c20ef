"""Is the first sweep of `isolaw advise` worth its rollouts? ``python -m benchmarks.first_sweep``

For C = 1e6, published results alone recommend n = 64 on easy problems; the nearest source on hard problems
recommends n = 32. In each truth that ships with isolaw (`isolaw.design.truths`; B_p = 32) a sweep of one seed
around that n is drawn, and ``isolaw.fit`` and ``predict`` answer for C. The loss of the answer against the
best n there is compared with the loss of the published n. Sweeps end at `SHARE` of C, as advised ones do.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd

import isolaw
from isolaw.design import truths
from isolaw.runs import Runs

TARGET, BATCH, SHARE = 1_000_000, 32, 0.115
LEVELS = [2**k for k in range(3, 12)]
START = {"easy": 64, "hard": 32}
SWEEPS = {
    "3 n, 2 × apart": (1 / 2, 1, 2),
    "3 n, 4 × apart": (1 / 4, 1, 4),
    "5 n, 2 × apart": (1 / 4, 1 / 2, 1, 2, 4),
}


def _runs(sample: truths.Sample, levels: list[int]) -> Runs:
    frames = []
    for n in levels:
        compute, reward = sample.run((BATCH, n, 0))
        kept = compute <= SHARE * TARGET
        steps = (compute[kept] / (BATCH * n)).astype(int)
        own: dict[str, Any] = {
            "run_id": f"n{n}",
            "step": steps,
            "compute": steps * BATCH * n,
            "value": reward[kept],
        }
        frames.append(pd.DataFrame({**own, "rollouts_per_problem": n}))
    fixed = {
        "problem_set": "simulated", "algorithm": "grpo", "problems_per_batch": BATCH, "seed": 0,
        "eval_set": "validation", "metric": "avg@4",
    }  # fmt: skip
    return Runs(pd.concat(frames).drop_duplicates(["run_id", "step"]).assign(**fixed))


def losses(truth: truths.Truth, start: int, repetition: int) -> dict[str, tuple[int, float, float]]:
    """Return n, the stated loss, and the actual loss, of the published n and of each sweep."""
    cells = truth.cells
    at = {
        c: np.unique(np.geomspace(max(1024, c[0] * c[1]), TARGET, 40) // (c[0] * c[1])) * c[0] * c[1]
        for c in cells
    }
    at = {cell: np.append(0.0, compute) for cell, compute in at.items()}
    sample = truths.Sample(truth, at, 1200, (repetition,))
    rewards = np.array(list(truth.rewards().values()))

    def lost(n: float) -> float:
        return float(rewards.max() - np.interp(np.log2(n), np.log2(LEVELS), rewards))

    out = {"published": (start, float("nan"), lost(start))}
    for name, factors in SWEEPS.items():
        law = isolaw.fit(_runs(sample, [int(start * factor) for factor in factors]))
        best = law.predict(TARGET).options[0]
        n = best.allocation.rollouts_per_problem
        out[name] = n, best.expected_loss, lost(n)
    return out


def main() -> None:
    """Print the mean losses over truths."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_sweep")
    parser.add_argument("--repetitions", type=int, default=2)
    options = parser.parse_args()
    for kind, start in START.items():
        found = truths.presets([(BATCH, n) for n in LEVELS], TARGET, (kind,))
        rows = [losses(truth, start, r) for truth in found for r in range(1, 1 + options.repetitions)]
        for name in rows[0]:
            said, lost = (np.mean([row[name][i] for row in rows]) for i in (1, 2))
            print(f"{kind:5} {name:15} said {said:.4f}, lost {lost:.4f}", flush=True)


if __name__ == "__main__":
    main()
