"""Define `LawPosterior`, a law's document with its draws, and `Draws`, which are stored as a table.

The law's document stores the surface's observations, and the table of draws stores its θ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from isolaw.fits.selection import Floats
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.model import InitialReward, Link, StructuralModel
from isolaw.fits.surface.observations import Observations


@dataclass(frozen=True)
class Draws:
    """The estimate of a law and its D draws: arrays of shape (1 + D, …), whose row 0 is the estimate."""

    curves: dict[tuple[int, int], dict[str, Floats]]  # parameters of learning curves, by (B_p, n) and name
    surface: Surface | None  # None for the paper's method

    def __len__(self) -> int:
        if self.surface is not None:
            return 1 + self.surface.of_draw.size
        return len(next(iter(next(iter(self.curves.values())).values())))

    def table(self) -> pd.DataFrame:
        """Return the table that `from_table` reads.

        Its columns are ``<B_p>x<n>.<parameter>`` or ``surface.…``.
        """
        columns = {} if self.surface is None else dict(_surface_columns(self.surface))
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
        curves: dict[tuple[int, int], dict[str, Floats]] = {}
        for curve in document.curves:
            row = {_column(*curve.key, name): quantity.value for name, quantity in curve.parameters.items()}
            curves[curve.key] = dict(zip(curve.parameters, _columns_with(row, table), strict=True))
        return cls(curves, _read_surface(document.surface, table, document.bootstrap.seed, document.unit))


class LawPosterior:
    """A law's document with its draws of rewards or of learning curves."""

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


def _column(problems_per_batch: int, rollouts_per_problem: int, parameter: str) -> str:
    return f"{problems_per_batch}x{rollouts_per_problem}.{parameter}"


def _columns_with(row: Mapping[str, float | None], table: pd.DataFrame | None) -> list[Floats]:
    """Return the columns of a table whose first row must be ``row``, or only this row without a table.

    Raises `Malformed` if the table has another first row, lacks a column, or has values that are not finite.
    """
    estimates = [np.array([value], np.float64) for value in row.values()]
    if table is None:
        return estimates
    if table.empty or not set(row) <= set(table.columns):
        raise Malformed("its draws belong to another law")
    columns = [table[name].to_numpy(np.float64, na_value=np.nan) for name in row]
    for name, values, estimate in zip(row, columns, estimates, strict=True):
        if not np.isfinite(values).all() or not np.isclose(values[0], estimate[0], rtol=1e-6):
            raise Malformed(f"its draws are damaged or belong to another law: column {name}")
    return columns


def surface_info(surface: Surface) -> SurfaceInfo:
    """Return the part of the surface that is stored in the law's document."""
    model = surface.model
    low, high = (bound if math.isfinite(bound) else None for bound in surface.bounds)
    start = (model.start.reward, model.start.standard_error)
    mode = tuple(surface.mode.tolist())
    return SurfaceInfo(model.observations.to_dict(), mode, surface.effective, (low, high), start)


def _surface_columns(surface: Surface) -> dict[str, np.ndarray]:
    """Return the surface's columns for the table of draws; row 0 contains the most likely θ."""
    theta = np.vstack([surface.mode, surface.theta[surface.of_draw]])
    columns = {f"surface.{name}": values for name, values in zip(surface.model.names, theta.T, strict=True)}
    return {**columns, "surface.theta": np.append(-1, surface.of_draw)}


def _read_surface(
    stored: SurfaceInfo | None, draws: pd.DataFrame | None, seed: int, unit: float
) -> Surface | None:
    """Restore the surface from the results of `surface_info` and `_surface_columns`.

    Without draws, the surface is the mean at the most likely θ.

    Raises
    ------
    Malformed
        the observations or hyperparameters do not describe a surface, or the draws belong to another one.
    """
    if stored is None:
        return None
    low, high = stored.bounds
    bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    mode = np.array(stored.theta)
    try:
        observations = Observations.from_dict(stored.observations)
        model = StructuralModel(
            observations, InitialReward(*stored.start), Link.for_rewards(bounds, unit, observations.reward)
        )
        is_finite = np.isfinite(model.data_covariance(mode)[0]).all() and np.isfinite(model.y).all()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(f"surface: {error}") from None
    if not is_finite:
        raise Malformed("surface: found values that are not finite")
    row = dict(zip((f"surface.{name}" for name in model.names), mode.tolist(), strict=True))
    *columns, index = _columns_with(row | {"surface.theta": -1.0}, draws)
    theta, of_draw = mode[None], np.empty(0, dtype=np.int64)
    if index.size > 1:
        _, first, of_draw = np.unique(index[1:], return_index=True, return_inverse=True)
        theta = np.stack(columns, axis=1)[1:][first]
    return Surface(model, mode, theta, of_draw.astype(np.int64), seed, stored.effective, unit)
