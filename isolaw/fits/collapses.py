"""Find runs that collapse while other runs of their configuration do not, and cut them at the collapse.

A collapse is an event with its own probability, not noise about a mean. A run has collapsed if it ends far
below the other runs of its (B_p, n), compared with the usual difference between runs. A collapsed run's
checkpoints count until the run has fallen by half of this distance. The surface, and all results derived from
it, then describe runs that do not collapse. Nothing is cut if all runs of a configuration fall, since the
configuration is then the cause. Nothing is cut either if runs begin to learn at different times, since the
usual difference is then large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from isolaw.evidence import number
from isolaw.fits.flags import Code, Flag
from isolaw.fits.selection import Configuration, Floats, Selection

_LEAST_FALL = 0.25  # smallest size of a collapse, as a share of the other runs' rise
_USUAL_MULTIPLE = 4.5  # smallest size of a collapse, as a multiple of the usual difference between runs
_LEAST_PAIRS = 6  # fewest pairs of runs that can estimate the usual difference
_MEDIAN = 0.954  # median absolute difference of two standard normal numbers
_MOST_COLLAPSED = 1 / 3  # if more than this share of runs collapses, falls are normal, and no run is cut
_LEAST_KEPT = 3  # a run with fewer remaining checkpoints is dropped
_MOST_LISTED = 3


class Collapse(NamedTuple):
    """A collapsed run, with the compute of the last checkpoint that the fit uses."""

    configuration: Configuration
    run: int
    compute: float


def cut_collapsed(configurations: Sequence[Configuration]) -> tuple[list[Configuration], list[Collapse]]:
    """Return the configurations with collapsed runs cut, and the list of collapses."""
    differences = [abs(a - b) for c in configurations for a, b in combinations(_final_rewards(c), 2)]
    if len(differences) < _LEAST_PAIRS:
        return list(configurations), []
    least_gap = _USUAL_MULTIPLE * float(np.median(differences)) / _MEDIAN
    collapses = [f for c in configurations for f in _find_collapses(c, least_gap)]
    if len(collapses) > _MOST_COLLAPSED * sum(c.runs for c in configurations):
        return list(configurations), []
    collapses_of = {c.key: [f for f in collapses if f.configuration is c] for c in configurations}
    return [
        _cut_runs(c, collapses_of[c.key]) if collapses_of[c.key] else c for c in configurations
    ], collapses


def without_collapses(selection: Selection) -> Selection:
    """Return a selection with collapsed runs cut, and with a flag that reports them."""
    cut, collapses = cut_collapsed(selection.configurations)
    if not collapses:
        return selection
    runs = sum(c.runs for c in selection.configurations)
    return replace(selection, configurations=cut, flags=[*selection.flags, _flag(collapses, runs)])


def _flag(collapses: Sequence[Collapse], runs: int) -> Flag:
    """Return the flag that reports the collapses found among ``runs`` runs."""
    descriptions = [
        f"{c.configuration.label}, seed {c.configuration.seeds[c.run]}, after C = {number(c.compute)}"
        for c in collapses[:_MOST_LISTED]
    ]
    rest = [f"and {len(collapses) - _MOST_LISTED} more"] if len(collapses) > _MOST_LISTED else []
    listed = "; ".join([*descriptions, *rest])
    text = f"{len(collapses)} of {runs} runs collapsed ({listed}); "
    text += "predicted rewards assume that runs do not collapse"
    return Flag(Code.COLLAPSED, text)


def _final_rewards(c: Configuration) -> list[float]:
    """Return the final reward of each run that reaches the largest compute of its configuration."""
    curves = [c.of_run(run) for run in range(c.runs)]
    return [_end_mean(reward, -1) for compute, reward in curves if compute[-1] >= c.measured[1]]


def _find_collapses(c: Configuration, min_gap: float) -> list[Collapse]:
    """Return the collapses in a configuration, lowest run first; gaps below ``min_gap`` do not count."""
    remaining, collapses = list(range(c.runs)), []
    while len(remaining) > 1:
        lowest = min(remaining, key=lambda run: _end_mean(c.of_run(run)[1], -1))
        compute, reward = c.of_run(lowest)
        others = [c.of_run(run) for run in remaining if run != lowest]
        others = [other for other in others if other[0][-1] >= compute[-1]]
        if not others:
            break
        mean = np.mean([np.interp(compute, *other) for other in others], axis=0)
        gap, rise = reward - mean, _end_mean(mean, -1) - min(float(mean[0]), _end_mean(mean, 0))
        if rise <= 0 or -_end_mean(gap, -1) < max(_LEAST_FALL * rise, min_gap):
            break
        above_half = np.flatnonzero(gap >= _end_mean(gap, -1) / 2)
        collapses.append(Collapse(c, lowest, float(compute[above_half[-1]]) if above_half.size else 0.0))
        remaining.remove(lowest)
    return collapses


def _cut_runs(c: Configuration, collapses: list[Collapse]) -> Configuration:
    """Drop checkpoints after a collapse, and runs with fewer than three remaining checkpoints."""
    is_kept = np.ones(c.run.size, dtype=bool)
    for collapse in collapses:
        is_kept &= (c.run != collapse.run) | (c.compute <= collapse.compute)
    runs = [run for run in range(c.runs) if np.sum(is_kept & (c.run == run)) >= _LEAST_KEPT]
    is_kept &= np.isin(c.run, runs)
    run_index = np.searchsorted(runs, c.run[is_kept])
    seeds = tuple(c.seeds[run] for run in runs)
    return replace(c, compute=c.compute[is_kept], reward=c.reward[is_kept], run=run_index, seeds=seeds)


def _end_mean(reward: Floats, end: int) -> float:
    """Return the mean of the first (``end`` = 0) or last (−1) tenth of the checkpoints, at least three."""
    width = max(3, reward.size // 10)
    return float((reward[:width] if end == 0 else reward[-width:]).mean())
