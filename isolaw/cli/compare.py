"""``isolaw compare``: two recipes, models or problem sets side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isolaw.cli.common import note, print_result
from isolaw.cli.options import ROLLOUTS, json_option, read_to_fit, source_options


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path(), required=False)
@click.option("--by", metavar="NAME", help="Compare the values of NAME in FIRST, e.g. without or lr.")
@click.option("--base", help="The value of --by that the others are compared with.  [default: nothing]")
@click.option("--metric", default="avg@4", help="Reward metric.")
@click.option("--eval-set", default="validation", help="Evaluation set.")
@click.option(
    "--compute", "--budget", "compute", type=ROLLOUTS,
    help="Also compare the rewards at this budget C, in rollouts.",
)  # fmt: skip
@source_options
@json_option
def compare(
    first: str,
    second: str | None,
    by: str | None,
    base: str | None,
    metric: str,
    eval_set: str,
    compute: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare the learning curves of two recipes, FIRST and SECOND.

    Each is a SOURCE as in isolaw fit. The ceiling A shows which recipe ends higher, and C_mid of a Hill
    curve (ScaleRL, arXiv 2510.13786) which is faster. What the first half of the compute predicts is
    checked on the second half.

    With --by and one SOURCE, compare its recipes: isolaw compare SWEEP --by without.
    """
    import isolaw
    from isolaw.report.text.recipes import axis_summary, comparison_summary, verdict

    if (by is None) == (second is None) or (base is not None and by is None):
        raise click.UsageError("compare takes FIRST and SECOND, or FIRST with --by NAME (and --base)")
    if second is None:
        assert by is not None
        runs = read_to_fit((first,), {**options, "metric": metric, "by": by}).runs
        axis = isolaw.compare_by(runs, by, base, metric, eval_set=eval_set, compute=compute)
        print_result(as_json, axis.to_dict(), axis_summary(axis))
        for text in dict.fromkeys(text for own in axis.comparisons.values() for text in own.notes):
            note(f"note: {text}")
        return
    of_a_table = Path(first).is_dir() != Path(second).is_dir()  # the mapping
    without: dict[str, Any] = {"columns": {}, "derive": {}, "constants": {}, "mapping": None}
    one, other = (
        read_to_fit((source,), {**options, "metric": metric, **(without if alone else {})}).runs
        for source, alone in ((source, of_a_table and Path(source).is_dir()) for source in (first, second))
    )
    names = _names(first, second)
    found = isolaw.compare(one, other, metric, eval_set=eval_set, compute=compute, names=names)
    print_result(as_json, {**found.to_dict(), "verdict": verdict(found)}, comparison_summary(found))
    for text in found.notes:
        note(f"note: {text}")


def _names(first: str, second: str) -> tuple[str, str]:
    """The last parts of the paths, or more where these are equal."""
    a, b = Path(first).resolve(), Path(second).resolve()
    if a == b:
        return "first", "second"
    return (a.name, b.name) if a.name != b.name else (first, second)
