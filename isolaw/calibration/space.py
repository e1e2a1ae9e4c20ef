"""What a calibration varies: the constants of the interference population, and what was believed before.

Each constant is a standard normal coordinate x of its own, and independent of the others beforehand:

    log    value = centre · exp(sd · x)                for what is positive
    logit  value = σ(logit(centre) + sd · x)           for what is a share

so a coordinate with |x| > 2 is one that only 5 % of the prior has, and |x| > 3 is excluded. Centres are round
numbers between those of three hand-made presets, and the standard deviations allow factors of 10 either way
for most: wide on purpose, since runs of one model are no prior for another.

The difficulty of problems before training is Beta(μ ν, (1 − μ) ν), its mean μ and its ν from what the runs
measured before their first step (`isolaw.calibration.observed`), with the uncertainty that leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import expit, logit

from isolaw.simulators.interference import InterferenceParameters
from isolaw.simulators.model import Floats

BOUND = 3.0  # of |x|: nothing beyond is considered
EDGE = 2.0  # |x| beyond which a constant is at the edge of what was believed before
IDENTIFIED = 0.5  # a standard deviation of x below which the runs have told more than the prior
# Of Beta(μ ν, (1 − μ) ν): neither all problems alike nor all either solved or not.
_WIDEST, _NARROWEST = 0.05, 1000.0


@dataclass(frozen=True)
class Coordinate:
    """One constant and its prior: ``kind`` as in the module's docstring; ``meaning`` for a reader."""

    name: str
    kind: Literal["log", "logit"]
    centre: float
    sd: float
    meaning: str

    def value(self, x: Any) -> Any:
        """Return the constant at x, of any shape."""
        if self.kind == "log":
            return self.centre * np.exp(self.sd * x)
        return expit(logit(self.centre) + self.sd * x)


CONSTANTS = (
    Coordinate("lr", "log", 0.01, 1.5, "η, the learning rate at B = 1"),
    Coordinate("kl", "log", 0.2, 1.2, "β, the weight of the KL penalty"),
    Coordinate("sigma2", "log", 600.0, 1.3, "σ², the noise of a rollout's gradient"),
    Coordinate("rho", "logit", 0.3, 1.0, "ρ, its share in right answers"),
    Coordinate("kappa", "log", 8.0, 1.3, "κ, memory of single training problems"),
    Coordinate("s", "log", 0.9, 0.6, "s, how much problems help or disturb each other"),
    Coordinate("m", "log", 0.25, 0.8, "m, what all problems have in common"),
    Coordinate("c", "log", 0.006, 1.2, "c, the price of drift"),
    Coordinate("q", "logit", 0.7, 1.0, "q, from SGD (0) to Adam (1)"),
)
_MEAN, _SPREAD = "mean", "spread"


@dataclass(frozen=True)
class Beforehand:
    """What is known of the problems' success before training: μ and ν with standard deviations.

    ``mean_sd`` is in logits, ``spread_sd`` in logarithms.
    """

    mean: float
    mean_sd: float
    spread: float
    spread_sd: float


@dataclass(frozen=True)
class Space:
    """The coordinates of a calibration.

    ``problems`` names a set (`isolaw.simulators.problems.difficulty`) where the difficulty is known and is
    not varied; ``kl`` is β where the runs had none.
    """

    coordinates: tuple[Coordinate, ...]
    problems: str | None = None

    @classmethod
    def of(cls, difficulty: Beforehand | str, kl: bool) -> Space:
        """Return the space for runs of this difficulty, with or without a KL penalty."""
        constants = tuple(c for c in CONSTANTS if kl or c.name != "kl")
        if isinstance(difficulty, str):
            return cls(constants, difficulty)
        d = difficulty
        more = (
            Coordinate(_MEAN, "logit", d.mean, d.mean_sd, "μ, success before training"),
            Coordinate(_SPREAD, "log", d.spread, d.spread_sd, "ν, how alike problems are in it"),
        )
        return cls(constants + more)

    @property
    def size(self) -> int:
        """The number of coordinates, d."""
        return len(self.coordinates)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(c.name for c in self.coordinates)

    def values(self, x: Floats) -> dict[str, float]:
        """Return the constants at one point, shape (d,)."""
        return {c.name: float(c.value(at)) for c, at in zip(self.coordinates, x, strict=True)}

    def problems_of(self, values: Mapping[str, float]) -> str:
        """Return the problem set of these constants, as ``problems.set`` takes it."""
        if self.problems is not None:
            return self.problems
        mean, spread = values[_MEAN], float(np.clip(values[_SPREAD], _WIDEST, _NARROWEST))
        return f"beta({mean * spread:.6g},{(1 - mean) * spread:.6g})"


def parameters(values: Mapping[str, float]) -> InterferenceParameters:
    """Return the population with these constants, one η and one β for all problems."""
    lr, kl = values["lr"], values.get("kl", 0.0)
    own: dict[str, Any] = {name: values[name] for name in ("q", "sigma2", "rho", "kappa", "s", "m", "c")}
    return InterferenceParameters(**own, lr_easy=lr, lr_hard=lr, kl_easy=kl, kl_hard=kl)
