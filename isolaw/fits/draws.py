"""Define `LawPosterior`, a law's document with its draws, and `Draws`, which are stored as a table.

The law's document stores the surface's observations, and the table of draws stores its θ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.allocation import Cell
from isolaw.errors import InputError
from isolaw.evidence import Quantity
from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.document.codec import Malformed
from isolaw.fits.document.schema import LawDocument, SurfaceInfo
from isolaw.fits.frontier import levels_of
from isolaw.fits.laws.equations import LAWS, Logistic
from isolaw.fits.selection import Floats
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.model import Link, Start, StructuralModel
from isolaw.fits.surface.observations import Observations

_LOGISTIC = LAWS["logistic"].parameters


@dataclass(frozen=True)
class Draws:
    """The estimate of a law and its D draws: arrays of shape (1 + D, …), whose row 0 is the estimate."""

    curves: dict[tuple[int, int], dict[str, Floats]]  # parameters of learning curves, by (B_p, n) and name
    logistic: Logistic | None  # the logistic law; None if it was refused
    laws: dict[str, Floats]  # θ of each compared law, (1 + D, P)
    surface: Surface | None  # None for the paper's method

    def __len__(self) -> int:
        if self.surface is not None:
            return 1 + self.surface.of_draw.size
        return len(next(iter(next(iter(self.curves.values())).values())))

    def table(self) -> pd.DataFrame:
        """Return the table that `from_table` reads.

        Its columns are ``b, L, k, x0``, ``<B_p>x<n>.<parameter>``, ``law.<name>.<i>`` and ``surface.…``.
        """
        columns = {} if self.surface is None else dict(_surface_columns(self.surface))
        for name, theta in self.laws.items():
            columns.update({f"law.{name}.{i}": values for i, values in enumerate(theta.T)})
        if self.logistic is not None:
            columns.update({name: getattr(self.logistic, name) for name in _LOGISTIC})
        for cell, parameters in self.curves.items():
            columns.update({_column(*cell, name): values for name, values in parameters.items()})
        return pd.DataFrame(columns)

    @classmethod
    def from_table(cls, document: LawDocument, table: pd.DataFrame | None) -> Draws:
        """Return the draws from a `table`, or only the estimate in ``document`` if there is no table.

        Raises
        ------
        Malformed
            the table is damaged or belongs to another law.
        """
        values = _estimates(document)
        entries = document.comparison.laws.items()
        theta_of_law = {name: np.array([entry.theta]) for name, entry in entries if entry.theta}
        if table is not None:
            values = _checked_values(table, values)
            for name, estimate in theta_of_law.items():
                columns = {f"law.{name}.{i}": estimate[:, i] for i in range(estimate.shape[1])}
                theta_of_law[name] = np.column_stack([*_checked_values(table, columns).values()])
        curves: dict[tuple[int, int], dict[str, Floats]] = {}
        for curve in document.curves:
            curves[curve.key] = {name: values[_column(*curve.key, name)] for name in curve.parameters}
        logistic_values = [values[name] for name in _LOGISTIC if name in values]
        logistic = None
        if logistic_values:
            b, L, k, x0 = logistic_values
            logistic = Logistic(b, L, k, x0, np.zeros(len(b), dtype=bool))
        surface = _read_surface(
            document.surface,
            pd.DataFrame() if table is None else table,
            document.bootstrap.seed,
            document.unit,
        )
        return cls(curves, logistic, theta_of_law, surface)


class LawPosterior:
    """A law's document with its draws of rewards, of learning curves, and of θ of the laws of n*(C)."""

    def __init__(self, document: LawDocument, draws: Draws) -> None:
        self.document = document  #: the content of ``law.json``
        self.draws = draws  #: the parameters of the estimate and of every draw

    @property
    def levels(self) -> NDArray[np.int64]:
        """The measured values of the law's axis (n, or B_p), ascending."""
        return levels_of(self.document.grid)

    @property
    def params(self) -> dict[str, Quantity]:
        """The parameters b, L, k and x0 of the logistic law, and the n (or B_p) at which n* saturates."""
        return self.document.params

    @property
    def logistic(self) -> Logistic | None:
        """The logistic law: the estimate, followed by its draws. None if it was refused."""
        return self.draws.logistic

    @property
    def surface(self) -> Surface | None:
        """The reward surface; None for the paper's method."""
        return self.draws.surface

    def curves(self, problems_per_batch: int, rollouts_per_problem: int) -> Curves:
        """Return the learning curves of one configuration, the estimate first (method ``paper``)."""
        parameters = self.draws.curves.get((problems_per_batch, rollouts_per_problem))
        if self.document.curve is None:
            raise InputError("only laws of method='paper' have learning curves; see `rewards`")
        if parameters is None:
            expected = "; ".join(entry.label for entry in self.document.grid)
            found = Cell(problems_per_batch, rollouts_per_problem).label
            raise InputError(f"found {found}, of which the law has no run; expected {expected}")
        return Curves.from_parameters(self.document.curve, parameters)

    def theta(self, name: str) -> Floats | None:
        """Return θ of a compared law, as an array of shape (1 + D, P): the estimate, then its draws."""
        return self.draws.laws.get(name)


