"""Truths of a calibrated preset: what members of its ensemble measure over a grid.

`MEMBERS` of them, equally spaced in the ensemble, go through each cell to the target with `SEEDS` seeds and
exact evaluations. A seed has problems of its own, the same in every cell, as in the presets that ship with
isolaw (`isolaw.design.truths`). Of S seeds, a truth's mean is theirs; its shared parts are the first `PARTS`
principal components of their deviations over all cells and C, and its own deviation is what those leave, with
S − 1 − `PARTS` degrees of freedom.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from isolaw.calibration.forecast import check_reach, protocol_of
from isolaw.calibration.rounds import hash_of
from isolaw.calibration.space import parameters
from isolaw.design.decisions import Key
from isolaw.design.truths import Truth
from isolaw.fits.selection import Floats
from isolaw.simulators.presets import Preset
from isolaw.simulators.problems import difficulty

MEMBERS, SEEDS, PARTS = 8, 8, 2
_POINTS = 40  # of C
_SEEDS = 2**22  # apart from those of calibrations and forecasts
_SMOOTH = np.ones(5) / 5
_LEAST = 1e-9


def members_of(preset: Preset) -> list[int]:
    """Return which members are the truths.

    >>> from isolaw.simulators.presets import Preset
    >>> members_of(Preset("", "easy", 1, {}, {}, tuple({} for _ in range(4)), {}))
    [0, 1, 2, 3]
    """
    return sorted({round(i) for i in np.linspace(0, len(preset.members) - 1, MEMBERS)})


def truths_of(
    preset: Preset, cells: Sequence[Key], target: int, jobs: int | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Truth]:  # fmt: skip
    """Return members of a preset as truths over these cells and to this target.

    Raise `Refused` where the target is more than 100 times what the preset was fitted to.
    """
    check_reach(preset, target)
    compute = np.append(0.0, np.geomspace(min(b * n for b, n in cells), target, _POINTS))
    protocol = protocol_of(preset, dict.fromkeys(cells, 1.0), compute[1:])
    places = [sorted(cells).index(cell) for cell in cells]
    chosen = members_of(preset)

    def one(task: int) -> tuple[Floats, Floats]:
        member, seed = chosen[task // SEEDS], hash_of(task, _SEEDS)
        values = dict(preset.members[member])
        problems = difficulty(str(values.pop("problems")))
        rewards, spread = np.empty((2, len(cells), compute.size))
        for k, (mean, variance) in enumerate(protocol.moments(parameters(values), problems, seed)):
            at = protocol.cells[k].compute
            room = np.maximum(mean * (1 - mean), _LEAST)
            rewards[k] = np.interp(compute, at, mean)
            spread[k] = np.interp(compute, at, np.clip(1 - variance / room, 0.0, 1.0))
        return rewards[places], spread[places]

    tasks = len(chosen) * SEEDS
    made: list[tuple[Floats, Floats]] = []
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        for found in pool.map(one, range(tasks)):
            made.append(found)
            progress(len(made) / tasks)
    out = []
    for i, member in enumerate(chosen):
        own = made[i * SEEDS : (i + 1) * SEEDS]
        rewards, spread = (np.array([pair[part] for pair in own]) for part in range(2))
        name = f"{preset.name} {member}"
        out.append(Truth(name, tuple(cells), compute, *decomposed(rewards), spread.mean(axis=0)))
    return out


def decomposed(rewards: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean (K, P), shared (`PARTS`, K, P) and own (K, P) of the rewards (S, K, P) of S seeds."""
    seeds = len(rewards)
    mean = rewards.mean(axis=0)
    away = (rewards - mean).reshape(seeds, -1)
    scores = np.linalg.svd(away, full_matrices=False)[0][:, :PARTS] * np.sqrt(seeds)
    shared = scores.T @ away / seeds
    rest = away - scores @ shared
    variance = (rest**2).sum(axis=0) / (seeds - 1 - PARTS)
    padded = np.pad(variance.reshape(mean.shape), ((0, 0), (2, 2)), "edge")
    smooth = np.array([np.convolve(row, _SMOOTH, "valid") for row in padded])
    return mean, shared.reshape(PARTS, *mean.shape), np.sqrt(smooth)
