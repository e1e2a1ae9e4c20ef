"""``isolaw sweep``: make the runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import announce_compilation, note, print_json

if TYPE_CHECKING:
    from isolaw.engine import Plan
    from isolaw.spec import SweepSpec


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--backend", help="What trains: bandit (a simulator), replay (recorded runs), real (models).")
@click.option(
    "--out", required=True, type=click.Path(), help="The sweep's directory; continued if it exists."
)
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key of the file."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Worker processes; one for each core unless given.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sweep(
    file: str | None,
    backend: str | None,
    out: str,
    settings: tuple[str, ...],
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make a grid of runs, as FILE.toml says; with no file a small simulated grid.

    The same command again continues, or says that nothing is left; a larger sweep.compute extends
    finished runs.
    """
    from isolaw import engine
    from isolaw.errors import SpecError
    from isolaw.parsing import located
    from isolaw.report import words

    try:
        spec, written = _spec(file, backend, out, settings, jobs)
    except SpecError as error:
        error = engine.with_the_rest(error)
        raise (located(error, file) if file else error) from None
    try:
        plan = engine.plan(spec, out, whole_directory=file is None and not settings)
    except SpecError as error:
        raise (located(error, file) if file else error) from None
    for line in words.plan_summary(plan.to_dict(), plan.spec.sweep.backend):
        note(line)
    if dry_run:
        if as_json:
            print_json({**plan.to_dict(), "dry_run": True})
        return 0
    if plan.todo and plan.spec.sweep.backend == "bandit":
        announce_compilation(f"isolaw.simulators.{plan.runs[0].options['model']}", "simulator")
    started = time.monotonic()
    _execute(plan, out, written)
    state = engine.status(out)
    result = {**plan.to_dict(), **state, "points": str(Path(out) / "points.parquet")}
    if as_json:
        print_json(result)
    else:
        metric = plan.spec.replay.get("metric") if plan.spec.sweep.backend == "replay" else None
        _report(result, len(plan.todo), time.monotonic() - started, f" --metric {metric}" if metric else "")
    for failure in state["failures"]:
        note(
            f"failed: B_p = {failure['problems_per_batch']}, n = {failure['rollouts_per_problem']}, "
            f"seed {failure['seed']}: {failure['cause']} "
            f"(details: {out}/runs/{failure['run_id']}/FAILED.json)"
        )
    left = engine.plan(plan.spec, out).todo
    return 0 if not left else 3 if state["done"] else 1


def _spec(
    file: str | None, backend: str | None, out: str, settings: tuple[str, ...], jobs: int | None
) -> tuple[SweepSpec, str | None]:
    """The spec from the file, or of the directory that is continued, or the default; and the file's text."""
    from isolaw.parsing import read_text
    from isolaw.spec import SweepSpec
    from isolaw.store import SweepStore

    extra = [*settings]
    if backend:
        extra.append(f"sweep.backend={backend}")
    if jobs:
        extra.append(f"executor.jobs={jobs}")
    store = SweepStore(out)
    if file is None and store.exists:
        return SweepSpec.read(settings=extra, base=store.read_spec()), None
    return SweepSpec.read(file, extra), read_text(file) if file else None


def _execute(plan: Plan, out: str, written: str | None) -> None:
    """Execute with a progress bar on a terminal, quietly elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from isolaw import engine
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
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=max(total, 1))
        ended = 0
        for event in engine.execute(plan, out, written):
            if event.kind == "warning":
                note(f"warning: {event.cause}")
                continue
            if event.kind == "checkpoint":
                progress.advance(task, max(event.compute - reached[event.run_id], 0))
                reached[event.run_id] = max(event.compute, reached[event.run_id])
            else:
                ended += 1
            progress.update(task, description=f"{ended}/{len(plan.todo)} runs")


def _report(result: dict[str, Any], made: int, seconds: float, options: str) -> None:
    out = result["directory"]
    if not made:
        click.echo(f"Nothing is left to do: {result['done']} runs are done in {out}.")
    else:
        from isolaw.report.words import number

        click.echo(
            f"{result['done']} of {result['runs']} runs are done ({made} now, in {seconds:.1f} s), "
            f"{number(result['rollouts'])} rollouts: {result['points']}"
        )
    if result["done"]:
        click.echo(f"Next: isolaw fit {out}{options} --out {out}/law.json --figures {out}/figures")
