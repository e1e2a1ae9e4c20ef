"""`resolve_sweep`: resolve all runs of a sweep and find all issues, without writing any file."""

from __future__ import annotations

import contextlib
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
from isolaw.store import RunStore, SweepStore
from isolaw.store.tables import attributes_of
from isolaw.trackers import mirror

if TYPE_CHECKING:
    from isolaw.machine import Cards
    from isolaw.runs import Runs

_RUN_LIMIT = 20_000  # a stranger's file can ask for billions


@dataclass(frozen=True)
class ResolvedSweep:
    """A sweep before its execution: the resolved spec, all its runs, and its unfinished runs."""

    spec: SweepSpec
    runs: list[RunSpec]
    todo: list[str]  # ids of the runs that have not reached their horizon, in order of execution
    begun_count: int  # number of unfinished runs that have a state
    remaining_rollouts: int  # number of rollouts that are left to generate
    notes: list[str]  # notes about values that were left out or filled in
    recorded_runs: Runs | None = None  # recorded runs that the directory must keep for replay
    adaptive: Adaptive | None = None  # the race that chooses runs; ``runs`` are those that it has requested
    is_part: bool = False  # whether the directory keeps another spec, of which this is a part
    cards: Cards | None = None  # the GPUs that the sweep is resolved for; None: the GPUs of the executor

    @property
    def defaults(self) -> dict[str, list[Any]]:
        """The recipe keys that the sweep file does not set, with their values in the runs."""
        axes, recipe = self.spec.grid.recipe_axes, self.spec.recipe
        values_of = {
            key: list(dict.fromkeys(getattr(run.recipe, key) for run in self.runs))
            for key in Recipe.model_fields
            if key not in axes and getattr(recipe, key) is None
        }
        return {key: values for key, values in values_of.items() if values not in ([None], [OFF.get(key)])}

    @property
    def unfinished(self) -> list[RunSpec]:
        """The runs that have not reached their horizon, in the order of ``runs``."""
        todo = set(self.todo)
        return [run for run in self.runs if run.run_id in todo]

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
            "begun": self.begun_count,
            "rollouts": self.rollouts,
            "remaining_rollouts": self.remaining_rollouts,
            "configurations": sorted({run.shape for run in self.runs}),
            "seeds": list(self.spec.sweep.seeds),
            "axes": self.spec.grid.recipe_axes,
            "defaults": self.defaults,
            "compute": self.spec.sweep.compute,
            "notes": self.notes,
            "design": None if self.adaptive is None else self.adaptive.to_dict(),
        }


def resolve_sweep(
    spec: SweepSpec, out: str | Path, *, continued: bool = False, cards: Cards | None = None
) -> ResolvedSweep:
    """Resolve a sweep, including the runs that its directory already has.

    No file is written, and the directory ``out`` need not exist. ``continued`` means that ``spec`` is the
    stored spec of the directory with some keys changed. If it then names only a part of the stored sweep,
    the result is this part, and the stored sweep stays as it is. Otherwise the result also contains runs in
    the directory that ``spec`` does not include. ``cards`` describes the GPUs; with None, the executor
    determines them. Raises `SpecError` with all issues, including the backend's, and `StoreError` if the
    directory contains other data, or a sweep with another recipe.
    """
    with executors.planned_for(cards, spec.executor, spec.sweep.backend):
        return replace(_resolved(spec, SweepStore(out), continued), cards=cards)


