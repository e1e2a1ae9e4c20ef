"""``isolaw predict``: the allocation for a budget."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli.common import print_result
from isolaw.cli.options import budget_options, cost_of, cost_options, json_option


@click.command()
@click.argument("law", type=click.Path())
@click.option("--compute", type=float, help="Budget C, in rollouts.")
@click.option(
    "--budget", metavar="384gpuh|48h",
    help="Budget in GPU hours, or in hours of run time; requires --cost.",
)  # fmt: skip
@cost_options
@budget_options
@json_option
def predict(law: str, compute: float | None, budget: str | None, as_json: bool, **options: Any) -> int:
    """Recommend an allocation of a budget.

    LAW is a file of isolaw fit --out. Beyond ten times the compute that three n reached, isolaw recommends
    nothing: it names the runs to extend, prints the answer for the largest budget with one, and exits with 1.
    """
    from isolaw.fits.law import Law
    from isolaw.report.text.prediction import largest_with_recommendation, prediction_summary

    asked = budget if compute is None else compute
    if asked is None or (budget is not None and compute is not None):
        raise click.UsageError("expected either --compute (rollouts) or --budget (hours, with --cost)")
    fitted = Law.load(law)
    limits = options | {"cost": cost_of(options)}
    prediction = fitted.predict(asked, **limits)
    nearest = largest_with_recommendation(fitted, prediction, **limits)
    lines = prediction_summary(prediction, fitted.document, nearest)
    print_result(as_json, prediction.to_dict(), lines)
    return 0 if prediction.options else 1
