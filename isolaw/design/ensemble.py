"""Derive truths from a calibrated preset: the rewards of its ensemble's members over a grid.

isolaw trains `MEMBERS` members, equally spaced in the ensemble, in each cell (B_p, n) up to the target, with
`SEEDS` seeds and exact evaluations. Each seed has its own problems, which are the same in every cell, as in
the presets shipped with isolaw (`isolaw.design.truths`). The mean of a truth is the mean over the S seeds.
Its shared effects are the first `PARTS` principal components of the seeds' deviations over all cells and C.
The deviation of a single run is the remainder, with S − 1 − `PARTS` degrees of freedom. As in a forecast, the
mean of each member includes a draw of the model discrepancy and its extrapolation
(`isolaw.calibration.discrepancy`). The discrepancy is the part of the measured rewards that no constants of
the simulator reproduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.calibration.ahead import check_reach, discrepancy_of, protocol_of
from isolaw.calibration.discrepancy import Discrepancy
from isolaw.calibration.rounds import hash_of
from isolaw.calibration.space import arguments_of
from isolaw.children import each
from isolaw.design.truths import Truth
from isolaw.fits.selection import Floats
from isolaw.simulators.presets import Preset

MEMBERS, SEEDS, PARTS = 8, 8, 2
_POINTS = 40  # number of C values
_SEEDS = 2**22  # first random seed, distinct from the seeds of calibrations and forecasts
_SMOOTH = np.ones(5) / 5
_LEAST = 1e-9


def members_of(preset: Preset) -> list[int]:
    """Return the indices of the ensemble members that serve as truths.

    >>> from isolaw.simulators.presets import Preset
    >>> members_of(Preset("", "easy", 1, {}, {}, tuple({} for _ in range(4)), {}))
    [0, 1, 2, 3]
    """
    return sorted({round(i) for i in np.linspace(0, len(preset.members) - 1, MEMBERS)})


def truths_of(
    preset: Preset, cells: Sequence[BatchShape], target: int, jobs: int | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Truth]:  # fmt: skip
    """Return the members `members_of` of a preset's ensemble as truths over these cells, up to the target.

    Raises `Refused` if the target is more than 100 times the compute that the preset was fitted to, and
    `InputError` if the discrepancy in the preset's file is damaged.
    """
    check_reach(preset, target)
    left = discrepancy_of(preset)
    compute = np.append(0.0, np.geomspace(min(b * n for b, n in cells), target, _POINTS))
    protocol = protocol_of(preset, dict.fromkeys(cells, 1.0), compute[1:])
    chosen = members_of(preset)
    members = [preset.members[i] for i in chosen for _ in range(SEEDS)]
    arguments = [arguments_of(own, hash_of(task, _SEEDS)) for task, own in enumerate(members)]
    made = each(protocol.moments, arguments, jobs, lambda done: progress(done / len(members)))
    rewards, spread = np.empty((2, len(members), len(cells), compute.size))
    places = [sorted(cells).index(cell) for cell in cells]
    for task, found in enumerate(made):
        for k, place in enumerate(places):
            at, (mean, variance) = protocol.cells[place].compute, found[place]
            room = np.maximum(mean * (1 - mean), _LEAST)
            rewards[task, k] = np.interp(compute, at, mean)
            spread[task, k] = np.interp(compute, at, np.clip(1 - variance / room, 0.0, 1.0))
    unmet = _unmet(left, cells, compute, len(chosen))
    out = []
    for i, member in enumerate(chosen):
        own = slice(i * SEEDS, (i + 1) * SEEDS)
        mean, *parts = *decomposed(rewards[own]), spread[own].mean(axis=0)
        mean = np.clip(mean + unmet[i], 0.0, 1.0)
        out.append(Truth(f"{preset.name} {member}", tuple(cells), compute, mean, *parts))
    return out


def _unmet(left: Discrepancy, cells: Sequence[BatchShape], compute: Floats, members: int) -> Floats:
    """Return draws of the discrepancy, which do not depend on the order of the cells.

    The array has shape (members, K, P). The discrepancy is 0 before training and grows linearly during the
    first step, like the rewards.
    """
    ordered = sorted(cells)
    first = np.array([[b * n] for b, n in ordered])
    at = np.broadcast_to(compute, (len(cells), compute.size))
    drawn = left.draws(ordered, at, members, np.random.default_rng(_SEEDS)) * np.minimum(at / first, 1.0)
    return drawn[:, [ordered.index(cell) for cell in cells]]


def decomposed(rewards: Floats) -> tuple[Floats, Floats, Floats]:
    """Split the rewards of S seeds, of shape (S, K, P), into the three parts of a `Truth`.

    Returns three arrays: the mean, the effects shared by runs with the same seed, and the standard deviation
    of a single run's deviation. Their shapes are (K, P), (`PARTS`, K, P) and (K, P).
    """
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
