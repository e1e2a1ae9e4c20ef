"""Compute a run's metrics on evaluation sets, and its training metrics since the last evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isolaw import metrics
from isolaw.backend import AnswerCounts, Measurement, Response, cut
from isolaw.backends.real.algorithms import advantages
from isolaw.backends.real.rollout import rewards
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.train.batch import Batch, RankGroup

RESPONSES = 8  # default number of responses to keep per set and evaluation
# Maximum characters to keep of each text; an evaluation of one set then keeps at most 22 kB.
_PROMPT, _RESPONSE, _ANSWER = 500, 2000, 200


def of_set(
    name: str, problems: list[Problem], batch: Batch, names: tuple[str, ...]
) -> tuple[list[Measurement], AnswerCounts]:
    """Return the metrics of an evaluation set, and the number of correct responses to each problem.

    The batch contains K rollouts of each problem. ``names`` lists avg@k, best@k and worst@k with k ≤ K.
    """
    k, correct = batch.n, rewards.is_correct(batch.rewards.numpy()).sum(1)
    landscape = metrics.landscape(correct / k)
    value_of = {
        **{metric: metrics.evaluate(metric, correct, k) for metric in names},
        "zero_fraction": landscape.zero_fraction,
        "gini": landscape.gini,
        "response_length": batch.response_length,
        "truncated_fraction": batch.truncated_fraction,
    }
    rows = [Measurement(name, metric, value, len(problems), k) for metric, value in value_of.items()]
    return rows, AnswerCounts(name, k, [p.id for p in problems], correct.tolist())


def of_batch(batch: Batch) -> dict[str, float]:
    """Return the metrics of a training batch that are known before its update."""
    return {
        "reward": float(batch.rewards.mean()),
        "response_length": batch.response_length,
        "truncated_fraction": batch.truncated_fraction,
        "informative_fraction": float(advantages.informative(batch.rewards).double().mean()),
    }


def responses_of(
    name: str, problems: list[Problem], batch: Batch, count: int, ranks: RankGroup, tokenizer: Any
) -> list[Response]:
    """Return the first response to each of the set's first ``count`` problems.

    All processes must call this function. The problems are the same at every evaluation of every run of a
    sweep.
    """
    texts: list[tuple[int, str, str]] = []
    rollouts = batch.rollouts
    for row, prompt, tokens in zip(batch.rows, rollouts.prompts, rollouts.tokens, strict=True):
        problem, sample = divmod(row, batch.n)
        if sample == 0 and problem < count:
            response = tokenizer.decode(tokens, skip_special_tokens=True)  # the text that the reward judges
            texts.append((problem, cut(tokenizer.decode(prompt), _PROMPT), cut(response, _RESPONSE)))
    texts_of = {problem: pair for rank_texts in ranks.all_of(texts) for problem, *pair in rank_texts}
    return [
        Response(
            name,
            problems[problem].id,
            prompt,
            response,
            cut(problems[problem].answer, _ANSWER),
            float(batch.rewards[problem, 0]),
            int(batch.lengths[problem, 0]),
            bool(batch.truncated[problem, 0]),
        )
        for problem, (prompt, response) in sorted(texts_of.items())
    ]


class PassRates:
    """The pass rate of each training problem at its last visit."""

    def __init__(self, n_train: int) -> None:
        self.rates = np.full(n_train, np.nan)

    def visit(self, batch: Batch) -> None:
        """Record the pass rates of the problems in a batch."""
        self.rates[batch.visited] = batch.rewards.mean(1)

    def rows(self, n: int) -> list[Measurement]:
        """Return the share of pass rates that are 0 and their Gini coefficient, over all visited problems."""
        visited_rates = self.rates[~np.isnan(self.rates)]
        if not visited_rates.size:
            return []
        landscape, names = metrics.landscape(visited_rates), ("zero_fraction", "gini")
        return [Measurement("train", name, getattr(landscape, name), visited_rates.size, n) for name in names]

    def state(self) -> list[float | None]:
        """Return the pass rates as JSON-compatible data."""
        return [None if np.isnan(rate) else float(rate) for rate in self.rates]

    def restore(self, state: list[float | None]) -> None:
        """Restore the pass rates from the result of `state`."""
        self.rates = np.array([np.nan if rate is None else rate for rate in state])


@dataclass
class StepMeans:
    """Means of the metrics over several steps; for names that end in ``_max``, the maximum."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        """Add the metrics of a step."""
        for name, value in values.items():
            if name.endswith("_max"):
                self.sums[name], self.counts[name] = max(value, self.sums.get(name, value)), 1
            else:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the means, and reset them."""
        out = {name: value / self.counts[name] for name, value in self.sums.items()}
        self.sums, self.counts = {}, {}
        return out
