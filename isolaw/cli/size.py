"""``isolaw size``: how fast models of different size learn."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from isolaw.cli.common import constants, note, pairs, print_json

if TYPE_CHECKING:
    import pandas as pd

    from isolaw.fits.quantity import Quantity
    from isolaw.fits.studies.model_size.law import SizeLaw
    from isolaw.readers.table import Mapped

_LOSSES = {"reward": "squared error in L", "log": "squared error in log10 L"}


@click.command()
@click.argument("file", type=click.Path())
@click.option("--runs", type=click.Path(), help="Single runs for the intervals, where FILE has only means.")
@click.option(
    "--x",
    "x",
    type=click.Choice(["compute", "data"]),
    default="compute",
    show_default=True,
    help="X: FLOPs trained with, or prompts trained on.",
)
@click.option(
    "--loss",
    type=click.Choice(["reward", "log"]),
    default="reward",
    show_default=True,
    help="Squared error in L (the authors') or in log10 L.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help='Fit only the rows of FILE with this, as "step<=25" or in_intra_fit=1.',
)
@click.option(
    "--predict", "predicted", multiple=True, metavar="N=SIZE", help="Reward of a size, fitted or not."
)
@click.option(
    "--at", type=float, multiple=True, metavar="X", help="… at this X; the last measured unless given."
)
@click.option("--bootstrap", type=click.IntRange(0, 10_000), default=400, show_default=True, help="Draws.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws.")
@click.option("--column", multiple=True, metavar="NAME=COLUMN", help="Our name for a column of the table.")
@click.option("--derive", multiple=True, metavar="NAME=ARITHMETIC", help='As "compute=6e9*N*tokens".')
@click.option("--constant", multiple=True, metavar="NAME=VALUE", help="As runs=3.")
@click.option("--json", "as_json", is_flag=True, help="Print the law as JSON.")
def size(
    file: str,
    runs: str | None,
    x: Any,
    loss: Any,
    where: tuple[str, ...],
    predicted: tuple[str, ...],
    at: tuple[float, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Fit the model-size law to FILE, a table of evaluations of several model sizes.

    \b
      log10 L = −K(N) · log10 X + E(N),    K(N) = K_max / (1 + N0 / N),    L = 1 − reward

    Its columns (map them with --column): model_size, step, compute or data, reward or loss; and where it has
    them run, and runs (how many a row is the mean of).
    """
    from isolaw.fits.studies.model_size.curves import SizeCurves
    from isolaw.fits.studies.model_size.law import fit_sizes
    from isolaw.readers.load import load
    from isolaw.readers.table import Mapped

    sizes = [_size(text) for text in predicted]
    if at and not sizes:
        raise click.UsageError("--at says where --predict predicts: give --predict N=<size>, too")
    mapped = Mapped(
        pairs(options["column"], "--column"),
        pairs(options["derive"], "--derive"),
        constants(options["constant"], "--constant"),
    )
    table = mapped.apply(load(file), file)
    for condition in where:
        table = _selected(table, condition, file)
    single = None if runs is None else _runs_table(runs, mapped)
    curves = SizeCurves.from_table(table, x, single, (file, runs or file))
    law = fit_sizes(curves, loss, options["bootstrap"], options["seed"])
    predictions = [
        {"model_size": n, x: value, "extrapolated_size": n not in law.E, "reward": law.predict(n, value)}
        for n in sizes
        for value in (at or [_last(law, n)])
    ]
    if as_json:
        print_json(_document(law, predictions, [file] if runs is None else [file, runs], options))
    else:
        for line in _summary(law, predictions):
            click.echo(line)
    for warning in law.warnings:
        note(f"note: {warning}")


def _size(text: str) -> float:
    name, value = next(iter(constants([text], "--predict").items()))
    if name != "N" or not isinstance(value, int | float) or value <= 0:
        raise click.UsageError(f"--predict {text!r}: accepted: N=<size>, as N=72")
    return float(value)


def _runs_table(path: str, mapped: Mapped) -> pd.DataFrame:
    """The table of --runs with our names; it may lack columns that only the means have."""
    from dataclasses import replace

    from isolaw.readers.load import load

    frame = load(path)
    there = {name: column for name, column in mapped.columns.items() if column in frame.columns}
    return replace(mapped, columns=there).apply(frame, path)