def _resolved(spec: SweepSpec, store: SweepStore, continued: bool) -> ResolvedSweep:
    store.claim()
    notes: list[str] = []
    try:
        backend = backends.get(spec.sweep.backend)
        spec, recorded_runs, as_recorded = backend.with_axes(spec, store.directory, notes)
        spec = _with_schedule(spec, store, notes)
    except SpecError as error:  # without a backend or schedule, there are no runs to check for issues
        issues = list(error.issues)
        with collecting(issues):
            _with_schedule(spec, store, [])
        issues += _issues_before_runs(spec)
        raise SpecError(list({str(issue): issue for issue in issues}.values()), error.source) from None
    axes = [*spec.axes[:2], *spec.grid.recipe_axes.values(), spec.sweep.seeds]
    if (run_count := math.prod(map(len, axes))) > _RUN_LIMIT:
        raise SpecError([Issue("grid", f"found {run_count:,} runs", accepted=f"at most {_RUN_LIMIT:,} runs")])
    pairs, dropped = allocation.grid(*spec.axes)
    if dropped:
        too_large = ", ".join(f"B_p = {b} with n = {n}" for b, n in dropped)
        notes.append(
            f"isolaw leaves out combinations above limits.max_batch_rollouts = {spec.axes[-1]}: {too_large}"
        )
    with executors.machines(spec.executor, spec.sweep.backend):
        runs, issues = _resolved_runs(spec, pairs, notes, as_recorded)
        issues += executors.check(spec.executor, runs)
    is_race = spec.design.kind == "race"
    issues = [*_issues_before_runs(spec), *issues]
    issues += directory.issues_of(spec, runs) if is_race else []
    if is_race and spec.executor.kind == "scripts":
        issues.append(Issue("executor.kind", "a race decides with isolaw at work", "scripts", "another kind"))
    if issues:
        raise SpecError(list({str(issue): issue for issue in issues}.values()))
    existing, damaged = store.specs() if store.exists else ({}, {})
    _check_directory(store, spec, runs, list(existing.values()))
    run_ids = {run.run_id for run in runs}
    before = _stored_spec(store) if continued else None
    is_part = before is not None and _is_part(spec, before)
    if is_part:
        notes.append("this command runs a part of the sweep, whose own grid and compute do not change")
    adaptive = Adaptive.open(spec, runs, store) if is_race else None
    if adaptive is not None:
        runs = adaptive.runs
    else:  # an earlier command can have extended a part of the runs
        ends = {run_id: max(run.compute, spec.sweep.compute) for run_id, run in existing.items()}
        runs = [run.model_copy(update={"compute": ends.get(run.run_id, run.compute)}) for run in runs]
    notes += [
        cause if run_id in run_ids else f"isolaw leaves out {cause}"
        for run_id, cause in sorted(damaged.items())
    ]
    if continued and not is_part and adaptive is None:
        least = spec.sweep.compute if before is not None and spec.sweep.compute > before.sweep.compute else 1
        others = [run for run_id, run in existing.items() if run_id not in run_ids]
        runs += [run.model_copy(update={"compute": max(run.compute, least)}) for run in others]
    unfinished, remaining_rollouts, begun_count, again = [], 0, 0, 0
    for run in runs:
        stored = store.run(run.run_id)
        recorded = stored.recorded()
        if not recorded.is_done(run):
            unfinished.append(run)
            step, reached = resume_point(stored, run)
            begun_count += step >= 0
            again += bool(recorded.checkpoints) and step < 0
            remaining_rollouts += max(run.rollouts - reached, 0)
    if unused := executors.unused_keys(spec.executor):
        notes.append(f"with executor.kind = {spec.executor.kind!r}, isolaw does not use {', '.join(unused)}")
    if again:
        notes.append(f"{again} of the started runs have no state to continue from, and start again at step 0")
    notes += _disk_notes(store, unfinished)
    todo = [run.run_id for run in executors.order(store.directory, unfinished)]
    return ResolvedSweep(
        spec, runs, todo, begun_count, remaining_rollouts, notes, recorded_runs, adaptive, is_part
    )


def resume_point(run: RunStore, spec: RunSpec) -> tuple[int, int]:
    """Return the step and the rollouts from which a run continues; -1 and 0 if it starts from the beginning.

    A trainer's own checkpoint can be newer than the run's last state.
    """
    kept = run.settled()
    step, compute = (kept[-1]["step"], kept[-1]["compute"]) if kept else (-1, 0)
    if spec.backend == "command":
        from isolaw.backends.command import options, training

        made = min(training.next_attempt(run.out, options.CommandOptions.of(spec))[1], spec.steps)
        if made > max(step, 0):
            return made, made * spec.batch_rollouts
    return step, compute


