"""The command ``isolaw predict``: recommend an allocation for a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import json_option, print_document, print_result, progress
from isolaw.cli.help import ShortHelp

if TYPE_CHECKING:
    from isolaw.fits.law import Law


@click.command(cls=ShortHelp)
@click.argument("law", required=False, type=click.Path())
@shared.compute_option
@shared.cost_options
@shared.budget_options
@click.option(
    "--method", type=click.Choice(["law", "simulate"]), default="law",
    help="law: use the recommendation of LAW. simulate: also simulate the budget with --preset.",
)  # fmt: skip
@click.option(
    "--preset", metavar="FILE|NAME",
    help="A file of isolaw calibrate --out, or a preset that ships with isolaw; for --method simulate.",
)  # fmt: skip
@click.option(
    "--jobs", type=shared.POSITIVE,
    help="Number of processes for the simulation.  [default on this machine: one per core]",
)  # fmt: skip
@json_option
def predict(
    law: str | None, compute: float | str, method: str, preset: str | None, jobs: int | None,
    **options: Any,
) -> int:  # fmt: skip
    """Recommend an allocation of a budget.

    LAW is a file of isolaw fit --out. Beyond ten times the compute that three n reached, isolaw recommends
    no allocation. It then names the runs to extend, prints the recommendation for the largest budget that has
    one, and exits with 1.

    --method simulate runs a calibrated simulator up to a hundred times the largest measured compute. isolaw
    prints the recommendation of LAW next to the simulated one, and reports where they disagree. Without LAW,
    isolaw prints only the simulated one.
    """
    from isolaw.fits.law import Law
    from isolaw.report.text.prediction import largest_with_recommendation, prediction_summary

    if (method == "simulate") != (preset is not None):
        raise click.UsageError("--method simulate and --preset FILE require each other")
    if law is None and preset is None:
        raise click.UsageError("expected LAW, a file of isolaw fit --out, or --method simulate --preset FILE")
    fitted = None if law is None else Law.load(law)
    limits = options | {"cost": shared.cost_of(options)}
    if preset is not None:
        return _simulate(preset, compute, fitted, limits, jobs)
    assert fitted is not None
    prediction = fitted.predict(compute, **limits)
    nearest = largest_with_recommendation(fitted, prediction, **limits)
    lines = prediction_summary(prediction, fitted.document, nearest)
    print_result(prediction.to_dict(), lines)
    return 0 if prediction.options else 1


def _simulate(
    preset: str, asked: float | str, law: Law | None, limits: dict[str, Any], jobs: int | None
) -> int:
    from isolaw.calibration.splits import predict_by_simulation
    from isolaw.report.text.simulation import document

    with progress("simulating") as update:
        found = predict_by_simulation(preset, asked, law, **limits, jobs=jobs, progress=update)
    print_document(document(found))
    return 0
