"""Store and restore a surface: its observations in the law's document, its θ in the file of draws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from isolaw.fits.document.codec import Malformed
from isolaw.fits.document.schema import SurfaceInfo
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.observations import Observations
from isolaw.fits.surface.process import Process

_SHARES = ("shift", "rise", "cut")


def info(surface: Surface) -> SurfaceInfo:
    """Return the part of the surface that is stored in the law's document."""
    low, high = (v if math.isfinite(v) else None for v in surface.bounds)
    observations = surface.process.observations.to_dict()
    return SurfaceInfo(observations, tuple(surface.mode.tolist()), surface.misfit, (low, high))


def columns(surface: Surface) -> dict[str, np.ndarray]:
    """Return the surface's columns for the table of draws; row 0 contains the most likely θ."""
    names = [f"surface.{name}" for name in (*surface.process.names, *_SHARES)]
    held = np.column_stack([surface.theta, surface.shares])
    _, of_draw = np.unique(surface.of_draw, return_inverse=True)  # as `restored` numbers them
    rows = np.vstack([np.append(surface.mode, np.full(len(_SHARES), 0.5)), held[surface.of_draw]])
    return {**dict(zip(names, rows.T, strict=True)), "surface.theta": np.append(-1, of_draw)}


def restored(stored: SurfaceInfo | None, draws: pd.DataFrame, seed: int, unit: float = 1.0) -> Surface | None:
    """Restore the surface from the results of `info` and `columns`.

    Without draws, the surface is the mean at the most likely θ.

    Raises
    ------
    Malformed
        the observations or hyperparameters do not describe a surface.
    """
    if stored is None:
        return None
    try:
        process = Process(Observations.from_dict(stored.observations))
        fits = np.isfinite(process.observed(process.named(np.array(stored.theta)))).all()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(f"surface: {error}") from None
    if not (fits and np.isfinite(process.y).all()):
        raise Malformed("surface: found values that are not finite")
    bounds = tuple(v if v is not None else s * math.inf for v, s in zip(stored.bounds, (-1, 1), strict=True))
    mode = np.array(stored.theta)
    surface = Surface(
        process, mode, mode[None], np.full((1, len(_SHARES)), 0.5), np.empty(0, np.int64), seed,
        stored.misfit, (bounds[0], bounds[1]), unit,
    )  # fmt: skip
    names = [f"surface.{name}" for name in (*process.names, *_SHARES)]
    if len(draws) < 2 or not set(names) <= set(draws.columns):
        return surface
    own = draws.iloc[1:]
    _, first, of_draw = np.unique(own["surface.theta"].to_numpy(), return_index=True, return_inverse=True)
    held = own[names].to_numpy(np.float64)[first]
    if not np.isfinite(held).all():
        raise Malformed("surface: found draws that are not finite")
    size = len(process.names)
    return replace(surface, theta=held[:, :size], shares=held[:, size:], of_draw=of_draw.astype(np.int64))
