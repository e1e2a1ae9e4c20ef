"""Fit two laws of the rollouts to a target: the critical batch of each n, and the best lr over B_p and n.

`isolaw.fits.studies.target_model` contains their equations, and `isolaw.fits.studies.targets` prepares the
data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isolaw.allocation import Cell
from isolaw.evidence import REFUSED, Quantity
from isolaw.fits.document.codec import Encoded
from isolaw.fits.flags import Code, Flag
from isolaw.fits.studies.target_model import TargetData, TargetModel

_LEAST_BATCHES = 3
_NOT_REJECTED = 0.05


@dataclass(frozen=True)
class CriticalBatch:
    """The critical batch B_crit, the fewest rollouts N_min and steps S_min, for one n and one target."""

    rollouts_per_problem: int
    target: float
    reached: int  #: number of runs that reached the target
    problems_per_batch: Quantity  #: B_crit
    rollouts: Quantity  #: N_min
    steps: Quantity  #: S_min


@dataclass(frozen=True)
class LrChoice(Cell):
    """The best lr of a (B_p, n) for a target, according to the law fitted to all runs.

    ``tried`` contains the smallest and the largest lr that ran at this (B_p, n).
    """

    target: float
    lr: float
    tried: tuple[float, float]

    @property
    def beyond(self) -> bool:
        """Whether the best lr is outside the range of the lr that ran."""
        return not self.tried[0] <= self.lr <= self.tried[1]


@dataclass(frozen=True)
class LrLaw(Encoded):
    """The law of the best learning rate, lr* ∝ B_p^α n^β.

    ``alpha`` and ``beta`` contain a value for each target. ``beta`` (``alpha``) is empty if lr was varied at
    only one n (B_p). ``p_values`` is keyed by the rules of ``recipe.lr_scaling``, and ``supported`` lists the
    rules that are not rejected at 5 %.
    """

    DERIVED = ("supported",)
    targets: tuple[float, ...]
    alpha: tuple[Quantity, ...]
    beta: tuple[Quantity, ...]
    p_values: dict[str, float]
    choices: tuple[LrChoice, ...]

    @property
    def supported(self) -> list[str]:
        """The rules that the runs do not reject, in descending order of p-value."""
        rules = [rule for rule, p in self.p_values.items() if p >= _NOT_REJECTED]
        return sorted(rules, key=lambda rule: -self.p_values[rule])


def critical_batches(data: TargetData, flags: list[Flag]) -> tuple[CriticalBatch, ...]:
    """Return the critical batch of each n and target, and flag the targets without one."""
    batches: list[CriticalBatch] = []
    for n in np.unique(data.rollouts_per_problem):
        has_n = data.rollouts_per_problem == n
        if np.unique(data.problems_per_batch[has_n]).size < _LEAST_BATCHES:
            continue
        data_of_n = data.of(has_n, np.asarray(data.reached[has_n].any(axis=0)))
        reaching_batches = np.unique(data_of_n.problems_per_batch[data_of_n.reached.any(axis=1)])
        has_enough_batches = reaching_batches.size >= _LEAST_BATCHES
        model = TargetModel(data_of_n, "critical") if has_enough_batches and data_of_n.targets.size else None
        for j, target in enumerate(data.targets):
            reached = int(data.reached[has_n, j].sum())
            if model is None or not reached:
                batches.append(CriticalBatch(int(n), float(target), reached, REFUSED, REFUSED, REFUSED))
                continue
            index = int(np.flatnonzero(data_of_n.targets == target)[0])
            quantities = (model.critical_batch(index), model.least_rollouts(index), model.least_steps(index))
            batches.append(CriticalBatch(int(n), float(target), reached, *quantities))
    refused_targets = sorted({batch.target for batch in batches if batch.problems_per_batch is REFUSED})
    if refused_targets:
        targets = ", ".join(f"{level:g}" for level in refused_targets)
        text = f"too few B_p reach {targets} for a critical batch: choose a lower target, or run longer"
        flags.append(Flag(Code.CENSORED, text))
    return tuple(batches)


def fit_lr_law(data: TargetData) -> LrLaw | None:
    """Return the law of the best lr, from the model in which N of every (B_p, n) is free.

    Returns None if the data do not determine the law.
    """
    reached_data = data.of(np.ones(data.block.size, dtype=bool), np.asarray(data.reached.any(axis=0)))
    model = TargetModel(reached_data, "cells")
    if not (model.has("alpha") or model.has("beta")) or model.freedom < 1:
        return None
    every = range(reached_data.targets.size)
    exponents = [
        tuple(model.exponent(name, j) for j in every) if model.has(name) else () for name in ("alpha", "beta")
    ]
    if all(quantities[len(quantities) // 2].interval is None for quantities in exponents if quantities):
        return None
    assert reached_data.lr is not None
    choices = []
    cells, cell = reached_data.cells
    for i, (b, n) in enumerate(cells.T.astype(int).tolist()):
        lr = reached_data.lr[cell == i]
        tried = (float(lr.min()), float(lr.max()))
        choices += [LrChoice(b, n, float(t), model.best_lr(b, n, t), tried) for t in reached_data.targets]
    targets = tuple(reached_data.targets.tolist())
    return LrLaw(targets, exponents[0], exponents[1], model.p_values(), tuple(choices))
