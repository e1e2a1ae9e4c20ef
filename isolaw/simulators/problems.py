"""Draw problem sets: success probabilities before training, and the features that problems share.

A problem set depends only on its seed, so all configurations of a sweep share it (common random numbers).
Training and validation problems have separate random streams. A smaller training set is therefore a prefix of
a larger training set, and both have the same validation set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from isolaw.errors import Issue, SpecError, nearest
from isolaw.simulators.model import Floats

# Initial success probabilities p of the paper's sets (arXiv 2603.12151). avg@16 is in [0.3, 0.6] on the easy
# set and in [0, 0.0625] on the hard set; the extremely hard set has pass@128 = 0. The shapes are assumed.
NAMED: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "easy": lambda rng, size: rng.uniform(0.3, 0.6, size),
    "hard": lambda rng, size: 0.0625 * rng.beta(0.6, 1.5, size) + 5e-4,
    "extremely-hard": lambda rng, size: 0.006 * rng.beta(0.5, 2.0, size) + 1e-4,
}
_MEANS = {"easy": 0.45, "hard": 0.0625 * 0.6 / 2.1 + 5e-4, "extremely-hard": 0.006 * 0.5 / 2.5 + 1e-4}
_EASY_FROM = 0.3
_P_MARGIN = 1e-6  # limit of p from 0 and 1, since the logit must be finite
_BETA = re.compile(r"beta\(([^,()]+),([^,()]+)\)")
# Keys of the random streams; never renumber them.
_STREAM_KEYS = {"easy": 1, "hard": 2, "extremely-hard": 3}
_FIRST_OTHER_KEY = 4
TRAIN, VALIDATION, ORDER = range(3)


@dataclass(frozen=True)
class Difficulty:
    """The distribution of problems' success probability before training, as a mixture.

    ``weights`` are the shares of the components, which sum to 1. Each component in ``parts`` is a key of
    `NAMED`, or the two parameters of a beta distribution.
    """

    weights: tuple[float, ...]
    parts: tuple[str | tuple[float, float], ...]

    @property
    def easy(self) -> bool:
        """Whether the mean p is at least 0.3, so that the paper's recipe for the easy set is the default."""
        return float(np.dot(self.weights, [_part_mean(part) for part in self.parts])) >= _EASY_FROM

    def stream(self, seed: int, purpose: int) -> np.random.Generator:
        """Return the random stream for ``seed`` and a part of the set: `TRAIN`, `VALIDATION` or `ORDER`."""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            key = _STREAM_KEYS[self.parts[0]]
        else:
            digest = hashlib.sha256(repr((self.weights, self.parts)).encode()).digest()
            key = _FIRST_OTHER_KEY + int.from_bytes(digest[:4], "big")
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key, purpose)))

    def sample(self, rng: np.random.Generator, size: int) -> Floats:
        """Draw p of ``size`` problems. A smaller ``size`` gives the beginning of the same draws."""
        component_stream, *streams = rng.spawn(1 + len(self.parts))
        draws = [_draw_part(part, stream, size) for part, stream in zip(self.parts, streams, strict=True)]
        component = np.searchsorted(np.cumsum(self.weights)[:-1], component_stream.random(size), side="right")
        return np.asarray(np.stack(draws)[component, np.arange(size)])


def _beta(name: str) -> tuple[float, float] | None:
    """Return a and b of a name ``beta(a,b)``, or None for any other name."""
    match = _BETA.fullmatch(name)
    try:
        a, b = (float(number) for number in match.groups()) if match else (0.0, 0.0)
    except ValueError:
        return None
    return (a, b) if 0 < a < np.inf and 0 < b < np.inf else None


def _part_mean(part: str | tuple[float, float]) -> float:
    return _MEANS[part] if isinstance(part, str) else part[0] / sum(part)


def _draw_part(part: str | tuple[float, float], rng: np.random.Generator, size: int) -> Floats:
    if isinstance(part, str):
        return NAMED[part](rng, size)
    return np.clip(rng.beta(*part, size), _P_MARGIN, 1 - _P_MARGIN)