def _selected(table: pd.DataFrame, condition: str, path: str) -> pd.DataFrame:
    """The rows that meet NAME=VALUE, NAME<=VALUE or NAME>=VALUE."""
    import pandas as pd

    from isolaw.errors import DataError, unknown

    match = re.fullmatch(r"\s*(.+?)\s*(<=|>=|=)\s*(.+?)\s*", condition)
    if match is None:
        raise click.UsageError(f"--where {condition!r}: accepted: NAME=VALUE, NAME<=VALUE, NAME>=VALUE")
    name, relation, text = match.groups()
    if name not in table.columns:
        raise DataError(f"{path}: --where {condition}: {unknown('column', name, map(str, table.columns))}")
    numbers, value = pd.to_numeric(table[name], errors="coerce"), pd.to_numeric(text, errors="coerce")
    if relation == "=":
        met = (numbers == value) | (table[name].astype(str) == text)
    elif pd.isna(value):
        raise click.UsageError(f"--where {condition!r}: {text!r} is not a number")
    else:
        met = numbers <= value if relation == "<=" else numbers >= value
    if not met.any():
        raise DataError(f"{path}: --where {condition}: no row has that")
    return table[met]


def _last(law: SizeLaw, n: float) -> float:
    """The last X measured at this size, or at the nearest one (with as many tokens)."""
    import numpy as np

    curves = law.curves
    near = int(np.abs(np.log(curves.sizes / n)).argmin())
    last = float(curves.x[curves.of == near].max())
    return last * n / float(curves.sizes[near]) if curves.x_name == "compute" else last


def _document(
    law: SizeLaw, predictions: list[dict[str, Any]], sources: list[str], options: dict[str, Any]
) -> dict[str, Any]:
    curves = law.curves
    return {
        "format": "isolaw.size/1",
        "sources": sources,
        "x": curves.x_name,
        "loss": law.loss,
        "checkpoints": int(curves.x.size),
        "sse": float(law.fits.sse[0]),
        "params": {"K_max": law.K_max.to_dict(), "N0": law.N0.to_dict()},
        "bend": law.bend.to_dict(),
        "sizes": [{"model_size": n, "K": law.K[n].to_dict(), "E": law.E[n].to_dict()} for n in law.K],
        "predictions": [p | {"reward": p["reward"].to_dict()} for p in predictions],
        "bootstrap": {"unit": law.unit, "draws": options["bootstrap"], "seed": options["seed"]},
        "warnings": law.warnings,
    }


def _summary(law: SizeLaw, predictions: list[dict[str, Any]]) -> list[str]:
    from isolaw.report.text.words import number

    curves = law.curves
    lines = [
        f"{len(curves.sizes)} model sizes, N = {number(curves.sizes[0])} to {number(curves.sizes[-1])}; "
        f"{curves.x.size} checkpoints; X = {curves.x_name}; {_LOSSES[law.loss]}.",
        f"K_max = {_text(law.K_max)}",
        f"N0 = {_text(law.N0)}",
    ]
    rows = [("N", "K(N)", "E(N), log10")]
    rows += [(number(n), _text(law.K[n]), _text(law.E[n])) for n in law.K]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines += [f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}".rstrip() for row in rows]
    for p in predictions:
        text = f"N = {number(p['model_size'])} at {curves.x_name} = {number(p[curves.x_name])}: reward "
        text += _text(p["reward"])
        lines.append(text + (" (E(N) is extrapolated too)" if p["extrapolated_size"] else ""))
    return lines


def _text(q: Quantity) -> str:
    """An estimate with its 95 % interval."""
    from isolaw.report.text.words import number

    if q.value is None:
        return "not identified"
    if q.interval is None:
        return number(q.value)
    low, high = q.interval
    if high is None:
        return f"{number(q.value)} (95 %: {number(low)} or more)"
    if low is None:
        return f"{number(q.value)} (95 %: {number(high)} or less)"
    return f"{number(q.value)} (95 %: {number(low)} to {number(high)})"
