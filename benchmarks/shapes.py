"""Comparisons of two configurations, judged by the truth: ``python -m benchmarks.shapes``

`isolaw.compare_shapes` states the difference of two rewards with a 95 % interval, and a probability. How
often does the interval hold the difference, and how often is a claim (a probability of 95 % or more) right?

- **Simulated sweeps** of the truths of ``benchmarks/designs`` that the surface was not tuned on. The pairs
  are neighbours in n, and n four times apart; both have runs, or all runs of one are left out, or the budget
  is three times the runs' compute.
- **The paper's curves** (arXiv 2603.12151, as drawn, one B_p at a time): every n but the ends left out in
  turn, and compared with the n below it. The drawn curves have no noise.
- **isolaw's recorded sweep**: the same, with two runs a configuration. The outcome is the mean of the
left-out runs over the last tenth of their checkpoints; its own variance is added.

The table goes to docs/statistics.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import isolaw
from benchmarks.designs.cells import cells, sample
from benchmarks.designs.truths import COMPUTE, truth
from isolaw.fits.metric import bounds
from isolaw.fits.selection import Configuration, select
from isolaw.fits.studies.shapes import DrawnShapes
from isolaw.fits.surface.estimate import Surface, estimate

DATA = Path(__file__).parents[1] / "examples" / "data"
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = Path(__file__).parents[1] / "docs" / "statistics.md"
DRAWS, SURE = 200, 0.95
Row = dict[str, Any]


def run_variance(surface: Surface) -> float:
    """Return the variance of a run's reward about the mean over runs of all seeds."""
    model, parameters = surface.model, surface.model.by_name(surface.mode)
    variance = sum(np.exp(2 * parameters[name]) for name in ("run", "drift", "noise")) * model.scale**2
    return float(variance + np.exp(2 * parameters["seed"]) * model.observations.seed_variance)


def judged(
    group: str,
    known: list[Configuration],
    pair: tuple[tuple[int, int], tuple[int, int]],
    compute: float,
    true: float,
    runs: int = 0,
    cache: dict[int, Any] | None = None,
) -> Row:
    """Return isolaw's statement about a pair, and whether it holds; ``true`` averages ``runs`` (0: exact)."""
    kept = {} if cache is None else cache
    if id(known) not in kept:
        kept[id(known)] = estimate(known, DRAWS, 0, bounds("avg@4", known))
    drawn = DrawnShapes(kept[id(known)], pair, known)
    reward = drawn.rewards((compute, compute), [])
    difference = reward[1:, 0] - reward[1:, 1]
    p = float(np.mean(difference > 0))
    noise = np.sqrt(2 * run_variance(drawn.surface) / runs) if runs else 0.0
    seen = difference + noise * np.random.default_rng(0).standard_normal(difference.size)
    low, high = np.quantile(seen, [0.025, 0.975])
    return {
        "group": group,
        "held": bool(low <= true <= high),
        "width": float(np.diff(np.quantile(difference, [0.025, 0.975]))[0]),
        "error": abs(float(difference.mean()) - true),
        "claims": bool(max(p, 1 - p) >= SURE),
        "right": bool((p > 0.5) == (true > 0)),
    }


def simulated(repetitions: int) -> Iterator[Row]:
    """Yield rows of simulated sweeps."""
    for cell in cells(half="judging"):
        if cell.hold == "B" or cell.noise == "simulator":
            continue
        mean = truth(cell.truth)
        for index in range(repetitions):
            runs = sample(cell, index)
            configurations = select(runs, "avg@4", "validation", "nothing", allow_few=True).configurations
            cache: dict[int, Any] = {}
            keys = sorted({c.key for c in configurations})
            rng = np.random.default_rng(index)
            batch = int(rng.choice([b for b, _ in keys]))
            line = sorted(n for b, n in keys if b == batch)
            if len(line) < 4:
                continue
            at = int(rng.integers(1, len(line) - 1))
            near, far = (batch, line[at]), (batch, line[at - 1])
            reach = min(c.end for c in configurations if c.key in (near, far))
            without = [c for c in configurations if c.key != near]

            def true(compute: float, mean: Any = mean, pair: Any = (near, far)) -> float:
                a, b = (float(mean(np.log2(n), np.log2(b), np.array([compute]))[0]) for b, n in pair)
                return a - b

            pair = near, far
            yield judged("simulated: both have runs", configurations, pair, reach, true(reach), 0, cache)
            yield judged("simulated: one has none", without, pair, reach, true(reach), 0, cache)
            later = min(3 * reach, 3 * COMPUTE)
            yield judged("simulated: 3 times further", configurations, pair, later, true(later), 0, cache)


