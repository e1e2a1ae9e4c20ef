"""`advise`: a starting point from published results, without runs of your own.

A source *counts* at a budget C if three conditions hold: it covers C, its problems are as difficult as the
user's (a mixed set counts as easy), and its model is at most 100 times larger or smaller. The starting point
is

    B_p   the B_p whose published curve has the highest reward at C, if a source that counts compares several
          B_p; otherwise the B_p of the first source
    n     the geometric mean of n*(C) over the sources that count, rounded to a power of two. Sources of one
          publication share runs, so they are averaged first. The range of n covers all sources that count.
    M     C / (B_p · n)

A source whose range does not reach C gives a one-sided bound on n*(C), since the fitted n* of every source
rises with C or is constant. If no source counts, there is no starting point. Publications without an n*(C)
contribute only a statement (`isolaw.design.published.STATEMENTS`), which shows whether they agree with the
sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from isolaw.allocation import Allocation
from isolaw.config.sections import Count, Positive, RolloutBudget, Section
from isolaw.design.published import SOURCES, STATEMENTS, DifficultyKind, Source, Span, Statement
from isolaw.documents.validation import parse_section
from isolaw.fits.allocations import FAR
from isolaw.fits.frontier import TOLERANCE
from isolaw.registry import Shown

_COMPARABLE = 100.0  # largest ratio of model sizes for which a source counts
_ALIKE = 2.0  # model sizes or problem-set sizes are alike up to this ratio
_TYPICAL = 7.0  # billions of parameters, if the user gives no size
_LEAST_STEPS = 20  # fewest steps of a run in the first sweep: twice the recipe's warm-up
_LEAST_N = 2
_APART = 2  # ratio of neighbouring n in the first sweep
_USUAL = 32  # B_p if no source resembles the case: the smallest of the playbook
_UNLIMITED = 2**53  # rollouts per batch, beyond any hardware limit
_ROUNDING = 1e-9
_CURVES = next(own for own in SOURCES if own.key == "isocompute-curves")


class Differs(StrEnum):
    """A respect in which a published source differs from the user's case."""

    DIFFICULTY = "difficulty"
    MODEL_SIZE = "model_size"
    PROBLEMS = "n_train_problems"
    BATCH = "problems_per_batch"
    BUDGET = "budget"  #: the source does not cover C


class Caveat(StrEnum):
    """A reason why a starting point from published results may be wrong."""

    ONE_PUBLICATION = "one_publication"
    BATCH_NOT_COMPARED = "batch_not_compared"  #: no source compares B_p at this C
    BATCH_LIMIT = "batch_limit"  #: B_max keeps n below the sources' n*
    DIFFICULTY_UNKNOWN = "difficulty_unknown"
    SIZE_UNKNOWN = "model_size_unknown"


class Case(Section):
    """The user's case: the budget C in rollouts and, if known, the model size and the problems.

    ``model_size`` is in billions of parameters.
    """

    budget: RolloutBudget
    difficulty: DifficultyKind | None = None
    model_size: Positive | None = None
    max_batch_rollouts: Annotated[Count, Field(ge=_LEAST_N)] | None = None
    n_train_problems: Count | None = None

    def heeds(self, statement: Statement) -> bool:
        """Return whether a statement is about problems and models that resemble the user's case."""
        same = self.difficulty is None or statement.difficulty in (None, "mixed", self.difficulty)
        size = self.model_size or _TYPICAL
        return same and min(_ratio(own, size) for own in statement.sizes or (size,)) <= _COMPARABLE

    @property
    def far(self) -> bool:
        """Whether every published model is more than 100 times larger or smaller."""
        return min(_ratio(own.size, self.model_size or _TYPICAL) for own in SOURCES) > _COMPARABLE

    @property
    def most(self) -> int:
        """B_max, the largest batch in rollouts."""
        return self.max_batch_rollouts or _UNLIMITED

    def like(self, source: Source) -> bool:
        """Return whether a source's problems and model resemble the user's, so it counts if it covers C."""
        same = self.difficulty in (None, source.difficulty, "easy" if source.difficulty == "mixed" else None)
        return same and _ratio(source.size, self.model_size or _TYPICAL) <= _COMPARABLE


