"""What a sweep would do: `plan` writes nothing and finds everything that is wrong."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isolaw import allocation, backends, executors
from isolaw.config import RunSpec, StoreSection, SweepSpec
from isolaw.errors import Damaged, Issue, SpecError, StoreError
from isolaw.store import SweepStore
from isolaw.trackers import mirror


@dataclass(frozen=True)
class Plan:
    """What a sweep would do.

    Attributes
    ----------
    spec
        the resolved sweep.
    runs
        all its runs.
    todo
        ids of the runs that are not finished up to their horizon, in the order in which they begin.
    begun
        how many of those have checkpoints already.
    remaining
        rollouts left to generate.
    notes
        what was left out or filled in, in words.
    """

    spec: SweepSpec
    runs: list[RunSpec]
    todo: list[str]
    begun: int
    remaining: int
    notes: list[str] = field(default_factory=list)

    @property
    def defaults(self) -> dict[str, list[Any]]:
        """Keys of the recipe that the sweep leaves open, each with the values that the runs have."""
        axes, given = self.spec.grid.recipe_axes, self.spec.recipe
        filled = {
            key: list(dict.fromkeys(getattr(run.recipe, key) for run in self.runs))
            for key in type(given).model_fields
            if key not in axes and getattr(given, key) is None
        }
        return {key: values for key, values in filled.items() if values != [None]}

    @property
    def rollouts(self) -> int:
        """Rollouts of the whole sweep, finished ones included."""
        return sum(run.steps * run.batch_rollouts for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-able data."""
        return {
            "runs": len(self.runs),
            "todo": len(self.todo),
            "begun": self.begun,
            "rollouts": self.rollouts,
            "remaining_rollouts": self.remaining,
            "configurations": sorted({(r.problems_per_batch, r.rollouts_per_problem) for r in self.runs}),
            "seeds": list(self.spec.sweep.seeds),
            "axes": self.spec.grid.recipe_axes,
            "defaults": self.defaults,
            "compute": self.spec.sweep.compute,
            "notes": self.notes,
        }


def plan(spec: SweepSpec, out: str | Path, *, whole_directory: bool = False) -> Plan:
    """Resolve a sweep against its directory; nothing is written.

    Parameters
    ----------
    spec
        what is asked for.
    out
        the sweep's directory, which need not exist.
    whole_directory
        also finish runs that the directory holds and ``spec`` does not name.

    Raises
    ------
    SpecError
        everything that is wrong with the spec, at once, also in the backend's eyes.
    StoreError
        the directory holds something else, or a sweep of another recipe.
    """
    store = SweepStore(out)
    store.claim()
    spec = _with_states(spec)
    backends.get(spec.sweep.backend)
    notes: list[str] = []
    if spec.sweep.backend == "replay":
        spec = _with_table_axes(spec)
    spec = _with_schedule(spec, store, notes)
    pairs, dropped = allocation.grid(
        spec.grid.problems_per_batch, spec.grid.rollouts_per_problem, spec.limits.max_batch_rollouts
    )
    problems = allocation.grid_issues(
        spec.grid.problems_per_batch, spec.grid.rollouts_per_problem, spec.limits.max_batch_rollouts
    )
    if dropped:
        notes.append(
            f"left out above limits.max_batch_rollouts = {spec.limits.max_batch_rollouts}: "
            + ", ".join(f"B_p = {b} with n = {n}" for b, n in dropped)
        )
    with executors.machines(spec.executor, spec.sweep.backend):
        runs, more = _resolved_runs(spec, pairs, notes)
        problems += more + mirror.check(spec.tracking) + executors.check(spec.executor, runs)
    problems += _check_states(store, spec)
    if problems:
        raise SpecError(list({str(p): p for p in problems}.values()))
    there, damaged = store.specs() if store.exists else ({}, {})
    _check_directory(store, spec, runs, list(there.values()))
    known = {run.run_id for run in runs}
    notes += [
        f"{cause}" if run_id in known else f"left out: {cause}" for run_id, cause in sorted(damaged.items())
    ]
    if whole_directory:
        runs += [own for run_id, own in there.items() if run_id not in known]
    left, remaining, again = [], 0, 0
    for run in runs:
        recorded = store.run(run.run_id).recorded()
        if store.run(run.run_id).done_compute(recorded) // run.batch_rollouts < run.steps:
            left.append(run)
            last = store.run(run.run_id).last_state
            steps = recorded.checkpoints if last is not None else []
            kept = [line["compute"] for line in steps if line["step"] <= (last or 0)]
            made = max(kept, default=0)
            again += bool(recorded.checkpoints) and not kept
            remaining += max(run.steps * run.batch_rollouts - made, 0)
    todo = [run.run_id for run in executors.order(store.directory, left)]
    begun = sum(store.run(run_id).last_state is not None for run_id in todo)
    if idle := executors.idle(spec.executor):
        notes.append(f"not used with executor.kind = {spec.executor.kind!r}: {', '.join(idle)}")
    if again:
        notes.append(f"{again} of the runs begun have no state to continue from, and start at step 0")
    notes += _disk(store, spec, left)
    return Plan(spec, runs, todo, begun, remaining, notes)


