"""Problem sets of the interference population: initial success, and what problems share.

A problem set is drawn from its seed alone, so that every configuration of a sweep meets the same
problems (common random numbers). Training and validation problems come from separate streams: a
smaller training set is a prefix of a larger one, before the same validation set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Initial success probabilities p of the paper's sets (arXiv 2603.12151): easy is avg@16 in
# [0.3, 0.6], hard in [0, 0.0625]; the shapes within those ranges are the simulator's assumption.
INITIAL_SUCCESS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "easy": lambda rng, size: rng.uniform(0.3, 0.6, size),
    "hard": lambda rng, size: 0.0625 * rng.beta(0.6, 1.5, size) + 5e-4,
}
# A fixed number for each name keys the random streams; never renumber.
_STREAM = {"easy": 1, "hard": 2}
_TRAIN, _VALIDATION, _ORDER = range(3)


@dataclass(frozen=True)
class ProblemSet:
    """Training and validation problems.

    Attributes
    ----------
    b, b_val
        initial success logits, shapes (D,) and (V,).
    phi, phi_val
        features, shapes (D, r) and (V, r).
    """

    b: Floats
    phi: Floats
    b_val: Floats
    phi_val: Floats


def spectrum(r: int) -> Floats:
    """Return spec², the variances of the r shared directions: ∝ 1/k, summing to 1."""
    k = np.arange(1, r + 1)
    return np.asarray((1 / k) / np.sum(1 / k))


def stream(seed: int, name: str, part: int) -> np.random.Generator:
    """Return the random stream of one part of problem set ``name`` under ``seed``."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAM[name], part)))


def order_stream(seed: int, name: str) -> np.random.Generator:
    """Return the stream that shuffles the training problems, common to all configurations."""
    return stream(seed, name, _ORDER)


@lru_cache(maxsize=4)
def population(
    name: str, seed: int, n_train: int, n_validation: int, s: float, m: float, r: int
) -> ProblemSet:
    """Draw a problem set.

    Features are φ_ik = m/k + s·x_ik with x_ik ~ N(0, spec_k²): a common mean direction, by which
    learning one problem helps all, and individual ones, by which problems help or disturb each other.

    Parameters
    ----------
    name
        a key of `INITIAL_SUCCESS`.
    seed
        the run's seed.
    n_train, n_validation
        D and V.
    s, m
        strength of the individual and of the common part.
    r
        number of shared directions.

    >>> p = population("easy", seed=0, n_train=10, n_validation=5, s=1.5, m=0.3, r=8)
    >>> p.phi.shape, p.b_val.shape
    ((10, 8), (5,))
    """
    k = np.arange(1, r + 1)
    scale = s * np.sqrt(spectrum(r))

    def draw(part: int, size: int) -> tuple[Floats, Floats]:
        success, features = stream(seed, name, part).spawn(2)
        p = INITIAL_SUCCESS[name](success, size)
        phi = m / k + scale * features.standard_normal((size, r))
        return np.log(p / (1 - p)), phi

    b, phi = draw(_TRAIN, n_train)
    b_val, phi_val = draw(_VALIDATION, n_validation)
    return ProblemSet(b, phi, b_val, phi_val)
