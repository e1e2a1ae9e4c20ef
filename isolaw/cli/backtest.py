"""``isolaw backtest``: what small runs would have said, judged by larger ones."""

from __future__ import annotations

from typing import Any

import click

from isolaw.cli.common import announce_compilation, constants, note, noted, print_json
from isolaw.cli.read import read_sources, source_options


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option("--fit-below", type=float, required=True, metavar="C", help="Fit checkpoints up to here.")
@click.option("--metric", help="What counts as reward (as in isolaw fit).")
@click.option("--eval-set", help="Which evaluation set (as in isolaw fit).")
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
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def backtest(sources: tuple[str, ...], fit_below: float, as_json: bool, **options: Any) -> None:
    """Fit SOURCE… below a compute, and judge on held-out seeds what that recommends above it."""
    from isolaw.fits.studies.backtest import backtest as run
    from isolaw.report.text import backtest as backtest_words

    reading = read_sources(sources, options["metric"], options)
    announce_compilation()
    for text in reading.notes:
        note(f"note: {text}")
    fixed = constants(options["fixed"], "--fixed")
    keywords = {name: options[name] for name in ("eval_set", "setting", "method", "bootstrap")}
    with noted(reading.runs.notes):
        result = run(reading.runs, fit_below, options["metric"], fixed=fixed, **keywords)
    if as_json:
        print_json(result)
        return
    for line in backtest_words.backtest_summary(result):
        click.echo(line)
