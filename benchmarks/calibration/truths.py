"""Truths of sweeps: ``python -m benchmarks.calibration.truths`` writes ``isolaw/design/presets.npz``.

They are the presets of `benchmarks.design` on which the race was developed, from the runs that ``python -m
benchmarks.design simulate`` makes (``--keep`` takes them from the existing file), and members of the
published presets (`truths_of`). For each of the former, B_p, n and C the file has

- the mean reward of all seeds. Fewer seeds were simulated for B_p = 8 and 128 than for 32; what those have
  above the mean is taken from all three, since seeds share their problems;
- ``PARTS`` principal components of the effects shared by runs of one seed, over n and C at B_p = 32, and
  their amounts in runs of the same seeds at the other B_p;
- the standard deviation of the rest of a run, without the noise of its own evaluation;
- E[p (1 − p)] over problems at B_p = 32, as a share of its value if all problems had the mean p.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import isolaw
from benchmarks import design
from benchmarks.calibration.ahead import protocol_of
from benchmarks.calibration.ensemble import Ensemble, read_ensemble
from benchmarks.calibration.rounds import hash_of
from benchmarks.calibration.space import arguments_of
from isolaw.allocation import BatchShape
from isolaw.backends.bandit import Bandit
from isolaw.children import each
from isolaw.design.truths import Truth
from isolaw.fits.selection import Floats

FILE = Path(isolaw.__file__).parent / "design" / "presets.npz"
PARTS = 4  # of the presets of `benchmarks.design`
MEMBERS = (0, 25, 50, 75)  # of each published preset; others judge (benchmarks.forecasts)
COMPUTE = np.concatenate([[0.0], np.geomspace(1024, design.TARGET, 40)])
SAMPLES = 300 * 64  # validation answers of the simulated runs
WIDTH = 0.2  # of the local line along log C: about a checkpoint
SEEDS, MEMBER_PARTS = 8, 2  # of a member of an ensemble
_POINTS = 40  # number of C values of a member
_FIRST_SEED = 2**22  # distinct from the seeds of calibrations and forecasts
_SMOOTH = np.ones(5) / 5
_LEAST = 1e-9


def truths_of(
    ensemble: Ensemble,
    cells: Sequence[BatchShape],
    target: int,
    chosen: Sequence[int],
    jobs: int | None = None,
) -> list[Truth]:
    """Return the ``chosen`` members of an ensemble as truths over these cells, up to the target.

    Each member trains in each cell (B_p, n) up to the target, with `SEEDS` seeds and exact evaluations. Each
    seed has its own problems, which are the same in every cell. The mean of a truth is the mean over the
    seeds, with a draw of the model discrepancy as in a forecast. Its shared effects are the first
    `MEMBER_PARTS` principal components of the seeds' deviations over all cells and C. The deviation of a
    single run is the remainder, with `SEEDS` − 1 − `MEMBER_PARTS` degrees of freedom.
    """
    ordered = sorted(cells)
    compute = np.append(0.0, np.geomspace(min(b * n for b, n in cells), target, _POINTS))
    protocol = protocol_of(ensemble, ordered, compute[1:])
    members = [ensemble.members[i] for i in chosen for _ in range(SEEDS)]
    arguments = [arguments_of(values, hash_of(task, _FIRST_SEED)) for task, values in enumerate(members)]
    rewards, spread = np.empty((2, len(members), len(cells), compute.size))
    for task, moments in enumerate(each(protocol.moments, arguments, jobs)):
        for k, (cell, (mean, variance)) in enumerate(zip(protocol.cells, moments, strict=True)):
            room = np.maximum(mean * (1 - mean), _LEAST)
            rewards[task, k] = np.interp(compute, cell.compute, mean)
            spread[task, k] = np.interp(compute, cell.compute, np.clip(1 - variance / room, 0.0, 1.0))
    # The discrepancy is 0 before training and grows linearly during the first step, like the rewards.
    at, first = np.tile(compute, (len(cells), 1)), np.array([[b * n] for b, n in ordered])
    left = ensemble.discrepancy.draws(ordered, at, len(chosen), np.random.default_rng(_FIRST_SEED))
    left = left * np.minimum(at / first, 1.0)
    places = [ordered.index(cell) for cell in cells]
    out = []
    for i, member in enumerate(chosen):
        seeds = slice(i * SEEDS, (i + 1) * SEEDS)
        mean, shared, deviation = decomposed(rewards[seeds])
        mean = np.clip(mean + left[i], 0.0, 1.0)
        parts = mean[places], shared[:, places], deviation[places], spread[seeds].mean(axis=0)[places]
        out.append(Truth(f"{ensemble.name} {member}", tuple(cells), compute, *parts))
    return out


def decomposed(rewards: Floats) -> tuple[Floats, Floats, Floats]:
    """Split the rewards of S seeds, of shape (S, K, P), into the three parts of a `Truth`.

    Returns three arrays: the mean, the effects shared by runs with the same seed, and the standard deviation
    of a single run's deviation. Their shapes are (K, P), (`MEMBER_PARTS`, K, P) and (K, P).
    """
    seeds = len(rewards)
    mean = rewards.mean(axis=0)
    away = (rewards - mean).reshape(seeds, -1)
    scores = np.linalg.svd(away, full_matrices=False)[0][:, :MEMBER_PARTS] * np.sqrt(seeds)
    shared = scores.T @ away / seeds
    rest = away - scores @ shared
    variance = (rest**2).sum(axis=0) / (seeds - 1 - MEMBER_PARTS)
    padded = np.pad(variance.reshape(mean.shape), ((0, 0), (2, 2)), "edge")
    smooth = np.array([np.convolve(row, _SMOOTH, "valid") for row in padded])
    return mean, shared.reshape(MEMBER_PARTS, *mean.shape), np.sqrt(smooth)


def _smoothed(compute: Any, values: Any) -> Any:
    """Return a local line in log C through ``values`` (…, P), at `COMPUTE`; the first two are unchanged."""
    at = np.log(compute[1:])
    out = []
    for c in COMPUTE:
        if c <= compute[1]:
            share = c / compute[1]
            out.append((1 - share) * values[..., 0] + share * values[..., 1])
            continue
        x = at - np.log(c)
        weights = np.exp(-0.5 * (x / WIDTH) ** 2)
        design_ = np.stack([np.ones_like(x), x], axis=1)
        hat = np.linalg.pinv(design_ * weights[:, None] ** 0.5)[0] * weights**0.5
        out.append(values[..., 1:] @ hat)
    return np.stack(out, axis=-1)


def _interpolated(compute: Any, values: Any) -> Any:
    return np.stack([np.interp(COMPUTE, compute, row) for row in np.atleast_2d(values)])


def truth(name: str, index: int) -> dict[str, Any]:
    """Return the arrays of one preset.

    ``mean`` and ``own`` (B, N, P), ``shared`` (K, B, N, P), ``spread`` (N, P).
    """
    banks = [design._bank(name, index, b) for b in design.BATCHES]
    middle = design.BATCHES.index(32)
    shape = len(design.BATCHES), len(design.LEVELS), COMPUTE.size
    mean, deviation, spread = np.empty(shape), np.empty(shape), np.empty(shape[1:])
    rewards: dict[tuple[int, int], Any] = {}
    for i, bank in enumerate(banks):
        for j, n in enumerate(design.LEVELS):
            c = bank[f"c{n}"].astype(float)
            rewards[i, j] = _interpolated(c, bank[f"r{n}"])
            mean[i, j] = _smoothed(c, bank[f"r{n}"].mean(axis=0))
    for i in range(shape[0]):  # the same seeds at B_p = 32 tell how far these seeds are from all
        few = rewards[i, 0].shape[0]
        for j, n in enumerate(design.LEVELS):
            bank = banks[middle]
            above = bank[f"r{n}"].mean(axis=0) - bank[f"r{n}"][:few].mean(axis=0)
            mean[i, j] += _smoothed(bank[f"c{n}"].astype(float), above)
    for j, n in enumerate(design.LEVELS):
        bank = banks[middle]
        p = rewards[middle, j].mean(axis=0)
        spread[j] = _interpolated(bank[f"c{n}"].astype(float), bank[f"v{n}"])[0] / (p * (1 - p))
    away = {place: values - values.mean(axis=0) for place, values in rewards.items()}
    wide = np.concatenate([away[middle, j] for j in range(shape[1])], axis=1)
    scores = np.linalg.svd(wide, full_matrices=False)[0][:, :PARTS] * np.sqrt(len(wide))
    shared = np.empty((PARTS, *shape))
    for (i, j), deviations in away.items():
        z = scores[: len(deviations)]
        shared[:, i, j] = np.linalg.lstsq(z - z.mean(axis=0), deviations, rcond=None)[0]
        rest = deviations - (z - z.mean(axis=0)) @ shared[:, i, j]
        variance = rest.var(axis=0) * len(rest) / (len(rest) - 1 - PARTS)
        p = mean[i, j]
        variance -= spread[j] * p * (1 - p) / SAMPLES
        smooth = np.convolve(np.pad(variance, 2, "edge"), _SMOOTH, "valid")
        deviation[i, j] = np.sqrt(np.maximum(smooth, 0))
    return {"mean": mean, "shared": shared, "own": deviation, "spread": spread}


def published(kind: str) -> list[dict[str, Any]]:
    """Return the arrays of `MEMBERS` members of a published preset, as of `truth`, with ``names``.

    Rewards at B_p other than 32 rest on the simulator's mechanism alone: the paper's runs have one B_p.
    """
    ensemble = read_ensemble(f"published-{kind}")
    cells = [(b, n) for b in design.BATCHES for n in design.LEVELS]
    shape = len(design.BATCHES), len(design.LEVELS), COMPUTE.size
    out = []
    for member in truths_of(ensemble, cells, design.TARGET, MEMBERS, 1):
        tables = member.mean, member.own, member.spread
        at = np.stack([_interpolated(member.compute, table) for table in tables])
        mean, deviation, spread = at.reshape(3, *shape)
        shared = np.zeros((PARTS, *shape))
        for part, table in enumerate(member.shared):
            shared[part] = _interpolated(member.compute, table).reshape(shape)
        middle = design.BATCHES.index(32)
        out.append(
            {"names": member.name, "mean": mean, "own": deviation, "spread": spread[middle], "shared": shared}
        )
    return out


def make(keep: bool) -> None:
    """Write the file; with ``keep`` its jittered truths stay as they are."""
    made, kinds = [], []
    if keep:
        with np.load(FILE, allow_pickle=False) as data:
            assert int(data["simulator"]) == Bandit.version, "the truths there are of another simulator"
            for i in range(len(design.SETS) * len(design.TUNING)):
                made.append({key: data[key][i] for key in ("names", "mean", "shared", "own", "spread")})
                kinds.append(str(data["names"][i]).split()[0])
    else:
        for kind in design.SETS:
            for index in design.TUNING:
                made.append({"names": f"{kind} {index}", **truth(kind, index)})
                kinds.append(kind)
    for kind in design.SETS:
        for member in published(kind):
            made.append(member)
            kinds.append(kind)
    stacked = {key: np.stack([one[key] for one in made]) for key in made[0]}
    np.savez_compressed(
        FILE,
        simulator=Bandit.version,
        names=stacked["names"],
        kinds=np.array(kinds),
        batches=np.array(design.BATCHES),
        levels=np.array(design.LEVELS),
        compute=COMPUTE,
        mean=stacked["mean"].astype(np.float32).round(5),
        **{key: stacked[key].astype(np.float16) for key in ("shared", "own", "spread")},
    )
    print(f"{FILE}: {FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration.truths")
    parser.add_argument("--keep", action="store_true", help="make only the members of the published presets")
    make(parser.parse_args().keep)
