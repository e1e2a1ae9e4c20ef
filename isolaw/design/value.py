"""Forecast the value of more runs: the expected loss after more seeds at the target.

isolaw draws a few truths (`isolaw.design.truths`) from the surface fitted to the runs so far. In each truth
it simulates the additional runs, adds them to the measured ones, and compares the cells again:

loss after = mean over truths of the expected loss in that comparison

The forecast therefore uses the same estimator as the comparison itself, including what the estimator learns
about the variation between runs. (A Gaussian update of the draws treats this variation as known, and
predicted only half of the loss.)
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
    """Additional runs to the target, and the expected loss before and after them."""

    DERIVED = ("rollouts",)

    runs: tuple[Request, ...]
    before: float
    after: float

    @property
    def rollouts(self) -> int:
        """The rollouts that the additional runs generate."""
        return sum(run.rollouts for run in self.runs)


def further(
    measured: Sequence[Configuration], found: CellRewards, seeds: Sequence[int], rollouts: int, answers: int
) -> Purchase | None:
    """Return the value of additional seeds that ``rollouts`` pay for, or of two runs if they pay for fewer.

    The seeds go in turn to the best cell and its strongest rivals. ``found`` compares the cells at the
    target. ``seeds`` are the seeds of the sweep; new seeds continue their numbering. ``answers`` is the
    number of answers in an evaluation. Returns None if no cell competes with the best one, or if rewards are
    not shares of correct answers.
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
        key = found.cells[i]
        left = [seed for seed in seeds if seed not in taken[key]]
        taken[key].append(left[0] if left else max((*seeds, *taken[key])) + 1)
        runs.append(Request(*key, taken[key][-1], found.compute))
    truths = drawn_from(measured, found.cells, found.compute, DRAWS, seed=1)
    schedule = {c.key: c.checkpoints for c in measured}
    after = []
    for i, truth in enumerate(truths):
        sample = Sample(truth, schedule, answers, (i,))
        new = compare(_joined(measured, sample, runs), found.cells, found.compute, seed=i)
        after.append(new.expected_loss)
    return Purchase(tuple(runs), found.expected_loss, float(np.mean(after)))


def _joined(
    measured: Sequence[Configuration], sample: Sample, runs: Sequence[Request]
) -> list[Configuration]:
    """Return the measurements together with simulated measurements of these additional runs."""
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
