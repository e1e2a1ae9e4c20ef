"""How often the intervals hold the truth, and what the choices lose: python benchmarks/calibration.py

Truth: the simulator's mean reward over 400 seeds at 17 values of n, run to three times the sweeps'
compute. Its ridge is the highest point of a quartic in log2 n through those means within three doublings
of it, at 0.3, 1 and 3 times the sweeps' largest C = 3e6. Sweeps: n = 8 … 2048, B_p = 32, 1, 3 or 5 seeds,
300 validation problems, avg@4. No seed occurs in two sweeps of one size. Nothing is left out: an interval
with an open end holds what lies beyond it. The paper's method is fitted to the first 200 sweeps.

    python benchmarks/calibration.py simulate  # about 40 minutes on 2 cores; kept in benchmarks/.calibration
    python benchmarks/calibration.py fit       # about 40 minutes; kept, too
    python benchmarks/calibration.py           # both where needed, then the tables

Everything is resumable: what is in the folder is not made again.
"""

from __future__ import annotations

import sys

if sys.path[0].endswith("benchmarks"):
    del sys.path[0]  # Numba looks for a module of this file's name

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.polynomial import Polynomial
from statsmodels.stats.proportion import proportion_confint

import isolaw
from isolaw.fits.curves.families import fit_curves
from isolaw.fits.laws.compare import LAWS

FOLDER = Path(__file__).with_name(".calibration")
LEVELS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
TRUE_LEVELS = sorted({int(round(2 ** (k / 2) / 2) * 2) for k in range(6, 23)})
COMPUTE = 3e6
BUDGETS = {"0.3×": 0.3 * COMPUTE, "1×": COMPUTE, "3×": 3 * COMPUTE}
CHUNK = {"sweep": 100, "truth": 50}
FIRST = {"sweep": 0, "truth": 100_000}
SEEDS = {"sweep": 5_000, "truth": 400}
FINE = np.linspace(3.0, 11.0, 1601)
WINDOW = 3.0  # doublings about the top
METHODS: dict[str, dict[str, Any]] = {"surface": {}, "paper": {"method": "paper"}}
SWEEPS = {3: 1_000, 5: 1_000, 1: 200}  # by number of seeds
PAPER = 200  # sweeps to which the paper's method is fitted as well
CHOICES: list[tuple[Any, str, Any]] = [
    ("surface", "hill", "off"),
    ("surface", "exp", "off"),
    ("surface", "hill", 0.005),
    ("paper", "hill", "off"),
    ("paper", "hill", 0.005),
    ("paper", "exp", "off"),
    ("paper", "exp", 0.005),
]
CURVE = 128  # the n whose ceiling A is followed


def simulate(kind: str, first: int) -> Path:
    """Run one chunk of seeds, unless it is there; return where its rewards are."""
    path = FOLDER / f"{kind}-{first}.npz"
    if path.exists():
        return path
    samples = 4 if kind == "sweep" else 64
    spec = {
        "sweep": {
            "compute": COMPUTE if kind == "sweep" else 3 * COMPUTE,
            "seeds": list(range(first, first + CHUNK[kind])),
        },
        "grid": {"rollouts_per_problem": LEVELS if kind == "sweep" else TRUE_LEVELS},
        "problems": {"n_validation": 300},
        "evaluation": {"samples": samples, "metrics": [f"avg@{samples}"]},
    }
    points = isolaw.sweep(spec).points
    out = {}
    for n, own in points.groupby("rollouts_per_problem"):
        table = own.pivot_table(index="seed", columns="compute", values="value")
        out[f"compute-{n}"], out[f"reward-{n}"] = table.columns.to_numpy(float), table.to_numpy(np.float32)
    FOLDER.mkdir(exist_ok=True)
    temporary = FOLDER / f".{path.name}"
    with temporary.open("wb") as file:
        np.savez(file, **out)
    temporary.replace(path)
    return path