def issues_of(spec: SweepSpec) -> list[Issue]:
    """Return all issues that `resolve_sweep` finds in a spec, for a new directory."""
    issues: list[Issue] = []
    with tempfile.TemporaryDirectory(prefix="isolaw-") as new_directory, collecting(issues):
        resolve_sweep(spec, new_directory)
    return issues


def _issues_before_runs(spec: SweepSpec) -> list[Issue]:
    """Return the issues that can be found without resolving runs: in the grid and the trackers."""
    return [*allocation.grid_issues(*spec.axes), *mirror.check(spec.tracking)]


def _disk_notes(store: SweepStore, unfinished: Sequence[RunSpec]) -> list[str]:
    """Return a warning if the states that the remaining runs will write do not fit on the disk."""
    stateless = [run for run in unfinished if store.run(run.run_id).last_state is None]
    sizes = [size for run in stateless if (size := backends.get(run.backend).needs(run).disk_bytes)]
    path = store.directory.absolute()
    free = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
    note = (
        f"the disk may become full: the states of {len(sizes)} runs take {sum(sizes) / 2**30:,.1f} GiB, but "
        f"only {free / 2**30:,.1f} GiB are free at {path}. Choose a directory on another disk. "
        "You can delete state/ of a finished run, but an extension of this run then starts again"
    )
    return [note] if sum(sizes) > free else []


def _stored_spec(store: SweepStore) -> SweepSpec | None:
    """Return the directory's stored sweep, or None if it is damaged."""
    with contextlib.suppress(Damaged):
        return store.read_spec()
    return None


def _is_part(spec: SweepSpec, stored: SweepSpec) -> bool:
    """Return whether the ``stored`` sweep has runs, or rollouts of runs, that ``spec`` lacks."""
    old, new = ({**s.grid.model_dump(), "seeds": s.sweep.seeds} for s in (stored, spec))
    is_shorter = stored.sweep.compute > spec.sweep.compute
    return is_shorter or any(not set(old[key]) <= set(new.get(key, ())) for key in old)


def _with_schedule(spec: SweepSpec, store: SweepStore, notes: list[str]) -> SweepSpec:
    """Return the spec with its evaluation schedule filled in; a sweep keeps its first schedule."""
    evaluation, compute = spec.evaluation, spec.sweep.compute
    existing: EvaluationSpec | None = None
    if store.exists:
        try:
            existing = store.read_spec().evaluation
        except Damaged as error:
            notes.append(str(error))
            schedules = (run.evaluation for run in store.specs()[0].values())
            existing = max(schedules, key=lambda schedule: schedule.horizons, default=None)
    if existing is None:
        return _with_new_schedule(spec)
    issues = []
    for name in type(evaluation).model_fields:
        new, old = getattr(evaluation, name), getattr(existing, name)
        if new != old and name != "horizons" and not (name in ("start", "end") and new is None):
            message = "differs from the sweep in the directory"
            issues.append(Issue(f"evaluation.{name}", message, new, str(old)))
    if issues:
        raise SpecError(issues, source=str(store.directory))
    reached = max(existing.horizons, default=0)
    if spec.design.kind == "race" and compute != reached:
        raise StoreError(
            f"{store.directory}: its runs go to C = {reached}; a race to C = {compute} needs a new --out, or "
            "design.kind = 'grid', which extends all runs"
        )
    if compute < reached:
        notes.append(f"isolaw does not shorten runs: some in the directory go to C = {reached}")
    horizons = tuple(sorted({*existing.horizons, *_horizons(spec)}))
    return spec.model_copy(update={"evaluation": existing.model_copy(update={"horizons": horizons})})


def _with_new_schedule(spec: SweepSpec) -> SweepSpec:
    """Return the spec of a new sweep with its evaluation schedule filled in."""
    evaluation, compute = spec.evaluation, spec.sweep.compute
    batches = [b * n for b in spec.grid.problems_per_batch for n in spec.grid.rollouts_per_problem]
    start, end = evaluation.start or min(*batches, compute), evaluation.end or compute
    if start > end:
        accepted = f"at most evaluation.end, or else sweep.compute, {end:,}"
        raise SpecError([Issue("evaluation.start", found=start, accepted=accepted)])
    filled_in = evaluation.model_copy(update={"start": start, "end": end, "horizons": _horizons(spec)})
    return spec.model_copy(update={"evaluation": filled_in})


