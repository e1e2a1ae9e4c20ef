"""``isolaw backtest``: what small runs would have said, judged by larger ones."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli.common import constants, pairs, print_json


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--fit-below", type=float, required=True, metavar="C", help="Fit checkpoints up to here.")
@click.option("--metric", default="avg@4", show_default=True, help="What counts as reward.")
@click.option("--eval-set", default="validation", show_default=True, help="Which evaluation set.")
@click.option(
    "--setting",
    type=click.Choice(["fixed-bp", "fixed-b", "joint"]),
    default="fixed-bp",
    show_default=True,
    help="What is held: B_p, B = B_p · n, or nothing.",
)
@click.option("--fixed", multiple=True, metavar="NAME=VALUE", help="Use only runs with this.")
@click.option(
    "--method",
    type=click.Choice(["surface", "paper"]),
    default="surface",
    show_default=True,
    help="How n* is found (isolaw fit --help).",
)
@click.option("--bootstrap", type=click.IntRange(0, 10_000), default=400, show_default=True, help="Draws.")
@click.option("--column", multiple=True, metavar="NAME=COLUMN", help="Our name for a column of the table.")
@click.option("--derive", multiple=True, metavar="NAME=ARITHMETIC", help='As "compute=step*512*n".')
@click.option("--constant", multiple=True, metavar="NAME=VALUE", help="As problems_per_batch=512.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def backtest(sources: tuple[str, ...], fit_below: float, as_json: bool, **options: Any) -> None:
    """Fit SOURCE… below a compute, and judge on held-out seeds what that recommends above it."""
    import isolaw
    from isolaw.fits.backtest import backtest as run
    from isolaw.report import words

    mapping = {
        "columns": pairs(options.pop("column"), "--column"),
        "derive": pairs(options.pop("derive"), "--derive"),
        "constants": constants(options.pop("constant"), "--constant"),
    }
    fixed = constants(options.pop("fixed"), "--fixed")
    runs = isolaw.Runs.concat([isolaw.read(s, metric=options["metric"], **mapping) for s in sources])
    result = run(runs, fit_below, options.pop("metric"), fixed=fixed, **options)
    if as_json:
        print_json(result)
        return
    for line in words.backtest_summary(result):
        click.echo(line)
