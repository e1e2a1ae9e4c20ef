"""The commands ``sweep`` and ``status``: execute a grid of runs, and show its progress."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import (
    announce_compilation,
    as_json,
    handling,
    json_option,
    note,
    print_result,
    progress_bar,
    repeated,
)
from isolaw.cli.help import Further, ShortHelp
from isolaw.cli.options import Destination, cost_of, further_cost_option
from isolaw.registry import traits

if TYPE_CHECKING:
    from isolaw.config import SweepSpec
    from isolaw.engine import ResolvedSweep
    from isolaw.errors import RunError
    from isolaw.machine import Cards

_MACHINE_GROUP = "other machines"
# Options that set a key of the sweep file.
_KEYS = {"backend": "sweep.backend", "jobs": "executor.jobs", "executor": "executor.kind"}


@click.command(cls=ShortHelp)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--backend", help="bandit (simulator), replay (recorded runs), real (models) or command (your trainer)."
)
@click.option(
    "--out", required=True, type=Destination(), help="Directory of the sweep; continued if it exists."
)
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Set a key of the sweep file, e.g. sweep.compute=1e6.",
)  # fmt: skip
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of runs at a time.  [default on this machine: one per core]",
)
@click.option(
    "--executor", help="Where runs execute: processes, inline, ray, slurm, scripts (docs/cluster.md)."
)
@click.option(
    "--machine", metavar="GPU:COUNT", cls=Further, group=_MACHINE_GROUP,
    help="Plan for these GPUs instead of this machine's, e.g. h100-80g:8 or 80g:8.",
)  # fmt: skip
@click.option(
    "--adaptive", is_flag=True,
    help="Choose the runs of the grid with a race (docs/race.md). Not needed to continue a race.",
)  # fmt: skip
@click.option(
    "--spend", metavar="SHARE|ROLLOUTS",
    help="Limit on the rollouts of a race, which this option implies, e.g. 20% of the grid or 1e7.  "
    "[default: 35%]",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Print what the sweep would run, with SLURM scripts, and write nothing."
)
@further_cost_option
@json_option
def sweep(file: str | None, out: str, settings: tuple[str, ...], dry_run: bool, **options: Any) -> int:
    """Execute a grid of runs.

    FILE is a sweep file (TOML) with the grid; without FILE, isolaw runs a small simulated grid. The same
    command continues an interrupted sweep. A larger sweep.compute extends finished runs.
    """
    from isolaw import engine
    from isolaw.documents.validation import with_lines
    from isolaw.errors import SpecError
    from isolaw.evidence import Simulated
    from isolaw.preview import Preview
    from isolaw.report.text import costs
    from isolaw.report.text import sweep as text

    settings += tuple(f"{key}={options[name]}" for name, key in _KEYS.items() if options[name] is not None)
    settings += _race_settings(options["adaptive"], options["spend"])
    spec, toml = _read_spec(file, out, settings)
    cards = _planned_gpus(options["machine"], spec, dry_run)
    try:
        resolved = engine.resolve_sweep(spec, out, continued=file is None and Path(out).exists(), cards=cards)
        preview = Preview(resolved, Path(out), cost_of(options))
        notes, executor = preview.outlook.notes, preview.executor if dry_run else {}
    except SpecError as error:
        raise (with_lines(error, file, settings) if file else error) from None
    data = resolved.to_dict()
    simulated = Simulated.of_json(data)
    note(*simulated.lines([*text.sweep_summary(data, resolved.spec.sweep.backend), *notes]))
    if preview.cost is not None:
        note(costs.spent(preview.spent, preview.cost))
    if dry_run:
        lines = text.dry_run(preview)
        if executor["cpus"] and not as_json():
            note(text.place_summary(executor))
        print_result(preview.to_dict(), ["", *lines])
        return 0
    if resolved.todo and traits(resolved.spec.sweep.backend).simulated:
        simulator = resolved.spec.options.get("model", "interference")
        announce_compilation(f"isolaw.simulators.{simulator}", "simulator")
    started_at = time.monotonic()
    cause_by_run, stopped, run_error = _execute(resolved, out, toml)
    state = engine.status(out)
    result = {**resolved.to_dict(), **state, "points": str(Path(out) / "points.parquet")}
    if stopped or run_error:
        note(text.done_runs(state["done"], state["runs"]))
    else:
        unfinished = engine.resolve_sweep(resolved.spec, out).todo
        new_count = len(resolved.todo) - len(unfinished)
        print_result(result, text.result(resolved, result, new_count, time.monotonic() - started_at))
    failed_ids = [failure["run_id"] for failure in state["failures"]]
    names = text.short_ids([*(run.run_id for run in resolved.runs), *failed_ids])
    run_lines = [*text.diverged(state), *text.note_lines(state["run_notes"])]
    note(*run_lines, *text.failure_lines(state["failures"], names, out))
    for run_id in [run_id for run_id in cause_by_run if run_id not in failed_ids]:
        written = f"(writing {out}/runs/{names[run_id]}*/FAILED.json failed too)"
        note(f"failed: {names[run_id]}: {cause_by_run[run_id]} {written}")
    if run_error:
        raise run_error
    if stopped:
        raise KeyboardInterrupt
    if resolved.spec.executor.kind == "scripts" and not state["failed"]:
        return 0
    return 0 if not unfinished else 3 if state["done"] else 1


def _race_settings(adaptive: bool, spend: str | None) -> tuple[str, ...]:
    """Return the sweep-file settings that --adaptive and --spend abbreviate."""
    race = ("design.kind=race",) if adaptive or spend is not None else ()
    return race if spend is None else (*race, f"design.spend={spend}")


def _read_spec(file: str | None, out: str, settings: tuple[str, ...]) -> tuple[SweepSpec, str | None]:
    """Return the spec (of the file, the sweep to continue, or the defaults), and the text of the file."""
    from isolaw import engine
    from isolaw.config import SweepSpec
    from isolaw.documents.reading import read_text
    from isolaw.errors import Damaged
    from isolaw.store import SweepStore

    store = SweepStore(out)
    if file is None and store.exists:
        try:
            return SweepSpec.read(settings=settings, base=store.read_spec(), check=engine.issues_of), None
        except Damaged:
            if not settings:
                raise
    spec = SweepSpec.read(file, settings, check=engine.issues_of)
    return spec, read_text(file) if file else None


def _planned_gpus(machine: str | None, spec: SweepSpec, dry_run: bool) -> Cards | None:
    """Return the GPUs named by --machine, for which isolaw resolves the sweep."""
    from isolaw.machine import cards

    if machine is None:
        return None
    is_remote = dry_run or spec.executor.kind not in ("inline", "processes")
    if not (traits(spec.sweep.backend).plans_gpus and is_remote):
        raise click.UsageError(
            "--machine plans GPU memory, which isolaw can do for the backend real, with --dry-run if runs "
            "execute on this machine; command.gpus sets the GPUs of a command"
        )
    return cards(machine)


def _execute(
    resolved: ResolvedSweep, out: str, toml: str | None
) -> tuple[dict[str, str], bool, RunError | None]:
    """Execute the sweep with a progress bar.

    Returns the cause of each failed run, whether the user stopped the sweep, and the error that ended it, if
    any.
    """
    from isolaw import backends, engine
    from isolaw.errors import RunError
    from isolaw.report.text import race
    from isolaw.store import SweepStore

    store = SweepStore(out)
    reached = {run_id: store.run(run_id).recorded().reached for run_id in resolved.todo}
    total = resolved.remaining_rollouts
    if resolved.adaptive is not None:
        history = resolved.adaptive.history
        total += max(resolved.adaptive.race.spend - history[-1].spent - history[-1].cost, 0)
    failed: dict[str, str] = {}
    ended: set[str] = set()
    run = next(iter(resolved.runs if resolved.adaptive is None else resolved.adaptive.grid.values()))
    when_stopped = backends.get(resolved.spec.sweep.backend).when_stopped(run)
    with _graceful(when_stopped) as stop, progress_bar("starting", max(total, 1)) as update, repeated(update):
        try:
            for event in engine.execute(resolved, out, toml, stop):
                if event.kind == "warning":
                    note(f"warning: {event.cause}")
                    continue
                if event.decision is not None and resolved.adaptive is not None:
                    history = resolved.adaptive.history
                    note(race.decision(event.decision, history.index(event.decision) + 1))
                    for run in resolved.adaptive.todo:
                        reached.setdefault(run.run_id, store.run(run.run_id).recorded().reached)
                    continue
                if event.kind not in ("checkpoint", "stopped"):
                    ended.add(event.run_id)
                if event.kind == "failed":
                    failed[event.run_id] = event.cause
                    if len(ended) < len(reached):  # the last failure is reported below, with its file
                        cause = event.cause.partition("\n")[0]
                        ending = "" if event.halted else "; the others continue"
                        note(f"warning: run {event.run_id[:8]} failed: {cause}{ending}")
                advance = max(event.compute - reached[event.run_id], 0)
                reached[event.run_id] += advance
                update(advance=advance, description=f"{len(ended)}/{len(reached)} runs")
        except RunError as error:  # raised after the notes about the runs
            return failed, stop.is_set(), error
        return failed, stop.is_set(), None


@contextmanager
def _graceful(what: str) -> Iterator[threading.Event]:
    """Stop runs gracefully at the first Ctrl-C or SIGTERM, and say ``what`` they do; the second ends them."""
    stop = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        note(f"stopping: {what}; press Ctrl-C again to end them at once")

    with handling(handle, signal.SIGINT, signal.SIGTERM):
        yield stop


@click.command(cls=ShortHelp)
@click.argument("directory", type=click.Path())
@json_option
def status(directory: str) -> None:
    """Show the progress of a sweep, which may still be running."""
    from isolaw import engine
    from isolaw.report.text.sweep import sweep_state

    state = engine.status(directory)
    print_result(state, sweep_state(state))