@cache
def load(kind: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return compute (P,) and rewards (seeds, P) of each n."""
    firsts = range(FIRST[kind], FIRST[kind] + SEEDS[kind], CHUNK[kind])
    paths = [FOLDER / f"{kind}-{first}.npz" for first in firsts]
    parts = [np.load(path) for path in paths if path.exists()]
    levels = LEVELS if kind == "sweep" else TRUE_LEVELS
    return {
        n: (parts[0][f"compute-{n}"], np.concatenate([p[f"reward-{n}"] for p in parts]).astype(float))
        for n in levels
    }


def truth() -> dict[str, Any]:
    """Return the true mean reward over FINE at each budget, its ridge, and what a sweep's A estimates."""
    data = load("truth")
    out: dict[str, Any] = {}
    for name, budget in BUDGETS.items():
        mean = []
        for compute, reward in data.values():
            # A local line in log C: rewards hardly bend within the 40 % that it sees.
            x = np.log(np.maximum(compute, 1.0)) - np.log(budget)
            weight = np.where(compute > 0, np.exp(-0.5 * (x / 0.35) ** 2), 0.0)
            mean.append(np.polyfit(x, reward.mean(axis=0), 1, w=np.sqrt(weight))[1])
        log2_n = np.log2(TRUE_LEVELS)
        # A quintic through all of them is drawn off its top by the far ends: a quartic about the top is not.
        about = FINE[Polynomial.fit(log2_n, mean, 5)(FINE).argmax()]
        near = np.abs(log2_n - about) <= WINDOW
        top = FINE[(log2_n[near].min() <= FINE) & (log2_n[near].max() >= FINE)]
        fitted = Polynomial.fit(log2_n[near], np.array(mean)[near], 4)(top)
        reward = np.where(np.isin(FINE, top), 0.0, np.interp(FINE, log2_n, mean))
        reward[np.isin(FINE, top)] = fitted
        out[name] = {
            "reward": reward,
            "log2_n": float(top[fitted.argmax()]),
            "best": float(fitted.max()),
        }
    compute, reward = load("sweep")[CURVE]
    for family in ("exp", "hill"):
        curve = fit_curves(compute, reward.mean(axis=0)[None], np.ones((1, compute.size)), family)
        out[f"A.{family}"] = float(curve.A[0])
    return out


def runs_of(data: dict[int, tuple[np.ndarray, np.ndarray]], seeds: range) -> isolaw.Runs:
    """Return one sweep as runs."""
    parts = [
        pd.DataFrame(
            {
                "run_id": f"{n}-{seed}",
                "problem_set": "easy",
                "algorithm": "grpo",
                "problems_per_batch": 32,
                "rollouts_per_problem": n,
                "seed": seed,
                "step": (compute / (32 * n)).astype(int),
                "compute": compute,
                "eval_set": "validation",
                "metric": "avg@4",
                "value": reward[seed],
            }
        )
        for n, (compute, reward) in data.items()
        for seed in seeds
    ]
    return isolaw.Runs(pd.concat(parts, ignore_index=True))


def fit_chunk(size: int, first: int) -> list[dict[str, Any]]:
    """Fit 20 sweeps of ``size`` seeds; keep what the tables need."""
    path = FOLDER / f"fits-{size}-{first}.json"
    if path.exists():
        found: list[dict[str, Any]] = json.loads(path.read_text())
        return found
    data = load("sweep")
    out = []
    for sweep in range(first, first + 20):
        runs = runs_of(data, range(sweep * size, (sweep + 1) * size))
        for name, options in METHODS.items():
            if name == "paper" and sweep >= PAPER:
                continue
            law = isolaw.fit(runs, bootstrap=400, seed=sweep, **options)
            d = law.document
            a = next(c.parameters["A"] for c in d.curves if c.rollouts_per_problem == CURVE)
            entry = {
                "sweep": sweep,
                "method": name,
                "curve": d.curve,
                "A": a.to_dict(),
                "saturation": d.params["saturation"].to_dict(),
                "preferred": d.comparison.preferred,
                "verdict": d.comparison.verdict,
                "frontier_end": d.frontier[-1].reward.value,
            }
            for budget, compute in BUDGETS.items():
                p = law.predict(compute)
                entry[budget] = {
                    "n_star": p.n_star.to_dict(),
                    "law_n": p.law_n.to_dict(),
                    "n": p.allocation.rollouts_per_problem,
                    "expected_regret": p.options[0].expected_regret,
                    "reward": p.reward.to_dict(),
                }
            out.append(entry)
    temporary = FOLDER / f".{path.name}"
    temporary.write_text(json.dumps(out))
    temporary.replace(path)
    return out


def holds(q: dict[str, Any], true: float) -> bool:
    """Whether an estimate's interval, open ends included, holds the truth."""
    low, high = q["interval"] or (None, None)
    return (low is None or low <= true) and (high is None or true <= high)


def row(label: str, quantities: list[dict[str, Any]], true: float, log2: bool) -> str:
    """One line of the table of coverage."""
    held = [holds(q, true) for q in quantities]
    low, high = proportion_confint(sum(held), len(held), method="wilson")
    scale = np.log2 if log2 else np.asarray
    widths, scores = [], []
    for q in quantities:
        ends = q["interval"] or [None, None]
        # An open end is scored as the end of the grid (for n), where it can be compared at all.
        edge = (LEVELS[0], LEVELS[-1]) if log2 else (np.nan, np.nan)
        a, b = (scale(e if e is not None else other) for e, other in zip(ends, edge, strict=True))
        t = scale(true)
        widths.append(b - a)
        scores.append((b - a) + 40 * max(a - t, 0) + 40 * max(t - b, 0))
    refused = np.mean([q["interval"] is None for q in quantities])
    one_sided = np.mean([q["interval"] is not None and None in q["interval"] for q in quantities])
    return (
        f"| {label} | {np.mean(held):.1%} | {low:.1%}–{high:.1%} | {refused:.1%} | {one_sided:.1%} | "
        f"{np.nanmedian(widths):.3g} | {np.nanmean(scores):.3g} |"
    )


def jobs() -> Iterator[tuple[int, int]]:
    """Chunks of sweeps to fit, the same share of every size at any time."""
    for first in range(0, max(SWEEPS.values()), 20):
        for size, number in SWEEPS.items():
            if first < number and (first + 20) * size <= SEEDS["sweep"]:
                yield size, first


def tables() -> None:
    """Print everything, as Markdown."""
    true = truth()
    print("Truth:", {k: round(float(2 ** true[k]["log2_n"])) for k in BUDGETS}, "\n")
    for size, number in SWEEPS.items():
        entries = []
        for first in range(0, number, 20):
            if (FOLDER / f"fits-{size}-{first}.json").exists():
                entries += fit_chunk(size, first)
        if not entries:
            continue
        for method in METHODS:
            own = [e for e in entries if e["method"] == method]
            print(f"### {size} seeds, method {method}, {len(own)} sweeps\n")
            print(
                "| estimand | coverage | Wilson | no interval | one-sided | median width | interval score |"
            )
            print("|---|---|---|---|---|---|---|")
            for budget in BUDGETS:
                n = float(2 ** true[budget]["log2_n"])
                print(row(f"n* at {budget}", [e[budget]["n_star"] for e in own], n, log2=True))
            for budget in BUDGETS:
                n = float(2 ** true[budget]["log2_n"])
                print(row(f"law's n at {budget}", [e[budget]["law_n"] for e in own], n, log2=True))
            family = max(("exp", "hill"), key=[e["curve"] for e in own].count)
            print(row(f"A of n = {CURVE}", [e["A"] for e in own], true[f"A.{family}"], log2=False))
            plateau = float(2 ** true["3×"]["log2_n"])
            print(row("plateau (at least n* at 3×)", [e["saturation"] for e in own], plateau, log2=True))
            print()
            print("| budget | bias of log2 n* | sd | expected regret | realised regret | reward's bias |")
            print("|---|---|---|---|---|---|")
            for budget in BUDGETS:
                log2_n = np.log2([e[budget]["n_star"]["value"] for e in own])
                chosen = np.log2([e[budget]["n"] for e in own])
                got = np.interp(chosen, FINE, true[budget]["reward"])
                said = np.array([e[budget]["reward"]["value"] for e in own])
                print(
                    f"| {budget} | {log2_n.mean() - true[budget]['log2_n']:+.2f} | {log2_n.std():.2f} | "
                    f"{np.mean([e[budget]['expected_regret'] for e in own]):.4f} | "
                    f"{np.mean(true[budget]['best'] - got):.4f} | {np.mean(said - got):+.4f} |"
                )
            print()
            for key in ("preferred", "verdict"):
                values = [str(e[key]) for e in own]
                shares = {v: round(values.count(v) / len(values), 3) for v in sorted(set(values))}
                print(f"{key}: {shares}")
            print()


def selection(sweeps: int = 100) -> None:
    """Print what each choice of a fit costs: winner's curse on the frontier, bias of n*, true regret."""
    true, data = truth(), load("sweep")
    end, name = true["1×"], "1×"
    print(f"### Selection effects: {sweeps} sweeps of 3 seeds, at {name}\n")
    print("| method | curve | records | frontier's reward − truth | sd | bias of log2 n* | sd | regret |")
    print("|---|---|---|---|---|---|---|---|")
    for method, curve, records in CHOICES:
        rewards, stars, lost = [], [], []
        for sweep in range(sweeps):
            runs = runs_of(data, range(3 * sweep, 3 * sweep + 3))
            law = isolaw.fit(runs, method=method, curve=curve, records=records, bootstrap=0)
            point = law.document.frontier[-1]
            n = np.log2(point.n_star.value)
            rewards.append(point.reward.value - end["best"])
            stars.append(n - end["log2_n"])
            lost.append(end["best"] - np.interp(n, FINE, end["reward"]))
        print(
            f"| {method} | {curve} | {records} | {np.mean(rewards):+.4f} | {np.std(rewards):.4f} | "
            f"{np.mean(stars):+.2f} | {np.std(stars):.2f} | {np.mean(lost):.4f} |"
        )
    print()


def quoted(sweeps: int = 100) -> None:
    """Print how far the preferred law, with the parameters that are quoted, lies from the true n*."""
    true, data = truth(), load("sweep")
    print(f"### The law as it is quoted: {sweeps} sweeps\n")
    print("| seeds | budget | sweeps | bias of log2 n | median | sd | exponent's interval, median |")
    print("|---|---|---|---|---|---|---|")
    for size in (3, 5):
        found = {name: [] for name in BUDGETS}
        widths = []
        for sweep in range(sweeps):
            runs = runs_of(data, range(size * sweep, size * sweep + size))
            comparison = isolaw.fit(runs, bootstrap=200, seed=sweep).document.comparison
            law = comparison.laws[comparison.preferred]
            if comparison.preferred == "power":
                widths.append(np.log10(2) * np.ptp(law.interval[1]))
            for name, budget in BUDGETS.items():
                log2_n = LAWS[comparison.preferred][1](np.log10([budget]), np.array(law.theta))
                found[name].append(log2_n[0] - true[name]["log2_n"])
        for name, own in found.items():
            print(
                f"| {size} | {name} | {len(own)} | {np.mean(own):+.2f} | {np.median(own):+.2f} | "
                f"{np.std(own):.2f} | {np.median(widths):.2f} |"
            )
    print()


def main(argument: str) -> None:
    """Simulate, fit, and print, as far as asked."""
    for kind in ("truth", "sweep") if argument in ("simulate", "all") else ():
        for first in range(FIRST[kind], FIRST[kind] + SEEDS[kind], CHUNK[kind]):
            if not (FOLDER / f"{kind}-{first}.npz").exists():
                simulate(kind, first)
                print(f"simulated {kind} {first}", file=sys.stderr)
    if argument in ("fit", "all"):
        wanted = list(jobs())
        with ProcessPoolExecutor(2) as pool:
            for i, _ in enumerate(pool.map(fit_chunk, *zip(*wanted, strict=True))):
                print(f"fitted {i + 1} of {len(wanted)}", file=sys.stderr, flush=True)
    if argument in ("tables", "all"):
        tables()
        selection()
        quoted()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "all")
