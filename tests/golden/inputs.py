"""The small files that the stored commands read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from isolaw import Runs, sweep

SWEEP = """\
[sweep]
compute = 200_000
seeds = 2
[grid]
problems_per_batch = [8]
rollouts_per_problem = [4, 8, 16, 32]
[problems]
n_train = 100
n_validation = 100
[evaluation]
points = 20
metrics = ["avg@4", "best@4", "worst@4"]
[executor]
kind = "inline"
"""
MISTAKES = SWEEP.replace("rollouts_per_problem", "rollouts_per_prblem").replace("seeds = 2", "seeds = 0")


def curves() -> pd.DataFrame:
    """Four n with two seeds each, of a saturating truth with noise."""
    rng = np.random.default_rng(0)
    parts = []
    for n in (8, 32, 128, 512):
        step = np.unique(np.geomspace(1, 1e6 / (32 * n), 30).astype(int))
        compute = step * 32 * n
        ceiling = 0.5 + 0.03 * np.log2(n / 8)
        truth = ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))
        for seed in (0, 1):
            noisy = (truth + 4e-3 * rng.standard_normal(step.size)).round(4)
            columns = {"group": n, "seed": seed, "step": step, "samples": compute, "accuracy": noisy}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def ours(table: pd.DataFrame) -> pd.DataFrame:
    """The same with isolaw's own names."""
    named = table.rename(columns={"group": "rollouts_per_problem", "samples": "compute", "accuracy": "value"})
    named["run_id"] = "n" + named["rollouts_per_problem"].astype(str) + "s" + named["seed"].astype(str)
    fixed = {"problem_set": "p", "algorithm": "grpo", "eval_set": "validation", "metric": "avg@4"}
    return named.assign(problems_per_batch=32, **fixed)


def write_simulated(folder: Path) -> None:
    """Tables of a simulated sweep, as one of two learning rates and as CSV."""
    runs = sweep(folder / "sweep.toml", folder / "elsewhere")
    rates = [
        Runs(
            runs.points.assign(run_id=runs.points["run_id"] + str(lr)),
            {run_id + str(lr): {**attribute, "lr": lr} for run_id, attribute in runs.attributes.items()},
        )
        for lr in (0.1, 0.2)
    ]
    Runs.concat(rates).to_parquet(folder / "rates.parquet")


def write(folder: Path, group: str) -> None:
    """Write what a group's commands read."""
    for name, text in {"sweep": SWEEP, "mistakes": MISTAKES}.items():
        (folder / f"{name}.toml").write_text(text)
    (folder / "broken.toml").write_text(SWEEP + "[sweep\n")
    if group == "simulated":
        write_simulated(folder)
        return
    table = curves()
    table.to_csv(folder / "curves.csv", index=False)
    own = Runs(ours(table))
    own.to_parquet(folder / "curves.parquet")
    Runs(ours(table[table["group"] < 100])).to_parquet(folder / "two.parquet")
    table.drop(columns=["samples"]).to_csv(folder / "asks.csv", index=False)
    table.rename(columns={"accuracy": "acuracy"}).to_csv(folder / "columns.csv", index=False)
    cells = table.rename(columns={"group": "n", "samples": "C"}).astype({"accuracy": object})
    cells.loc[7, "accuracy"], cells.loc[9, "n"] = "high", -3
    cells.to_csv(folder / "cells.csv", index=False)
    step = np.arange(1, 9)
    sizes = [
        pd.DataFrame(
            {"model_size": n, "step": step, "compute": 512 * step, "loss": (512.0 * step) ** (-n / 20)}
        )
        for n in (1, 3, 9, 15)
    ]
    pd.concat(sizes).to_csv(folder / "sizes.csv", index=False)
    (folder / "unreadable.parquet").write_bytes(b"PAR1" + b"x" * 100)
    (folder / "notes.html").write_text("mine")
