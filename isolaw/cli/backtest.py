"""The command ``isolaw backtest``: test whether small runs would have predicted the best allocation."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import json_option, notes_on_failure, print_document, stages
from isolaw.cli.help import ShortHelp


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--fit-below", type=shared.ROLLOUTS, required=True, help="Fit the checkpoints up to C.")
@shared.hold_option("B_p")
@shared.law_options
@shared.source_options
@json_option
def backtest(sources: tuple[str, ...], fit_below: float, **options: Any) -> None:
    """Fit runs below a compute, and judge recommendations above this compute.

    isolaw fits the runs in SOURCE… up to --fit-below. It then judges its own recommendations for larger
    budgets, and the choices of simple rules, on held-out seeds.
    """
    import isolaw
    from isolaw.report.text.studies import backtest_document

    runs = shared.read_to_fit(sources, options).runs
    keywords = {"hold": options["hold"], **shared.law_keywords(options)}
    with notes_on_failure(runs.notes), stages() as progress:
        result = isolaw.backtest(runs, fit_below, progress=partial(progress, "backtesting"), **keywords)
    print_document(backtest_document(result))
