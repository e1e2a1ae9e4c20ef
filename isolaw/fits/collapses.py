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

_FALLEN = 0.25  # smallest size of a collapse, as a share of the other runs' rise
_USUAL = 4.5  # smallest size of a collapse, as a multiple of the usual difference between runs
_LEAST_PAIRS = 6  # fewest pairs of runs that can estimate the usual difference
_MEDIAN = 0.954  # median absolute difference of two standard normal numbers
_MOST = 1 / 3  # if more than this share of runs collapses, falls are normal, and no run is cut
_LEAST_KEPT = 3  # a run with fewer remaining checkpoints is dropped
_NAMED = 3


class Collapse(NamedTuple):
    """A collapsed run, with the compute of the last checkpoint that the fit uses."""

    configuration: Configuration
    run: int
    compute: float


def without(configurations: Sequence[Configuration]) -> tuple[list[Configuration], list[Collapse]]:
    """Return the configurations with collapsed runs cut, and the list of collapses."""
    differences = [abs(a - b) for c in configurations for a, b in combinations(_ends(c), 2)]
    if len(differences) < _LEAST_PAIRS:
        return list(configurations), []
    usual = _USUAL * float(np.median(differences)) / _MEDIAN
    collapses = [collapse for c in configurations for collapse in _collapses(c, usual)]
    if len(collapses) > _MOST * sum(c.runs for c in configurations):
        return list(configurations), []
    of_configuration = {c.key: [f for f in collapses if f.configuration is c] for c in configurations}
    return [
        _cut(c, of_configuration[c.key]) if of_configuration[c.key] else c for c in configurations
    ], collapses


def steady(selection: Selection) -> Selection:
    """Return a selection with collapsed runs cut, and with a flag that reports them."""
    kept, collapses = without(selection.configurations)
    if not collapses:
        return selection
    every = sum(c.runs for c in selection.configurations)
    return replace(selection, configurations=kept, flags=[*selection.flags, _flag(collapses, every)])


def _flag(collapses: Sequence[Collapse], runs: int) -> Flag:
    """Return the flag that reports the collapses found among ``runs`` runs."""
    named = [
        f"{c.configuration.label}, seed {c.configuration.seeds[c.run]}, after C = {number(c.compute)}"
        for c in collapses[:_NAMED]
    ]
    more = [f"and {len(collapses) - _NAMED} more"] if len(collapses) > _NAMED else []
    where = "; ".join([*named, *more])
    text = f"{len(collapses)} of {runs} runs collapsed ({where}); "
    text += "predicted rewards assume that runs do not collapse"
    return Flag(Code.COLLAPSED, text)


def _ends(c: Configuration) -> list[float]:
    """Return the final reward of each run that reaches the largest compute of its configuration."""
    curves = [c.of_run(run) for run in range(c.runs)]
    return [_level(reward, -1) for compute, reward in curves if compute[-1] >= c.measured[1]]


def _collapses(c: Configuration, usual: float) -> list[Collapse]:
    """Return the collapses in a configuration, lowest run first; gaps smaller than ``usual`` do not count."""
    left, out = list(range(c.runs)), []
    while len(left) > 1:
        lowest = min(left, key=lambda run: _level(c.of_run(run)[1], -1))
        compute, reward = c.of_run(lowest)
        others = [c.of_run(run) for run in left if run != lowest]
        others = [other for other in others if other[0][-1] >= compute[-1]]
        if not others:
            break
        mean = np.mean([np.interp(compute, *other) for other in others], axis=0)
        apart, rise = reward - mean, _level(mean, -1) - min(float(mean[0]), _level(mean, 0))
        if rise <= 0 or -_level(apart, -1) < max(_FALLEN * rise, usual):
            break
        high = np.flatnonzero(apart >= _level(apart, -1) / 2)
        out.append(Collapse(c, lowest, float(compute[high[-1]]) if high.size else 0.0))
        left.remove(lowest)
    return out


def _cut(c: Configuration, collapses: list[Collapse]) -> Configuration:
    """Drop checkpoints after a collapse, and runs with fewer than three remaining checkpoints."""
    kept = np.ones(c.run.size, dtype=bool)
    for collapse in collapses:
        kept &= (c.run != collapse.run) | (c.compute <= collapse.compute)
    runs = [run for run in range(c.runs) if np.sum(kept & (c.run == run)) >= _LEAST_KEPT]
    kept &= np.isin(c.run, runs)
    number = np.searchsorted(runs, c.run[kept])
    seeds = tuple(c.seeds[run] for run in runs)
    return replace(c, compute=c.compute[kept], reward=c.reward[kept], run=number, seeds=seeds)


def _level(reward: Floats, end: int) -> float:
    """Return the mean of the first (``end`` = 0) or last (−1) tenth of the checkpoints, at least three."""
    width = max(3, reward.size // 10)
    return float((reward[:width] if end == 0 else reward[-width:]).mean())
