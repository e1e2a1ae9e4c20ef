"""Fits per second, side by side: python benchmarks/fits.py

It times the refits of a bootstrap of 1,000 draws: 45 configurations (B_p in 32..512, n in 8..2,048), 60
checkpoints, rewards the mean of 3 simulated seeds, drawn anew in each draw. Solved by

    isolaw      `isolaw.fits.curves.learning_curves.fit_curves`, all of them; it is given no starting values
    curve_fit   a loop of `scipy.optimize.curve_fit` (Levenberg–Marquardt), started from the truth
    lmfit       a loop of `lmfit.Model.fit` (the same), started from the truth

The loops solve a random sample of the same refits, in turns with isolaw's runs, and their time is multiplied
up; a machine that others use slows all three. Wall-clock time is isolaw on all cores against a loop on one;
CPU time is core against core. "excess" is each method's sum of squares over the best of the three on one
refit, the largest of the sample. curve_fit and lmfit search without bounds; refits whose best lies outside
isolaw's search, or on its edge (isolaw then says so), are counted and kept apart.

Then the whole of `isolaw.fit` on the same sweep: 3 seeds, joint hold, 1,000 draws.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lmfit
import numpy as np
import pandas as pd
from scipy.optimize import OptimizeWarning, curve_fit

import isolaw
from isolaw.fits.curves.learning_curves import FAMILIES, fit_curves
from isolaw.fits.curves.varpro import FitStatus

BATCHES, LEVELS = [32, 64, 128, 256, 512], [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
DRAWS, SEEDS, CHECKPOINTS, COMPUTE = 1000, 3, 60, 1e8
EVALUATIONS = 300 * 4  # avg@4 on 300 problems
ROUNDS, SAMPLE = 3, {"curve_fit": 200, "lmfit": 60}  # sample in each round
Floats = np.ndarray


def exp(compute: Floats, R0: float, A: float, tau: float) -> Floats:
    """Return the saturating exponential."""
    return A - (A - R0) * np.exp(-compute / tau)


def hill(compute: Floats, R0: float, A: float, C_mid: float, B: float) -> Floats:
    """Return the Hill curve."""
    power = compute**B
    return R0 + (A - R0) * power / (power + C_mid**B)


EQUATIONS: dict[str, Callable[..., Floats]] = {"exp": exp, "hill": hill}


class Configuration(NamedTuple):
    """One (B_p, n): its checkpoints, its true curve by parameter, the rewards of its three seeds (3, P)."""

    problems_per_batch: int
    rollouts_per_problem: int
    steps: np.ndarray
    truth: dict[str, float]
    reward: Floats

    @property
    def compute(self) -> Floats:
        """C at the checkpoints, (P,)."""
        return self.steps * float(self.problems_per_batch * self.rollouts_per_problem)


def sweep(family: str, seed: int = 0) -> list[Configuration]:
    """Simulate the sweep: larger batches rise later and end higher."""
    rng = np.random.default_rng(seed)
    out = []
    for batch in BATCHES:
        for n in LEVELS:
            last = int(COMPUTE // (batch * n))
            points = CHECKPOINTS
            while (steps := np.unique(np.geomspace(1, last, points).round())).size < CHECKPOINTS - 1:
                points += 1
            chosen = np.linspace(0, steps.size - 1, CHECKPOINTS - 1).round().astype(int)
            steps = np.concatenate([[0.0], steps[chosen]])
            middle = 1.5e5 * (n / 8) ** 0.7 * (batch / 32) ** 0.4
            truth = {"R0": 0.35, "A": 0.52 + 0.03 * np.log2(n / 8) - 0.005 * np.log2(batch / 32)}
            truth |= {"tau": middle} if family == "exp" else {"C_mid": middle, "B": 1.2}
            mean = EQUATIONS[family](steps * batch * n, **truth)
            reward = rng.binomial(EVALUATIONS, mean, (SEEDS, CHECKPOINTS)) / EVALUATIONS
            out.append(Configuration(batch, n, steps, truth, reward))
    return out


def draws(configuration: Configuration, rng: np.random.Generator) -> Floats:
    """Return the seeds' mean with their scatter drawn anew, (DRAWS, P)."""
    scatter = configuration.reward.std(axis=0, ddof=1).mean() / np.sqrt(SEEDS)
    return configuration.reward.mean(axis=0) + scatter * rng.standard_normal((DRAWS, CHECKPOINTS))


Task = tuple[Configuration, Floats]  # a configuration, and one draw of its rewards


def by_curve_fit(family: str, tasks: list[Task]) -> Iterator[list[float]]:
    """Yield the parameters of each refit."""
    for c, y in tasks:
        try:
            yield curve_fit(EQUATIONS[family], c.compute, y, list(c.truth.values()))[0].tolist()
        except RuntimeError:  # no convergence
            yield [np.nan] * len(c.truth)


def by_lmfit(family: str, tasks: list[Task]) -> Iterator[list[float]]:
    """Yield the parameters of each refit."""
    model = lmfit.Model(EQUATIONS[family])
    for c, y in tasks:
        yield list(model.fit(y, compute=c.compute, **c.truth).best_values.values())


