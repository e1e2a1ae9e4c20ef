"""The command ``isolaw plan``: choose a sweep before spending anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from isolaw import commands
from isolaw.cli import common
from isolaw.cli import options as shared
from isolaw.cli.help import EXECUTING, Further, ShortHelp
from isolaw.cli.options import Destination


@click.command(cls=ShortHelp)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--compute", "--budget", "target", type=shared.ROLLOUTS,
    help="Budget C of the allocation, in rollouts.  [default: sweep.compute]",
)  # fmt: skip
@click.option(
    "--spend", metavar="20%|ROLLOUTS|384gpuh",
    help="Limit on the sweep: a share of the grid, rollouts, or GPU hours (with --cost).  "
    "[default: design.spend, or with --cost what --hours allow]",
)  # fmt: skip
@click.option("--gpus", type=shared.POSITIVE, help="Number of GPUs.")
@click.option(
    "--hours", type=click.FloatRange(min=0, min_open=True),
    help="Wall time on these GPUs; with --cost it limits the spend.",
)  # fmt: skip
@shared.cost_options
@click.option(
    "--runs", type=click.Path(), metavar="SOURCE",
    help="Earlier runs, as in isolaw read; truths that disagree with these runs get less weight.",
)  # fmt: skip
@shared.where_option
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Set a key of the sweep file, e.g. sweep.seeds=2.",
)  # fmt: skip
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=2, cls=Further, group=EXECUTING,
    help="Number of simulated plays of each design on each truth.",
)  # fmt: skip
@shared.jobs_option
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, cls=Further, group=EXECUTING,
    help="Seed of the plays.",
)  # fmt: skip
@click.option("--out", type=Destination(), help="Write the recommended sweep to this file; .html: a page.")
@common.json_option
@click.pass_context
def plan(ctx: click.Context, /, file: str, out: str | None, **options: Any) -> int:
    """Compare sweeps over the grid of FILE on simulated truths, and recommend one.

    FILE is a sweep file (TOML). isolaw reads its grid, seeds, limits and evaluation; its model and its
    problems need not exist. The exit code is 1 if no design fits --hours.
    """
    from isolaw.design import sweep_file
    from isolaw.design.forecast import plan as forecast
    from isolaw.report.text.plan import document

    if options["where"] and options["runs"] is None:
        raise click.UsageError("--where requires --runs SOURCE")
    options["cost"], price = shared.cost_of(options), options.pop("price")
    page = common.is_page(out)
    if out is not None and not page:
        sweep_file.check(Path(out))
    jobs = options.pop("jobs") or len(os.sched_getaffinity(0))
    with common.progress("playing designs") as progress:
        found = forecast(file, **options, jobs=jobs, progress=progress)
    result = document(found, price)
    common.print_document(result)
    best = found.recommended
    if out is not None and page:
        common.write_page(result, out, ctx.obj, [file])
    elif out is not None and best is not None:
        sweep_file.write(found.question, best.candidate, Path(out))
        common.note(f"{out}: {best.candidate.name}; next: {commands.sweep_file(out, sweep_file.PLANNED)}")
    return 0 if best is not None else 1