@dataclass(frozen=True)
class SourceReading:
    """The n* of a source for the user's budget, and how the source differs from the user's case.

    ``n`` is n* at ``compute``. If the source covers C, ``compute`` is C. Otherwise it is the end of the
    source's range nearest to C; n* is then only a bound, so one end of its range is None.
    """

    source: Source
    compute: float
    n: Span
    differs: tuple[Differs, ...]
    counts: bool

    @property
    def covers(self) -> bool:
        """Whether the source's range contains C."""
        return Differs.BUDGET not in self.differs

    @property
    def steps(self) -> int | None:
        """M = C / (B_p · n*) at the source's B_p; None if the source has several B_p."""
        batches = self.source.batches
        return int(self.compute / (batches[0] * self.n.value)) if len(batches) == 1 else None


@dataclass(frozen=True)
class Start:
    """A recommended allocation with the ranges of n* and B_p. An end is None if no source bounds it."""

    allocation: Allocation
    n: Span
    batch: Span


@dataclass(frozen=True)
class Sweep:
    """A first sweep: three runs with different n, one B_p and one seed, each up to ``compute`` rollouts."""

    problems_per_batch: int
    rollouts_per_problem: tuple[int, ...]
    compute: int

    @property
    def rollouts(self) -> int:
        """The largest number of rollouts that the sweep can generate."""
        return self.compute * len(self.rollouts_per_problem)


@dataclass(frozen=True)
class Advice(Shown):
    """The starting point that published results give for a case, and the sources behind it.

    ``start`` is None if no source counts, and ``sweep`` is None if the budget is too small for a sweep.
    ``nearest`` is the source whose range is nearest to C, preferably a source that resembles the user's case.
    """

    TEXT = "advise"

    case: Case
    start: Start | None
    readings: tuple[SourceReading, ...]
    nearest: SourceReading
    caveats: tuple[Caveat, ...]
    sweep: Sweep | None

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The statements of publications without an n*(C) that apply to this case."""
        return tuple(filter(self.case.heeds, STATEMENTS))

    def sections(self) -> dict[str, Any]:
        """Return the sections of the first sweep's file, with placeholders for model and problem set."""
        assert self.sweep is not None
        limit, kind = self.case.max_batch_rollouts, self.case.difficulty
        b, levels = self.sweep.problems_per_batch, self.sweep.rollouts_per_problem
        return {
            "sweep": {"backend": "real", "compute": self.sweep.compute, "seeds": 1},
            "grid": {"problems_per_batch": [b], "rollouts_per_problem": list(levels)},
            **({"limits": {"max_batch_rollouts": limit}} if limit else {}),
            "problems": {"set": "problems", **({"difficulty": kind} if kind else {})},
            "real": {"model": "model"},
        }


def advise(
    budget: float | str,
    difficulty: DifficultyKind | None = None,
    model_size: float | None = None,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
) -> Advice:
    """Recommend a starting point for a budget from published results, without any runs of the user.

    ``budget`` is C in rollouts, e.g. ``"1M"``. ``difficulty`` is ``easy`` (0.3 to 0.6 of the base model's
    answers are correct) or ``hard`` (at most 0.0625). ``model_size`` is in billions of parameters.
    ``max_batch_rollouts`` is B_max, and ``n_train_problems`` is D.

    Raises
    ------
    SpecError
        with an issue for each argument that is out of range.

    >>> advise(3e6, difficulty="easy", model_size=7).start.allocation
    Allocation(problems_per_batch=32, rollouts_per_problem=512, steps=183)
    >>> advise(1e9).start is None
    True
    """
    given = {"difficulty": difficulty, "model_size": model_size, "max_batch_rollouts": max_batch_rollouts}
    case = parse_section(Case, {"budget": budget, **given, "n_train_problems": n_train_problems})
    batch = _batch(case) if any(case.like(own) and _covers(own, case) for own in SOURCES) else None
    readings = tuple(_reading(source, case, batch) for source in SOURCES)
    nearest = min(readings, key=lambda r: (not case.like(r.source), abs(math.log(r.compute / case.budget))))
    counting = [own for own in readings if own.counts]
    start = None if batch is None else _start(case, batch, counting)
    caveats = tuple(_caveats(case, start, counting))
    return Advice(case, start, readings, nearest, caveats, _sweep(case, start, nearest))


def _ratio(a: float, b: float) -> float:
    return max(a / b, b / a)


def _covers(source: Source, case: Case) -> bool:
    low, high = source.range()
    return low <= case.budget <= high


def _used(case: Case) -> list[int]:
    """Return the B_p of the sources that resemble the case; sources that cover C come first."""
    like = sorted(filter(case.like, SOURCES), key=lambda own: not _covers(own, case))
    return [b for own in like for b in own.batches] or [_USUAL]


