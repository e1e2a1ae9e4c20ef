"""The command ``isolaw model-size``: fit how fast models of different sizes learn."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli import options as shared
from isolaw.cli.common import json_option, print_document, print_notes
from isolaw.cli.help import ShortHelp


def _sizes(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> list[float]:
    out = []
    for text in values:
        size = shared.numbers(ctx, option, [text]).get("N")
        if not isinstance(size, int | float) or size <= 0:
            raise click.UsageError(f"--predict: found {text!r}; expected N=<size>, e.g. N=72")
        out.append(float(size))
    return out


@click.command("model-size", cls=ShortHelp)
@click.argument("file", type=click.Path())
@click.option(
    "--runs", type=click.Path(), help="Table of single runs for the intervals, if the rows of FILE are means."
)
@click.option(
    "--x", type=click.Choice(["compute", "data"]), default="compute",
    help="Training resource X: compute in FLOPs, or data in prompts.",
)  # fmt: skip
@click.option(
    "--predict", "sizes", multiple=True, metavar="N=SIZE", callback=_sizes,
    help="Predict the reward of a model size, measured or not, at the last measured X.",
)  # fmt: skip
@shared.draws_option
@shared.seed_option
@shared.table_options
@json_option
def model_size(
    file: str,
    runs: str | None,
    x: Any,
    sizes: list[float],
    **options: Any,
) -> None:
    """Fit the model-size law to evaluations of several sizes.

    \b
      log10 L = −K(N) · log10 X + E(N),    K(N) = K_max / (1 + N0 / N),    L = 1 − reward

    FILE is a table with the columns model_size, step, compute or data, and reward or loss; map other names
    with --column. Optional columns are run, and runs (the number of runs that a row averages).
    """
    from isolaw.fits.studies.model_size import SizeCurves, fit_sizes
    from isolaw.readers.table_columns import apply, lacking
    from isolaw.readers.table_files import load
    from isolaw.report.text.studies import size_document

    how = shared.how_to_read(options)
    table = apply(how, load(file), file)
    single = None
    if runs is not None:  # single runs can lack columns that only the means have
        single = load(runs)
        known = {name: text for name, text in how.columns.items() if not lacking(text, single.columns)}
        single = apply(how.but(columns=known), single, runs)
    curves = SizeCurves.from_table(table, x, single, (file, runs or file))
    law = fit_sizes(curves, options["draws"], options["seed"])
    predictions: list[dict[str, Any]] = [
        {"model_size": n, x: at, "extrapolated_size": n not in law.E, "reward": law.predict(n, at)}
        for n, at in ((n, law.last_x(n)) for n in sizes)
    ]
    more = {
        "sources": [file] if runs is None else [file, runs],
        "bootstrap": {"draws": options["draws"], "seed": options["seed"]},
    }
    print_document(size_document(law, predictions, more))
    print_notes([flag.text for flag in law.flags])
