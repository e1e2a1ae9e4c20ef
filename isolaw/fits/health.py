"""Determine which runs are healthy, and which B_p train stably.

A run is judged by the diagnostics that it recorded: reward, entropy, KL, gradient norm and the share of
truncated responses. A run in which one of them became NaN has diverged, and is unhealthy however short it is.
A B_p is stable if at least 90 % of its runs are healthy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import ndtri

from isolaw import metrics
from isolaw.errors import DataError
from isolaw.fits.document.codec import Encoded
from isolaw.fits.document.schema import BatchHealth
from isolaw.fits.selection import Floats, differing
from isolaw.runs import Runs

_Curve = dict[str, Floats]  # step, value, n_problems and n_samples of one metric of one run
_LEAST_EVALUATIONS = 6  # two windows that share no evaluation
_FALSE_ALARMS = 0.01  # rate if the error is known; up to 4 % if it is estimated from ten evaluations
_DRAWN_DOWN = 0.25  # smallest fall, as a share of the rise
_COLLAPSE = 0.5  # smallest fall of a collapse, as a share of the peak
_LEAST_FALL = 0.05  # smallest fall, as a share of the peak, if the reward hardly rose
_ENTROPY_COLLAPSE = 0.05
_ENTROPY_EXPLOSION = 10.0
_EXPLOSION = 100.0
_WARM_UP = 10  # first steps, in which the learning rate rises and KL grows faster than quadratically
_TRUNCATED = 0.15
_LEAST_WINDOW = 3
_OUTLIER = 4.0
_MAD_SCALE = 1.4826


@dataclass(frozen=True)
class _Sign:
    """A sign of an unhealthy run: the step at which it began, and the two levels that it compares."""

    name: str  # one of the names in the module's docstring
    step: int  # the last step of the window in which the sign began
    # The two levels whose difference is the sign.
    before: float
    after: float


def find_sign(metric: str, steps: Floats, values: Floats, error: float = 0.0) -> _Sign | None:
    """Return the sign in one diagnostic of one run, or None if the diagnostic is healthy.

    ``metric`` is ``entropy``, ``kl``, ``grad_norm`` or ``truncated_fraction``; any other name is a reward.
    ``steps`` and ``values`` have shape (T,), in order of steps, with T at least `_LEAST_EVALUATIONS`.
    ``error`` is the standard error of one evaluation, or 0 if it is unknown.

    >>> reward = np.array([.3, .4, .5, .6, .6, .6, .4, .3, .2, .1, .1, .1])
    >>> result = find_sign("avg@4", np.arange(12.0), reward)
    >>> result.name, result.step, round(result.before, 2), round(result.after, 2)
    ('reward collapse', 7, 0.6, 0.1)
    """
    width = max(_LEAST_WINDOW, math.ceil(values.size / 10))
    bends = values[1:-1] - (values[:-2] + values[2:]) / 2
    scatter = _MAD_SCALE * float(np.median(np.abs(bends))) * math.sqrt(2 / 3)
    sigma = max(scatter, error)
    windows = sliding_window_view(values, width)
    medians = np.median(windows, axis=1, keepdims=True)
    levels = np.clip(windows, medians - _OUTLIER * sigma, medians + _OUTLIER * sigma).mean(axis=1)
    ends = steps[width - 1 :]
    if metric == "entropy":
        return _entropy_sign(ends, levels)
    if metric in ("kl", "grad_norm"):
        return _explosion_sign(metric, ends, levels, sigma / math.sqrt(width))
    if metric == "truncated_fraction":
        return _lasting_sign("truncated responses", ends, levels, levels[0], levels >= _TRUNCATED)
    return _fall_sign(ends, levels, float(values[0]), sigma, width)


def _fall_sign(ends: Floats, levels: Floats, first: float, sigma: float, width: int) -> _Sign | None:
    """Return a sign if the reward ends significantly below its peak, and None otherwise."""
    candidate_count = levels.size - width  # windows that share no evaluation with the last
    peak_index = int(np.argmax(levels[:candidate_count]))
    peak, rise = levels[peak_index], levels[peak_index] - min(first, levels[0])
    noise = -float(ndtri(_FALSE_ALARMS / candidate_count)) * sigma * math.sqrt(2 / width)
    is_below = peak - levels > max(noise, _DRAWN_DOWN * rise, _LEAST_FALL * abs(peak))
    is_below[: peak_index + 1] = False
    name = "reward collapse" if levels[-1] <= (1 - _COLLAPSE) * peak else "reward drawn down"
    return _lasting_sign(name, ends, levels, peak, is_below)


def _entropy_sign(ends: Floats, levels: Floats) -> _Sign | None:
    if levels[0] <= 0:
        return None
    exploded = np.flatnonzero(levels >= _ENTROPY_EXPLOSION * levels[0])
    if exploded.size:
        return _make_sign("entropy explosion", ends[exploded[0]], levels[0], levels[exploded].max())
    return _lasting_sign("entropy collapse", ends, levels, levels[0], levels <= _ENTROPY_COLLAPSE * levels[0])


def _explosion_sign(metric: str, ends: Floats, levels: Floats, noise: float) -> _Sign | None:
    quarter_index = np.searchsorted(ends, ends / 4, side="right") - 1
    before = np.maximum(levels[quarter_index], noise)
    is_comparable = (quarter_index >= 0) & (ends[quarter_index] >= _WARM_UP) & (before > 0)
    exploded = np.flatnonzero(is_comparable & (levels >= _EXPLOSION * before))
    if not exploded.size:
        return None
    return _make_sign(f"{metric} explosion", ends[exploded[0]], before[exploded[0]], levels[exploded].max())


def _lasting_sign(
    name: str, ends: Floats, levels: Floats, before: float, is_bad: NDArray[np.bool_]
) -> _Sign | None:
    """Return a sign that lasts to the end of the run, with the step at which it began, or None."""
    if not is_bad[-1]:
        return None
    good_indices = np.flatnonzero(~is_bad)
    return _make_sign(name, ends[good_indices[-1] + 1 if good_indices.size else 0], before, levels[-1])


def _make_sign(name: str, step: float, before: float, after: float) -> _Sign:
    return _Sign(name, int(step), float(before), float(after))


_STABLE = 0.9  # smallest share of healthy runs
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
    signs: dict[str, _Sign]  # signs by diagnostic, earliest first

    @property
    def status(self) -> Literal["healthy", "unhealthy", "unknown"]:
        """``healthy``, ``unhealthy``, or ``unknown`` if no diagnostic has enough evaluations."""
        return "unhealthy" if self.signs else "healthy" if self.judged_by else "unknown"

    @property
    def reasons(self) -> list[str]:
        """A sentence for each sign that the run is unhealthy."""
        text = "{0.name} ({1} from {0.before:.3g} to {0.after:.3g}, by step {0.step})"
        return [text.format(find_sign, diagnostic) for diagnostic, find_sign in self.signs.items()]


def health(runs: Runs, metric: str = "avg@4", eval_set: str = "validation") -> list[Health]:
    """Return the health of each run.

    ``reward``, ``entropy``, ``kl``, ``grad_norm`` and ``truncated_fraction`` come from ``train`` if it has
    them, and otherwise from another evaluation set. ``metric`` on ``eval_set`` is an additional reward. None
    of these diagnostics is required.

    >>> import pandas as pd
    >>> row = dict(run_id="a", problem_set="easy", algorithm="grpo", problems_per_batch=32,
    ...            rollouts_per_problem=8, seed=0, eval_set="validation", metric="avg@4")
    >>> rewards = [.3, .4, .5, .6, .6, .6, .4, .3, .2, .1, .1, .1]
    >>> table = pd.DataFrame([{**row, "step": t, "compute": 256 * t, "value": r}
    ...                       for t, r in enumerate(rewards)])
    >>> print(*health(Runs(table))[0].reasons)
    reward collapse (avg@4 on validation from 0.6 to 0.1, by step 7)
    """
    healths = []
    points = runs.points
    judging = points[points["metric"].isin([metric, *DIAGNOSTICS])].sort_values("step", kind="stable")
    defaults = {"step": np.nan, "value": np.nan, "n_problems": np.inf, "n_samples": 1.0}
    columns = {k: judging[k].astype("Float64").to_numpy(np.float64, na_value=v) for k, v in defaults.items()}
    curves: dict[str, dict[tuple[str, str], _Curve]] = {}
    for (run_id, name, set_name), rows in judging.groupby(["run_id", "metric", "eval_set"]).indices.items():
        curves.setdefault(run_id, {})[name, set_name] = {key: values[rows] for key, values in columns.items()}
    diverged_points = runs.diverged[runs.diverged["metric"].isin([metric, *DIAGNOSTICS])]
    divergences = {
        run_id: list(run_points[["eval_set", "metric", "step"]].itertuples(index=False))
        for run_id, run_points in diverged_points.groupby("run_id")
    }
    for run_id, row in runs.table().sort_index().iterrows():
        judged_by, signs = [], {}
        for name, set_name, curve in _diagnostics(curves.get(run_id, {}), metric, eval_set):
            if curve["step"].size < _LEAST_EVALUATIONS:
                continue
            judged_by.append(f"{name} on {set_name}")
            if run_sign := find_sign(name, curve["step"], curve["value"], _binomial_error(name, curve)):
                signs[judged_by[-1]] = run_sign
        for set_name, name, step in divergences.get(run_id, ()):
            judged_by.append(f"{name} on {set_name}")
            before = float(curves[run_id][name, set_name]["value"][-1])
            signs[judged_by[-1]] = _Sign("divergence", int(step), before, math.nan)
        b, n, seed = (int(row[key]) for key in ("problems_per_batch", "rollouts_per_problem", "seed"))
        signs = dict(sorted(signs.items(), key=lambda item: item[1].step))
        healths.append(Health(str(run_id), b, n, seed, tuple(dict.fromkeys(judged_by)), signs))
    return healths


def _diagnostics(
    curves: dict[tuple[str, str], _Curve], metric: str, eval_set: str
) -> Iterator[tuple[str, str, _Curve]]:
    """Yield the metric and the diagnostics of one run, each from a single evaluation set."""
    if (metric, eval_set) in curves:
        yield metric, eval_set, curves[metric, eval_set]
    for name in DIAGNOSTICS:
        eval_sets = sorted((e for m, e in curves if m == name), key=lambda e: (e != "train", e))
        if eval_sets and (name, eval_sets[0]) != (metric, eval_set):
            yield name, eval_sets[0], curves[name, eval_sets[0]]


def _binomial_error(name: str, curve: _Curve) -> float:
    """Return the binomial error √(y (1 − y) / N) of one evaluation.

    N is the number of samples for avg@k, and of problems for best@k.
    """
    values = curve["value"]
    parsed = metrics.parse(name)
    if (parsed is None and name != "reward") or values.min() < 0 or values.max() > 1:
        return 0.0
    problems = curve["n_problems"]
    counts = problems * curve["n_samples"] if parsed is None or parsed[0] == "avg" else problems
    return float(np.sqrt(np.mean(values * (1 - values) / np.maximum(counts, 1.0))))


def batch_health(runs: Runs, metric: str = "avg@4", eval_set: str = "validation") -> tuple[BatchHealth, ...]:
    """Return the health of each B_p in the runs of one recipe (see `health`).

    Raises
    ------
    DataError
        the runs differ in more than B_p, n and seed.
    """
    if mixed := differing(runs.table()):
        raise DataError(f"{runs.source}: the runs differ in {', '.join(mixed)}; pass one recipe at a time")
    judged_runs = [run for run in health(runs, metric, eval_set) if run.status != "unknown"]
    batches = []
    for b in sorted({run.problems_per_batch for run in judged_runs}):
        batch_runs = [run for run in judged_runs if run.problems_per_batch == b]
        ill = [run for run in batch_runs if run.signs]
        healthy, total, reason = len(batch_runs) - len(ill), len(batch_runs), None
        if healthy < _STABLE * total:
            example = f"n = {ill[0].rollouts_per_problem}, seed {ill[0].seed}, with {ill[0].reasons[0]}"
            verb = "is unhealthy:" if len(ill) == 1 else "are unhealthy, e.g."
            reason = f"{len(ill)} of {total} runs {verb} {example}"
        batches.append(BatchHealth(b, healthy, total, reason))
    return tuple(batches)