def _batch(case: Case) -> Span:
    """Return the best B_p. Its range contains the B_p whose reward is within 0.005 of the best.

    An end of the range is None if it is the smallest or largest B_p that the source compares.
    """
    if not (case.like(_CURVES) and _covers(_CURVES, case)):
        return Span(_possible(_used(case)[0], case), None, None)
    at = {b: _CURVES.at(case.budget, b) for b in _CURVES.batches}
    rewards = {b: own.reward for b, own in at.items() if b * own.n.value <= case.most or b == min(at)}
    best = max(rewards, key=lambda b: rewards[b])
    good = [b for b, reward in rewards.items() if reward >= rewards[best] - TOLERANCE]
    low = None if min(good) == min(at) else _possible(min(good), case)
    high = None if max(good) == max(at) else _possible(max(good), case)
    return Span(_possible(best, case), low, high)


def _possible(batch: int, case: Case) -> int:
    """Return B_p, limited by the number of distinct problems and by B_max."""
    return min(batch, case.most // _LEAST_N, case.n_train_problems or batch)


def _reading(source: Source, case: Case, batch: Span | None) -> SourceReading:
    b = int(batch.value) if batch is not None and batch.value in source.batches else None
    low, high = source.range()
    compute = min(max(case.budget, low), high)
    n = source.at(compute, b).n
    if compute < case.budget:
        n = Span(n.value, n.low, None)
    elif compute > case.budget:
        n = Span(n.value, None, n.high)
    sizes = source.size, case.model_size or source.size
    problems = source.problems or 1, case.n_train_problems or source.problems or 1
    where = {
        Differs.DIFFICULTY: case.difficulty not in (None, source.difficulty),
        Differs.MODEL_SIZE: _ratio(*sizes) > _ALIKE,
        Differs.PROBLEMS: source.problems is not None and _ratio(*problems) > _ALIKE,
        Differs.BATCH: bool(batch and source.batches) and b is None,
        Differs.BUDGET: compute != case.budget,
    }
    differs = tuple(code for code, own in where.items() if own)
    return SourceReading(source, compute, n, differs, case.like(source) and compute == case.budget)


def _start(case: Case, batch: Span, counting: Sequence[SourceReading]) -> Start:
    logs: dict[str, list[float]] = {}
    for own in counting:
        logs.setdefault(own.source.publication, []).append(math.log2(own.n.value))
    mean = fmean(fmean(own) for own in logs.values())
    values = [own.n.value for own in counting]
    lows = [own.n.low for own in counting if own.n.low is not None]
    highs = [own.n.high for own in counting if own.n.high is not None]
    n = Span(2**mean, min(lows + values) if lows else None, max(highs + values) if highs else None)
    b = int(batch.value)
    power = min(math.floor(mean + 0.5 + _ROUNDING), math.floor(math.log2(case.most // b)))  # ties round up
    return Start(Allocation.within(case.budget, b, 2**power), n, batch)


def _caveats(case: Case, start: Start | None, counting: Sequence[SourceReading]) -> Iterator[Caveat]:
    if start is not None:
        if len({own.source.publication for own in counting}) == 1:
            yield Caveat.ONE_PUBLICATION
        if start.batch.low is start.batch.high is None:
            yield Caveat.BATCH_NOT_COMPARED
        if 2 * start.allocation.rollouts_per_problem <= start.n.value:
            yield Caveat.BATCH_LIMIT
    if case.difficulty is None:
        yield Caveat.DIFFICULTY_UNKNOWN
    if case.model_size is None:
        yield Caveat.SIZE_UNKNOWN


def _sweep(case: Case, start: Start | None, nearest: SourceReading) -> Sweep | None:
    """Return a sweep over three n around the starting point, where each n is twice the previous one.

    The runs end at C / 10, the smallest compute from which `isolaw predict` makes a recommendation for C, or
    later if the largest n needs more for `_LEAST_STEPS` steps. On simulated truths such a sweep improves on
    the starting point. More widely spaced n improve on it less reliably (``benchmarks/first_sweep.py``).
    """
    n = start.allocation.rollouts_per_problem if start else 2 ** round(math.log2(nearest.n.value))
    b = int((start and start.batch.low) or min(_used(case)))
    middle = max(n, _APART * _LEAST_N)
    while b * middle * _APART > case.most:
        middle //= 2
    levels = (middle // _APART, middle, middle * _APART)
    found = Sweep(b, levels, max(math.ceil(case.budget / FAR), _LEAST_STEPS * b * levels[-1]))
    return found if levels[0] >= _LEAST_N and found.rollouts <= case.budget else None
