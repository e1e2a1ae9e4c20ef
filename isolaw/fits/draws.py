"""`Draws`: the fitted parameters of every draw, and the table that stores them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.fits.curves.learning_curves import FAMILIES
from isolaw.fits.document.codec import Malformed
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.laws.equations import Logistic
from isolaw.fits.surface import stored
from isolaw.fits.surface.estimate import Surface

Floats = NDArray[np.float64]
_LOGISTIC = ("b", "L", "k", "x0")


@dataclass(frozen=True)
class Draws:
    """The estimate of a law and its D draws: arrays of shape (1 + D, …), whose row 0 is the estimate."""

    curves: dict[tuple[int, int], dict[str, Floats]]  # parameters of learning curves, by (B_p, n) and name
    logistic: Logistic | None  # the logistic law; None if it was refused
    laws: dict[str, Floats]  # θ of each compared law, (1 + D, P)
    surface: Surface | None  # None for the paper's method

    def __len__(self) -> int:
        return len(next(iter(next(iter(self.curves.values())).values())))

    def table(self) -> pd.DataFrame:
        """Return the table that `from_table` reads.

        Its columns are ``b, L, k, x0``, ``<B_p>x<n>.<parameter>``, ``law.<name>.<i>`` and ``surface.…``.
        """
        columns = {} if self.surface is None else dict(stored.columns(self.surface))
        for name, theta in self.laws.items():
            if len(theta) == len(self):  # older laws contain only the estimate
                columns.update({f"law.{name}.{i}": values for i, values in enumerate(theta.T)})
        if self.logistic is not None:
            columns.update({name: getattr(self.logistic, name) for name in _LOGISTIC})
        for (b, n), parameters in self.curves.items():
            columns.update({_column(b, n, name): values for name, values in parameters.items()})
        return pd.DataFrame(columns)

    @classmethod
    def from_table(cls, document: LawDocument, table: pd.DataFrame | None) -> Draws:
        """Return the draws from a `table`, or only the estimate in ``document`` if there is no table.

        Raises
        ------
        Malformed
            the table belongs to another law.
        """
        values = _estimates(document)
        theta = {n: np.array([law.theta]) for n, law in document.comparison.laws.items() if law.theta}
        if table is not None:
            values = _values(table, values)
            for name, estimate in theta.items():
                own = [f"law.{name}.{i}" for i in range(estimate.shape[1])]
                if set(own) <= set(table.columns):  # older laws lack these columns
                    theta[name] = table[own].to_numpy(np.float64)
        curves: dict[tuple[int, int], dict[str, Floats]] = {}
        for c in document.curves:
            names = FAMILIES[document.curve].parameters
            curves[c.key] = {name: values[_column(*c.key, name)] for name in names}
        size = len(next(iter(values.values())))
        law = [values[name] for name in _LOGISTIC if name in values]
        logistic = Logistic(law[0], law[1], law[2], law[3], np.zeros(size, dtype=bool)) if law else None
        held = pd.DataFrame() if table is None else table
        surface = stored.restored(document.surface, held, document.bootstrap.seed, document.unit)
        return cls(curves, logistic, theta, surface)


def _column(problems_per_batch: int, rollouts_per_problem: int, parameter: str) -> str:
    return f"{problems_per_batch}x{rollouts_per_problem}.{parameter}"


def _estimates(document: LawDocument) -> dict[str, Floats]:
    """Return the document's parameters of the logistic law and of the curves, as columns with one row."""
    row = {name: document.params[name].value for name in _LOGISTIC}
    if None in row.values():
        row = {}
    for c in document.curves:
        row |= {_column(*c.key, name): q.value for name, q in c.parameters.items()}
    return {name: np.array([value], np.float64) for name, value in row.items()}


def _values(table: pd.DataFrame, estimates: dict[str, Floats]) -> dict[str, Floats]:
    """Return the table's columns as draws. Raise `Malformed` unless the first row equals ``estimates``."""
    if table.empty or not set(estimates) <= set(table.columns):
        raise Malformed("its draws belong to another law")
    out = {name: table[name].to_numpy(np.float64, na_value=np.nan) for name in estimates}
    for name, values in out.items():
        if not np.isfinite(values).all() or not np.isclose(values[0], estimates[name][0], rtol=1e-6):
            raise Malformed(f"its draws are damaged or belong to another law: column {name}")
    return out