def difficulty(text: str) -> Difficulty:
    """Return the distribution that a value of ``problems.set`` describes.

    The value is the name of a set, ``beta(a,b)``, or a mixture such as ``0.5 easy + 0.5 hard``. Raises
    `SpecError` for unknown names, and for shares that do not sum to 1.

    >>> difficulty("0.25 easy + 0.75 hard").weights
    (0.25, 0.75)
    >>> difficulty("esay")
    Traceback (most recent call last):
    isolaw.errors.SpecError: problems.set: no such problem set; found 'esay' (did you mean 'easy'?)
    """
    weights: list[float] = []
    parts: list[str | tuple[float, float]] = []
    issues = []
    for written in text.split("+"):
        term = re.fullmatch(r"(?:(\d+\.?\d*|\d*\.\d+)(e-?\d+)?\s+)?(\S+)", written.replace(", ", ",").strip())
        name = term[3] if term else written.strip()
        beta = _beta(name)
        if beta is not None or name in NAMED:
            weights.append(float(f"{term[1]}{term[2] or ''}") if term and term[1] else 1.0)
            parts.append(name if beta is None else beta)
        else:
            close = nearest(name, NAMED)
            accepted = (
                "" if close else f"{', '.join(NAMED)}, beta(a,b), or shares of them (0.5 easy + 0.5 hard)"
            )
            issues.append(Issue("problems.set", "no such problem set", name, accepted, close))
    if not issues and abs(sum(weights) - 1.0) >= 1e-6:
        issues.append(Issue("problems.set", found=text, accepted="shares that sum to 1"))
    if issues:
        raise SpecError(issues)
    return Difficulty(tuple(weights), tuple(parts))


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of a population, named after the symbols in `interference`.

    ``sigma2`` is σ², the variance of styles summed over all directions. ``rho`` is ρ, the style variance of
    right answers relative to wrong answers. ``s`` and ``m`` are the strengths of the individual part and of
    the common part of the features φ, which have ``r`` directions.
    """

    q: float
    sigma2: float
    s: float
    m: float
    kl_easy: float
    kl_hard: float
    lr_easy: float
    lr_hard: float
    rho: float = 0.3
    r: int


@dataclass(frozen=True)
class Population:
    """The initial success logits and the features of D training and V validation problems.

    The logits ``b`` have shape (D,) and the features ``phi`` shape (D, r). For validation, the shapes are
    (V,) and (V, r).
    """

    b: Floats
    phi: Floats
    b_val: Floats
    phi_val: Floats


@lru_cache(maxsize=8)  # consecutive runs share a seed
def population(
    difficulty: Difficulty, seed: int, n_train: int, n_validation: int, s: float, m: float, r: int
) -> Population:
    """Draw D = ``n_train`` training problems and V = ``n_validation`` validation problems.

    Features are φ_ik = m/k + s·x_ik with x_ik ~ N(0, spec_k²), where spec_k² ∝ 1/k sums to 1 over the r
    shared directions k. Because of the common part m/k, training on one problem helps all others. Through the
    individual part, problems help or disturb each other.

    >>> p = population(difficulty("easy"), seed=0, n_train=10, n_validation=5, s=1.5, m=0.3, r=8)
    >>> p.phi.shape, p.b_val.shape
    ((10, 8), (5,))
    """
    k = np.arange(1, r + 1)
    scale = s * np.sqrt((1 / k) / np.sum(1 / k))

    def draw(purpose: int, size: int) -> tuple[Floats, Floats]:
        success_stream, feature_stream = difficulty.stream(seed, purpose).spawn(2)
        p = difficulty.sample(success_stream, size)
        phi = m / k + scale * feature_stream.standard_normal((size, r))
        return np.log(p / (1 - p)), phi

    b, phi = draw(TRAIN, n_train)
    b_val, phi_val = draw(VALIDATION, n_validation)
    return Population(b, phi, b_val, phi_val)
