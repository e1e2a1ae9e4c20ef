"""`resolve_sweep`: resolve all runs of a sweep and find all issues, without writing any file."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolaw import allocation, backends, executors
from isolaw.allocation import BatchShape
from isolaw.config import EvaluationSpec, Recipe, RunSpec, SweepSpec
from isolaw.config.sections import OFF
from isolaw.design import directory
from isolaw.design.directory import Adaptive
from isolaw.design.race import RUNGS
from isolaw.errors import Damaged, Issue, SpecError, StoreError, collecting
from isolaw.evidence import Simulated
from isolaw.store import SweepStore
from isolaw.store.tables import attributes_of
from isolaw.trackers import mirror

if TYPE_CHECKING:
    from isolaw.machine import Cards
    from isolaw.runs import Runs

_MOST_RUNS = 20_000  # a stranger's file can ask for billions


@dataclass(frozen=True)
class ResolvedSweep:
    """A sweep before its execution: the resolved spec, all its runs, and its unfinished runs."""

    spec: SweepSpec
    runs: list[RunSpec]
    todo: list[str]  # ids of the runs that have not reached their horizon, in order of execution
    begun: int  # number of unfinished runs that have a state
    remaining: int  # number of rollouts that are left to generate
    notes: list[str]  # notes about values that were left out or filled in
    recorded: Runs | None = None  # recorded runs that the directory must keep for replay
    adaptive: Adaptive | None = (
        None  # the race that chooses runs; ``runs`` then contains the runs that it has requested so far
    )
    cards: Cards | None = None  # the GPUs that the sweep is resolved for; None: the GPUs of the executor

    @property
    def defaults(self) -> dict[str, list[Any]]:
        """The recipe keys that the sweep file does not set, with their values in the runs."""
        axes, given = self.spec.grid.recipe_axes, self.spec.recipe
        filled = {
            key: list(dict.fromkeys(getattr(run.recipe, key) for run in self.runs))
            for key in Recipe.model_fields
            if key not in axes and getattr(given, key) is None
        }
        return {key: values for key, values in filled.items() if values not in ([None], [OFF.get(key)])}

    @property
    def unfinished(self) -> list[RunSpec]:
        """The runs that have not reached their horizon, in the order of ``runs``."""
        left = set(self.todo)
        return [run for run in self.runs if run.run_id in left]

    @property
    def rollouts(self) -> int:
        """The number of rollouts of the whole sweep, including finished runs.

        It is an upper limit if a race chooses the runs.
        """
        if self.adaptive is not None:
            return self.adaptive.race.spend
        return sum(run.rollouts for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        runs = self.runs if self.adaptive is None else self.adaptive.grid.values()
        return {
            "simulated": Simulated.of(map(attributes_of, runs)).json,
            "runs": len(self.runs),
            "todo": len(self.todo),
            "begun": self.begun,
            "rollouts": self.rollouts,
            "remaining_rollouts": self.remaining,
            "configurations": sorted({run.shape for run in self.runs}),
            "seeds": list(self.spec.sweep.seeds),
            "axes": self.spec.grid.recipe_axes,
            "defaults": self.defaults,
            "compute": self.spec.sweep.compute,
            "notes": self.notes,
            "design": None if self.adaptive is None else self.adaptive.to_dict(),
        }


def resolve_sweep(
    spec: SweepSpec, out: str | Path, *, whole_directory: bool = False, cards: Cards | None = None
) -> ResolvedSweep:
    """Resolve a sweep, including the runs that its directory already has.

    No file is written, and the directory ``out`` need not exist. With ``whole_directory``, the
    result also contains runs in the directory that ``spec`` does not include. ``cards`` describes the GPUs;
    with None, the executor determines them. Raises `SpecError` with all issues, including the backend's.
    Raises `StoreError` if the directory contains other data, or a sweep with another recipe.
    """
    with executors.planned_for(cards, spec.executor, spec.sweep.backend):
        return replace(_resolved(spec, SweepStore(out), whole_directory), cards=cards)


def _resolved(spec: SweepSpec, store: SweepStore, whole_directory: bool) -> ResolvedSweep:
    store.claim()
    notes: list[str] = []
    try:
        backend = backends.get(spec.sweep.backend)
        spec, to_keep, as_recorded = backend.with_axes(spec, store.directory, notes)
        spec = _with_schedule(spec, store, notes)
    except SpecError as error:  # without a backend or schedule, there are no runs to check for issues
        issues = list(error.issues)
        with collecting(issues):
            _with_schedule(spec, store, [])
        issues += _issues_before_runs(spec)
        raise SpecError(list({str(issue): issue for issue in issues}.values()), error.source) from None
    lengths = [*spec.axes[:2], *spec.grid.recipe_axes.values(), spec.sweep.seeds]
    if (count := math.prod(map(len, lengths))) > _MOST_RUNS:
        raise SpecError([Issue("grid", f"found {count:,} runs", accepted=f"at most {_MOST_RUNS:,} runs")])
    pairs, dropped = allocation.grid(*spec.axes)
    if dropped:
        shown = ", ".join(f"B_p = {b} with n = {n}" for b, n in dropped)
        notes.append(
            f"isolaw leaves out combinations above limits.max_batch_rollouts = {spec.axes[-1]}: {shown}"
        )
    with executors.machines(spec.executor, spec.sweep.backend):
        runs, issues = _resolved_runs(spec, pairs, notes, as_recorded)
        issues += executors.check(spec.executor, runs)
    raced = spec.design.kind == "race"
    issues = [*_issues_before_runs(spec), *issues]
    issues += directory.issues_of(spec, runs) if raced else []
    if raced and spec.executor.kind == "scripts":
        issues.append(Issue("executor.kind", "a race decides with isolaw at work", "scripts", "another kind"))
    if issues:
        raise SpecError(list({str(issue): issue for issue in issues}.values()))
    existing, damaged = store.specs() if store.exists else ({}, {})
    _check_directory(store, spec, runs, list(existing.values()))
    known = {run.run_id for run in runs}
    adaptive = Adaptive.open(spec, runs, store) if raced else None
    if adaptive is not None:
        runs = adaptive.runs
    notes += [
        cause if run_id in known else f"isolaw leaves out {cause}"
        for run_id, cause in sorted(damaged.items())
    ]
    if whole_directory and adaptive is None:
        runs += [run for run_id, run in existing.items() if run_id not in known]
    left, remaining, begun, again = [], 0, 0, 0
    for run in runs:
        stored = store.run(run.run_id)
        recorded = stored.recorded()
        if not recorded.is_done(run):
            left.append(run)
            last = stored.last_state
            kept = recorded.up_to(last)
            begun += last is not None
            again += bool(recorded.checkpoints) and not kept.checkpoints
            remaining += max(run.rollouts - kept.reached, 0)
    if idle := executors.idle(spec.executor):
        notes.append(f"with executor.kind = {spec.executor.kind!r}, isolaw does not use {', '.join(idle)}")
    if again:
        notes.append(f"{again} of the started runs have no state to continue from, and start again at step 0")
    notes += _disk_notes(store, left)
    todo = [run.run_id for run in executors.order(store.directory, left)]
    return ResolvedSweep(spec, runs, todo, begun, remaining, notes, to_keep, adaptive)


def issues_of(spec: SweepSpec) -> list[Issue]:
    """Return all issues that `resolve_sweep` finds in a spec, for a new directory."""
    issues: list[Issue] = []
    with tempfile.TemporaryDirectory(prefix="isolaw-") as nowhere, collecting(issues):
        resolve_sweep(spec, nowhere)
    return issues


def _issues_before_runs(spec: SweepSpec) -> list[Issue]:
    """Return the issues that can be found without resolving runs: in the grid and the trackers."""
    return [*allocation.grid_issues(*spec.axes), *mirror.check(spec.tracking)]


def _disk_notes(store: SweepStore, left: Sequence[RunSpec]) -> list[str]:
    """Return a warning if the states that the remaining runs will write do not fit on the disk."""
    new = [run for run in left if store.run(run.run_id).last_state is None]
    sizes = [size for run in new if (size := backends.get(run.backend).needs(run).disk_bytes)]
    place = store.directory.absolute()
    free = shutil.disk_usage(next(folder for folder in (place, *place.parents) if folder.exists())).free
    note = (
        f"the disk may become full: the states of {len(sizes)} runs take {sum(sizes) / 2**30:,.1f} GiB, but "
        f"only {free / 2**30:,.1f} GiB are free at {place}. Choose a directory on another disk. "
        "You can delete state/ of a finished run, but an extension of this run then starts again"
    )
    return [note] if sum(sizes) > free else []


def _with_schedule(spec: SweepSpec, store: SweepStore, notes: list[str]) -> SweepSpec:
    """Return the spec with its evaluation schedule filled in; a sweep keeps its first schedule."""
    given, compute = spec.evaluation, spec.sweep.compute
    kept: EvaluationSpec | None = None
    if store.exists:
        try:
            kept = store.read_spec().evaluation
        except Damaged as error:
            notes.append(str(error))
            schedules = (run.evaluation for run in store.specs()[0].values())
            kept = max(schedules, key=lambda schedule: schedule.horizons, default=None)
    if kept is None:
        return _with_new_schedule(spec)
    changed = []
    for name in type(given).model_fields:
        new, old = getattr(given, name), getattr(kept, name)
        if new != old and name != "horizons" and not (name in ("start", "end") and new is None):
            message = "differs from the sweep in the directory"
            changed.append(Issue(f"evaluation.{name}", message, new, str(old)))
    if changed:
        raise SpecError(changed, source=str(store.directory))
    longest = max(kept.horizons, default=0)
    if spec.design.kind == "race" and compute != longest:
        raise StoreError(
            f"{store.directory}: its runs go to C = {longest}; a race to C = {compute} needs a new --out, or "
            "design.kind = 'grid', which extends all runs"
        )
    if compute < longest:
        notes.append(
            f"the runs in the directory already go to C = {longest}, and isolaw does not shorten runs"
        )
    horizons = tuple(sorted({*kept.horizons, *_horizons(spec)}))
    return spec.model_copy(update={"evaluation": kept.model_copy(update={"horizons": horizons})})


def _with_new_schedule(spec: SweepSpec) -> SweepSpec:
    """Return the spec of a new sweep with its evaluation schedule filled in."""
    given, compute = spec.evaluation, spec.sweep.compute
    batches = [b * n for b in spec.grid.problems_per_batch for n in spec.grid.rollouts_per_problem]
    start, end = given.start or min(*batches, compute), given.end or compute
    if start > end:
        accepted = f"at most evaluation.end, or else sweep.compute, {end:,}"
        raise SpecError([Issue("evaluation.start", found=start, accepted=accepted)])
    filled_in = given.model_copy(update={"start": start, "end": end, "horizons": _horizons(spec)})
    return spec.model_copy(update={"evaluation": filled_in})


def _horizons(spec: SweepSpec) -> tuple[int, ...]:
    """Return the horizons at which runs can end. All runs are evaluated at each horizon."""
    compute = spec.sweep.compute
    return tuple(sorted({compute // part for part in RUNGS})) if spec.design.kind == "race" else (compute,)


def resolved_run(spec: SweepSpec, shape: BatchShape) -> RunSpec:
    """Return the run of a sweep with a batch shape and the first seed, resolved by its backend.

    Raises `SpecError` for invalid options.
    """
    backend = backends.get(spec.sweep.backend)
    run = RunSpec(
        backend=backend.name,
        problems_per_batch=shape[0],
        rollouts_per_problem=shape[1],
        seed=spec.sweep.seeds[0],
        recipe=spec.recipe,
        problems=spec.problems,
        options=spec.options,
        compute=spec.sweep.compute,
        evaluation=spec.evaluation,
    )
    return backend.resolve(run)


def new_runs(spec: SweepSpec) -> list[RunSpec]:
    """Return all runs of a new sweep before its backend resolves them: its model need not exist."""
    spec = _with_new_schedule(spec)
    pairs = allocation.grid(*spec.axes)[0]
    return [
        run.model_copy(update={"seed": seed}) for run in _unresolved(spec, pairs) for seed in spec.sweep.seeds
    ]


def _unresolved(spec: SweepSpec, pairs: Sequence[tuple[int, int]]) -> Iterator[RunSpec]:
    """Yield a run of every configuration of the grid, without a seed."""
    axes = spec.grid.recipe_axes
    common = {
        "backend": spec.sweep.backend,
        "problems": spec.problems,
        "options": spec.options,
        "compute": max(spec.sweep.compute, *spec.evaluation.horizons),
        "evaluation": spec.evaluation,
    }
    for (b, n), values in itertools.product(pairs, itertools.product(*axes.values())):
        recipe = Recipe(**{**spec.recipe.model_dump(), **dict(zip(axes, values, strict=True))})
        yield RunSpec(problems_per_batch=b, rollouts_per_problem=n, recipe=recipe, **common)


def _resolved_runs(
    spec: SweepSpec, pairs: Sequence[tuple[int, int]], notes: list[str], as_recorded: bool
) -> tuple[list[RunSpec], list[Issue]]:
    """Return every run of the grid, resolved by the backend, and the issues of all runs.

    If ``as_recorded``, combinations that were not recorded are left out.
    """
    backend = backends.get(spec.sweep.backend)
    runs: dict[str, RunSpec] = {}
    issues: list[Issue] = []
    left_out = 0
    for run in _unresolved(spec, pairs):
        notes += [note for note in backend.notes(run) if note not in notes]
        if run.steps < 1:
            b, n = run.shape
            accepted = f"at least one batch, {b * n} (B_p = {b}, n = {n})"
            issues.append(Issue("sweep.compute", found=spec.sweep.compute, accepted=accepted))
            continue
        for seed in spec.sweep.seeds:
            try:
                resolved = backend.resolve(run.model_copy(update={"seed": seed}))
            except SpecError as error:
                issues += error.issues
                continue
            faults = backend.check(resolved)
            if as_recorded and [issue.where for issue in faults] == ["grid"]:
                left_out += 1
                continue
            issues += faults
            if not faults:  # a run with issues can lack an identity (for example, because of a NaN)
                runs[resolved.run_id] = resolved
    if left_out:
        notes.append(f"{left_out} combinations of the axes were not recorded; isolaw leaves them out")
    return list(runs.values()), issues


def _check_directory(
    store: SweepStore, spec: SweepSpec, runs: Sequence[RunSpec], existing: Sequence[RunSpec]
) -> None:
    """Raise `StoreError` if the directory has runs with another recipe, problem set or backend."""
    if not existing:
        return
    swept = {k for k in Recipe.model_fields if len({getattr(run.recipe, k) for run in existing}) > 1}
    free = {f"recipe.{key}" for key in swept | spec.grid.recipe_axes.keys()}
    old, new = _shared(existing[0]), _shared(runs[0])
    differing = [
        f"{name} is {old.get(name)!r} in the directory and {new.get(name)!r} in this sweep"
        for name in sorted({*old, *new} - free)
        if old.get(name) != new.get(name)
    ]
    if differing:
        raise StoreError(
            f"{store.directory}: contains another sweep ({'; '.join(differing)}); use a new --out"
        )


def _shared(run: RunSpec) -> dict[str, Any]:
    """Return the values that all runs of a directory must share, by dotted key.

    The result excludes the facts about a single run in a log, but includes the hash of the log, in
    ``content``.
    """
    identity = run.identity()
    parts = ("recipe", "problems", "options", "content")
    keys = {f"{part}.{key}": value for part in parts for key, value in identity[part].items()}
    keys.pop("options.recorded", None)
    return {"backend": identity["backend"], **keys}
