"""The value of more runs: the expected loss after further seeds at the target, before they are made.

The surface of the runs so far is drawn a few times, and each draw is a truth (`isolaw.design.truths`). In
each truth the further runs are simulated, added to the measured ones, and compared again:

    loss after = mean over truths of the expected loss that isolaw then sees

So the forecast is the estimator's own answer, including what it learns about the variation between runs. (A
Gaussian update of the draws assumes that variation known, and predicted half of this loss.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.design.cell_rewards import CellRewards, compare
from isolaw.design.decisions import Request
from isolaw.design.race import RIVALS
from isolaw.design.truths import Sample, drawn_from
from isolaw.fits.document.codec import Encoded
from isolaw.fits.selection import Configuration

DRAWS = 6


@dataclass(frozen=True)
class Purchase(Encoded):
    """Further runs to the target, and the expected loss before and after them."""

    DERIVED = ("rollouts",)

    runs: tuple[Request, ...]
    before: float
    after: float

    @property
    def rollouts(self) -> int:
        """Rollouts that the runs generate."""
        return sum(run.rollouts for run in self.runs)


def further(
    measured: Sequence[Configuration], found: CellRewards, seeds: Sequence[int], rollouts: int, answers: int
) -> Purchase | None:
    """Return the value of as many seeds as ``rollouts`` buy, at least one for the best cell and one rival.

    ``found`` compares cells at the target; ``seeds`` are the sweep's (further seeds continue the numbering);
    ``answers`` is the number of answers in an evaluation. Returns None if nothing competes with the best
    cell, or if rewards are not shares.
    """
    if any(c.reward.min() < 0 or c.reward.max() > 1 for c in measured):
        return None
    gains = found.gains()
    rivals = [int(i) for i in np.argsort(-gains, kind="stable") if i != found.best and gains[i] > 0][:RIVALS]
    if not rivals:
        return None
    taken = {c.key: list(c.seeds) for c in measured}
    runs = []
    for i in islice(cycle((found.best, *rivals)), max(rollouts // found.compute, 2)):
        key = found.cells[i].key
        left = [seed for seed in seeds if seed not in taken[key]]
        taken[key].append(left[0] if left else max((*seeds, *taken[key])) + 1)
        runs.append(Request(*key, taken[key][-1], found.compute))
    cells = [cell.key for cell in found.cells]
    truths = drawn_from(measured, cells, found.compute, DRAWS, seed=1)
    schedule = {c.key: c.checkpoints for c in measured}
    after = []
    for i, truth in enumerate(truths):
        sample = Sample(truth, schedule, answers, (i,))
        new = compare(_joined(measured, sample, runs), found.cells, found.compute, seed=i)
        after.append(new.regret[new.best])
    return Purchase(tuple(runs), float(found.regret[found.best]), float(np.mean(after)))


def _joined(
    measured: Sequence[Configuration], sample: Sample, runs: Sequence[Request]
) -> list[Configuration]:
    """Return the measured runs with these runs simulated and added."""
    out: Mapping[BatchShape, Configuration] = {c.key: c for c in measured}
    for request in runs:
        own = out[request.key]
        compute, reward = sample.run(request.run)
        index = np.full(compute.size, len(own.seeds))
        joined = replace(
            own,
            compute=np.concatenate([own.compute, compute]),
            reward=np.concatenate([own.reward, reward]),
            run=np.concatenate([own.run, index]),
            seeds=(*own.seeds, request.seed),
        )
        out = {**out, request.key: joined}
    return list(out.values())
