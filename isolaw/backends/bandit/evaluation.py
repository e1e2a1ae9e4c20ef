"""Compute the metrics of a checkpoint of a simulated run.

For each evaluation set, metrics are computed from the success probabilities p_i, which the simulator knows:

- ``avg@k``, ``best@k``, ``worst@k``: from ``evaluation.samples`` answers to each problem, as for a language
  model. With ``samples = 0`` they are exact (`isolaw.metrics.expected`).
- ``zero_fraction``, ``gini``: the pass@1 landscape (`isolaw.metrics.landscape`), always exact.
- ``histogram`` (optional): the share of problems with p in each of 20 bins, ``pass@1 in [0.00, 0.05)`` etc.

For the whole run, metrics of the set ``train`` include ``drift``, the squared distance of the policy's
parameters from their initial values. Optional metrics are ``interference`` and ``spillover``, which measure
how a step on some problems changes the other problems. To measure them, the simulator makes an additional
step on a set S of B_p training problems with separate rollouts, and then undoes it. Let Δ_i be the change of
p_i for each training problem outside S. Then ::

    spillover    = mean |Δ_i|                      the size of the change in other problems
    interference = Σ max(0, −Δ_i) / Σ |Δ_i|        the share of this change that is a loss; 0: pure transfer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from isolaw import metrics
from isolaw.backend import Measurement
from isolaw.config import RunSpec
from isolaw.errors import RunError
from isolaw.simulators.draws import binomial
from isolaw.simulators.model import Floats, Model, Update

EVAL_SETS = ("validation", "train")
EXTRA = ("histogram", "interference")
_PROBE = len(EVAL_SETS)
_BINS = 20


class Evaluation:
    """Computes the metrics of the simulated model of a run.

    ``stream(part, step)`` returns the random stream of one measurement. Streams depend on the step, so
    results do not depend on the number of evaluations.
    """

    def __init__(
        self, spec: RunSpec, update: Update, stream: Callable[[int, int], np.random.Generator]
    ) -> None:
        self.spec, self.stream = spec, stream
        self.probe = replace(update, staleness=0)
        names = spec.evaluation.metrics
        self.accuracies = [name for name in names if name not in EXTRA]
        self.histogram, self.interference = ("histogram" in names, "interference" in names)

    def rows(self, model: Model, step: int) -> list[Measurement]:
        """Return all measurements after ``step`` steps; raise `RunError` if the run has diverged."""
        rows: list[Measurement] = []
        success = {s: model.success(train=s == "train") for s in EVAL_SETS if s in self.spec.evaluation.sets}
        finite = all(np.isfinite(p).all() for p in success.values())
        if not finite or not math.isfinite(drift := model.drift()):
            raise RunError(f"the simulation diverged by step {step}; try a smaller lr")
        for name, p in success.items():
            rows += self._accuracies(name, p, EVAL_SETS.index(name), step)
            rows += self._landscape(name, p)
        rows.append(Measurement("train", "drift", drift))
        if self.interference:
            rows += self._interference(model, step)
        return rows

    def _accuracies(self, eval_set: str, p: Floats, index: int, step: int) -> Iterator[Measurement]:
        samples = self.spec.evaluation.samples
        correct: Any = binomial(self.stream(index, step), samples, p) if samples else None
        for name in self.accuracies:
            value = metrics.evaluate(name, correct, samples) if samples else metrics.expected(name, p)
            yield Measurement(eval_set, name, value, p.size, samples or None)

    def _landscape(self, eval_set: str, p: Floats) -> Iterator[Measurement]:
        shape = metrics.landscape(p, bins=_BINS)
        yield Measurement(eval_set, "zero_fraction", shape.zero_fraction, p.size)
        yield Measurement(eval_set, "gini", shape.gini, p.size)
        if self.histogram:
            for i, count in enumerate(shape.histogram):
                end = "]" if i == _BINS - 1 else ")"
                name = f"pass@1 in [{i / _BINS:.2f}, {(i + 1) / _BINS:.2f}{end}"
                yield Measurement(eval_set, name, count / p.size, p.size)

    def _interference(self, model: Model, step: int) -> Iterator[Measurement]:
        rng = self.stream(_PROBE, step)
        before, p = model.arrays(), model.success(train=True)
        batch = rng.choice(p.size, self.spec.problems_per_batch, replace=self.spec.recipe.replacement)
        model.advance(batch[None, :].astype(np.int64), self.probe, rng)
        change = np.delete(model.success(train=True) - p, batch)
        model.restore(before)
        total = float(np.abs(change).sum())
        if total > 0:
            yield Measurement("train", "interference", float(-change[change < 0].sum()) / total, change.size)
            yield Measurement("train", "spillover", total / change.size, change.size)