LOOPS = {"curve_fit": by_curve_fit, "lmfit": by_lmfit}


class Clock(NamedTuple):
    """Wall-clock and CPU seconds, since the machine's start or between two readings."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        """Read the clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Clock:
        """Return the seconds between two readings."""
        now = self.now()
        return Clock(now.wall - self.wall, now.cpu - self.cpu)


def refits(family: str) -> None:
    """Print the table of one family."""
    rng = np.random.default_rng(1)
    configurations = sweep(family)
    rewards = [draws(c, rng) for c in configurations]
    ones = np.ones((1, CHECKPOINTS))
    fit_curves(configurations[0].compute, rewards[0][:2], ones, family)  # compiled, or read from disk
    total = len(configurations) * DRAWS
    seconds: dict[str, list[Clock]] = {"isolaw": [], "curve_fit": [], "lmfit": []}
    errors: dict[str, list[float]] = {name: [] for name in seconds}
    apart = 0
    for _ in range(ROUNDS):
        start = Clock.now()
        ours = [fit_curves(c.compute, y, ones, family) for c, y in zip(configurations, rewards, strict=True)]
        seconds["isolaw"].append(start.since())
        at = [(int(rng.integers(len(rewards))), int(rng.integers(DRAWS))) for _ in range(SAMPLE["curve_fit"])]
        tasks = [(configurations[i], rewards[i][d]) for i, d in at]
        found: dict[str, list[Any]] = {
            "isolaw": [[v[d] for v in ours[i].parameters().values()] for i, d in at]
        }
        for name, loop in LOOPS.items():
            size = SAMPLE[name]
            start = Clock.now()
            found[name] = list(loop(family, tasks[:size]))
            seconds[name].append(Clock(*(t / size * total for t in start.since())))
        for k, ((i, d), (c, y)) in enumerate(zip(at, tasks, strict=True)):
            sse = {
                name: float(np.sum((EQUATIONS[family](c.compute, *each[k]) - y) ** 2))
                for name, each in found.items()
                if k < len(each)
            }
            if ours[i].status[d] != FitStatus.CONVERGED:
                apart += 1
                continue
            best = np.nanmin(list(sse.values()))
            for name, value in sse.items():
                errors[name].append(value / best - 1)
    parameters = " ".join(FAMILIES[family].parameters)
    print(f"{family} ({parameters}): {total:,} refits of {CHECKPOINTS} checkpoints")
    print(f"  {'':10} {'all, s':>8} {'per s':>9} {'isolaw is':>10} {'by CPU':>8} {'excess':>9} {'failed':>7}")
    best = {name: Clock(min(t.wall for t in ts), min(t.cpu for t in ts)) for name, ts in seconds.items()}
    for name, t in best.items():
        wall, cpu = t.wall / best["isolaw"].wall, t.cpu / best["isolaw"].cpu
        known = np.array(errors[name])
        print(
            f"  {name:10} {t.wall:8.1f} {total / t.wall:9,.0f} {f'{wall:.0f} x':>10} {f'{cpu:.0f} x':>8} "
            f"{np.nanmax(known):9.1g} {np.isnan(known).sum():7}"
        )
    print(f"  kept apart, not determined: {apart} of {ROUNDS * SAMPLE['curve_fit']}")


def pipeline() -> None:
    """Print the time of the whole fit: curves, frontier, surface, law, and all of it in each draw."""
    rows = [
        {
            "run_id": f"{c.problems_per_batch}x{c.rollouts_per_problem}s{seed}",
            "problem_set": "simulated",
            "algorithm": "grpo",
            "problems_per_batch": c.problems_per_batch,
            "rollouts_per_problem": c.rollouts_per_problem,
            "seed": seed,
            "step": int(step),
            "compute": int(compute),
            "eval_set": "validation",
            "metric": "avg@4",
            "value": value,
        }
        for c in sweep("hill")
        for seed, values in enumerate(c.reward)
        for step, compute, value in zip(c.steps, c.compute, values, strict=True)
    ]
    runs = isolaw.Runs(pd.DataFrame(rows))
    isolaw.fit(runs, hold="nothing", draws=2)  # compiled, or read from disk
    times = []
    for _ in range(ROUNDS):
        start = Clock.now()
        law = isolaw.fit(runs, hold="nothing", draws=DRAWS)
        times.append(start.since())
    document = law.document
    print(
        f"isolaw.fit, joint, {len(document.grid)} configurations x {SEEDS} seeds, {DRAWS} draws "
        f"({document.method}, {document.curve}): {min(t.wall for t in times):.1f} s, "
        f"{min(t.cpu for t in times):.1f} s of CPU"
    )


def main() -> None:
    """Print the tables."""
    print(f"{len(os.sched_getaffinity(0))} cores; best of {ROUNDS} rounds")
    for family in EQUATIONS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # the loops have no bounds
            refits(family)
    pipeline()


if __name__ == "__main__":
    main()
