"""Select record points: the first checkpoint in each higher bin of reward (arXiv 2603.12151, section 4).

With bins floor((value + ε) / w) of width w, where ε = 2e-7 w allows for rounding, a run keeps the checkpoints
in bins above all earlier bins. This selection favours high values, so record points overestimate a noisy
curve. ``--records off`` fits all checkpoints.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDTH = 0.005


def record_mask(reward: NDArray[np.float64], width: float = WIDTH) -> NDArray[np.bool_]:
    """Return a mask of the checkpoints that are record points.

    ``reward`` has shape (..., checkpoints), in order of compute; leading axes are separate curves.
    ``width`` is w, in units of reward.

    >>> record_mask(np.array([0.500, 0.503, 0.506, 0.499, 0.512]))
    array([ True, False,  True, False,  True])
    """
    bins = np.floor((reward + 1e-9 * (width / WIDTH)) / width)
    best = np.maximum.accumulate(bins, axis=-1)
    mask = np.ones(reward.shape, dtype=bool)
    mask[..., 1:] = bins[..., 1:] > best[..., :-1]
    return mask