def _horizons(spec: SweepSpec) -> tuple[int, ...]:
    """Return the horizons at which runs can end. All runs are evaluated at each horizon."""
    compute = spec.sweep.compute
    return tuple(sorted({compute // rung for rung in RUNGS})) if spec.design.kind == "race" else (compute,)


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
    runs = _unresolved_runs(spec, allocation.grid(*spec.axes)[0])
    return [run.model_copy(update={"seed": seed}) for run in runs for seed in spec.sweep.seeds]


def _unresolved_runs(spec: SweepSpec, pairs: Sequence[tuple[int, int]]) -> Iterator[RunSpec]:
    """Yield a run of every configuration of the grid, without a seed."""
    axes = spec.grid.recipe_axes
    common = {
        "backend": spec.sweep.backend,
        "problems": spec.problems,
        "options": spec.options,
        "compute": spec.sweep.compute,
        "evaluation": spec.evaluation,
    }
    for (problems, rollouts), values in itertools.product(pairs, itertools.product(*axes.values())):
        recipe = Recipe(**{**spec.recipe.model_dump(), **dict(zip(axes, values, strict=True))})
        yield RunSpec(problems_per_batch=problems, rollouts_per_problem=rollouts, recipe=recipe, **common)


def _resolved_runs(
    spec: SweepSpec, pairs: Sequence[tuple[int, int]], notes: list[str], as_recorded: bool
) -> tuple[list[RunSpec], list[Issue]]:
    """Return every run of the grid, resolved by the backend, and the issues of all runs.

    If ``as_recorded``, combinations that were not recorded are left out.
    """
    backend = backends.get(spec.sweep.backend)
    runs_by_id: dict[str, RunSpec] = {}
    issues: list[Issue] = []
    left_out_count = 0
    for run in _unresolved_runs(spec, pairs):
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
            run_issues = backend.check(resolved)
            if as_recorded and [issue.where for issue in run_issues] == ["grid"]:
                left_out_count += 1
                continue
            issues += run_issues
            if not run_issues:  # a run with issues can lack an identity (for example, because of a NaN)
                runs_by_id[resolved.run_id] = resolved
    if left_out_count:
        notes.append(f"{left_out_count} combinations of the axes were not recorded; isolaw leaves them out")
    return list(runs_by_id.values()), issues


def _check_directory(
    store: SweepStore, spec: SweepSpec, runs: Sequence[RunSpec], existing: Sequence[RunSpec]
) -> None:
    """Raise `StoreError` if the directory has runs with another recipe, problem set or backend."""
    if not existing:
        return
    varying = {key for key in Recipe.model_fields if len({getattr(run.recipe, key) for run in existing}) > 1}
    free_keys = {f"recipe.{key}" for key in varying | spec.grid.recipe_axes.keys()}
    old, new = _shared_values(existing[0]), _shared_values(runs[0])
    differences = [
        f"{name} is {old.get(name)!r} in the directory and {new.get(name)!r} in this sweep"
        for name in sorted({*old, *new} - free_keys)
        if old.get(name) != new.get(name)
    ]
    if differences:
        raise StoreError(
            f"{store.directory}: contains another sweep ({'; '.join(differences)}); use a new --out"
        )


def _shared_values(run: RunSpec) -> dict[str, Any]:
    """Return the values that all runs of a directory must share, by dotted key.

    The result excludes the facts about a single run in a log, but includes the hash of the log, in
    ``content``.
    """
    identity = run.identity()
    sections = ("recipe", "problems", "options", "content")
    values = {f"{section}.{name}": value for section in sections for name, value in identity[section].items()}
    values.pop("options.recorded", None)
    return {"backend": identity["backend"], **values}
