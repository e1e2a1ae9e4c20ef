"""Determine which runs are healthy, and find the smallest B_p that trains stably.

A run is judged by the diagnostics that it recorded: reward, entropy, KL, gradient norm and the share of
truncated responses (`isolaw.fits.instability` defines the signs). A B_p is stable if at least 90 % of its
runs are healthy; the interval of this share shows how certain the result is. A run in which one of them
became NaN has diverged, and is unhealthy however short it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import betaincinv

from isolaw import metrics
from isolaw.errors import DataError
from isolaw.evidence import LEVEL, REFUSED, Quantity
from isolaw.fits.document.codec import Encoded
from isolaw.fits.document.schema import BatchHealth, HealthInfo
from isolaw.fits.instability import LEAST_EVALUATIONS, Sign, sign
from isolaw.fits.selection import differing
from isolaw.runs import Runs

STABLE = 0.9
DIAGNOSTICS = ("reward", "entropy", "kl", "grad_norm", "truncated_fraction")


@dataclass(frozen=True)
class Health(Encoded):
    """The health of one run: the diagnostics that judge it, and the signs of unstable training."""

    DERIVED = ("status",)

    run_id: str
    problems_per_batch: int
    rollouts_per_problem: int
    seed: int
    judged_by: tuple[str, ...]  # diagnostics with enough evaluations, as ``metric on eval_set``
    signs: dict[str, Sign]  # signs by diagnostic, earliest first

    @property
    def status(self) -> Literal["healthy", "unhealthy", "unknown"]:
        """``healthy``, ``unhealthy``, or ``unknown`` if no diagnostic has enough evaluations."""
        return "unhealthy" if self.signs else "healthy" if self.judged_by else "unknown"

    @property
    def reasons(self) -> list[str]:
        """A sentence for each sign that the run is unhealthy."""
        text = "{0.name} ({1} from {0.before:.3g} to {0.after:.3g}, by step {0.step})"
        return [text.format(evidence, where) for where, evidence in self.signs.items()]


def health(runs: Runs, metric: str = "avg@4", eval_set: str = "validation") -> list[Health]:
    """Return the health of each run.

    ``reward``, ``entropy``, ``kl``, ``grad_norm`` and ``truncated_fraction`` come from ``train`` if it has
    them, and otherwise from another evaluation set. ``metric`` on ``eval_set`` is an additional reward. None
    of these diagnostics is required.

    >>> row = dict(run_id="a", problem_set="easy", algorithm="grpo", problems_per_batch=32,
    ...            rollouts_per_problem=8, seed=0, eval_set="validation", metric="avg@4")
    >>> rewards = [.3, .4, .5, .6, .6, .6, .4, .3, .2, .1, .1, .1]
    >>> table = pd.DataFrame([{**row, "step": t, "compute": 256 * t, "value": r}
    ...                       for t, r in enumerate(rewards)])
    >>> print(*health(Runs(table))[0].reasons)
    reward collapse (avg@4 on validation from 0.6 to 0.1, by step 7)
    """
    out = []
    points = runs.points
    wanted = points[points["metric"].isin([metric, *DIAGNOSTICS])].sort_values("step", kind="stable")
    # Convert optional columns to numbers once for all runs.
    numbers = {"step": np.nan, "value": np.nan, "n_problems": np.inf, "n_samples": 1.0}
    wanted = wanted.assign(
        **{k: wanted[k].astype("Float64").to_numpy(np.float64, na_value=v) for k, v in numbers.items()}
    )
    curves: dict[str, dict[tuple[str, str], pd.DataFrame]] = {}
    for (run_id, name, where), curve in wanted.groupby(["run_id", "metric", "eval_set"], sort=False):
        curves.setdefault(run_id, {})[name, where] = curve
    nan = runs.diverged[runs.diverged["metric"].isin([metric, *DIAGNOSTICS])]
    diverged = {
        run_id: list(rows[["eval_set", "metric", "step"]].itertuples(index=False))
        for run_id, rows in nan.groupby("run_id")
    }
    for run_id, row in runs.table().sort_index().iterrows():
        judged, signs = [], {}
        for name, where, curve in _diagnostics(curves.get(run_id, {}), metric, eval_set):
            if len(curve) < LEAST_EVALUATIONS:
                continue
            judged.append(f"{name} on {where}")
            steps, values = (curve[c].to_numpy() for c in ("step", "value"))
            if evidence := sign(name, steps, values, _binomial_error(name, curve)):
                signs[judged[-1]] = evidence
        for where, name, step in diverged.get(run_id, ()):
            judged.append(f"{name} on {where}")
            before = float(curves[run_id][name, where]["value"].iloc[-1])
            signs[judged[-1]] = Sign("divergence", int(step), before, math.nan)
        b, n, seed = (int(row[c]) for c in ("problems_per_batch", "rollouts_per_problem", "seed"))
        signs = dict(sorted(signs.items(), key=lambda item: item[1].step))
        out.append(Health(str(run_id), b, n, seed, tuple(dict.fromkeys(judged)), signs))
    return out


def _diagnostics(
    columns: dict[tuple[str, str], pd.DataFrame], metric: str, eval_set: str
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield the metric and the diagnostics of one run, each from a single evaluation set."""
    if (metric, eval_set) in columns:
        yield metric, eval_set, columns[metric, eval_set]
    for name in DIAGNOSTICS:
        sets = sorted((e for m, e in columns if m == name), key=lambda e: (e != "train", e))
        if sets and (name, sets[0]) != (metric, eval_set):
            yield name, sets[0], columns[name, sets[0]]


