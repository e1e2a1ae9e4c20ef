"""The truths of `isolaw plan`: ``python -m benchmarks.presets`` writes ``isolaw/design/presets.npz``.

They are the presets of `benchmarks.design` on which the race was developed, from the runs that ``python -m
benchmarks.design simulate`` makes (``--keep`` takes them from the existing file), and members of the
published presets (`isolaw.design.ensemble`). For each of the former, B_p, n and C the file has

- the mean reward of all seeds. Fewer seeds were simulated for B_p = 8 and 128 than for 32; what those have
  above the mean is taken from all three, since seeds share their problems;
- ``PARTS`` principal components of the effects shared by runs of one seed, over n and C at B_p = 32, and
their amounts in runs of the same seeds at the other B_p;
- the standard deviation of the rest of a run, without the noise of its own evaluation;
- E[p (1 − p)] over problems at B_p = 32, as a share of its value if all problems had the mean p.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import isolaw
from benchmarks import design
from isolaw.backends.bandit import Bandit
from isolaw.design.ensemble import truths_of
from isolaw.simulators.presets import read_preset

FILE = Path(isolaw.__file__).parent / "design" / "presets.npz"
PARTS = 4
MEMBERS = (0, 25, 50, 75)  # of each published preset; others judge (benchmarks.forecasts)
COMPUTE = np.concatenate([[0.0], np.geomspace(1024, design.TARGET, 40)])
SAMPLES = 300 * 64  # validation answers of the simulated runs
WIDTH = 0.2  # of the local line along log C: about a checkpoint


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
    mean, own, spread = np.empty(shape), np.empty(shape), np.empty(shape[1:])
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
    away = {place: own_ - own_.mean(axis=0) for place, own_ in rewards.items()}
    wide = np.concatenate([away[middle, j] for j in range(shape[1])], axis=1)
    scores = np.linalg.svd(wide, full_matrices=False)[0][:, :PARTS] * np.sqrt(len(wide))
    shared = np.empty((PARTS, *shape))
    for (i, j), found in away.items():
        z = scores[: len(found)]
        shared[:, i, j] = np.linalg.lstsq(z - z.mean(axis=0), found, rcond=None)[0]
        rest = found - (z - z.mean(axis=0)) @ shared[:, i, j]
        variance = rest.var(axis=0) * len(rest) / (len(rest) - 1 - PARTS)
        p = mean[i, j]
        variance -= spread[j] * p * (1 - p) / SAMPLES
        own[i, j] = np.sqrt(np.maximum(np.convolve(np.pad(variance, 2, "edge"), np.ones(5) / 5, "valid"), 0))
    return {"mean": mean, "shared": shared, "own": own, "spread": spread}


def published(kind: str) -> list[dict[str, Any]]:
    """Return the arrays of `MEMBERS` members of a published preset, as of `truth`, with ``names``.

    Rewards at B_p other than 32 rest on the simulator's mechanism alone: the paper's runs have one B_p.
    """
    preset = read_preset(f"published-{kind}")
    cells = [(b, n) for b in design.BATCHES for n in design.LEVELS]
    shape = len(design.BATCHES), len(design.LEVELS), COMPUTE.size
    out = []
    for own in truths_of(preset, cells, design.TARGET, 1, chosen=MEMBERS):
        at = np.stack([_interpolated(own.compute, table) for table in (own.mean, own.own, own.spread)])
        mean, deviation, spread = at.reshape(3, *shape)
        shared = np.zeros((PARTS, *shape))
        for part, table in enumerate(own.shared):
            shared[part] = _interpolated(own.compute, table).reshape(shape)
        middle = design.BATCHES.index(32)
        out.append(
            {"names": own.name, "mean": mean, "own": deviation, "spread": spread[middle], "shared": shared}
        )
    return out


def make(keep: bool) -> None:
    """Write the file; with ``keep`` its jittered truths stay as they are."""
    found, kinds = [], []
    if keep:
        with np.load(FILE, allow_pickle=False) as data:
            assert int(data["simulator"]) == Bandit.version, "the truths there are of another simulator"
            for i in range(len(design.SETS) * len(design.TUNING)):
                found.append({key: data[key][i] for key in ("names", "mean", "shared", "own", "spread")})
                kinds.append(str(data["names"][i]).split()[0])
    else:
        for kind in design.SETS:
            for index in design.TUNING:
                found.append({"names": f"{kind} {index}", **truth(kind, index)})
                kinds.append(kind)
    for kind in design.SETS:
        for own in published(kind):
            found.append(own)
            kinds.append(kind)
    stacked = {key: np.stack([own[key] for own in found]) for key in found[0]}
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.presets")
    parser.add_argument("--keep", action="store_true", help="make only the members of the published presets")
    make(parser.parse_args().keep)
