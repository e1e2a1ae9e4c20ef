"""The command ``isolaw plan``: choose a sweep before spending anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from isolaw import commands
from isolaw.cli.common import (
    interruptible,
    is_page,
    note,
    print_document,
    progress_bar,
    write_page,
)
from isolaw.cli.help import EXECUTING, Further, ShortHelp
from isolaw.cli.options import (
    POSITIVE,
    ROLLOUTS,
    Destination,
    cost_of,
    cost_options,
    jobs_option,
    json_option,
    where_option,
)


@click.command(cls=ShortHelp)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--compute",
    "--budget",
    "target",
    type=ROLLOUTS,
    help="Budget C of the allocation, in rollouts.  [default: sweep.compute]",
)
@click.option(
    "--spend", metavar="20%|ROLLOUTS|384gpuh",
    help="Limit on the sweep: a share of the grid, rollouts, or GPU hours (with --cost).  "
    "[default: design.spend, or with --cost what --hours allow]",
)  # fmt: skip
@click.option("--gpus", type=POSITIVE, help="Number of GPUs.")
@click.option(
    "--hours", type=click.FloatRange(min=0, min_open=True),
    help="Wall time on these GPUs; with --cost it limits the spend.",
)  # fmt: skip
@cost_options
@click.option(
    "--runs", type=click.Path(), metavar="SOURCE",
    help="Earlier runs, as in isolaw read; truths that disagree with these runs get less weight.",
)  # fmt: skip
@where_option
@click.option(
    "--preset", metavar="FILE|NAME",
    help="A file of isolaw calibrate --out; the members of its ensemble become the truths. Not with --runs.",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Set a key of the sweep file, e.g. sweep.seeds=2.",
)  # fmt: skip
@click.option(
    "--repetitions", type=click.IntRange(1, 1000), default=2, cls=Further, group=EXECUTING,
    help="Number of simulated plays of each design on each truth.",
)  # fmt: skip
@jobs_option
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, cls=Further, group=EXECUTING,
    help="Seed of the plays.",
)  # fmt: skip
@click.option("--out", type=Destination(), help="Write the recommended sweep to this file; .html: a page.")
@json_option
@click.pass_context
def plan(ctx: click.Context, /, file: str, out: str | None, as_json: bool, **options: Any) -> int:
    """Compare sweeps over the grid of FILE on simulated truths, and recommend one.

    FILE is a sweep file (TOML). isolaw reads its grid, seeds, limits and evaluation; its model and its
    problems need not exist. The exit code is 1 if no design fits --hours.
    """
    from isolaw.design import sweep_file
    from isolaw.design.forecast import plan as forecast
    from isolaw.report.text.plan import document

    if options["where"] and options["runs"] is None:
        raise click.UsageError("--where requires --runs SOURCE")
    price, cost = options.pop("price"), None
    if options["cost"] is not None or price is not None:
        cost = cost_of({"cost": options["cost"], "price": price})
    page = is_page(out)
    if out is not None and not page:
        sweep_file.check(Path(out))
    jobs = options.pop("jobs") or len(os.sched_getaffinity(0))
    with interruptible(), progress_bar("playing designs") as update:
        found = forecast(
            file, **{**options, "cost": cost}, jobs=jobs, progress=lambda share: update(completed=share)
        )
    result = document(found, price)
    print_document(as_json, result)
    best = found.recommended
    if out is not None and page:
        write_page(result, out, ctx.obj, [file])
    elif out is not None and best is not None:
        sweep_file.write(found.question, best.candidate, Path(out))
        note(f"{out}: {best.candidate.name}; next: {commands.sweep_file(out, sweep_file.PLANNED)}")
    return 0 if best is not None else 1
