"""The command ``isolaw calibrate``: fit a simulator to runs."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli import common
from isolaw.cli import options as shared
from isolaw.cli.common import note
from isolaw.cli.help import EXECUTING, Further, ShortHelp
from isolaw.cli.options import Destination

_KEYWORDS = ("out", "metric", "eval_set", "where", "problems", "n_train", "until", "jobs", "seed")


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="SOURCE...")
@click.option("--out", type=Destination(), help="Write the preset to this file, e.g. preset.toml.")
@click.option(
    "--figure", type=Destination(),
    help="Draw the runs and the simulator's 90 % band to this file (.png, .svg or .pdf).",
)  # fmt: skip
@click.option("--report", type=Destination(), help="Write a page about the fit to this HTML file.")
@click.option(
    "--metric", help="Reward metric, a mean of successes.  [default: avg@4, else the only one in the runs]"
)
@shared.eval_set_option
@shared.source_options
@shared.where_option
@click.option(
    "--problems", metavar="SET",
    help="Problem set of the simulator, as in problems.set, if known.  [default: fitted]",
)  # fmt: skip
@click.option("--n-train", type=shared.POSITIVE, help="Number of training problems D, if not recorded.")
@click.option("--until", type=shared.ROLLOUTS, help="Use only evaluations up to this C.")
@shared.jobs_option
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, cls=Further, group=EXECUTING,
    help="Seed of the simulations.",
)  # fmt: skip
@common.json_option
@click.pass_context
def calibrate(
    ctx: click.Context, /, sources: tuple[str, ...], figure: str | None, report: str | None, **options: Any
) -> int:
    """Fit the simulator to runs, to predict budgets beyond them.

    A SOURCE is as in isolaw read. The preset is an ensemble: its members differ in the constants that the
    runs do not determine. isolaw predict --method simulate and isolaw sweep --set
    bandit.preset=preset.toml use the preset. A calibration takes minutes; with --out, the same command
    continues an interrupted calibration.
    """
    from isolaw.calibration.calibrate import calibrate as fit
    from isolaw.report.figures import calibration as drawing
    from isolaw.report.page import check_replaceable
    from isolaw.report.text.calibration import document

    if figure is not None:
        drawing.check(figure)
    if report is not None:
        check_replaceable(report)
    reading = shared.read_to_fit(sources, options)
    own = {name: options[name] for name in _KEYWORDS}
    with common.notes_on_failure(reading.runs.notes), common.progress("simulating") as progress:
        found = fit(reading.runs, **own, progress=progress)
    result = document(found, options["out"])
    common.print_document(result)
    if figure is not None:
        note(f"Figure: {drawing.write_figure(found, figure)}")
    if report is not None:
        common.write_page(result, report, ctx.obj, (file for run in reading.ready for file in run.sources))
    if options["out"] is None:
        note("note: the preset is not saved; add --out preset.toml")
    return 0
