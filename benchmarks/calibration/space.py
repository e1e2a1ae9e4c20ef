"""Define the constants that a calibration varies, and their prior.

Each constant is a function of its own coordinate x. The coordinates are standard normal and independent a
priori:

    log    value = centre · exp(sd · x)                for positive constants
    logit  value = σ(logit(centre) + sd · x)           for shares, with σ the logistic function

The prior has 5 % of its mass at |x| > 2, and excludes |x| > 3. The centres are round numbers between the
values of three presets set by hand. Most standard deviations allow a factor of 10 in either direction. The
prior is wide because the runs of one model say little about another model.

Before training, the success probabilities of problems follow Beta(μ ν, (1 − μ) ν). isolaw estimates the mean
μ and the concentration ν, with their uncertainty, from the runs' evaluations before the first step
(`benchmarks.calibration.observed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import expit, logit

from isolaw.simulators.interference import InterferenceParameters
from isolaw.simulators.model import Floats
from isolaw.simulators.problems import Difficulty, difficulty

BOUND = 3.0  # limit of |x|
EDGE = 2.0  # a constant with a larger |x| is at the edge of its prior
IDENTIFIED = 0.5  # a constant is identified if the posterior standard deviation of its x is smaller
# Limits of ν: neither do all problems have one success probability, nor is each problem always or never
# solved.
_WIDEST, _NARROWEST = 0.05, 1000.0


@dataclass(frozen=True)
class Coordinate:
    """One constant with its prior. ``kind`` is ``log`` or ``logit``, as in the module's docstring."""

    name: str
    kind: Literal["log", "logit"]
    centre: float
    sd: float
    meaning: str

    def value(self, x: Any) -> Any:
        """Return the constant at ``x``, an array of any shape."""
        if self.kind == "log":
            return self.centre * np.exp(self.sd * x)
        return expit(logit(self.centre) + self.sd * x)


CONSTANTS = (
    Coordinate("lr", "log", 0.01, 1.5, "η, the learning rate at B = 1"),
    Coordinate("kl", "log", 0.2, 1.2, "β, the weight of the KL penalty"),
    Coordinate("sigma2", "log", 600.0, 1.3, "σ², the noise of a rollout's gradient"),
    Coordinate("rho", "logit", 0.3, 1.0, "ρ, the share of this noise in right answers"),
    Coordinate("kappa", "log", 8.0, 1.3, "κ, the memorization of single training problems"),
    Coordinate("s", "log", 0.9, 0.6, "s, the strength of interference between problems"),
    Coordinate("m", "log", 0.25, 0.8, "m, the part that all problems share"),
    Coordinate("c", "log", 0.006, 1.2, "c, the cost of drift"),
    Coordinate("q", "logit", 0.7, 1.0, "q, from SGD (0) to Adam (1)"),
)
_MEAN, _SPREAD = "mean", "spread"


@dataclass(frozen=True)
class Beforehand:
    """The problems' success before training: estimates of μ and ν with their standard deviations.

    ``mean_sd`` is in logits of μ, and ``spread_sd`` in natural logs of ν.
    """

    mean: float
    mean_sd: float
    spread: float
    spread_sd: float


@dataclass(frozen=True)
class Space:
    """The coordinates that a calibration varies.

    If the difficulty of the problems is known, ``problems`` contains its name
    (`isolaw.simulators.problems.difficulty`), and the calibration does not vary it. If the runs had no KL
    penalty, there is no coordinate ``kl``.
    """

    coordinates: tuple[Coordinate, ...]
    problems: str | None = None

    @classmethod
    def of(cls, difficulty: Beforehand | str, kl: bool) -> Space:
        """Return the coordinates for runs of this difficulty, with or without a KL penalty."""
        constants = tuple(c for c in CONSTANTS if kl or c.name != "kl")
        if isinstance(difficulty, str):
            return cls(constants, difficulty)
        d = difficulty
        more = (
            Coordinate(_MEAN, "logit", d.mean, d.mean_sd, "μ, success before training"),
            Coordinate(
                _SPREAD, "log", d.spread, d.spread_sd, "ν, the concentration of this success over problems"
            ),
        )
        return cls(constants + more)

    @property
    def size(self) -> int:
        """d, the number of coordinates."""
        return len(self.coordinates)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates, in order."""
        return tuple(c.name for c in self.coordinates)

    def values(self, x: Floats) -> dict[str, float]:
        """Return the constants at the point ``x``, of shape (d,)."""
        return {c.name: float(c.value(at)) for c, at in zip(self.coordinates, x, strict=True)}

    def member(self, x: Floats) -> dict[str, Any]:
        """Return the constants at the point ``x``, and the problem set as ``problems``."""
        values = self.values(x)
        return {**values, "problems": self.problems_of(values)}

    def problems_of(self, values: Mapping[str, float]) -> str:
        """Return the problem set with these constants, in the form that ``problems.set`` accepts."""
        if self.problems is not None:
            return self.problems
        mean, spread = values[_MEAN], float(np.clip(values[_SPREAD], _WIDEST, _NARROWEST))
        return f"beta({mean * spread:.6g},{(1 - mean) * spread:.6g})"


def parameters(values: Mapping[str, float]) -> InterferenceParameters:
    """Return the parameters of a population with these constants, in which all problems share η and β."""
    lr, kl = values["lr"], values.get("kl", 0.0)
    others: dict[str, Any] = {name: values[name] for name in ("q", "sigma2", "rho", "kappa", "s", "m", "c")}
    return InterferenceParameters(**others, lr_easy=lr, lr_hard=lr, kl_easy=kl, kl_hard=kl)


def arguments_of(member: Mapping[str, Any], seed: int) -> tuple[InterferenceParameters, Difficulty, int]:
    """Return the arguments with which `Protocol.simulate` simulates a member of an ensemble."""
    return parameters(member), difficulty(str(member["problems"])), seed
