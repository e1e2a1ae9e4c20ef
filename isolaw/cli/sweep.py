"""``isolaw sweep``: make the runs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import announce_compilation, note, print_json, shown

if TYPE_CHECKING:
    from isolaw.cards import Cards
    from isolaw.config import SweepSpec
    from isolaw.engine import Plan
    from isolaw.errors import RunError


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--backend", help="What trains: bandit (a simulator), replay (recorded runs), real (models).")
@click.option(
    "--out", required=True, type=click.Path(), help="The sweep's directory; continued if it exists."
)
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key of the file."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; on this machine one for each core.")
@click.option("--executor", help="Where runs execute: processes, inline, ray, slurm (docs/cluster.md).")
@click.option("--ray-address", metavar="ADDRESS", help="Of a Ray cluster that is there, or auto.")
@click.option(
    "--machine",
    metavar="GPU:COUNT",
    help="Check that runs fit these GPUs, as h100-80g:8 or 80g:8, where nvidia-smi does not list them.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be run, with SLURM's scripts; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sweep(
    file: str | None,
    backend: str | None,
    out: str,
    settings: tuple[str, ...],
    jobs: int | None,
    executor: str | None,
    ray_address: str | None,
    machine: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make a grid of runs, as FILE.toml says; with no file a small simulated grid.

    The same command again continues, or says that nothing is left; a larger sweep.compute extends
    finished runs.
    """
    from isolaw import engine, executors
    from isolaw.config.parsing import located
    from isolaw.errors import SpecError
    from isolaw.report.text import runs as run_words

    options = {
        "sweep.backend": backend,
        "executor.jobs": jobs,
        "executor.kind": executor,
        "executor.address": ray_address,
    }
    settings += tuple(f"{key}={value}" for key, value in options.items() if value is not None)
    spec, written = _spec(file, out, settings)
    cards = _cards(machine, spec, dry_run)
    try:
        with executors.planned_for(cards, spec.executor, spec.sweep.backend):
            plan = engine.plan(spec, out, whole_directory=file is None and not settings)
            memory, notes = _memory(plan)
            by_id = {run.run_id: run for run in plan.runs}
            todo = [by_id[run_id] for run_id in plan.todo]
            place = executors.describe(Path(out), plan.spec.executor, todo) if dry_run else {}
    except SpecError as error:
        raise (located(error, file, settings) if file else error) from None
    for line in (*run_words.plan_summary(plan.to_dict(), plan.spec.sweep.backend), *notes):
        note(line)
    if dry_run:
        if as_json:
            print_json({**plan.to_dict(), "memory": memory, "executor": place, "dry_run": True})
        else:
            for table in memory:
                click.echo(shown(run_words.memory_table(table)))
            note(run_words.place_summary(place))
            for script in place.get("scripts", ()):
                click.echo(script)
        return 0
    if plan.todo and plan.spec.sweep.backend == "bandit":
        announce_compilation(f"isolaw.simulators.{plan.runs[0].options['model']}", "simulator")
    started = time.monotonic()
    failed, stopped, broken = _execute(plan, out, written)
    state = engine.status(out)
    known = {failure["run_id"] for failure in state["failures"]}
    unwritten = {run_id: cause for run_id, cause in failed.items() if run_id not in known}
    result = {**plan.to_dict(), **state, "points": str(Path(out) / "points.parquet")}
    if stopped or broken:
        note(f"{state['done']} of {state['runs']} runs are done")
    elif as_json:
        print_json(result)
    else:
        metric = plan.spec.replay.get("metric") if plan.spec.sweep.backend == "replay" else None
        made = state["done"] - (len(plan.runs) - len(plan.todo))
        _report(result, made, time.monotonic() - started, f" --metric {metric}" if metric else "")
    for failure in state["failures"]:
        note(
            f"failed: B_p = {failure['problems_per_batch']}, n = {failure['rollouts_per_problem']}, "
            f"seed {failure['seed']}: {failure['cause']} "
            f"(details: {out}/runs/{failure['run_id']}/FAILED.json)"
        )
    for run_id, cause in unwritten.items():
        note(f"failed, and could not be noted in {out}/runs/{run_id}: {cause}")
    if broken:
        raise broken
    if stopped:
        raise KeyboardInterrupt
    left = engine.plan(plan.spec, out).todo
    return 0 if not left else 3 if state["done"] else 1


