"""``isolaw compare``: two recipes, models or problem sets side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from isolaw.cli.common import constants, note, pairs, print_json

if TYPE_CHECKING:
    from isolaw.fits.quantity import Quantity
    from isolaw.fits.studies.contrast import Comparison, Contrast
    from isolaw.runs import Runs


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option("--metric", default="avg@4", show_default=True, help="What counts as reward.")
@click.option("--eval-set", default="validation", show_default=True, help="Which evaluation set.")
@click.option("--compute", type=float, help="Compare at this budget C, in rollouts, too.")
@click.option("--column", multiple=True, metavar="NAME=COLUMN", help="Our name for a column of both tables.")
@click.option(
    "--derive", multiple=True, metavar="NAME=ARITHMETIC", help='As "compute=prompts_seen*rollout_n".'
)
@click.option("--constant", multiple=True, metavar="NAME=VALUE", help="As problems_per_batch=512.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(
    first: str,
    second: str,
    metric: str,
    eval_set: str,
    compute: float | None,
    as_json: bool,
    **mapping: tuple[str, ...],
) -> None:
    """Compare the learning curves of two recipes, FIRST and SECOND.

    Each is a sweep's directory, or a Parquet or CSV table. Hill curves (ScaleRL, arXiv 2510.13786) say
    which ends higher (A) and which is faster (C_mid); those of the first half of the compute are
    checked on the second.
    """
    from isolaw.fits.studies.recipes import compare as compared

    one, other = (_read(source, metric, mapping, both=(first, second)) for source in (first, second))
    found = compared(one, other, metric, eval_set=eval_set, compute=compute, names=_names(first, second))
    if as_json:
        print_json(found.to_dict())
    else:
        for line in _summary(found):
            click.echo(line)
    for text in found.notes:
        note(f"note: {text}")


def _read(source: str, metric: str, mapping: dict[str, tuple[str, ...]], both: tuple[str, str]) -> Runs:
    """The runs of one source; where only the other is a table, the mapping is for that."""
    import isolaw

    if Path(source).is_dir() and not all(Path(other).is_dir() for other in both):
        return isolaw.read(source)
    return isolaw.read(
        source,
        metric=metric,
        columns=pairs(mapping["column"], "--column"),
        derive=pairs(mapping["derive"], "--derive"),
        constants=constants(mapping["constant"], "--constant"),
    )


def _names(first: str, second: str) -> tuple[str, str]:
    """As little of the paths as tells them apart."""
    a, b = Path(first).resolve(), Path(second).resolve()
    if a == b:
        return "first", "second"
    return (a.name, b.name) if a.name != b.name else (first, second)


_WORDS = {
    "A": "ceiling A",
    "C_mid": "C_mid (ratio)",
    "B": "exponent B",
    "reward": "reward at the budget",
    "end": "measured at the end",
    "predicted": "as the first half has it",
    "error": "off by",
}


def _summary(found: Comparison) -> list[str]:
    """What was found, line by line."""
    facts = "".join(f"; {fact} = {a} and {b}" for fact, (a, b) in found.facts.items())
    lines = [f"{found.metric} on {found.eval_set}: {found.names[0]} and {found.names[1]}{facts}."]
    cells: list[list[str]] = []
    for contrast in found.contrasts:
        ((b, n),) = contrast.configurations
        cells += _cells(f"B_p = {b}, n = {n}", found.names, contrast)
    if len(found.contrasts) > 1:
        cells += _cells(f"mean of {len(found.contrasts)}", found.names, found.mean)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines += ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    drawn = {"run": "runs", "lack of fit": "runs", "block": "blocks of residuals"}
    units = " and ".join(dict.fromkeys(drawn[unit] for unit in found.units))
    lines.append(f"Intervals: 95 % of draws of {units}{', paired by seed' if found.paired else ''}.")
    return lines + [f"{name.capitalize()}: {text}." for name, text in found.verdict.items()]


def _cells(title: str, names: tuple[str, str], contrast: Contrast) -> list[list[str]]:
    """The numbers of one contrast, row by row."""
    cells = [[title, *names, "difference"]]
    for name, words in _WORDS.items():
        if name in contrast.rows:
            row = contrast.rows[name]
            if name == "error":
                cells.append([f"  {words}", _cell(row.first, True), _cell(row.second, True), ""])
            else:
                cells.append([f"  {words}", _cell(row.first), _cell(row.second), _cell(row.difference, True)])
    return cells


def _cell(q: Quantity, with_interval: bool = False) -> str:
    from isolaw.report.text.words import number

    if q.value is None or q.status == "refused":
        return "not stated"
    if q.status == "not_identified":
        return "not determined"
    if not with_interval or q.interval is None:
        return number(q.value)
    low, high = q.interval
    return f"{number(q.value)} ({number(low)} to {number(high)})"
