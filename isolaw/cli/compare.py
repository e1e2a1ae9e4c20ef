"""``isolaw compare``: two recipes, models or problem sets side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import note, print_json, print_lines
from isolaw.cli.options import json_option, mapping_options

if TYPE_CHECKING:
    from isolaw.runs import Runs


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option("--metric", default="avg@4", help="Reward metric.")
@click.option("--eval-set", default="validation", help="Evaluation set.")
@click.option("--compute", type=float, help="Also compare the rewards at this budget C, in rollouts.")
@mapping_options
@json_option
def compare(
    first: str, second: str, metric: str, eval_set: str, compute: float | None, as_json: bool, **mapping: Any
) -> None:
    """Compare the learning curves of two recipes, FIRST and SECOND.

    Each is a sweep's directory, or a Parquet or CSV table. Hill curves (ScaleRL, arXiv 2510.13786) show
    which recipe ends higher (A) and which is faster (C_mid). Curves of the first half of the compute are
    checked on the second half.
    """
    from isolaw.fits.studies.recipes import compare as compare_recipes
    from isolaw.report.text.recipes import comparison_summary, verdict

    one, other = (_read(source, metric, mapping, both=(first, second)) for source in (first, second))
    names = _names(first, second)
    found = compare_recipes(one, other, metric, eval_set=eval_set, compute=compute, names=names)
    if as_json:
        print_json({**found.to_dict(), "verdict": verdict(found)})
    else:
        print_lines(comparison_summary(found))
    for text in found.notes:
        note(f"note: {text}")


def _read(source: str, metric: str, mapping: dict[str, Any], both: tuple[str, str]) -> Runs:
    """The runs of one source; where only the other is a table, the mapping is for the table."""
    import isolaw

    if Path(source).is_dir() and not all(Path(other).is_dir() for other in both):
        return isolaw.read(source)
    return isolaw.read(source, metric=metric, **mapping)


def _names(first: str, second: str) -> tuple[str, str]:
    """The last parts of the paths, or more where these are equal."""
    a, b = Path(first).resolve(), Path(second).resolve()
    if a == b:
        return "first", "second"
    return (a.name, b.name) if a.name != b.name else (first, second)
