"""The public sweep over B_p and lr: is the critical batch steady, and do quarter runs choose well?

``python -m benchmarks.critical_batch`` writes the table of docs/critical-batch.md (`examples/data/README.md`
has the source of the runs).

*Steady*: the critical batch at five targets, by isolaw and by the usual method, least squares in log N
through the fastest run of each B_p (of all its lr, at its first evaluation above the target). Both are
repeated forty times with a tenth of the runs left out: the deviation of log B_crit shows how much a few other
runs would have changed.

*Covered*: sweeps of 40 runs (eight B_p, five lr) are simulated from the model itself, with the critical batch
200, 400 and 800 at three targets; others at n = 4, 16 and 64 have an lr that follows √B_p.

*Chosen*: every run is cut at a quarter of its compute. A method chooses a (B_p, lr), and pays the rollouts
that its whole runs needed to reach .55: their geometric mean, or a bound if one did not reach it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares, minimize

import isolaw
from isolaw.evidence import Quantity
from isolaw.fits.curves.learning_curves import WIDTH, fit_curves, record_mask
from isolaw.fits.studies.target_model import TargetData, TargetModel
from isolaw.fits.studies.targets import crossing

ROOT = Path(__file__).parents[1]
RUNS = "examples/data/critical-batch.parquet"
SUMMARY = Path(__file__).with_suffix(".json")
DOCS = ROOT / "docs" / "critical-batch.md"
TARGETS = (0.4, 0.45, 0.5, 0.55, 0.6)
EARLY = (0.4, 0.45, 0.5)  # targets within the reach of quarter runs
GOAL = 0.55
REPEATS = 40
Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
Cut = list[tuple[int, float, NDArray[np.float64], NDArray[np.float64]]]  # B_p, lr, compute, reward


def runs() -> tuple[pd.DataFrame, list[Curve]]:
    """Return a row for each run of at least three evaluations, and its curve."""
    read = isolaw.read(ROOT / RUNS)
    by_run = dict(tuple(read.points.sort_values("compute").groupby("run_id")))
    table = read.table()
    table = table[[len(by_run[run_id]) >= 3 for run_id in table.index]]
    return table, [
        (by_run[r]["compute"].to_numpy(float), by_run[r]["value"].to_numpy(float)) for r in table.index
    ]


def data(table: pd.DataFrame, curves: list[Curve], targets: tuple[float, ...]) -> TargetData:
    """Return the rollouts that the runs need to targets, with a block for each recipe."""
    found = np.array([[crossing(*curve, target) for target in targets] for curve in curves])
    begun, ends = (np.array([curve[0][curve[0] > 0][i] for curve in curves]) for i in (0, -1))
    recipe = table["kl"].astype(str) + table["fixed"].astype(str)
    order = {name: i for i, name in enumerate(recipe.value_counts().index)}
    return TargetData(
        np.array(targets),
        np.log(np.where(found > 0, found, np.where(found == 0, begun[:, None], ends[:, None]))),
        found > 0,
        table["problems_per_batch"].to_numpy(float),
        table["rollouts_per_problem"].to_numpy(float),
        table["lr"].to_numpy(float),
        recipe.map(order).to_numpy(),
        found == 0,
    )


def first_evaluation(compute: NDArray[np.float64], reward: NDArray[np.float64], target: float) -> float:
    """Return where the line between evaluations first crosses a target; NaN if it does not."""
    above = np.flatnonzero(reward >= target)
    if not above.size or not above[0]:
        return math.nan
    i = above[0]
    return float(np.interp(target, reward[i - 1 : i + 1], compute[i - 1 : i + 1]))


def usual(table: pd.DataFrame, curves: list[Curve], target: float) -> float:
    """Return B_crit by the usual method: through the fastest run of each B_p."""
    n = pd.Series([first_evaluation(*curve, target) for curve in curves])
    fastest = n.groupby(table["problems_per_batch"].to_numpy()).min().dropna()
    b, log_n = fastest.index.to_numpy(float), np.log(fastest.to_numpy())

    def left(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(log_n - theta[0] - np.log1p(b / np.exp(theta[1])))

    fits = [least_squares(left, [log_n.min(), start]) for start in np.log([30, 300, 3000, 30000])]
    return float(np.exp(min(fits, key=lambda fit: fit.cost).x[1]))


def log_critical(model: TargetModel, target: float) -> float:
    """Return log B_crit for a target reward, which can be beyond the data."""
    return float(model._line(model.theta, "bc", model._scaled(target))[0])


def excess(model: TargetModel, problems: float, rollouts: float, target: float, lr: float) -> float:
    """Return log N − log N_min at (B_p, n) and an lr, for a target that can be beyond the data."""
    away = math.log(lr / model.best_lr(problems, rollouts, target))
    valley = math.exp(model.theta[model.at["p"]]) * float(np.logaddexp(away, -away) - math.log(2))
    return float(np.logaddexp(0.0, math.log(problems) - log_critical(model, target))) + valley


def steady() -> list[dict[str, Any]]:
    """Return the critical batch by target."""
    table, curves = runs()
    model = TargetModel(data(table, curves, TARGETS), "critical")
    rows = []
    for j, target in enumerate(TARGETS):
        q = model.critical_batch(j)
        rows.append({"target": target, "isolaw": q.to_dict(), "usual": usual(table, curves, target)})
    rng = np.random.default_rng(0)
    again: list[list[tuple[float, float]]] = []
    for _ in range(REPEATS):
        kept = np.sort(rng.permutation(len(table))[: round(0.9 * len(table))])
        part, own = table.iloc[kept], [curves[i] for i in kept]
        fit = TargetModel(data(part, own, TARGETS), "critical")
        again.append([(math.exp(log_critical(fit, t)), usual(part, own, t)) for t in TARGETS])
    deviation = np.log(np.array(again)).std(axis=0, ddof=1)
    for row, (mine, theirs) in zip(rows, deviation.tolist(), strict=True):
        row |= {"deviation": {"isolaw": mine, "usual": theirs}}
    return rows


def simulated(
    rng: np.random.Generator, ns: tuple[int, ...] = (8,), critical: tuple[float, ...] = (200, 400, 800)
) -> TargetData:
    """Return a sweep whose best lr is 1e-6 √B_p."""
    places = [
        (b, n, 1e-6 * b**0.5 * f)
        for b in 2.0 ** np.arange(1, 12, 1.5)
        for n in ns
        for f in (0.25, 0.5, 1, 2, 4)
    ]
    b, n, lr = np.array(places).T
    own = rng.normal(0, 0.25, b.size)
    away = np.log(lr / (1e-6 * b**0.5))
    log_n = np.log([1e5, 2e5, 5e5]) + np.log1p(b[:, None] / np.array(critical))
    log_n = log_n + (0.9 * np.log(np.cosh(away)) + own)[:, None] + rng.normal(0, 0.1, (b.size, 3))
    end = np.log(3e6 * np.exp(rng.normal(0, 0.5, b.size)))[:, None]
    reached = log_n < end
    targets = np.array([0.4, 0.5, 0.6])
    return TargetData(targets, np.where(reached, log_n, end), reached, b, n, lr, np.zeros(b.size, dtype=int))


def covered(repeats: int = 60) -> dict[str, float]:
    """Return how often 95 % intervals hold the truth, and how often a rule of the lr is rejected."""

    def holds(q: Quantity, truth: float) -> bool:
        low, high = q.interval or (None, None)
        return (low is None or low <= truth) and (high is None or truth <= high)

    rows = []
    for seed in range(repeats):
        own = simulated(np.random.default_rng(seed))
        model = TargetModel(own, "critical")
        row = {f"B_crit = {b}": holds(model.critical_batch(j), b) for j, b in enumerate((200, 400, 800))}
        row["alpha"] = holds(TargetModel(own, "cells").exponent("alpha", 1), 0.5)
        cells = TargetModel(simulated(np.random.default_rng(1000 + seed), (4, 16, 64)), "cells")
        row["beta"] = holds(cells.exponent("beta", 1), 0.0)
        p = cells.p_values()
        rows.append(
            {**row, "sqrt rejected": p["sqrt"] < 0.05, "sqrt_problems rejected": p["sqrt_problems"] < 0.05}
        )
    return {name: float(share) for name, share in pd.DataFrame(rows).mean().items()}


def by_isolaw(table: pd.DataFrame, cut: Cut) -> tuple[int, float]:
    """Choose the least N of the model, among the (B_p, lr) with a run that reaches a target."""
    own = data(table, [(c, r) for _, _, c, r in cut], EARLY)
    model = TargetModel(own, "critical")
    seen = {(b, lr) for (b, lr, _, _), r in zip(cut, own.reached.any(axis=1), strict=True) if r}
    return min(sorted(seen), key=lambda cell: excess(model, cell[0], 16, GOAL, cell[1]))


def by_paper(table: pd.DataFrame, cut: Cut) -> tuple[int, float]:
    """Choose the exponential curve through record points that reaches the goal first, or ends highest."""
    best: dict[tuple[int, float], tuple[float, float]] = {}
    for b, lr, c, r in cut:
        kept = record_mask(r[None], WIDTH)[0].astype(bool)
        if kept.sum() < 5:
            continue
        curve = fit_curves(c[kept], r[None, kept], np.ones((1, kept.sum())), "exp")
        grid = np.geomspace(c[-1] / 100, c[-1] * 100, 4000)
        at = first_evaluation(grid, curve(grid)[0], GOAL)
        best[b, lr] = min(
            best.get((b, lr), (np.inf, 0.0)), (at if at == at else np.inf, -float(curve(c[-1])[0, 0]))
        )
    return min(sorted(best), key=lambda cell: best[cell])


def by_measured(table: pd.DataFrame, cut: Cut) -> tuple[int, float]:
    """Choose the first evaluation above the highest target that three runs reach."""
    for target in np.arange(0.6, 0.3, -0.01):
        at = {(b, lr, i): first_evaluation(c, r, target) for i, (b, lr, c, r) in enumerate(cut)}
        at = {key: n for key, n in at.items() if n == n}
        if len(at) >= 3:
            return min(at, key=lambda key: at[key])[:2]
    raise ValueError("no target is reached")


def by_parabola(table: pd.DataFrame, cut: Cut) -> tuple[int, float]:
    """Choose by IsoFLOP: at the median end, a parabola in log B_p through the best lr of each."""
    at = float(np.median([c[-1] for _, _, c, _ in cut]))
    best: dict[int, tuple[float, float]] = {}
    for b, lr, c, r in cut:
        if c[-1] >= at:
            best[b] = max(best.get(b, (-np.inf, 0.0)), (float(np.interp(at, c, r)), lr))
    b = np.array(sorted(best))
    bend, slope, _ = np.polyfit(np.log(b), [best[x][0] for x in b], 2)
    top = np.exp(-slope / (2 * bend)) if bend < 0 else b[np.argmax([best[x][0] for x in b])]
    near = int(b[np.abs(np.log(b / top)).argmin()])
    return near, best[near][1]


def by_process(table: pd.DataFrame, cut: Cut) -> tuple[int, float]:
    """Choose by a plain Gaussian process over (log B_p, log lr, log C): the highest mean near the goal."""
    rows = [
        (np.log(b), np.log(lr), np.log(c[i]), r[i])
        for b, lr, c, r in cut
        for i in np.unique(np.geomspace(1, len(c) - 1, 8).round().astype(int))
    ]
    x, y = np.array(rows)[:, :3], np.array(rows)[:, 3]
    scaled, mean = (x - x.mean(axis=0)) / x.std(axis=0), y.mean()

    def kernel(a: Any, b: Any, theta: Any) -> Any:
        return np.exp(theta[3] - 0.5 * (((a[:, None] - b) / np.exp(theta[:3])) ** 2).sum(axis=2))

    def loss(theta: Any) -> float:
        k = kernel(scaled, scaled, theta) + np.exp(theta[4]) * np.eye(y.size)
        factor = cho_factor(k + 1e-8 * np.eye(y.size), lower=True)
        z = y - mean
        return float(0.5 * z @ cho_solve(factor, z) + np.log(np.diag(factor[0])).sum())

    theta = minimize(loss, [0, 0, 0, -3, -7], method="Nelder-Mead", options={"maxiter": 150}).x
    k = kernel(scaled, scaled, theta) + (np.exp(theta[4]) + 1e-8) * np.eye(y.size)
    weights = np.linalg.solve(k, y - mean)
    cells = sorted({(b, lr) for b, lr, _, _ in cut})
    goal = np.array([(np.log(b), np.log(lr), np.log(7e5)) for b, lr in cells])
    return cells[int((kernel((goal - x.mean(axis=0)) / x.std(axis=0), scaled, theta) @ weights).argmax())]


METHODS: dict[str, Callable[[pd.DataFrame, Cut], tuple[int, float]]] = {
    "isolaw": by_isolaw,
    "paper (exponential curves)": by_paper,
    "best measured": by_measured,
    "IsoFLOP parabola": by_parabola,
    "plain Gaussian process": by_process,
}


def chosen() -> dict[str, Any]:
    """Return each method's choice from quarter runs, and the rollouts that it needs."""
    table, curves = runs()
    needs: dict[tuple[int, float], list[tuple[float, bool]]] = {}
    cut: Cut = []
    kept = []
    shapes = zip(table["problems_per_batch"], table["lr"], curves, strict=True)
    for i, (b, lr, (c, r)) in enumerate(shapes):
        at = crossing(c, r, GOAL)
        needs.setdefault((int(b), float(lr)), []).append((at, True) if at == at else (float(c[-1]), False))
        early = c <= c[-1] / 4
        if early.sum() >= 3:
            cut.append((int(b), float(lr), c[early], r[early]))
            kept.append(i)
    cost = {
        cell: (float(np.exp(np.mean(np.log([n for n, _ in need])))), sum(ok for _, ok in need), len(need))
        for cell, need in needs.items()
    }
    whole = [cell for cell, (_, reached, count) in cost.items() if reached == count]
    best = min(whole, key=lambda cell: cost[cell][0])

    def entry(method: str, cell: tuple[int, float]) -> dict[str, Any]:
        rollouts, reached, count = cost[cell]
        own = {"method": method, "B_p": cell[0], "lr": cell[1], "rollouts": rollouts}
        return {**own, "reached": reached, "runs": count}

    rows = [entry(name, method(table.iloc[kept], cut)) for name, method in METHODS.items()]
    fastest = min(n for need in needs.values() for n, ok in need if ok)
    return {"best": entry("best of the complete runs", best), "fastest": fastest, "rows": rows}


