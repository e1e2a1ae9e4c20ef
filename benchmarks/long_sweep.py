"""Does n*(C) rise in the long sweep? ``python -m benchmarks.long_sweep`` writes tables of docs/real-sweep.md.

Rewards are means over the evaluations within a factor of 1.25 of C (`benchmarks.evidence.by_seed`). Two n are
compared seed by seed, since runs of one seed see the same problems in the same order: the mean difference d
over S seeds has the 95 % interval d ± t s / √S, with t from Student's distribution with S − 1 degrees of
freedom.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

import isolaw
from benchmarks.evidence import DATA, RealSweep, by_seed
from isolaw.runs import Runs

DOCS = Path(__file__).parents[1] / "docs" / "real-sweep.md"
BEGIN, END = "<!-- long:begin -->", "<!-- long:end -->"
COMPUTES = (10_240, 40_960, 102_400, 204_800, 409_600, 1_024_000)
LR = 5e-4
RETUNED = 102_400  # where the runs with other lr and B_p end


def difference(own: dict[int, float], other: dict[int, float]) -> tuple[float, float] | None:
    """Return the mean difference over shared seeds and the half width of its interval; None for one seed."""
    shared = sorted(own.keys() & other.keys())
    if len(shared) < 2:
        return None
    d = np.array([own[seed] - other[seed] for seed in shared])
    half = stats.t.ppf(0.975, d.size - 1) * d.std(ddof=1) / np.sqrt(d.size)
    return float(d.mean()), float(half)


def tables(runs: Runs) -> str:
    """Return rewards by n and C, and the differences to the smallest n, as Markdown."""
    found = {
        c: by_seed(runs, c, RealSweep("", "", fixed={"lr": LR}))
        for c in COMPUTES
        if c <= runs.points["compute"].max()
    }
    levels = sorted(runs.points["rollouts_per_problem"].unique())
    head = "| C | " + " | ".join(f"n = {n}" if n == levels[0] else str(n) for n in levels) + " |"
    out = [head, "|--:|" + "--:|" * len(levels)]
    for c, result in found.items():
        means = {n: np.mean(list(seeds.values())) for n, seeds in result.items()}
        best = max(means, key=means.__getitem__)
        cells = [f"{c:,}"]
        for n in levels:
            text = f"{means[n]:.3f}" if n in means else ""
            few = f" ({len(result[n])})" if n in result and len(result[n]) < 3 else ""
            cells.append((f"**{text}**" if n == best else text) + few)
        out.append("| " + " | ".join(cells) + " |")
    others = levels[1:5]
    out += ["", f"| C | n = {others[0]} minus n = {levels[0]} | " + " | ".join(map(str, others[1:])) + " |"]
    out.append("|--:|" + "--:|" * len(others))
    for c, result in found.items():
        cells = [f"{c:,}"]
        for n in others:
            apart = difference(result.get(n, {}), result.get(levels[0], {}))
            cells.append("" if apart is None else f"{apart[0]:+.3f} ± {apart[1]:.3f}")
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def retuned(runs: Runs, others: Runs) -> str:
    """Return rewards by lr and n at `RETUNED`, with standard errors over seeds, as Markdown."""
    batch, levels = ([int(x) for x in sorted(others.points[value].unique())] for value in
        ("problems_per_batch", "rollouts_per_problem"))  # fmt: skip
    rows = [(others, b, float(lr)) for b in batch for lr in sorted(others.table()["lr"].unique())]
    rows = [row for row in rows if (row[1] == batch[0]) != (row[2] == LR)] + [(runs, batch[0], LR)]
    out = ["| B_p | lr at B = 1,024 | " + " | ".join(f"n = {n}" for n in levels) + " |"]
    out.append("|--:|--:|" + "--:|" * len(levels))
    for source, b, lr in sorted(rows, key=lambda row: row[1:]):
        own = by_seed(source, RETUNED, RealSweep("", "", fixed={"lr": lr, "problems_per_batch": b}))
        means = {n: (np.mean(v := list(own[n].values())), np.std(v, ddof=1) / len(v) ** 0.5) for n in levels}
        cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in means.values()]
        out.append(f"| {b} | {lr:g} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def both() -> str:
    """Return all tables of the page."""
    runs = isolaw.read(DATA / "real-long.parquet")
    more = retuned(runs, isolaw.read(DATA / "real-long-lr.parquet"))
    return (
        f"{tables(runs)}\n\navg@4 at C = {RETUNED:,} with other lr and B_p, ± one standard error:\n\n{more}"
    )


def main() -> None:
    """Write the tables into the page."""
    before, rest = DOCS.read_text().split(BEGIN)
    found = both()
    DOCS.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
