"""The command ``isolaw replicate``: test whether the paper's findings emerge on a simulator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from isolaw.cli import common
from isolaw.cli.common import json_option, note, print_document, write_page
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination

_FAILURES_SHOWN = 5


@click.command(cls=ShortHelp)
@click.option("--model", default="interference", help="Simulator: interference.")
@click.option(
    "--preset",
    help="Preset of the simulator's constants, or file of a calibrated one.  [default: the model's first]",
)
@click.option(
    "--seeds", type=click.IntRange(min=2), default=8,
    help="Number of judging seeds (100, 101, …).",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Set a key of the budget, grid, recipe or model, as in a sweep file.",
)  # fmt: skip
@click.option("--out", type=Destination(), help="Save runs, table and figures here; continue if it exists.")
@click.option(
    "--jitter", type=click.IntRange(min=0), default=0,
    help="Also judge this many variants of the preset: members of its ensemble if it is calibrated, "
    "otherwise with each constant scaled by a factor from 1/2 to 2.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Number of threads.  [default: cores + 2]")
@json_option
@click.pass_context
@common.interruptible()
def replicate(
    ctx: click.Context, /, model: str, out: str | None, jitter: int, jobs: int | None, **more: Any
) -> None:
    """Test the paper's findings F1 to F7 on a simulator.

    The findings of arXiv 2603.12151:

    \b
    F1   n* rises with the budget C, then saturates; F1 lr: also with the lr re-tuned
    F2   a harder set saturates at smaller n*
    F3   worst@4 needs a larger n than best@4 on the easy set, and a smaller n on the hard set
    F4a  B_p matters little; F4b, F4c  at fixed B = B_p · n, n* moves with M
    F5a  on one problem, steps beat n; F5b  on many, a larger n leaves fewer unsolved
    F6   a smaller training set caps n* lower
    F7   advantages from 256 rollouts, gradient from 64: between n = 64 and n = 256

    \b
    yes     the 95 % interval over seeds excludes zero in the stated direction, and the effect is
            at least one doubling of n (F4a, F5b, F7: 0.01 of reward or of the problems)
    partly  the interval excludes zero, but the effect is smaller
    no      the interval contains zero; "not measured" means that the grid is too small

    The whole battery takes some minutes. With --out, the same command continues an interrupted battery.
    """
    import isolaw
    from isolaw.replication.battery import MODELS
    from isolaw.replication.document import save
    from isolaw.report.text.findings import document, markdown

    for name in ("tabular", *MODELS):
        if name in ("tabular", model):
            common.announce_compilation(f"isolaw.simulators.{name}", f"simulator {name}")
    threads = jobs or (os.cpu_count() or 1) + 2  # more threads than cores, since some wait for the disk
    with common.progress_bar("the battery", 1 + (jitter > 0)) as update:
        more["progress"] = lambda task, share: update(description=task, advance=share)
        found = isolaw.findings(model, out=out, jobs=threads, jitter=jitter, **more)
    written, result = [], document(found)
    if out is not None:
        from isolaw.report.figures.findings import write

        written = [Path(out) / "findings.json", markdown(found, out), *write(found, out)]
        save(found, written[0])
        write_page(result, Path(out) / "findings.html", ctx.obj)
    print_document(result)
    failed = found["failed_runs"]
    for failure in failed[:_FAILURES_SHOWN]:
        note(f"failed: {failure}")
    if len(failed) > _FAILURES_SHOWN:
        note(f"failed: {len(failed) - _FAILURES_SHOWN} more runs")
    if written:
        note(f"written: {', '.join(map(str, written))}")
    else:
        note("note: nothing is saved; add --out DIR to save the runs, the table and a figure of each finding")
