"""`check`: run the stages of a recipe check one after another and return the resulting recipe.

The next runs and the recipe depend only on the measured rewards. The same command therefore continues a
killed check: it reads the finished runs instead of repeating them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from isolaw import engine
from isolaw.allocation import BatchShape
from isolaw.config import SweepSpec
from isolaw.design.directory import EVAL_SET
from isolaw.errors import RunError
from isolaw.evidence import Simulated
from isolaw.executors.event import Event
from isolaw.fits.document.codec import Encoded
from isolaw.fits.studies.target_laws import LrLaw
from isolaw.fits.studies.targets import lr_law
from isolaw.recipe_check import rule
from isolaw.recipe_check.judge import Judged, judge
from isolaw.recipe_check.measured import LrCell, MeasuredCurves, read
from isolaw.recipe_check.stages import BATCH, FULL, LR, TERMS, CheckSweep, Setup, claim, setup
from isolaw.registry import Shown, traits
from isolaw.resolve import Plan
from isolaw.runs import Runs

Execute = Callable[[CheckSweep, Plan], None]


class RecipeVerdict(StrEnum):
    """The verdict on a choice in the recipe, according to the runs."""

    SUPPORTED = "supported"  # the choice is significantly better than each alternative
    CONTRADICTED = "contradicted"  # an alternative is significantly better
    UNDECIDED = "not decided"
    FAILED = "failed"  # a run with this choice did not reach its end


@dataclass(frozen=True)
class RecipeResult:
    """The mean reward of one recipe at its horizon, with its standard error; None if a run failed."""

    stage: str
    problems_per_batch: int
    rollouts_per_problem: int
    lr: float
    terms: dict[str, float]
    compute: int
    reward: float | None
    error: float | None
    verdict: str  # "best", "not decided" against the best, or "worse"; empty if a run failed
    note: str = ""  # the cause of a failure, or the sign of instability


@dataclass(frozen=True)
class BatchRule:
    """The check of ``recipe.lr_scaling`` at one batch size: the rule's lr, and the best lr of those tried.

    The check tries half, one and two times the lr given by the rule.
    """

    problems_per_batch: int
    rollouts_per_problem: int
    lr: float
    best: float | None
    verdict: RecipeVerdict


@dataclass(frozen=True)
class RecipeCheck(Encoded, Shown):
    """The result of a recipe check: ``recipe`` is the section for the sweep file, ``rows`` its evidence.

    ``lr`` is the best lr at C = ``compute``, ``lr_undecided`` lists other lr that are equally good within
    noise, and ``lr_short`` is the best lr at ``horizon``. ``slope`` is the change of log2 lr* per doubling of
    C in the search, or None if noise hides it. ``lr_law`` describes how the best lr grows with the batch size
    (`isolaw.to_target`), from the runs of the stages ``lr`` and ``batch``; it is None if these runs do not
    determine the law. ``terms`` is the verdict on the KL and entropy weights ``terms_kept`` against
    ``terms_other``.
    """

    TEXT = "recipe_check"

    simulated: Simulated
    metric: str
    seeds: tuple[int, ...]
    base: BatchShape
    compute: int
    horizon: int
    lr: float
    lr_undecided: tuple[float, ...]
    lr_short: float
    slope: float | None
    at_edge: bool
    scaling: str
    batches: tuple[BatchRule, ...]
    lr_law: LrLaw | None
    terms_kept: dict[str, float]
    terms_other: dict[str, float]
    terms: RecipeVerdict | None
    difficulty: str | None
    recipe: dict[str, Any]
    rollouts: int
    rows: tuple[RecipeResult, ...]


def check_recipe(
    spec: SweepSpec | Mapping[str, Any] | str | Path | None,
    out: str | Path,
    *,
    on_event: Callable[[Event], None] | None = None,
) -> RecipeCheck:
    """Find the base lr of a sweep, check its batch-size rule, and compare KL and entropy terms.

    Raises `SpecError` or `StoreError` before anything is spent, and `RunError` if the runs of every lr
    failed.

    Parameters
    ----------
    spec
        as for `isolaw.sweep`.
    out
        the directory of the check. It contains a folder with the sweep of each stage. A second call continues
        the stages.
    on_event
        called with each `Event`.

    >>> import tempfile
    >>> small = {"sweep": {"compute": 60_000, "seeds": 2}, "grid": {"rollouts_per_problem": [4, 8, 16]},
    ...          "problems": {"n_train": 64, "n_validation": 50}, "executor": {"kind": "inline"}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = check_recipe(small, folder)
    >>> found.base, found.lr == found.recipe["lr"], sorted({row.stage for row in found.rows})
    ((32, 8), True, ['batch', 'lr', 'lr-full', 'terms'])
    """

    def execute(stage: CheckSweep, planned: Plan) -> None:
        for event in engine.execute(planned, stage.directory):
            if on_event is not None:
                on_event(event)

    return check(setup(engine.spec_of(spec)[0]), Path(out), execute)


def first(start: Setup, out: Path) -> Plan:
    """Return the plan of the first stage of a check; raise `SpecError` with all issues."""
    claim(out)
    stage = start.stage(LR, out, [start.base], map(start.lr_at, rule.START), start.horizon)
    return engine.plan(stage.spec, stage.directory)


def check(start: Setup, out: Path, execute: Execute) -> RecipeCheck:
    """Execute the remaining runs of all stages with ``execute`` and judge them."""
    claim(out)
    return _Check(start, out, execute).result()


class _Check:
    """The state of a check while it runs."""

    def __init__(self, start: Setup, out: Path, execute: Execute) -> None:
        self.start, self.out, self.execute = start, out, execute
        self.rows: list[RecipeResult] = []
        self.others = MeasuredCurves()
        self.rollouts = 0

    def result(self) -> RecipeCheck:
        start = self.start
        searched = self._search()
        horizons = start.horizons()
        at = [self._by_k(searched, c) for c in horizons]
        self._add(LR, searched, start.horizon)
        short, middle = rule.best(at[-1]), rule.peak(at[-1])
        early = self._judged(searched, horizons[0])
        moved = early.better(self._key(rule.best(at[0])), self._key(short))
        slope = rule.slope(horizons, at) if moved else None
        full = searched
        if start.horizon < start.compute:
            middle += (slope or 0.0) * math.log2(start.compute / start.horizon)
            full = self._full(round(middle))
            self._add(FULL, full, start.compute)
        rewards = self._by_k(full, start.compute)
        k = rule.best(rewards)
        judged = self._judged(full, start.compute)
        lr, key = start.lr_at(k), self._key(k)
        batches = self._batches(self._between(rule.peak(at[-1]), rule.peak(rewards)))
        terms, kept, other = self._terms(k, full)
        recipe = start.spec.recipe.model_dump(exclude_unset=True, exclude_none=True)
        recipe |= {"lr": lr, "lr_scaling": start.spec.recipe.lr_scaling}
        if terms is not None:
            if not kept["kl"]:
                recipe = {
                    name: value for name, value in recipe.items() if name not in ("kl_in", "kl_estimator")
                }
            recipe |= kept
        return RecipeCheck(
            simulated=Simulated.among([traits(start.spec.sweep.backend).simulated]),
            metric=start.spec.design.metric,
            seeds=start.spec.sweep.seeds,
            base=start.base,
            compute=start.compute,
            horizon=start.horizon,
            lr=lr,
            lr_undecided=tuple(sorted(own[-1] for own in judged.undecided(key))),
            lr_short=start.lr_at(short),
            slope=slope,
            at_edge=k in (min(rewards), max(rewards)),
            scaling=start.spec.recipe.lr_scaling,
            batches=batches,
            lr_law=self._law(searched),
            terms_kept=kept,
            terms_other=other,
            terms=terms,
            difficulty=start.spec.problems.difficulty,
            recipe=recipe,
            rollouts=self.rollouts,
            rows=tuple(self.rows),
        )

    def _run(
        self,
        name: str,
        cells: Sequence[BatchShape],
        ks: Iterable[int],
        compute: int,
        new: Iterable[int] | None = None,
    ) -> MeasuredCurves:
        """Execute a stage's remaining runs, or only those with ``new`` lr, and return all measurements.

        Runs that failed in this process are not repeated when more lr are added to the stage.
        """
        start = self.start
        stage = start.stage(name, self.out, cells, map(start.lr_at, ks if new is None else new), compute)
        planned = engine.plan(stage.spec, stage.directory)
        if planned.todo:
            self.execute(stage, planned)
        if new is not None:
            stage = start.stage(name, self.out, cells, map(start.lr_at, ks), compute)
            planned = engine.plan(stage.spec, stage.directory)
        self.spent = planned.rollouts
        return read(stage, start.spec.design.metric, planned.runs)

    def _search(self) -> MeasuredCurves:
        start, tried = self.start, set[int]()
        wanted = list(rule.START)
        while wanted:
            tried |= set(wanted)
            found = self._run(LR, [start.base], tried, start.horizon, wanted)
            at = [self._by_k(found, c, tried) for c in start.horizons()]
            wanted = rule.search(at)
        self._refuse_failed(at[-1], found)
        return found

    def _full(self, middle: int) -> MeasuredCurves:
        start, tried = self.start, set[int]()
        rewards: dict[int, float] = {}
        while wanted := rule.bracket(middle, rewards):
            tried |= set(wanted)
            found = self._run(FULL, [start.base], tried, start.compute, wanted)
            rewards = self._by_k(found, start.compute, tried)
        self._refuse_failed(rewards, found)
        return found

    def _between(self, short: float, full: float) -> int:
        """Return the best k at the horizon of the stage ``batch``, interpolated between two known values.

        The known values are the best k at the C of the search and at the C of the sweep.
        """
        start = self.start
        if start.horizon == start.compute:
            return round(full)
        share = math.log(start.batch_horizon / start.horizon) / math.log(start.compute / start.horizon)
        return round(short + share * (full - short))

    def _batches(self, k: int) -> tuple[BatchRule, ...]:
        start = self.start
        if not start.others:
            return ()
        found = self.others = self._run(BATCH, start.others, (k - 1, k, k + 1), start.batch_horizon)
        self._add(BATCH, found, start.batch_horizon)
        out = []
        for cell in start.others:
            judged = self._judged(found, start.batch_horizon, cell)
            own = (*cell, start.lr_at(k))
            if own not in judged.mean:
                out.append(BatchRule(*own, None, RecipeVerdict.FAILED))
                continue
            best = max(sorted(judged.mean), key=lambda key: judged.mean[key])
            rivals = [key for key in judged.mean if key != own]
            out.append(BatchRule(*own, best[-1], _verdict(judged, own, rivals)))
        return tuple(out)

    def _law(self, searched: MeasuredCurves) -> LrLaw | None:
        """Return how the best lr grows with the batch size, from the runs at all batch sizes."""
        parts = [own.runs for own in (searched, self.others) if own.runs is not None]
        metric = self.start.spec.design.metric
        return lr_law(Runs.concat(parts), metric, EVAL_SET, {}) if len(parts) > 1 else None

    def _terms(
        self, k: int, full: MeasuredCurves
    ) -> tuple[RecipeVerdict | None, dict[str, float], dict[str, float]]:
        """Compare the recipe's KL and entropy terms with the alternative.

        Returns the verdict, the weights to keep and the other weights.
        """
        start = self.start
        given, other = start.given, start.other_terms()
        if not start.has_terms:
            return None, given, other
        found = self._run(TERMS, [start.base], [k], start.compute)
        key = self._key(k)
        rewards: dict[Any, Mapping[int, float]] = self._rewards(full, start.compute)
        own = found.at(key, start.compute)
        unstable = set(full.unstable) | ({"other"} if key in found.unstable else set())
        if own is not None:
            rewards["other"] = own
        judged = judge(rewards, unstable)
        verdict = RecipeVerdict.FAILED if own is None else _verdict(judged, key, ["other"])
        note = found.failed.get(key) or found.unstable.get(key, "")
        label = "" if own is None else _against(judged, "other", [key, "other"])
        reward = None if own is None else judged.mean["other"]
        self.rollouts += self.spent
        self.rows.append(RecipeResult(TERMS, *key, other, start.compute, reward, judged.error, label, note))
        return (verdict, other, given) if verdict is RecipeVerdict.CONTRADICTED else (verdict, given, other)

    def _key(self, k: int) -> LrCell:
        return (*self.start.base, self.start.lr_at(k))

    def _by_k(
        self, found: MeasuredCurves, compute: float, tried: Iterable[int] | None = None
    ) -> dict[int, float]:
        """Return the mean reward at the base batch for each k, −inf if a run failed."""
        if tried is None:
            every = range(-2 * rule.FARTHEST, 2 * rule.FARTHEST)
            keys = {*found.curves, *found.failed}
            tried = [k for k in every if self._key(k) in keys]
        return {k: found.mean(self._key(k), compute) for k in tried}

    @staticmethod
    def _refuse_failed(rewards: Mapping[int, float], found: MeasuredCurves) -> None:
        if not any(map(math.isfinite, rewards.values())):
            cause = next(iter(found.failed.values()), "unknown")
            raise RunError(f"the runs of every learning rate failed; the cause of the first failure: {cause}")

    @staticmethod
    def _rewards(
        found: MeasuredCurves, compute: int, cell: BatchShape | None = None
    ) -> dict[Any, Mapping[int, float]]:
        keys = [key for key in found.curves if cell is None or key[:2] == cell]
        return {key: own for key in sorted(keys) if (own := found.at(key, compute)) is not None}

    def _judged(self, found: MeasuredCurves, compute: int, cell: BatchShape | None = None) -> Judged[Any]:
        return judge(self._rewards(found, compute, cell), found.unstable)

    def _add(self, stage: str, found: MeasuredCurves, compute: int) -> None:
        """Add the rows of a stage and the rollouts that it generated."""
        self.rollouts += self.spent
        keys = sorted({*found.curves, *found.failed})
        for cell in dict.fromkeys(key[:2] for key in keys):
            judged = self._judged(found, compute, cell)
            for key in (key for key in keys if key[:2] == cell):
                note = found.failed.get(key) or found.unstable.get(key, "")
                known = key in judged.mean
                label = _against(judged, key, judged.mean) if known else ""
                reward = judged.mean[key] if known else None
                self.rows.append(
                    RecipeResult(stage, *key, self.start.given, compute, reward, judged.error, label, note)
                )


def _verdict(judged: Judged[Any], own: Any, rivals: Sequence[Any]) -> RecipeVerdict:
    """Return the verdict on the recipe ``own`` compared with its rivals."""
    if any(judged.better(rival, own) for rival in rivals):
        return RecipeVerdict.CONTRADICTED
    if rivals and all(judged.better(own, rival) for rival in rivals):
        return RecipeVerdict.SUPPORTED
    return RecipeVerdict.UNDECIDED


def _against(judged: Judged[Any], key: Any, among: Iterable[Any]) -> str:
    """Return the label of a recipe, from its comparison with the best of ``among``."""
    best = max(among, key=lambda other: judged.mean[other])
    if key == best:
        return "best"
    return "worse" if judged.better(best, key) else "not decided"