def table(found: dict[str, Any]) -> list[str]:
    """Return the choices from quarter runs in Markdown."""
    best = found["chosen"]["best"]
    out = ["| method | B_p | lr | runs that reach .55 | rollouts to .55 | more than the best |"]
    out.append("|---|---|---|---|---|---|")
    for row in (*found["chosen"]["rows"], best):
        bound = "> " * (row["reached"] < row["runs"])
        more = 100 * (row["rollouts"] / best["rollouts"] - 1)
        told = "" if bound and more <= 0 else f"{bound}{more:.0f} %"
        cells = f"{row['lr']:.2g} | {row['reached']} of {row['runs']} | {bound}{row['rollouts']:,.0f}"
        out.append(f"| {row['method']} | {row['B_p']} | {cells} | {told} |")
    return out


def main() -> None:
    """Measure, and write the summary and the table."""
    found = {"steady": steady(), "chosen": chosen(), "covered": covered()}
    SUMMARY.write_text(json.dumps(found, indent=1) + "\n")
    text = DOCS.read_text()
    head, _, rest = text.partition("<!-- tables -->\n")
    tail = rest.partition("<!-- end -->\n")[2]
    body = "\n".join(table(found))
    DOCS.write_text(f"{head}<!-- tables -->\n{body}\n<!-- end -->\n{tail}")


if __name__ == "__main__":
    main()
