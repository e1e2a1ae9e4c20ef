"""`Cost`: predict the seconds and GPU hours of a run with a linear model of the time of a step.

A step draws T = τ · B_p · n response tokens, where τ is the mean number of tokens in a response. Each part of
a step takes

    s_part(T) = a + b · T,    a, b ≥ 0

- *generate*: a batch is complete only when its longest response is complete, so a is about the length of the
  longest response times the time of one decoding step. b is the inverse of the throughput of a full sampler.
  The true time is between the larger of the two terms and their sum.
- *reward*, *prepare*, *train*: the time is proportional to the rollouts and their tokens, and therefore to T
  if τ is constant (prompts count through B_p · n). a is the cost of a micro-batch, a call or an optimiser
  step of any size.
- *sync*, and the rest of the wall time: the size of weights and states is constant, so the time is mostly a.

With more distinct problems in a batch, its longest response is longer. The largest of k exponential numbers
with mean 1 is about log k + 0.58 (Gumbel, Statistics of Extremes, 1958). Two terms account for this effect
and for the remaining error: a tail c · log2(B_p) of the generation, and an effect f of each (B_p, n)
(`StepEffects`). Runs determine these terms only if B_p and n vary independently.
`isolaw.costs.recorded` keeps a term if it improves the predictions for left-out configurations.

Summed over parts, a step takes S = (a + b · T + c · log2 B_p) · exp(f(B_p, n)) seconds, where c and f are 0
unless they were kept. M steps take M · S seconds. Evaluations and the start of a run count only on request,
because the budget of an allocation excludes them. GPU hours are seconds · GPUs of the run / 3600. A machine
without GPUs has only hours.

``error`` is the cross-validated error of the model for recorded runs. It is the root mean square of
log(measured / predicted), with each of K batch sizes predicted from all others. (If B_p and n vary
independently, each of K configurations is predicted instead.) A 95 % interval is value · exp(± t · error),
where t is the 97.5 % quantile of Student's distribution with K − 1 degrees of freedom. With f, the interval
at (B_p, n) uses the standard deviation of f instead of ``error``. The interval is for one run. It also holds
for a sum of runs, because errors of the model do not average out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from isolaw.errors import InputError, check_type, shown
from isolaw.evidence import Quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HOUR_S = 3600.0
_NO_ERROR = 1e-9
_MULTIPLE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*[x×]\s*", re.IGNORECASE)
LARGEST_BUDGET = 1e15  # in rollouts
_LENGTH_SCALE = 2.0  # ℓ, in doublings, and the largest distance of a step from the timed ones
_SIGMA_GRID = (0.1, 0.2, 0.3, 0.5)
_NU_GRID = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
_HOURS = re.compile(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*(gpuh|h)\s*", re.IGNORECASE)
_ROLLOUTS = re.compile(
    r"\s*([+-]?(?:[0-9][0-9_,]*\.?[0-9]*|\.[0-9]+))(?:e([+-]?[0-9]+))?\s*([kMB]?)\s*", re.IGNORECASE
)
_EXPONENTS = {"": 0, "K": 3, "M": 6, "B": 9}


class CostOrigin(StrEnum):
    """The kind of source from which a cost was read."""

    RECORDED = "recorded runs"
    RATE = "rate"
    ESTIMATE = "estimate"  # from the sizes of model, batch and GPUs; nothing was timed


class StepPart(NamedTuple):
    """The seconds of a part of a step: a + b · T + c · log2(B_p)."""

    step_s: float  # a, the seconds per step
    unit_s: float  # b, the seconds per token, or per rollout if tokens are unknown
    doubling_s: float = 0.0  # c, the seconds per doubling of B_p

    def seconds(self, units: float, problems_per_batch: int = 1) -> float:
        """Return a + b · T + c · log2(B_p)."""
        return self.step_s + self.unit_s * units + self.doubling_s * math.log2(problems_per_batch)


class LeftOut(NamedTuple):
    """The cross-validation of a cost: the errors for left-out configurations.

    An error is log(measured / predicted seconds).
    """

    model: str  #: the model that was kept: line, tail or effects
    configurations: int  #: number of configurations (of batch sizes, unless B_p and n vary independently)
    median: float  #: median absolute error over configurations
    inside: float  #: share of configurations inside their intervals
    errors: Mapping[str, float]  #: root mean square error of each model


@dataclass(frozen=True)
class Cost:
    """A model of the time of each part of a step, with the machine on which it was measured.

    The module's docstring contains the equations.
    """

    parts: Mapping[str, StepPart]
    per_rollout: float  #: τ, so that T = ``per_rollout`` · B_p · n
    unit: str  #: unit of T: tokens, or rollouts if tokens are unknown
    source: CostOrigin
    where: str = ""  #: the file or directory from which the cost was read
    gpus: int | None = None  #: number of GPUs of a run; 0 for a machine without GPUs, None if not recorded
    gpu: str = ""  #: the kind of these GPUs
    model: str = ""  #: the language model, if known
    billions: float | None = None  #: its parameters, if known
    price: float | None = None  #: price of a GPU hour, or of an hour on a machine without GPUs
    evaluation_s: float | None = None  #: seconds of one evaluation of all evaluation sets
    start_s: float | None = None  #: mean seconds of a run before its first step
    batches: tuple[int, ...] = ()  #: the timed B_p · n in ascending order; empty if no step was timed
    configurations: int = 0
    runs: int = 0
    error: float | None = None  #: error of log seconds for left-out batch sizes; None with fewer than three
    notes: tuple[str, ...] = field(default=())  #: sentences about runs that were left out
    effects: StepEffects | None = None  #: the effects f, if they were kept
    timed: tuple[tuple[int, int], ...] = ()  #: the (B_p, n) of recorded steps
    left_out: LeftOut | None = None  #: the cross-validation; None with fewer than three configurations

    def step(self, problems_per_batch: int, rollouts_per_problem: int) -> float | None:
        """Return S, the seconds of a step; None if the source timed only one batch size, and not this one."""
        batch = problems_per_batch * rollouts_per_problem
        if len(self.batches) == 1 and batch != self.batches[0]:
            return None  # steps of one size do not determine both a and b
        tokens = self.per_rollout * batch
        predicted_s = sum(part.seconds(tokens, problems_per_batch) for part in self.parts.values())
        if self.effects is None:
            return predicted_s
        return predicted_s * math.exp(self.effects.at(problems_per_batch, rollouts_per_problem)[0])

    def extrapolates(self, problems_per_batch: int, rollouts_per_problem: int) -> bool:
        """Return whether B_p · n is outside the timed sizes, or (B_p, n) is far from all timed steps."""
        batch = problems_per_batch * rollouts_per_problem
        is_outside = bool(self.batches) and not self.batches[0] <= batch <= self.batches[-1]
        distances = [
            math.hypot(math.log2(problems / problems_per_batch), math.log2(rollouts / rollouts_per_problem))
            for problems, rollouts in self.timed
        ]
        return is_outside or (bool(distances) and min(distances) > _LENGTH_SCALE)

    def seconds(
        self,
        problems_per_batch: int,
        rollouts_per_problem: int,
        steps: int,
        *,
        evaluations: int = 0,
        starts: int = 0,
    ) -> Quantity | None:
        """Return the seconds of a run's steps, plus ``evaluations`` and ``starts`` if their cost is known.

        Returns None if the source timed only one batch size and this run has another.

        >>> cost = Cost({"generate": StepPart(2.0, 1e-3)}, 100.0, "tokens", CostOrigin.RATE, gpus=8)
        >>> cost.seconds(32, 8, 10)
        Quantity(value=276.0, interval=None, status='ok')
        >>> cost.gpu_hours(32, 8, 3600).value
        220.8
        """
        step_s = self.step(problems_per_batch, rollouts_per_problem)
        if step_s is None:
            return None
        total_s = steps * step_s + evaluations * (self.evaluation_s or 0.0) + starts * (self.start_s or 0.0)
        if self.effects is None:
            return self.estimate(total_s)
        deviation = self.effects.at(problems_per_batch, rollouts_per_problem)[1]
        factor = math.exp(student(len(self.effects.configurations) - 1) * deviation)
        return Quantity(total_s, (total_s / factor, total_s * factor))

    def estimate(self, seconds: float) -> Quantity:
        """Return predicted seconds, for any configurations, with their 95 % interval."""
        factor = self._interval_factor
        return Quantity(seconds, None if factor is None else (seconds / factor, seconds * factor))

    @cached_property
    def _interval_factor(self) -> float | None:
        if self.error is None or self.error < _NO_ERROR:
            return None  # an interval without width would claim that nothing is uncertain
        count = self.left_out.configurations if self.left_out else len(self.batches)
        return math.exp(student(count - 1) * self.error)

    def gpu_hours(self, *arguments: int, **keywords: int) -> Quantity | None:
        """Return `seconds` in GPU hours, or None if the number of GPUs is unknown or 0."""
        seconds = self.seconds(*arguments, **keywords)
        return seconds and self.in_gpu_hours(seconds)

    def in_gpu_hours(self, seconds: Quantity) -> Quantity | None:
        """Return seconds of wall time in GPU hours, or None if the number of GPUs is unknown or 0."""
        return seconds / (HOUR_S / self.gpus) if self.gpus else None

    def budget_seconds(self, text: str) -> float:
        """Return the wall time in seconds that a budget in hours pays for.

        The budget is in GPU hours (``384gpuh``) or in hours (``48h``). Raises `InputError` for any other
        text, and for GPU hours if the source has no GPUs.

        >>> Cost({}, 1.0, "rollouts", CostOrigin.RATE, gpus=8).budget_seconds("384gpuh") / 3600
        48.0
        """
        hours, in_gpu_hours = parse_hours(text)
        if in_gpu_hours and not self.gpus:
            reason = "does not record on how many GPUs its runs ran" if self.gpus is None else "has no GPUs"
            raise InputError(
                f"budget: found {shown(text)}, but {self.where or self.source} {reason}; "
                f"expected hours of run time, e.g. {hours:g}h"
            )
        return hours * HOUR_S / (self.gpus or 1 if in_gpu_hours else 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the cost, with its source and its cross-validation, as JSON-compatible data."""
        return {
            "source": str(self.source),
            "where": self.where,
            "gpus": self.gpus,
            "gpu": self.gpu or None,
            "model": self.model or None,
            "runs": self.runs,
            "configurations": self.configurations,
            "batch_rollouts": list(self.batches),
            "unit": self.unit,
            "units_per_rollout": self.per_rollout,
            "parts": {name: part._asdict() for name, part in self.parts.items()},
            "evaluation_s": self.evaluation_s,
            "start_s": self.start_s,
            "error": self.error,
            "left_out": self.left_out and self.left_out._asdict(),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Spent:
    """The cost of runs in hours, GPU hours and money."""

    seconds: Quantity
    cost: Cost

    @property
    def hours(self) -> Quantity:
        """Hours of wall time."""
        return self.seconds / HOUR_S

    @property
    def gpu_hours(self) -> Quantity | None:
        """GPU hours, or None if the number of GPUs is unknown or 0."""
        return self.cost.in_gpu_hours(self.seconds)

    @property
    def money(self) -> Quantity | None:
        """The price of the GPU hours (or of the hours, on a machine without GPUs). None without a price."""
        price = self.cost.price
        return None if price is None else (self.gpu_hours or self.hours).through(lambda hours: hours * price)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, with null for unknown values."""
        gpu_hours, money = self.gpu_hours, self.money
        return {
            "hours": self.hours.to_dict(),
            "gpu_hours": gpu_hours and gpu_hours.to_dict(),
            "price": self.cost.price,
            "money": money and money.to_dict(),
        }


def student(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution with ``degrees`` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def parse_budget(budget: float | str) -> float | str:
    """Return a budget in rollouts as a number, and one in hours or as a multiple of the runs as its text.

    Raises `InputError` for any other value, and beyond 1 to `LARGEST_BUDGET` rollouts.

    >>> parse_budget("1M"), parse_budget("2.5e6"), parse_budget(" 384gpuh "), parse_budget("4x")
    (1000000.0, 2500000.0, '384gpuh', '4x')
    """
    if isinstance(budget, str) and (is_hours(budget) or _MULTIPLE.fullmatch(budget)):
        return budget.strip()
    rollouts = parse_rollouts(
        budget, ", a multiple of the runs, e.g. 4x, GPU hours, e.g. 384gpuh, or hours, e.g. 48h"
    )
    if not 1 <= rollouts <= LARGEST_BUDGET:
        raise InputError(f"compute: found {rollouts:g}; expected a number of rollouts from 1 to 1e15")
    return rollouts


def multiplied(budget: float | str, largest_compute: float) -> float | str:
    """Return a multiple of the compute of the runs (``4x``) in rollouts, and any other budget unchanged.

    >>> multiplied("4x", 5e5), multiplied("48h", 5e5)
    (2000000.0, '48h')
    """
    match = _MULTIPLE.fullmatch(budget) if isinstance(budget, str) else None
    return budget if match is None else float(match[1]) * largest_compute


def parse_rollouts(budget: float | str, or_else: str = "") -> float:
    """Return a budget in rollouts as a number. Raise `InputError` for any other text, such as hours.

    ``or_else`` is appended to the message, and names other units that the caller accepts.

    >>> parse_rollouts("1.5M")
    1500000.0
    """
    if not isinstance(budget, str):
        check_type("compute", budget, Real, f"one budget in rollouts, e.g. 1e6 or '1M'{or_else}")
        return budget
    match = _ROLLOUTS.fullmatch(budget)
    if match is None:
        raise InputError(f"budget: found {shown(budget)}; expected rollouts, e.g. 1e6 or 1M{or_else}")
    digits = match[1].replace(",", "").replace("_", "")
    return float(f"{digits}e{int(match[2] or 0) + _EXPONENTS[match[3].upper()]}")


def is_hours(text: str) -> bool:
    """Return whether a text is a budget in hours or GPU hours.

    >>> is_hours("384gpuh"), is_hours("48 h"), is_hours("1e6")
    (True, True, False)
    """
    return _HOURS.fullmatch(text) is not None


def parse_hours(text: str) -> tuple[float, bool]:
    """Return the hours of a budget, and whether they are GPU hours. Raise `InputError` for other text.

    >>> parse_hours("384gpuh"), parse_hours("1.5e3 h")
    ((384.0, True), (1500.0, False))
    """
    match = _HOURS.fullmatch(text)
    if match is None or not (hours := float(match[1].replace(",", "").replace("_", ""))) > 0:
        raise InputError(f"budget: found {shown(text)}; expected GPU hours, e.g. 384gpuh, or hours, e.g. 48h")
    return hours, match[2].lower() == "gpuh"


@dataclass(frozen=True)
class StepEffects:
    """The effect f of each configuration on the log of a step's seconds.

    ``configurations`` contains the K timed (B_p, n), and ``errors`` the error y of the equation for each: the
    log of measured by predicted seconds. ``spread`` is the standard deviation between runs of one (B_p, n).
    At x = (log2 B_p, log2 n),

        y = f(x) + e,    f ~ GP(0, σ² exp(−|x − x'|² / 2ℓ²)),    e ~ N(0, ν²)

    (Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, chapter 2). ℓ is two doublings, so a
    configuration is informative about others within a factor of four. Further away, only the equation
    predicts, and σ determines the width of the interval. Predictions are averaged over a grid of σ and ν,
    weighted by the marginal likelihood. σ is at least 0.1, since an equation with four numbers does not
    predict a step more precisely. ν is at least ``spread``, so the interval is for a single run.

    >>> effects = StepEffects(((128, 1), (128, 4), (8, 4)), (0.3, 0.1, 0.0), 0.05)
    >>> [round(value, 2) for value in effects.at(128, 2)]
    [0.19, 0.14]
    >>> round(effects.at(2**20, 2**10)[1], 2)
    0.27
    """

    configurations: tuple[tuple[int, int], ...]
    errors: tuple[float, ...]
    spread: float

    def at(self, problems_per_batch: int, rollouts_per_problem: int) -> tuple[float, float]:
        """Return the expected effect on the log of a step's seconds, and its standard deviation."""
        import numpy as np

        grid, weights = self._grid
        correlations = self._correlations([(problems_per_batch, rollouts_per_problem)])[:, 0]
        means, variances = [], []
        for sigma, nu, factor, alpha in grid:
            covariances = sigma**2 * correlations
            solved = np.linalg.solve(factor, covariances)
            means.append(float(covariances @ alpha))
            variances.append(sigma**2 - float(solved @ solved) + max(nu, self.spread) ** 2)
        mean = float(weights @ means)
        return mean, math.sqrt(float(weights @ (np.array(variances) + (np.array(means) - mean) ** 2)))

    @cached_property
    def _grid(self) -> tuple[list[tuple[float, float, Floats, Floats]], Floats]:
        """Grid points and their weights, which are proportional to the marginal likelihood and sum to 1.

        A grid point has σ, ν, the Cholesky factor of the covariance of y, and the inverse times y.
        """
        import numpy as np

        y, correlations = np.array(self.errors), self._correlations(self.configurations)
        grid, log_likelihoods = [], []
        for sigma in _SIGMA_GRID:
            for nu in _NU_GRID:
                factor = np.asarray(np.linalg.cholesky(sigma**2 * correlations + nu**2 * np.eye(y.size)))
                alpha = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, y)))
                grid.append((sigma, nu, factor, alpha))
                log_likelihoods.append(-0.5 * y @ alpha - np.log(np.diag(factor)).sum())
        weights = np.exp(np.array(log_likelihoods) - max(log_likelihoods))
        return grid, np.asarray(weights / weights.sum())

    def _correlations(self, others: Sequence[tuple[int, int]]) -> Floats:
        """Return the correlation exp(−|x − x'|² / 2ℓ²) of the places with Q others, of shape (K, Q)."""
        import numpy as np

        distances = np.log2(self.configurations)[:, None] - np.log2(others)[None]
        return np.asarray(np.exp(-0.5 * (distances**2).sum(axis=-1) / _LENGTH_SCALE**2))