def left_out(group: str, configurations: list[Configuration], runs: int) -> Iterator[Row]:
    """Yield rows of every n but the ends, compared without its runs with the n below it."""
    line = sorted(configurations, key=lambda c: c.rollouts_per_problem)
    for below, later in list(pairwise(line))[:-1]:
        end = min(below.end, later.end)
        if runs:
            rewards = [c.reward[(c.compute >= 0.9 * end) & (c.compute <= end)].mean() for c in (later, below)]
        else:
            rewards = [np.interp(end, c.checkpoints, c.mean) for c in (later, below)]
        known = [c for c in line if c is not later]
        yield judged(group, known, (later.key, below.key), end, float(rewards[0] - rewards[1]), runs)


def paper() -> Iterator[Row]:
    """Yield rows of the curves of a figure."""
    table = pd.read_csv(DATA / "frontier_curves_appx_fixBprob_easy.csv")
    table = table.groupby(["B_p", "n", "compute_rollouts"], as_index=False)["validation_reward"].mean()
    for _, panel in table.groupby("B_p"):
        curves = []
        for (b, n), rows in panel.groupby(["B_p", "n"]):
            compute, reward = (
                rows["compute_rollouts"].to_numpy(float),
                rows["validation_reward"].to_numpy(float),
            )
            run = np.zeros(reward.size, int)
            curves.append(Configuration(int(b), int(n), compute, reward, run, (0,), float(b * n)))
        yield from left_out("the paper's curves: one has none", curves, 0)


def recorded() -> Iterator[Row]:
    """Yield rows of the recorded sweep."""
    runs = isolaw.read(DATA / "real-arithmetic.parquet")
    for kind in ("easy", "hard"):
        fixed = {"problem_set": kind, "lr": 1e-3}
        own = select(runs, "avg@4", "validation", "nothing", fixed, allow_few=True).configurations
        yield from left_out("the recorded sweep: one has none", own, 2)


def summary(rows: list[Row]) -> list[Row]:
    """Return a row for each group."""
    table = pd.DataFrame(rows)
    out = []
    for group, item in table.groupby("group", sort=False):
        claims = item[item["claims"]]
        out.append(
            {
                "group": group,
                "pairs": len(item),
                "held": float(item["held"].mean()),
                "width": float(item["width"].median()),
                "error": float(item["error"].median()),
                "claims": len(claims),
                "right": float(claims["right"].mean()) if len(claims) else None,
            }
        )
    return out


def table(rows: list[Row]) -> list[str]:
    """Return the table of the docs."""
    out = [
        "| pairs | how many | in the 95 % interval | its width, median | error, median | claims | right |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        right = "" if r["right"] is None else f"{r['right']:.0%}"
        out.append(
            f"| {r['group']} | {r['pairs']} | {r['held']:.0%} | {r['width']:.3f} | {r['error']:.4f} | "
            f"{r['claims']} | {right} |"
        )
    return out


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shapes", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--tables", action="store_true", help="only write the kept table into the docs")
    parser.add_argument("--repetitions", type=int, default=3, help="sweeps of each simulated design")
    options = parser.parse_args(arguments)
    if not options.tables:
        real = [*recorded(), *paper()]
        rows = [*simulated(options.repetitions), *real]
        SUMMARY.write_text(json.dumps({"first": real[0], "rows": summary(rows)}, indent=1) + "\n")
    begin, end = "<!-- shapes -->", "<!-- /shapes -->"
    before, rest = DOCS.read_text().split(begin)
    lines = table(json.loads(SUMMARY.read_text())["rows"])
    DOCS.write_text(before + "\n".join([begin, "", *lines, "", end]) + rest.split(end)[1])


if __name__ == "__main__":
    main()
