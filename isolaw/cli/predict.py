"""The command ``isolaw predict``: recommend an allocation for a budget."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import json_option, print_result
from isolaw.cli.help import ShortHelp


@click.command(cls=ShortHelp)
@click.argument("law", type=click.Path())
@shared.question_options
@json_option
def predict(law: str, **options: Any) -> int:
    """Recommend an allocation of a budget.

    LAW is a file of isolaw fit --out. Beyond ten times the compute that three n reached, isolaw recommends
    no allocation. It then names the runs to extend, prints the recommendation for the largest budget that has
    one, and exits with 1.
    """
    from isolaw.fits.law import Law
    from isolaw.report.text.prediction import largest_with_recommendation, prediction_lines

    fitted, limits = Law.load(law), shared.limits_of(options)
    prediction = fitted.predict(options["compute"], **limits)
    nearest = largest_with_recommendation(fitted, prediction, **limits)
    print_result(prediction.to_dict(), prediction_lines(prediction, nearest))
    return 0 if prediction.options else 1