def _disk(store: SweepStore, spec: SweepSpec, left: Sequence[RunSpec]) -> list[str]:
    """Say so where the states of the runs that have none yet do not fit on the disk."""
    sizes = {run.run_id: size for run in left if (size := backends.get(run.backend).needs(run).disk_bytes)}
    new = [run_id for run_id in sizes if store.run(run_id).last_state is None]
    needed = sum(sizes[run_id] for run_id in new)
    place = Path(spec.store.states or store.directory).absolute()
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(above).free
    if needed <= free:
        return []
    return [
        f"take care: the states of {len(new)} runs take {needed / 2**30:,.1f} GiB, and "
        f"{free / 2**30:,.1f} GiB are free where {place} is (store.states keeps them on another disk; state/ "
        "of a finished run may be deleted, and an extension then begins it anew)"
    ]


def _with_states(spec: SweepSpec) -> SweepSpec:
    """Write the folder for states as it is from anywhere: without ~ and variables, and absolute."""
    asked = spec.store.states
    if asked is None:
        return spec
    path = os.path.abspath(os.path.expanduser(os.path.expandvars(asked)))
    return spec.model_copy(update={"store": StoreSection(states=path)})


def _check_states(store: SweepStore, spec: SweepSpec) -> list[Issue]:
    """Return what is wrong with the folder for states: it is chosen once, before the sweep begins."""
    asked, kept = spec.store.states, store.states_given
    if asked is None:
        return []
    if kept is None and store.exists and any(store.run(r).last_state is not None for r in store.run_ids()):
        accepted = "nothing: the sweep keeps its states in its own directory"
        return [Issue("store.states", "the sweep has begun", found=asked, accepted=accepted)]
    if kept is not None and os.path.realpath(asked) != os.path.realpath(kept):
        return [Issue("store.states", "the sweep has begun", found=asked, accepted=kept)]
    if not os.path.isdir(asked) or not os.access(asked, os.W_OK | os.X_OK):
        return [Issue("store.states", found=asked, accepted="a folder that exists and can be written")]
    return []


def with_the_rest(error: SpecError) -> SpecError:
    """Return ``error`` with what is also wrong in the part of the spec that could be read."""
    if error.rest is not None:
        with tempfile.TemporaryDirectory(prefix="isolaw-") as nowhere:
            try:
                plan(error.rest, nowhere)
            except SpecError as more:
                return SpecError([*error.issues, *more.issues], error.source)
    return error


def _with_table_axes(spec: SweepSpec) -> SweepSpec:
    """For replay: what the user left open is all that the table offers."""
    from isolaw.backends.replay import BACKEND

    offered = BACKEND.axes(spec.replay)
    grid = {
        key: offered[key]
        for key in ("problems_per_batch", "rollouts_per_problem")
        if key not in spec.grid.model_fields_set
    }
    section = {key: offered[key] for key in ("seeds", "compute") if key not in spec.sweep.model_fields_set}
    b = grid.get("problems_per_batch", spec.grid.problems_per_batch)
    n = grid.get("rollouts_per_problem", spec.grid.rollouts_per_problem)
    # What was recorded needs no cap of this machine's.
    limits = {} if spec.limits.model_fields_set else {"max_batch_rollouts": max(b) * max(n)}
    data = spec.model_dump(mode="json", exclude_unset=True)
    for name, values in {"grid": grid, "sweep": section, "limits": limits}.items():
        data[name] = {**data.get(name, {}), **values}
    return SweepSpec.parse(data)


