"""A starting point from published results, without runs of your own.

A source *counts* at a budget C if three conditions hold: it covers C, its problems are as difficult as the
user's (a mixed set counts as easy), and its model is at most 100 times larger or smaller. The starting point
is

    B_p   the B_p whose published curve has the highest reward at C, if a source that counts compares several
          B_p; otherwise the B_p of the first source
    n     the geometric mean of n*(C) over the sources that count, rounded to a power of two. Sources of one
          publication share runs, so they are averaged first. The range of n covers all sources that count.
    M     C / (B_p · n)

A source whose range does not reach C gives a one-sided bound on n*(C), since the fitted n* of every source
rises with C or is constant. If no source counts, there is no starting point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Annotated

from pydantic import Field

from isolaw.allocation import Allocation
from isolaw.config.sections import Count, Positive, RolloutBudget, Section
from isolaw.design.published import SOURCES, DifficultyKind, Source, Span
from isolaw.fits.frontier import TOLERANCE

_LARGEST_SIZE_RATIO = 100.0  # of model sizes, for which a source counts
_USUAL_SIZE = 7.0  # billions of parameters, if the user gives no size
LEAST_N = 2
_USUAL_BATCH = 32  # B_p if no source resembles the case: the smallest of the playbook
_UNLIMITED = 2**53  # rollouts per batch, beyond any hardware limit
_ROUNDING = 1e-9
_CURVES = next(source for source in SOURCES if source.key == "isocompute-curves")


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
    max_batch_rollouts: Annotated[Count, Field(ge=LEAST_N)] | None = None
    n_train_problems: Count | None = None

    @property
    def far(self) -> bool:
        """Whether every published model is more than 100 times larger or smaller."""
        return not any(map(self._has_similar_size, SOURCES))

    @property
    def most(self) -> int:
        """B_max, the largest batch in rollouts."""
        return self.max_batch_rollouts or _UNLIMITED

    def like(self, source: Source) -> bool:
        """Return whether a source's problems and model resemble the user's, so it counts if it covers C."""
        same = self.difficulty in (None, source.difficulty, "easy" if source.difficulty == "mixed" else None)
        return same and self._has_similar_size(source)

    def _has_similar_size(self, source: Source) -> bool:
        size = self.model_size or _USUAL_SIZE
        return max(source.size / size, size / source.size) <= _LARGEST_SIZE_RATIO


@dataclass(frozen=True)
class SourceReading:
    """The n* of a source for the user's budget, and whether the source covers C and counts.

    ``n`` is n* at ``compute``. If the source covers C, ``compute`` is C. Otherwise it is the end of the
    source's range nearest to C; n* is then only a bound, so one end of its range is None.
    """

    source: Source
    compute: float
    n: Span
    covers: bool
    counts: bool

    @property
    def steps(self) -> int | None:
        """M = C / (B_p · n*) at the source's B_p; None if the source has several B_p."""
        batches = self.source.batches
        return int(self.compute / (batches[0] * self.n.value)) if len(batches) == 1 else None


@dataclass(frozen=True)
class _Start:
    """A recommended allocation with the ranges of n* and B_p. An end is None if no source bounds it."""

    allocation: Allocation
    n: Span
    batch: Span


@dataclass(frozen=True)
class StartingPoint:
    """The starting point that published results give for a case, and the sources behind it.

    ``start`` is None if no source counts. ``nearest`` is the source whose range is nearest to C, preferably a
    source that resembles the user's case.
    """

    case: Case
    start: _Start | None
    readings: tuple[SourceReading, ...]
    nearest: SourceReading
    caveats: tuple[Caveat, ...]

    @property
    def least_batch(self) -> int:
        """The smallest B_p that the sources support."""
        return int((self.start and self.start.batch.low) or _cap(min(_similar_batches(self.case)), self.case))


