"""From the battery's runs to its findings, and to what their pictures show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from isolaw.findings import control, rules
from isolaw.findings.estimate import Floats, interval, leave_one_out
from isolaw.findings.execute import Made
from isolaw.findings.experiments import (
    ETA_FACTORS,
    LOOKS,
    N_EST,
    N_TRAIN,
    PER_OCTAVE,
    SETS,
    TABULAR_LEVELS,
    Battery,
)
from isolaw.findings.finding import Finding
from isolaw.findings.rewards import rewards, settled
from isolaw.findings.rules import path

Series = dict[str, Any]


class Measured:
    """Findings and pictures of one battery's runs."""

    def __init__(self, battery: Battery, made: Made) -> None:
        self.battery, self.made = battery, made
        self.findings: list[Finding] = []
        self.pictures: dict[str, Series] = {}
        self.main = {name: self._rewards(name) for name in SETS}
        self._rises()
        self._compared()
        self._batches()
        self._alone()
        self._landscapes()
        self._sizes()
        self._decoupled()

    def _rewards(
        self,
        experiment: str,
        metric: str = "avg@4",
        eval_set: str = "validation",
        *,
        levels: Sequence[int] | None = None,
        batch: int | None = None,
        looks: Floats | None = None,
        **where: Any,
    ) -> Floats:
        b = self.battery
        found = rewards(
            self.made.runs[experiment],
            metric,
            eval_set,
            seeds=b.seeds,
            levels=b.levels if levels is None else levels,
            budgets=b.looks if looks is None else looks,
            where={"problems_per_batch": batch or b.batch, **where},
        )
        return settled(found, LOOKS)

    def _rises(self) -> None:
        """F1, and the control: the same with η re-tuned."""
        b = self.battery
        picture: Series = {"x": b.budgets.tolist(), "levels": b.levels, "curves": {}}
        for name in SETS:
            values = self.main[name]
            self.findings.append(rules.rises(name, b.levels, values))
            picture["curves"][name] = {"sqrt": _path(b.levels, values)}
            if b.control:
                eta = b.eta(name)
                each = [values if f == 1 else self._rewards(f"{name}-eta", lr=eta * f) for f in ETA_FACTORS]
                tuned, share = control.retuned(np.stack(each, axis=3))
                self.findings.append(control.control(name, b.levels, values, tuned, ETA_FACTORS, share))
                picture["curves"][name]["retuned"] = _path(b.levels, tuned)
        self.pictures["F1"] = picture

    def _compared(self) -> None:
        """F2, F3: at the largest C, sets and metrics side by side."""
        b = self.battery
        end = {name: values[:, :, -1] for name, values in self.main.items()}
        self.findings.append(rules.harder(b.levels, end["easy"], end["hard"]))
        self.pictures["F2"] = {"levels": b.levels, "curves": {name: _below(v) for name, v in end.items()}}
        picture: Series = {"levels": b.levels, "curves": {}}
        for name in SETS:
            worst, best = (self._rewards(name, f"{m}@4")[:, :, -1] for m in ("worst", "best"))
            self.findings.append(rules.sharpening(name, b.levels, worst, best))
            picture["curves"][name] = {"worst@4": _below(worst), "best@4": _below(best)}
        self.pictures["F3"] = picture

    def _batches(self) -> None:
        """F4: B_p against n."""
        b = self.battery
        sizes, coarse = b.moderate_batches, b.coarse_levels
        each = [
            self._rewards("easy" if size == b.batch else "easy-batches", levels=coarse, batch=size)[:, :, -1]
            for size in sizes
        ]
        values = np.stack(each, axis=1)
        self.findings.append(rules.batches(coarse, sizes, values, b.batch))
        batch, levels = b.fixed_batch
        paths = {}
        for name, rule in (("easy", rules.shifts), ("hard", rules.turns)):
            parts = [self._rewards(f"{name}-fixed-b", levels=[n], batch=batch // n) for n in levels]
            fixed = np.concatenate(parts, axis=1)
            self.findings.append(rule(levels, batch, fixed))
            paths[name] = _path(levels, fixed)
        mean, low, high = interval(_within(values, (1, 2)))
        self.pictures["F4"] = {
            "levels": coarse,
            "batches": {str(s): _band(mean[i], low[i], high[i]) for i, s in enumerate(sizes)},
            "batch": batch,
            "x": (b.budgets / batch).tolist(),
            "fixed_levels": levels,
            "curves": paths,
        }

    def _alone(self) -> None:
        """F5a: one problem."""
        looks = self.battery.tabular_looks
        picture: Series = {"x": looks[LOOKS::LOOKS].tolist(), "levels": list(TABULAR_LEVELS), "curves": {}}
        for rule in self.battery.tabular:
            values = self._rewards(f"tabular-{rule}", levels=TABULAR_LEVELS, batch=1, looks=looks)
            self.findings.append(rules.alone(rule, TABULAR_LEVELS, values))
            picture["curves"][rule] = _path(TABULAR_LEVELS, values)
        self.pictures["F5a"] = picture

    def _landscapes(self) -> None:
        """F5b: the pass@1 landscape."""
        b = self.battery
        picture: Series = {"levels": b.levels, "curves": {}}
        for name in SETS:
            zero, gini = (self._rewards(name, m)[:, :, -1] for m in ("zero_fraction", "gini"))
            train = self._rewards(name, "zero_fraction", "train")[:, :, -1]
            self.findings.append(rules.landscape(name, b.levels, zero, gini, train))
            picture["curves"][name] = {
                k: _band(*interval(_within(v))) for k, v in (("zero-pass", zero), ("Gini", gini))
            }
        self.pictures["F5b"] = picture

    def _sizes(self) -> None:
        """F6: the size of the training set."""
        b = self.battery
        sizes = b.training_sizes
        each = [self._rewards(f"easy-d{d}") for d in sizes[:-1]] + [self.main["easy"]]
        self.findings.append(rules.capped(b.levels, sizes, np.stack([v[:, :, -1] for v in each], axis=1)))
        self.pictures["F6"] = {
            "x": b.budgets.tolist(),
            "levels": b.levels,
            "curves": {str(d): _path(b.levels, v) for d, v in zip(sizes, each, strict=True)},
        }

    def _decoupled(self) -> None:
        """F7: advantages from more rollouts than enter the gradient."""
        b = self.battery
        if not b.decoupled:
            nothing = np.full(len(b.seeds), np.nan)
            for name in SETS:
                self.findings += rules.decoupled(name, (N_EST, N_TRAIN), *[nothing] * 4)
            return
        picture: Series = {"curves": {}}
        for name in SETS:
            both = self._rewards(f"{name}-decoupled", levels=[N_EST])[:, 0]
            full, part = (self.main[name][:, b.levels.index(n)] for n in (N_EST, N_TRAIN))
            same = -1 - PER_OCTAVE * round(math.log2(N_EST / N_TRAIN))  # the budget of equal steps
            ends = (both[:, -1], full[:, -1], part[:, same], part[:, -1])
            self.findings += rules.decoupled(name, (N_EST, N_TRAIN), *ends)
            # At the same steps, which n_train has made at smaller budgets.
            shift = -1 - same
            value, low, high = interval(
                _within(np.stack([full[:, shift:], both[:, shift:], part[:, : same + 1]], axis=1))
            )
            names = (f"n = {N_EST}", "decoupled", f"n = {N_TRAIN}")
            picture["curves"][name] = {
                label: _band(value[i], low[i], high[i]) for i, label in enumerate(names)
            }
            picture["x"] = (b.budgets[shift:] / (b.batch * N_EST)).tolist()
        self.pictures["F7"] = picture


def _band(value: Floats, low: Floats, high: Floats) -> Series:
    """A curve and its pointwise interval; what was not measured is None."""
    parts = {"value": value, "low": low, "high": high}
    return {k: [float(v) if np.isfinite(v) else None for v in part] for k, part in parts.items()}


def _path(levels: Sequence[int], values: Floats) -> Series:
    """n* (as log2) along the budgets."""
    return _band(*interval(path(levels, leave_one_out(values)).log2_n))


def _within(values: Floats, over: int | tuple[int, ...] = 1) -> Floats:
    """Rows of rewards (S, …) less what a seed's curves share: their mean ``over`` these axes."""
    known = np.isfinite(values).all(axis=0)  # a batch above the cap was not run
    total = np.where(known, values, 0.0).sum(axis=over, keepdims=True)
    shared = total / np.maximum(np.where(known, 1, np.zeros_like(values)).sum(axis=over, keepdims=True), 1)
    return leave_one_out(values - shared + shared.mean(axis=0))


def _below(values: Floats) -> Series:
    """Rewards (S, N) less the best of their mean."""
    rows = leave_one_out(values)
    return _band(*interval(rows - rows.max(axis=1, keepdims=True)))