def _with_schedule(spec: SweepSpec, store: SweepStore, notes: list[str]) -> SweepSpec:
    """Fill in the evaluation schedule: a directory keeps the one it began with."""
    given = spec.evaluation
    kept = store.evaluation()
    if kept is not None:
        try:
            store.read_spec()
        except Damaged as error:
            notes.append(str(error))
        changed = [
            Issue(
                f"evaluation.{name}",
                "differs from the sweep in the directory",
                found=asked,
                accepted=str(was),
            )
            for name in type(given).model_fields
            if name != "horizons"
            and (asked := getattr(given, name)) != (was := getattr(kept, name))
            and not (name in ("start", "end") and asked is None)
        ]
        if changed:
            raise SpecError(changed, source=str(store.directory))
        horizons = sorted({*kept.horizons, spec.sweep.compute})
        if spec.sweep.compute < max(kept.horizons, default=0):
            notes.append(
                f"the directory already goes to C = {max(kept.horizons, default=0)}; nothing is shortened"
            )
        evaluation = kept.model_copy(update={"horizons": tuple(horizons)})
    else:
        batches = [b * n for b in spec.grid.problems_per_batch for n in spec.grid.rollouts_per_problem]
        compute = spec.sweep.compute
        start, end = given.start or min(*batches, compute), given.end or compute
        if start > end:
            accepted = f"at most evaluation.end, or else sweep.compute, {end:,}"
            raise SpecError([Issue("evaluation.start", found=start, accepted=accepted)])
        evaluation = given.model_copy(update={"start": start, "end": end, "horizons": (compute,)})
    return spec.model_copy(update={"evaluation": evaluation})


def _resolved_runs(
    spec: SweepSpec, pairs: Sequence[tuple[int, int]], notes: list[str]
) -> tuple[list[RunSpec], list[Issue]]:
    """Every run of the grid as the backend sees it, and everything that is wrong with any of them."""
    backend = backends.get(spec.sweep.backend)
    axes = spec.grid.recipe_axes
    runs: dict[str, RunSpec] = {}
    problems: list[Issue] = []
    horizon = max(spec.sweep.compute, *spec.evaluation.horizons)
    for (b, n), values in itertools.product(pairs, itertools.product(*axes.values())):
        run = RunSpec(
            backend=spec.sweep.backend,
            problems_per_batch=b,
            rollouts_per_problem=n,
            recipe=spec.recipe.model_validate(
                {**spec.recipe.model_dump(), **dict(zip(axes, values, strict=True))}
            ),
            problems=spec.problems,
            options=getattr(spec, spec.sweep.backend),
            compute=horizon,
            evaluation=spec.evaluation,
        )
        notes += [note for note in backend.notes(run) if note not in notes]
        if run.steps < 1:
            accepted = f"at least one batch, {run.batch_rollouts} (B_p = {b}, n = {n})"
            problems.append(Issue("sweep.compute", found=spec.sweep.compute, accepted=accepted))
            continue
        for seed in spec.sweep.seeds:
            try:
                resolved = backend.resolve(run.model_copy(update={"seed": seed}))
            except SpecError as error:
                problems += error.issues
                continue
            found = backend.check(resolved)
            problems += found
            if not found:  # what is wrong need not have an identity (a NaN has none)
                runs[resolved.run_id] = resolved
    return list(runs.values()), problems


def _check_directory(
    store: SweepStore, spec: SweepSpec, runs: Sequence[RunSpec], there: Sequence[RunSpec]
) -> None:
    """Refuse to mix recipes, problem sets or backends in one directory: they are other sweeps."""
    if not there:
        return
    old, new = there[0].identity(), runs[0].identity()
    swept = {k for k in type(spec.recipe).model_fields if len({getattr(r.recipe, k) for r in there}) > 1}
    differing = []
    for part in ("backend", "recipe", "problems", "options", "content"):
        was, asked = old[part], new[part]
        if not isinstance(was, dict):
            was, asked = {"": was}, {"": asked}
        for key in sorted({*was, *asked} - ({*spec.grid.recipe_axes, *swept} if part == "recipe" else set())):
            if was.get(key) != asked.get(key):
                name = f"{part}.{key}".rstrip(".")
                differing.append(f"{name} is {was.get(key)!r} there and {asked.get(key)!r} here")
    if differing:
        raise StoreError(f"{store.directory}: holds another sweep ({'; '.join(differing)}); use a new --out")