def _spec(file: str | None, out: str, settings: tuple[str, ...]) -> tuple[SweepSpec, str | None]:
    """The spec from the file, or of the directory that is continued, or the default; and the file's text."""
    from isolaw import engine
    from isolaw.config import SweepSpec
    from isolaw.config.parsing import read_text
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


def _cards(machine: str | None, spec: SweepSpec, dry_run: bool) -> Cards | None:
    """The GPUs that the sweep is planned for, where they are others than this machine's."""
    from isolaw.cards import cards

    if machine is None:
        return None
    if spec.sweep.backend != "real":
        raise click.UsageError("--machine: only backend real uses GPUs")
    if spec.executor.kind in ("inline", "processes") and not dry_run:
        raise click.UsageError("--machine: runs would execute on this machine; accepted with --dry-run")
    return cards(machine)


def _memory(plan: Plan) -> tuple[list[dict[str, Any]], list[str]]:
    """What runs take of each GPU, and why that is not known."""
    if plan.spec.sweep.backend != "real" or not plan.runs:
        return [], []
    from isolaw import executors
    from isolaw.backends.real.train import memory

    with executors.machines(plan.spec.executor, "real"):
        unknown = memory.note(plan.runs[0])
        return memory.tables(plan.runs), [unknown] if unknown else []


def _execute(plan: Plan, out: str, written: str | None) -> tuple[dict[str, str], bool, RunError | None]:
    """Execute, with a progress bar on a terminal.

    Returns why runs failed, whether the sweep was told to stop, and what broke it as a whole.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from isolaw import engine
    from isolaw.errors import RunError
    from isolaw.store import SweepStore

    console = Console(stderr=True)
    horizon = {run.run_id: run.steps * run.batch_rollouts for run in plan.runs}
    store = SweepStore(out)
    reached: dict[str, int] = {}
    for run_id in plan.todo:
        lines = store.run(run_id).lines()
        reached[run_id] = lines[-1]["compute"] if lines else 0
    total = sum(horizon[r] - reached[r] for r in plan.todo)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    failed: dict[str, str] = {}
    broken = None
    with (
        _graceful() as stop,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("starting", total=max(total, 1))
        ended = 0
        try:
            for event in engine.execute(plan, out, written, stop):
                if event.kind == "warning":
                    note(f"warning: {event.cause}")
                    continue
                progress.advance(task, max(event.compute - reached[event.run_id], 0))
                reached[event.run_id] = max(event.compute, reached[event.run_id])
                if event.kind not in ("checkpoint", "stopped"):
                    ended += 1
                if event.kind == "failed":
                    failed[event.run_id] = event.cause
                progress.update(task, description=f"{ended}/{len(plan.todo)} runs")
        except RunError as error:  # told after what became of the runs
            broken = error
        return failed, stop.is_set(), broken


@contextmanager
def _graceful() -> Iterator[threading.Event]:
    """Ctrl-C, or SIGTERM, once: runs keep their state and end. Once more: they end at once."""
    stop = threading.Event()

    def again(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def first(number: int, frame: Any) -> None:
        stop.set()
        for name in before:
            signal.signal(name, again)
        note("stopping: runs at work keep their state at their next step; once more ends them at once")

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {name: signal.signal(name, first) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _report(result: dict[str, Any], made: int, seconds: float, options: str) -> None:
    out = result["directory"]
    if not made and not result["todo"]:
        click.echo(shown(f"Nothing is left to do: {result['done']} runs are done in {out}."))
    else:
        from isolaw.report.text.words import number

        text = (
            f"{result['done']} of {result['runs']} runs are done ({made} now, in {seconds:.1f} s), "
            f"{number(result['rollouts'])} rollouts: {result['points']}"
        )
        click.echo(shown(text))
    if result["done"]:
        click.echo(shown(f"Next: isolaw fit {out}{options} --out {out}/law.json --figures {out}/figures"))
