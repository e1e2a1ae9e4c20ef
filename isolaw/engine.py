"""Execute the unfinished runs of a sweep, collect the results and report progress."""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from isolaw import executors
from isolaw.arguments import checked
from isolaw.config import SweepSpec
from isolaw.costs.recorded import REST
from isolaw.design import directory
from isolaw.documents.reading import read_text
from isolaw.errors import NoHistory, RunError, StoreError
from isolaw.evidence import Simulated
from isolaw.executors.waiting import Event
from isolaw.registry import traits
from isolaw.resolve import ResolvedSweep, issues_of, resolve_sweep, resume_point
from isolaw.runs import Runs
from isolaw.step_cost import HOUR_S
from isolaw.store import SweepStore, tables
from isolaw.trackers import mirror

__all__ = ["ResolvedSweep", "execute", "issues_of", "resolve_sweep", "status", "sweep"]


@checked
def sweep(
    spec: SweepSpec | Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    *,
    on_event: Callable[[Event], None] | None = None,
) -> Runs:
    """Run a sweep and return its runs.

    Raises `SpecError` or `StoreError` before any run starts, and `RunError` if every run failed. If only some
    runs failed, `status` lists the failures.

    Parameters
    ----------
    spec
        a `SweepSpec`, its sections as a mapping, a TOML file, or None for a small bandit grid. With
        ``{"sweep": {"backend": "replay"}, "replay": {"source": source}}`` the sweep plays back recorded runs
        from any ``source`` that `isolaw.read` accepts.
    out
        the sweep's directory, in which a second call continues the sweep. None uses a temporary directory.
    on_event
        a function that is called with each `Event`.

    >>> runs = sweep({"sweep": {"compute": 20_000, "seeds": 2},
    ...               "grid": {"rollouts_per_problem": [8, 16]},
    ...               "problems": {"n_train": 64, "n_validation": 50},
    ...               "evaluation": {"points": 5}, "executor": {"kind": "inline"}})
    >>> runs
    <Runs: simulated runs: 4 runs, 2 configurations, ... rows>
    """
    spec, toml = _parsed_spec(spec)
    with tempfile.TemporaryDirectory(prefix="isolaw-") if out is None else nullcontext(out) as folder:
        for event in execute(resolve_sweep(spec, folder), folder, toml):
            if event.kind == "warning":
                warnings.warn(event.cause, stacklevel=3)
            if on_event is not None:
                on_event(event)
        progress = status(folder)
        if progress["failed"] and not progress["done"]:
            cause = progress["failures"][0]["cause"]
            raise RunError(f"{folder}: every run failed; the cause of the first failure: {cause}")
        return SweepStore(folder).collect()


def _parsed_spec(spec: SweepSpec | Mapping[str, Any] | str | Path | None) -> tuple[SweepSpec, str | None]:
    """Return a sweep's spec from any form that `sweep` accepts, and the text of its file if it has one."""
    toml = read_text(spec) if isinstance(spec, str | Path) else None
    if spec is None or isinstance(spec, str | Path):
        spec = SweepSpec.read(spec, check=issues_of)
    elif not isinstance(spec, SweepSpec):
        spec = SweepSpec.parse(spec, check=issues_of)
    return spec, toml


def execute(
    resolved: ResolvedSweep, out: str | Path, toml: str | None = None, stop: threading.Event | None = None
) -> Iterator[Event]:
    """Execute a resolved sweep, yield its events, and write ``points.parquet`` at the end.

    The iterator locks the directory. Once ``stop`` is set, active runs save their state and end, and no other
    run begins.

    Before writing anything, raises `SpecError` for a cluster that does not exist, and `StoreError` for a
    directory that contains other data or is in use. Raises `RunError` if the sweep cannot finish; the runs
    are kept.
    """
    store = SweepStore(out)
    store.claim()
    if resolved.todo:
        todo = set(resolved.todo)
        first = next(run for run in resolved.runs if run.run_id in todo)
        executors.check_reachable(resolved.spec.executor, first)
    with store.lock():
        if not resolved.is_part:
            store.write_spec(resolved.spec, toml)
        if resolved.recorded_runs is not None:
            tables.write_recorded(store, resolved.recorded_runs)
        with closing(mirror.Mirror(resolved.spec.tracking, store)) as tracker:
            stop = stop or threading.Event()
            yield from _execute(resolved, store, tracker, stop)
            # Include runs that a tracker missed because it failed, or because the user had not yet chosen it.
            runs = resolved.runs if resolved.adaptive is None else resolved.adaptive.runs
            for run in runs:
                yield from tracker.update(run.run_id)
        if any(store.run(run.run_id).bytes_recorded for run in runs):
            try:
                tables.publish(store, store.collect())
            except NoHistory as error:
                raise RunError(str(error)) from None
            except OSError as error:
                raise RunError(
                    f"{store.directory / 'points.parquet'}: isolaw cannot write the table "
                    f"({error.strerror or error}); the runs keep their checkpoints, and the same command "
                    "writes the table"
                ) from error


