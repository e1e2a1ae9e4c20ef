"""Compare the recipes of one source: each value of an axis of a sweep with a base value.

For the axis ``without``, which removes parts of ScaleRL, the comparison is the leave-one-out ablation of
arXiv 2510.13786 (section 4). The intervals show whether a difference exceeds the differences between
identical runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

from isolaw.arguments import checked
from isolaw.errors import DataError, InputError, shown, unknown
from isolaw.evidence import Simulated
from isolaw.fits.document.codec import Encoded
from isolaw.fits.pipeline import DRAWS
from isolaw.fits.selection import rows_with
from isolaw.fits.studies.recipes import RecipeComparison, compare
from isolaw.registry import Shown
from isolaw.runs import ReadKeywords, Runs, Source, plain

_COMPLETE = "nothing"  # the value of ``without`` in runs of the complete recipe


@dataclass(frozen=True)
class AxisComparison(Encoded, Shown):
    """The result of `compare_by`: the values of an axis compared with a base value."""

    TEXT = "text.comparisons.recipes"

    DERIVED = ("simulated",)

    by: str
    base: Any
    comparisons: dict[Any, RecipeComparison]  #: keyed by the other values; the first recipe is ``base``

    @property
    def simulated(self) -> Simulated:
        """Whether a simulator made the runs of any comparison."""
        return Simulated.among(comparison.simulated for comparison in self.comparisons.values())


@checked
def compare_by(
    runs: Source,
    by: str,
    base: Any = None,
    metric: str = "avg@4",
    *,
    eval_set: str = "validation",
    compute: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    **reading: Unpack[ReadKeywords],
) -> AxisComparison:
    """Compare the runs of each value of ``by``, a column or attribute, with the runs of the value ``base``.

    ``base`` defaults to ``"nothing"`` if runs have it, as for ``by="without"``, and otherwise to the smallest
    value. The other arguments are the same as in `compare`.

    Raises
    ------
    InputError
        the value ``base`` does not exist, or is the only value.
    DataError
        the column or metric does not exist, or the runs of one value differ in another hold.
    Refused
        no (B_p, n) has runs of both values.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 100_000, "seeds": 2}, "problems": {"n_train": 200},
    ...     "grid": {"rollouts_per_problem": [16], "lr": [0.002, 0.02]}, "executor": {"kind": "inline"}})
    >>> result = compare_by(runs, "lr", 0.002, draws=50)
    >>> result.comparisons[0.02].mean.rows["C_mid"].difference.value < 1
    True
    """
    from isolaw.readers.read import as_runs

    source = as_runs(runs, metric, **reading)
    table = source.table()
    if by not in table.columns:
        raise DataError(f"by: {unknown('column', by, table.columns, 'there are')}")
    values = sorted({plain(value) for value in table[by].dropna()}, key=str)
    value_of_text = {str(value): value for value in values}
    if base is None:
        base = _COMPLETE if _COMPLETE in value_of_text else min(values, key=_sort_key, default=_COMPLETE)
    text = shown(base, str)
    if text not in value_of_text or len(values) < 2:
        choices = ", ".join(value_of_text)
        raise InputError(f"base: found {text}; expected one of two or more values of {by}: {choices}")

    def of(value: Any) -> Runs:
        return source.select(rows_with(table, {by: value}).index)

    base = value_of_text[text]
    keywords: dict[str, Any] = {"eval_set": eval_set, "compute": compute, "draws": draws, "seed": seed}
    base_runs = of(base)
    comparisons = {
        value: compare(base_runs, of(value), metric, names=(str(base), str(value)), **keywords)
        for value in values
        if value != base
    }
    return AxisComparison(by, base, comparisons)


def _sort_key(value: Any) -> tuple[float, str]:
    """Sort numbers by value, before texts."""
    return (value if isinstance(value, int | float) else math.inf, str(value))
