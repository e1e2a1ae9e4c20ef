"""Provide the resampling functions that allocation laws and the model-size law share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.selection import Floats

# Larger factors from Student's t would distort fitted curves without affecting any quantile.
_MOST_INFLATED = 10.0


def inflation(freedom: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return draws of √(ν/χ²_ν), the factor that turns a normal draw into Student's t with ν = ``freedom``.

    The array has shape (draws,).
    """
    if freedom < 1:
        return np.zeros(draws)
    return np.minimum(np.sqrt(freedom / rng.chisquare(freedom, draws)), _MOST_INFLATED)


def block_index(size: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return resampled checkpoint indices of shape (draws, size), in circular blocks of about size^(1/3)."""
    length = max(1, round(size ** (1 / 3)))
    starts = rng.integers(0, size, (draws, -(-size // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, :size] % size
