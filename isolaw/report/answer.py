"""`answer`: recommend an allocation for a budget, with its uncertainty and the runs to add next.

The module combines `isolaw.read`, `isolaw.fit`, `Law.predict` and `isolaw.backtest`; it computes no estimate
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pandas as pd

from isolaw.arguments import checked
from isolaw.errors import Refused
from isolaw.evidence import Interval, Quantity, Simulated
from isolaw.fits.gain import Gain, gain
from isolaw.fits.law import Law
from isolaw.fits.next_step import NextStep
from isolaw.fits.pipeline import DRAWS
from isolaw.fits.prediction import Prediction
from isolaw.fits.selection import Hold
from isolaw.readers.read import as_runs
from isolaw.registry import Shown
from isolaw.report.document import Document, Passage
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.text.prediction import (
    after_backtest,
    answer_lines,
    backtest_failed,
    choices,
    largest_with_recommendation,
)
from isolaw.runs import ReadKeywords, Source, full_names
from isolaw.step_cost import Cost

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Answer(Shown):
    """The recommended split of a budget; its text is the output of ``isolaw answer``, at most eight lines."""

    TEXT = "answer.answered"

    prediction: Prediction  #: the prediction, with all alternatives and cautions
    fitted: FittedRuns  #: the runs and the law, without laws of n*(C)
    backtest: Mapping[str, Any] | str  #: the result of `isolaw.backtest`, or the reason why there is none
    gain: Gain | None  #: the gain over today's compute; None if the budget is not larger
    nearest: Prediction | None  #: for the largest budget with a recommendation, if this budget has none
    limits: Mapping[str, Any]  #: the arguments passed to `Law.predict`

    @cached_property
    def study(self) -> FittedRuns:
        """The runs and the law, with laws of n*(C), which only figures and pages show."""
        return self.fitted.with_equations()

    @property
    def law(self) -> Law:
        """The law that was fitted to the runs, with laws of n*(C)."""
        assert self.study.law is not None
        return self.study.law

    @property
    def n(self) -> int | None:
        """n, the rollouts per problem. If isolaw recommends no allocation, n, B_p and M are None."""
        return self.prediction.n

    @property
    def B_p(self) -> int | None:
        """B_p, the problems per batch of the recommended allocation."""
        return self.prediction.B_p

    @property
    def M(self) -> int | None:
        """M, the update steps of the recommended allocation."""
        return self.prediction.M

    @property
    def next(self) -> NextStep:
        """What to do next: runs to add, with their price, or the final run."""
        return self.prediction.next

    @property
    def loss(self) -> float | None:
        """Expected loss in reward relative to the best allocation."""
        return self.prediction.loss

    @property
    def reward(self) -> Quantity:
        """Predicted reward and its 95 % interval."""
        return self.prediction.reward

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the predicted reward, or None if it is not known."""
        return self.prediction.reward.interval

    @property
    def simulated(self) -> Simulated:
        """Label that states whether the runs come from a simulator."""
        return self.prediction.simulated

    def table(self) -> pd.DataFrame:
        """Return the allocations with an expected loss of at most 0.005, the recommended one first.

        The columns are ``n``, ``B_p``, ``M``, ``reward``, ``reward_low``, ``reward_high``, ``expected_loss``,
        ``probability_within_tolerance`` and ``measured``. The probability is that the allocation is within
        0.005 of the best.
        """
        rows = []
        for option in self.prediction.options:
            allocation, (low, high) = option.allocation, option.reward.interval or (None, None)
            counts = allocation.rollouts_per_problem, allocation.problems_per_batch, allocation.steps
            estimates = option.reward.value, low, high, option.expected_loss, option.probability
            rows.append((*counts, *estimates, option.measured))
        names = ["n", "B_p", "M", "reward", "reward_low", "reward_high", "expected_loss"]
        return pd.DataFrame(rows, columns=[*names, "probability_within_tolerance", "measured"])

    def plot(self) -> Figure:
        """Return the figure of n*(C) (`isolaw.law_figure`)."""
        return self.law.plot()

    @checked
    def write_page(self, path: str | Path) -> Path:
        """Write a page about the answer, its runs and their law: one HTML file that opens in any browser.

        isolaw replaces an earlier page at ``path``, but no other file. Raises `DataError` if ``path`` is
        another file or cannot be written.
        """
        from isolaw.report.page import PageContent, check_replaceable, render, write
        from isolaw.report.page.budgets import budgets

        check_replaceable(path)
        runs, prediction = self.study.runs, self.prediction
        slider = budgets(self.law, prediction.asked or prediction.compute, **self.limits)
        page = PageContent(slider, self.backtest, notes=runs.notes, title=str(runs.source or ""))
        return write(render(self.study, page), path)

    def lines(self) -> list[str]:
        """Return the lines of the text, without the label that marks simulated runs (see `simulated`)."""
        return answer_lines(self.prediction, self.backtest, self.gain, self.nearest)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data: the prediction, ``gain``, ``backtest`` and ``nearest``."""
        result = self.backtest
        return {
            **self.prediction.to_dict(),
            "gain": self.gain and self.gain.to_dict(),
            "backtest": None if isinstance(result, str) else dict(result),
            "backtest_refused": result if isinstance(result, str) else None,
            "backtest_failed": backtest_failed(result),
            "nearest": self.nearest and self.nearest.to_dict(),
        }


def answered(result: Answer) -> Document:
    """Return the document of an answer; only notebooks show the table of its choices."""
    passages = [Passage("", result.lines())]
    if result.prediction.options:
        table = choices(result.prediction)
        passages.append(Passage("", [replace(table, page_only=table.columns)]))
    return Document("answer", passages, result.to_dict())


@checked
def answer(
    source: Source,
    compute: float | str,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    hold: Hold | None = None,
    where: Mapping[str, Any] | None = None,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
    cost: Cost | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda stage, share: None,
    **reading: Unpack[ReadKeywords],
) -> Answer:
    """Recommend how to split a budget, and report the expected loss, the gain and the runs to add next.

    Parameters
    ----------
    source
        logs, a sweep's directory or a table, as for `isolaw.read`, or `Runs`.
    compute
        the budget: rollouts (``1e6``, ``"1M"``), or with ``cost`` hours (``"384gpuh"``).
    hold
        ``B_p``, ``B`` or ``nothing``; by default chosen from how B_p and n vary.
    max_batch_rollouts
        the hardware limit on B_p · n; by default the limit of the sweep that made the runs.
    metric, eval_set, where, draws, seed, reading
        as in `isolaw.fit`.
    n_train_problems, cost
        as for `Law.predict`.
    progress
        called with the name of each stage of the work, and the share of the stage that is done.

    Raises
    ------
    DataError, InputError
        an argument is wrong, or the logs lack a value that only the user knows.
    Refused
        the runs do not support a law; the message says what to add.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> result = isolaw.answer(runs, "500k", draws=10)
    >>> result
    Simulated runs. For 500k rollouts: n = ...
    >>> result.n * result.B_p * result.M <= 500_000
    True
    """
    progress("reading", 0.0)
    runs = as_runs(source, metric, **reading)
    fit_options: dict[str, Any] = {"metric": metric, "eval_set": eval_set, "hold": hold}
    fit_options |= {"where": full_names(where or {}), "draws": draws, "seed": seed}
    progress("fitting the law", 0.0)
    fitted = FittedRuns.fitted_to(runs, fit_options, equations=False)
    if (law := fitted.law) is None:
        raise Refused(fitted.no_law)
    limits: dict[str, Any] = {
        "max_batch_rollouts": max_batch_rollouts, "n_train_problems": n_train_problems, "cost": cost,
    }  # fmt: skip
    progress("predicting", 0.0)
    prediction = law.predict(compute, **limits)
    result = fitted.backtest(seed, partial(progress, "backtesting"))
    prediction = after_backtest(prediction, result)
    nearest = largest_with_recommendation(law, prediction, **limits)
    return Answer(prediction, fitted, result, gain(law, prediction, **limits), nearest, limits)
