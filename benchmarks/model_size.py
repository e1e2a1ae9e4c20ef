"""The model-size law on real runs, its intervals on simulated ones: python benchmarks/model_size.py

Qwen2.5 base models (Tan et al., arXiv 2509.25300): means over runs of 0.5B to 72B, in the authors' windows
and in others; the variation between runs comes from the single runs of 0.5B to 14B.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isolaw.evidence import Quantity
from isolaw.fits.studies.model_size import SizeCurves, fit_sizes

DATA = Path(__file__).parents[1] / "examples" / "data"
NAMES = {
    "model_size_B": "model_size",
    "compute_C_flops": "compute",
    "prompts_D": "data",
    "test_loss": "loss",
    "n_runs": "runs",
}
DRAWS, SIMULATED = 1000, 500


def text(q: Quantity, digits: int) -> str:
    """Return an estimate and its interval as text."""
    if q.value is None:
        return "not identified"
    ends = [None, None] if q.interval is None else q.interval
    low, high = ("…" if v is None else f"{v:.{digits}f}" for v in ends)
    return f"{q.value:.{digits}f} ({low}, {high})"


def windows(means: pd.DataFrame, single: pd.DataFrame) -> None:
    """Print K_max and N0 by X, window and loss."""
    chosen = {
        "intra: first quarter, to 72B": means[means["in_intra_fit"] == 1],
        "inter: all steps, to 32B": means[means["in_inter_fit"] == 1],
        "all steps, to 72B": means,
        "from step 12, to 72B": means[means["step"] >= 12],
        "from step 30, to 72B": means[means["step"] >= 30],
        "single runs, to 14B": single,
        "single runs from step 30": single[single["step"] >= 30],
    }
    print(f"{'window':30} {'X':8} {'K_max':22} N0")
    for name, table in chosen.items():
        for x in ("compute", "data"):
            law = fit_sizes(SizeCurves.from_table(table, x, single), DRAWS)  # type: ignore[arg-type]
            print(f"{name:30} {x:8} {text(law.K_max, 3):22} {text(law.N0, 1)}")


def simulated(uneven: float, seed: int) -> pd.DataFrame:
    """Return three runs per size of a known law, 500 questions; exponents vary by the share ``uneven``."""
    rng = np.random.default_rng(seed)
    steps = np.unique(np.geomspace(1, 105, 40).astype(int))
    parts = []
    for n in (0.5, 1.5, 3.0, 7.0, 14.0, 32.0):
        K = 0.15 / (1 + 12 / n)
        for run in range(3):
            own = K * (1 + uneven * rng.standard_normal())
            loss = 10 ** (K * (1.6 - np.log10(512.0 * 10)) - own * np.log10(steps / 10))
            answers = rng.binomial(500, np.minimum(loss, 1.0)) / 500
            columns = {"model_size": n, "run": run, "step": steps, "data": 512.0 * steps, "loss": answers}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def coverage() -> None:
    """Print how often 95 % intervals hold the truth."""
    names = ["K_max", "N0", "K(3)", "K(32)", "E(32)"]
    print(f"\n{'runs differ in K by':20}" + "".join(f"{name:>11}" for name in names))
    for uneven in (0.0, 0.1):
        held: list[list[bool]] = []
        for seed in range(SIMULATED):
            law = fit_sizes(SizeCurves.from_table(simulated(uneven, seed), "data"), seed=seed)
            K = {n: 0.15 / (1 + 12 / n) for n in (3.0, 32.0)}
            found: list[tuple[Quantity, Any]] = [
                (law.K_max, 0.15),
                (law.N0, 12.0),
                (law.K[3.0], K[3.0]),
                (law.K[32.0], K[32.0]),
                (law.E[32.0], 1.6 * K[32.0]),
            ]
            ends = [(q.interval or (None, None), true) for q, true in found]
            held.append([(a is None or a <= true) and (b is None or true <= b) for (a, b), true in ends])
        print(f"{uneven:<20.0%}" + "".join(f"{share:>11.1%}" for share in np.mean(held, axis=0)))


def main() -> None:
    """Print all tables."""
    started = time.monotonic()
    means = pd.read_csv(DATA / "tan_qwen_holdout_mean_base.csv").rename(columns=NAMES)
    single = pd.read_csv(DATA / "tan_qwen_holdout_per_run_base.csv").rename(columns=NAMES)
    windows(means, single)
    coverage()
    print(f"({time.monotonic() - started:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
