"""Convert a law and its predictions to DataFrames, for notebooks and spreadsheets.

Columns ``…_low`` and ``…_high`` contain the ends of 95 % intervals, which are missing if the data do not
bound them. Columns ``…_status`` contain a `isolaw.fits.quantity.Status`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from isolaw.evidence import COLUMN
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.quantity import Interval, Quantity

if TYPE_CHECKING:
    from isolaw.fits.predict import Prediction


def frontier(document: LawDocument) -> pd.DataFrame:
    """Return the compute-optimal frontier with one row for each x (see `Law.frontier`)."""
    rows = [
        {
            document.x.name: p.x,
            **_columns("n_star", p.n_star),
            **_ends("band", p.band),
            "n_star_strict": p.n_star_strict,
            "n_star_tolerance": p.n_star_tolerance,
            **_columns("reward", p.reward),
            "censored": p.censored,
            "censored_by": ", ".join(p.censored_by),
            **({COLUMN: True} if document.simulated else {}),
        }
        for p in document.frontier
    ]
    return pd.DataFrame(rows)


def crossovers(document: LawDocument) -> pd.DataFrame:
    """Return the crossover budgets with one row for each pair of n (see `Law.crossovers`)."""
    x = document.x.name
    columns = ["n_from", "n_to", x, f"{x}_low", f"{x}_high", f"{x}_status", "supported"]
    rows = [
        (c.from_, c.to, c.x, *_ends(x, c.interval).values(), c.status, c.supported)
        for c in document.crossovers
    ]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[2:5], "float64"))


def predictions(found: Sequence[Prediction], axis: str) -> pd.DataFrame:
    """Return a table with one row for each prediction (see `Law.predictions`)."""
    rows = []
    for p in found:
        best = p.options[0] if p.options else None
        a = p.allocation
        rows.append(
            {
                axis: p.compute,
                "rollouts_per_problem": a and a.rollouts_per_problem,
                "problems_per_batch": a and a.problems_per_batch,
                "steps": a and a.steps,
                "unspent": p.unspent,
                **_columns("reward", p.reward),
                "expected_loss": best and best.expected_loss,
                "probability_within_tolerance": best and best.probability,
                **_columns("n_star", p.n_star),
                "epochs": p.epochs,
                "flags": ", ".join(flag.code for flag in p.flags),
            }
        )
    whole = ("rollouts_per_problem", "problems_per_batch", "steps", "unspent")
    real = ("expected_loss", "probability_within_tolerance", "epochs")
    kinds = {axis: "int64", **dict.fromkeys(whole, "Int64"), **dict.fromkeys(real, "float64")}
    return pd.DataFrame(rows, columns=None if rows else [*kinds]).astype(kinds)


def _columns(name: str, q: Quantity) -> dict[str, Any]:
    value = float("nan") if q.value is None else q.value
    return {name: value, **_ends(name, q.interval), f"{name}_status": str(q.status)}


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    low, high = interval or (None, None)
    nan = float("nan")
    return {f"{name}_low": nan if low is None else low, f"{name}_high": nan if high is None else high}