def _execute(
    resolved: ResolvedSweep, store: SweepStore, tracker: mirror.Mirror, stop: threading.Event
) -> Iterator[Event]:
    """Execute the unfinished runs. If a race chooses the runs, decide and continue until the race ends."""
    adaptive = resolved.adaptive
    todo = [run for run in resolved.runs if run.run_id in set(resolved.todo)]
    for run in resolved.runs if adaptive is None else todo:
        store.run(run.run_id).create(run)
    decisions = [] if adaptive is None else adaptive.history
    while True:
        for decision in decisions:
            yield Event("", "decision", decision=decision)
        if adaptive is not None:
            adaptive.keep()
        if todo:
            todo = executors.order(store.directory, todo)
            execution = executors.run(store.directory, resolved.spec.executor, todo, stop)
            with store.synced() as changed, closing(execution) as events:
                for event in events:
                    if event.kind != "checkpoint":
                        changed.set()
                    yield event
                    yield from tracker.after(event)
        if adaptive is None or stop.is_set():
            return
        decisions = adaptive.advance(after_failures=True)
        if not decisions:
            return
        todo = adaptive.todo
        for run in todo:
            store.run(run.run_id).create(run)


@checked
def status(out: str | Path) -> dict[str, Any]:
    """Return a sweep's progress: numbers of runs by state, rollouts generated and planned, and failures.

    Rollouts that an interrupted run will generate again do not count.
    ``diverged`` is the number of done runs whose last values contain NaN. ``run_notes`` are the notes of runs
    that have not failed (`isolaw.backend.RunNote`). ``at_work`` is the number of locked runs. It includes
    jobs that outlive their engine, and excludes runs on machines of a Ray cluster that do not share the
    directory. Raises `StoreError` if the directory contains no sweep.
    """
    store = SweepStore(out)
    if not store.exists:
        raise StoreError(f"{out}: not a sweep's directory (it has no sweep.json)")
    store.check()
    spec = store.read_spec()
    specs, damaged = store.specs()
    attributes = [tables.attributes_of(run_spec) for run_spec in specs.values()]
    counts = {"done": 0, "failed": 0, "started": 0, "waiting": 0}
    failures, notes, rollouts, planned_rollouts, locked, diverged_count = [], [], 0, 0, 0, 0
    running = store.in_use
    first_and_last: list[list[dict[str, Any]]] = []
    for run_id, run_spec in specs.items():
        run = store.run(run_id)
        try:
            recorded, failure, at_work = run.recorded(), run.failure, run.holder is not None
            finished = recorded.is_done(run_spec)  # a replayed run can end before the horizon
            kept = running or at_work or finished
            rollouts += recorded.reached if kept else resume_point(run, run_spec)[1]
        except OSError as error:  # no permission, a bad sector
            damaged[run_id] = str(error)
            continue
        if recorded.damage:
            damaged[run_id] = recorded.damage
        first_and_last.append(recorded.checkpoints[:1] + recorded.checkpoints[-1:])
        planned_rollouts += recorded.reached if finished else run_spec.rollouts
        keys = ("problems_per_batch", "rollouts_per_problem", "seed")
        identity = {"run_id": run_id} | {key: getattr(run_spec, key) for key in keys}
        if finished or failure is None:
            notes += [{**identity, **note} for note in recorded.notes]
        if finished:
            counts["done"] += 1
            diverged_count += any(row["value"] is None for row in recorded.checkpoints[-1]["rows"])
            continue
        locked += at_work
        if failure is not None:
            counts["failed"] += 1
            failures.append({**identity, "cause": failure.get("cause", "unknown")})
        else:
            counts["started" if recorded.checkpoints else "waiting"] += 1
    return {
        "simulated": Simulated.of(attributes or [{"backend": spec.sweep.backend}]).json,
        "directory": str(out),
        "backend": spec.sweep.backend,
        "compute": spec.sweep.compute,
        "runs": sum(counts.values()),
        **counts,
        "diverged": diverged_count,
        "at_work": locked,
        "rollouts": rollouts,
        "rollouts_planned": planned_rollouts,
        "running": running,
        "race": directory.race_state(store) if spec.design.kind == "race" else None,
        "failures": failures,
        "run_notes": notes,
        "spent": _spent_so_far(first_and_last) if traits(spec.sweep.backend).plans_gpus else None,
        "damaged": [{"run_id": run_id, "cause": cause} for run_id, cause in sorted(damaged.items())],
    }


def _spent_so_far(checkpoints_of_runs: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """Return the ``hours``, the ``gpu_hours`` and the ``seconds`` by part that runs have recorded so far.

    The part ``start`` is the time before step 0, and ``rest`` is the wall time outside all other parts.
    ``gpu_hours`` is None if a run did not record its GPUs or had none. Returns None if no run has recorded
    any time.
    """
    seconds: Counter[str] = Counter()
    total_s = gpu_s = 0.0
    gpus_known = True
    for checkpoints in checkpoints_of_runs:
        if not checkpoints:
            continue
        wall_s, parts = float(checkpoints[-1]["wall_s"]), checkpoints[-1].get("seconds") or {}
        gpus = (checkpoints[-1].get("machine") or {}).get("gpus")
        gpus_known = gpus_known and bool(gpus)
        total_s, gpu_s = total_s + wall_s, gpu_s + wall_s * (gpus or 0)
        first = checkpoints[0]
        start_s = first["wall_s"] - sum((first.get("seconds") or {}).values()) if parts else 0.0
        rest_s = max(wall_s - start_s - sum(parts.values()), 0.0)
        seconds.update({**parts, "start": start_s, REST: rest_s})
    if not total_s:
        return None
    gpu_hours = gpu_s / HOUR_S if gpus_known else None
    return {"hours": total_s / HOUR_S, "gpu_hours": gpu_hours, "seconds": dict(seconds)}