def starting_point(case: Case) -> StartingPoint:
    """Return the starting point that published results give for a case.

    >>> starting_point(Case(budget=3_000_000, difficulty="easy", model_size=7.0)).start.allocation
    Allocation(problems_per_batch=32, rollouts_per_problem=512, steps=183)
    >>> starting_point(Case(budget=10**9)).start is None
    True
    """
    counts = any(case.like(source) and _covers(source, case) for source in SOURCES)
    batch = _best_batch(case) if counts else None
    readings = tuple(_read_source(source, case, batch) for source in SOURCES)
    nearest = min(readings, key=lambda r: (not case.like(r.source), abs(math.log(r.compute / case.budget))))
    counting = [reading for reading in readings if reading.counts]
    start = None if batch is None else _start(case, batch, counting)
    return StartingPoint(case, start, readings, nearest, tuple(_caveats(case, start, counting)))


def _covers(source: Source, case: Case) -> bool:
    low, high = source.range()
    return low <= case.budget <= high


def _similar_batches(case: Case) -> list[int]:
    """Return the B_p of the sources that resemble the case; sources that cover C come first."""
    similar = sorted(filter(case.like, SOURCES), key=lambda source: not _covers(source, case))
    return [batch for source in similar for batch in source.batches] or [_USUAL_BATCH]


def _best_batch(case: Case) -> Span:
    """Return the best B_p. Its range contains the B_p whose reward is within 0.005 of the best.

    An end of the range is None if it is the smallest or largest B_p that the source compares.
    """
    if not (case.like(_CURVES) and _covers(_CURVES, case)):
        return Span(_cap(_similar_batches(case)[0], case), None, None)
    points = {b: _CURVES.at(case.budget, b) for b in _CURVES.batches}
    allowed = {b: p for b, p in points.items() if b * p.n.value <= case.most or b == min(points)}
    best = max(allowed, key=lambda b: allowed[b].reward)
    good_batches = [b for b, p in allowed.items() if p.reward >= allowed[best].reward - TOLERANCE]
    low = None if min(good_batches) == min(points) else _cap(min(good_batches), case)
    high = None if max(good_batches) == max(points) else _cap(max(good_batches), case)
    return Span(_cap(best, case), low, high)


def _cap(batch: int, case: Case) -> int:
    """Return B_p, limited by the number of distinct problems and by B_max."""
    return min(batch, case.most // LEAST_N, case.n_train_problems or batch)


def _read_source(source: Source, case: Case, batch: Span | None) -> SourceReading:
    batch_size = int(batch.value) if batch is not None and batch.value in source.batches else None
    low, high = source.range()
    compute = min(max(case.budget, low), high)
    span = source.at(compute, batch_size).n
    if compute < case.budget:
        span = Span(span.value, span.low, None)
    elif compute > case.budget:
        span = Span(span.value, None, span.high)
    covers = compute == case.budget
    return SourceReading(source, compute, span, covers, counts=covers and case.like(source))


def _start(case: Case, batch: Span, readings: Sequence[SourceReading]) -> _Start:
    log2_n: dict[str, list[float]] = {}
    for reading in readings:
        log2_n.setdefault(reading.source.publication, []).append(math.log2(reading.n.value))
    mean = fmean(map(fmean, log2_n.values()))
    n_values = [reading.n.value for reading in readings]
    lows = [reading.n.low for reading in readings if reading.n.low is not None]
    highs = [reading.n.high for reading in readings if reading.n.high is not None]
    n = Span(2**mean, min(lows + n_values) if lows else None, max(highs + n_values) if highs else None)
    b = int(batch.value)
    exponent = min(math.floor(mean + 0.5 + _ROUNDING), math.floor(math.log2(case.most // b)))  # ties round up
    return _Start(Allocation.within(case.budget, b, 2**exponent), n, batch)


def _caveats(case: Case, start: _Start | None, readings: Sequence[SourceReading]) -> Iterator[Caveat]:
    if start is not None:
        if len({reading.source.publication for reading in readings}) == 1:
            yield Caveat.ONE_PUBLICATION
        if start.batch.low is start.batch.high is None:
            yield Caveat.BATCH_NOT_COMPARED
        if 2 * start.allocation.rollouts_per_problem <= start.n.value:
            yield Caveat.BATCH_LIMIT
    if case.difficulty is None:
        yield Caveat.DIFFICULTY_UNKNOWN
    if case.model_size is None:
        yield Caveat.SIZE_UNKNOWN
