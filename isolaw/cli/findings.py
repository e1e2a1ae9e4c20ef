"""``isolaw findings``: do the paper's findings emerge on a simulator?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from isolaw.cli.common import announce_compilation, interruptible, note, print_json, shown


@click.command()
@click.option(
    "--model", default="interference", show_default=True, help="The simulator: interference or arms."
)
@click.option("--preset", help="Its constants; the model's first preset unless given.")
@click.option(
    "--seeds", type=click.IntRange(min=2), default=8, show_default=True, help="Judging seeds: 100, 101, …"
)
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Change the budget, the grid, the recipe or a constant of the model, as in a sweep file.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(), help="Keep the runs, the table and the pictures; continued if it exists."
)
@click.option(
    "--jitter", type=click.IntRange(min=0), default=0, show_default=True,
    help="Also judge so many presets around this one, each constant times a factor from 1/2 to 2.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Threads; two more than there are cores unless given."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@interruptible()
def findings(
    model: str,
    preset: str | None,
    seeds: int,
    settings: tuple[str, ...],
    out: str | None,
    jitter: int,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Run the battery F1 to F7 of arXiv 2603.12151 on a simulator and judge it.

    \b
    F1   n* rises with the budget C, then saturates; F1 lr: also with the lr re-tuned
    F2   a harder set saturates at smaller n*
    F3   worst@4 wants larger n than best@4 on the easy set, the reverse on the hard one
    F4a  B_p matters little; F4b, F4c  at fixed B = B_p · n, n* moves with M
    F5a  one problem alone: steps beat n; F5b  many: larger n leaves fewer unsolved
    F6   a smaller training set caps n* lower
    F7   advantages from 256 rollouts, gradient from 64: between n = 64 and n = 256

    \b
    yes     the 95 % interval over seeds excludes zero in the stated direction, and the effect is
            at least one doubling of n (F4a, F5b, F7: 0.01 of reward or of the problems)
    partly  only the interval excludes zero
    no      neither; or "not measured", where the grid is too small for it

    Some minutes for the whole battery. With --out, the same command again continues.
    """
    from isolaw.findings.battery import FIRST_SEED, battery
    from isolaw.findings.document import judge, save
    from isolaw.findings.jitter import study
    from isolaw.report.text.findings import lines, markdown

    chosen = battery(model, preset, range(FIRST_SEED, FIRST_SEED + seeds), settings)
    for name in (model, "tabular"):
        announce_compilation(f"isolaw.simulators.{name}", f"simulator {name}")
    threads = jobs or (os.cpu_count() or 1) + 2  # while some wait for the disk
    with _progress("the battery") as advance:
        document = judge(chosen, out, threads, advance)
    if jitter:
        with _progress(f"{jitter} jittered presets") as advance:
            document["jitter"] = study(chosen, jitter, out, threads, advance)
    written = []
    if out is not None:
        from isolaw.report.figures.findings import write

        written = [save(document, out), markdown(document, out), *write(document, out)]
    if as_json:
        print_json(document)
    else:
        for line in lines(document):
            click.echo(shown(line))
    for failure in document["failed_runs"][:5]:
        note(f"failed: {failure}")
    if len(document["failed_runs"]) > 5:
        note(f"failed: {len(document['failed_runs']) - 5} runs more")
    if written:
        note(f"written: {', '.join(str(path) for path in written)}")
    else:
        note("note: nothing was written; --out DIR keeps the runs, the table and a picture for each finding")
    return 0


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float], Any]]:
    """A bar with the time left on a terminal, quiet elsewhere; yields what adds a share of the work."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share: progress.advance(task, share)
