"""The command ``isolaw report``: write a page about runs and their law."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from isolaw import commands
from isolaw.cli import options as shared
from isolaw.cli.common import announce_compilation, json_option, note, print_result, stages
from isolaw.cli.help import ShortHelp
from isolaw.cli.options import Destination


@click.command(cls=ShortHelp)
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out", "-o", type=Destination(), default="report.html", help="Write the page to this HTML file."
)
@click.option(
    "--compute", "--budget", "compute", type=shared.BudgetOption(),
    help="Budget that the page shows first.  [default: the largest measured one]",
)  # fmt: skip
@shared.batch_option
@shared.further_cost_option
@shared.law_options
@shared.source_options
@json_option
@click.pass_context
def report(ctx: click.Context, /, sources: tuple[str, ...], out: str, **options: Any) -> None:
    """Write a page about runs and their law.

    The page is one HTML file that opens in any browser. A SOURCE is as in isolaw fit, and isolaw fits the
    runs as isolaw answer does.
    """
    from isolaw.report.fitted_runs import FittedRuns
    from isolaw.report.page import PageContent, check_replaceable, render, write
    from isolaw.report.page.budgets import budgets
    from isolaw.report.text.prediction import after_backtest, prediction_lines

    check_replaceable(out)
    limits = {name: limit for name, limit in shared.limits_of(options).items() if name != "n_train_problems"}
    with stages() as progress:
        progress("reading")
        reading = shared.read_to_fit(sources, options)
        announce_compilation()
        limits["cost"] = limits["cost"] or shared.recorded_cost(reading)
        progress("fitting the law")
        study = FittedRuns.fitted_to(reading.runs, shared.law_keywords(options))
        if (law := study.document) is None:
            note(f"note: there is no law: {study.no_law}")
        else:
            fixed = f"with {law.hold} held fixed and method {law.method}"
            note(f"note: fitted {law.metric} on {law.eval_set}, {fixed}")
        progress("predicting")
        predicted = None if study.law is None else budgets(study.law, options["compute"], **limits)
        backtest_result = study.backtest(progress=partial(progress, "backtesting"))
        content = PageContent.of(reading, predicted, backtest_result, str(commands.this(ctx.obj)))
        progress("drawing")
        path = write(render(study, content), out)
    answer = None if predicted is None else after_backtest(predicted.answer, backtest_result)
    result: dict[str, Any] = {
        "simulated": study.runs.simulated.json,
        "report": str(path), "bytes": path.stat().st_size,
        "law": None if study.law is None else "fitted", "refused": study.no_law,
        "prediction": None if answer is None else answer.to_dict(),
    }  # fmt: skip
    lines = prediction_lines(answer, predicted.nearest) if answer and predicted else []
    print_result(result, [*lines, f"Report: {path}"])