def _binomial_error(name: str, curve: pd.DataFrame) -> float:
    """Return the binomial error √(y (1 − y) / N) of one evaluation.

    N is the number of samples for avg@k, and of problems for best@k.
    """
    values = curve["value"].to_numpy()
    parsed = metrics.parse(name)
    if (parsed is None and name != "reward") or values.min() < 0 or values.max() > 1:
        return 0.0
    problems, samples = curve["n_problems"].to_numpy(), curve["n_samples"].to_numpy()
    count = problems * samples if parsed is None or parsed[0] == "avg" else problems
    return float(np.sqrt(np.mean(values * (1 - values) / np.maximum(count, 1.0))))


def smallest_stable_B_p(runs: Runs, metric: str = "avg@4", eval_set: str = "validation") -> HealthInfo:
    """Return the smallest stable B_p of the runs of one recipe (see `health`), and the health of each B_p.

    The smallest stable B_p is the smallest measured B_p such that it and all larger B_p are stable. The
    status is ``upper_bound`` if no smaller B_p was run, ``lower_bound`` if even the largest B_p is unstable,
    and ``refused`` if no run can be judged. The interval contains every B_p that is consistent with the exact
    (Clopper–Pearson) intervals of the shares of healthy runs.

    Raises
    ------
    DataError
        the runs differ in more than B_p, n and seed.
    """
    if mixed := differing(runs.table()):
        raise DataError(f"{runs.source}: the runs differ in {', '.join(mixed)}; pass one recipe at a time")
    judged = [h for h in health(runs, metric, eval_set) if h.status != "unknown"]
    batches = []
    ends: dict[int, tuple[float, float]] = {}
    for b in sorted({h.problems_per_batch for h in judged}):
        members = [h for h in judged if h.problems_per_batch == b]
        ill = [h for h in members if h.signs]
        healthy, total, reason = len(members) - len(ill), len(members), None
        ends[b] = _clopper_pearson(healthy, total)
        if healthy < STABLE * total:
            first = f"n = {ill[0].rollouts_per_problem}, seed {ill[0].seed}, with {ill[0].reasons[0]}"
            are = "is unhealthy:" if len(ill) == 1 else "are unhealthy, e.g."
            reason = f"{len(ill)} of {total} runs {are} {first}"
        batches.append(BatchHealth(b, Quantity(healthy / total, ends[b]), healthy, total, reason))
    smallest = _smallest(ends, {b.problems_per_batch: b.reason is None for b in batches})
    return HealthInfo(smallest, tuple(batches), len(runs) - len(judged))


def _clopper_pearson(successes: int, total: int) -> tuple[float, float]:
    """Return the exact interval of a share: quantiles of Beta(k, N − k + 1) and of Beta(k + 1, N − k).

    SciPy's special functions are imported much faster than its distributions.

    >>> [round(end, 3) for end in _clopper_pearson(9, 9)]
    [0.664, 1.0]
    """
    tail, failures = (1 - LEVEL) / 2, total - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    return low, float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0


def _smallest(ends: dict[int, tuple[float, float]], stable: dict[int, bool]) -> Quantity:
    """Return the smallest stable B_p. Its interval follows from the intervals of the healthy shares."""
    if not ends:
        return REFUSED
    first, last = float(min(ends)), float(max(ends))
    smallest = _tail(stable)
    least, most = (_tail({b: end[i] >= STABLE for b, end in ends.items()}) for i in (1, 0))
    if smallest is None:
        return Quantity(last, (least or last, None), "lower_bound")
    bounds = (None if least == first else least, most)  # nothing is known below the smallest measured B_p
    return Quantity(smallest, bounds if any(bounds) else None, "upper_bound" if smallest == first else "ok")


def _tail(good: dict[int, bool]) -> float | None:
    """Return the smallest B_p such that it and all larger B_p are good, or None if there is none."""
    bad = [b for b, fine in good.items() if not fine]
    return min((float(b) for b in good if not bad or b > max(bad)), default=None)