def _column(problems_per_batch: int, rollouts_per_problem: int, parameter: str) -> str:
    return f"{problems_per_batch}x{rollouts_per_problem}.{parameter}"


def _estimates(document: LawDocument) -> dict[str, Floats]:
    """Return the document's parameters of the logistic law and of the curves, as columns with one row."""
    row = {name: document.params[name].value for name in _LOGISTIC}
    if None in row.values():
        row = {}
    for curve in document.curves:
        row |= {_column(*curve.key, name): quantity.value for name, quantity in curve.parameters.items()}
    return {name: np.array([value], np.float64) for name, value in row.items()}


def _checked_values(table: pd.DataFrame, estimates: dict[str, Floats]) -> dict[str, Floats]:
    """Return the table's columns as draws. Raise `Malformed` unless the first row equals ``estimates``."""
    if table.empty or not set(estimates) <= set(table.columns):
        raise Malformed("its draws belong to another law")
    draws = {name: table[name].to_numpy(np.float64, na_value=np.nan) for name in estimates}
    for name, values in draws.items():
        if not np.isfinite(values).all() or not np.isclose(values[0], estimates[name][0], rtol=1e-6):
            raise Malformed(f"its draws are damaged or belong to another law: column {name}")
    return draws


def surface_info(surface: Surface) -> SurfaceInfo:
    """Return the part of the surface that is stored in the law's document."""
    model = surface.model
    low, high = (bound if math.isfinite(bound) else None for bound in surface.bounds)
    start = (model.start.reward, model.start.error)
    mode = tuple(surface.mode.tolist())
    return SurfaceInfo(model.observations.to_dict(), mode, surface.effective, (low, high), start)


def _surface_columns(surface: Surface) -> dict[str, np.ndarray]:
    """Return the surface's columns for the table of draws; row 0 contains the most likely θ."""
    theta = np.vstack([surface.mode, surface.theta[surface.of_draw]])
    columns = {f"surface.{name}": values for name, values in zip(surface.model.names, theta.T, strict=True)}
    return {**columns, "surface.theta": np.append(-1, surface.of_draw)}


def _read_surface(stored: SurfaceInfo | None, draws: pd.DataFrame, seed: int, unit: float) -> Surface | None:
    """Restore the surface from the results of `surface_info` and `_surface_columns`.

    Without draws, the surface is the mean at the most likely θ.

    Raises
    ------
    Malformed
        the observations or hyperparameters do not describe a surface.
    """
    if stored is None:
        return None
    low, high = stored.bounds
    bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    mode = np.array(stored.theta)
    try:
        observations = Observations.from_dict(stored.observations)
        model = StructuralModel(
            observations, Start(*stored.start), Link.of(bounds, unit, observations.reward)
        )
        is_finite = np.isfinite(model.data_covariance(mode)[0]).all() and np.isfinite(model.y).all()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(f"surface: {error}") from None
    if not is_finite:
        raise Malformed("surface: found values that are not finite")
    names = [f"surface.{name}" for name in model.names]
    if len(draws) < 2 or not {*names, "surface.theta"} <= set(draws.columns):
        return Surface(model, mode, mode[None], np.empty(0, dtype=np.int64), seed, stored.effective, unit)
    rows = draws.iloc[1:]
    _, first, of_draw = np.unique(rows["surface.theta"].to_numpy(), return_index=True, return_inverse=True)
    theta = rows[names].to_numpy(np.float64)[first]
    if not np.isfinite(theta).all():
        raise Malformed("surface: found draws that are not finite")
    return Surface(model, mode, theta, of_draw.astype(np.int64), seed, stored.effective, unit)
