"""``isolaw predict``: the allocation for a budget."""

from __future__ import annotations

import click

from isolaw.cli.common import print_result
from isolaw.cli.options import budget_options, json_option


@click.command()
@click.argument("law", type=click.Path())
@click.option("--compute", type=float, required=True, help="Budget C, in rollouts.")
@budget_options
@json_option
def predict(law: str, compute: float, as_json: bool, **limits: int | None) -> int:
    """Recommend an allocation of a budget.

    LAW is a file of isolaw fit --out. Beyond ten times the compute that three n reached, isolaw recommends
    nothing: it names the runs to extend, prints the answer for the largest budget with one, and exits with 1.
    """
    from isolaw.fits.law import Law
    from isolaw.report.text.prediction import largest_with_recommendation, prediction_summary

    fitted = Law.load(law)
    prediction = fitted.predict(compute, **limits)
    nearest = largest_with_recommendation(fitted, prediction, **limits)
    lines = prediction_summary(prediction, fitted.document, nearest)
    print_result(as_json, prediction.to_dict(), lines)
    return 0 if prediction.options else 1
