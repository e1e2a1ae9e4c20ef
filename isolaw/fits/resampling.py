"""Resampling primitives shared by allocation laws and the model-size law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.selection import Floats

# Larger factors from Student's t would distort fitted curves and affect no quantile.
_MOST_INFLATED = 10.0


def inflation(freedom: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return √(ν/χ²_ν), (draws,), the factor from a normal draw to Student's t with ν = ``freedom``."""
    if freedom < 1:
        return np.zeros(draws)
    return np.minimum(np.sqrt(freedom / rng.chisquare(freedom, draws)), _MOST_INFLATED)


def block_index(size: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return resampled checkpoint indices, (draws, size), in circular blocks of about size^(1/3)."""
    length = max(1, round(size ** (1 / 3)))
    starts = rng.integers(0, size, (draws, -(-size // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, :size] % size
