"""`LawDocument`: what a fit found, as it stands in ``law.json``; docs/formats.md says what the keys mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isolaw.fits.document.codec import decoded, encoded
from isolaw.fits.document.flags import Flag
from isolaw.fits.quantity import Interval, Quantity, Status

FORMAT = "isolaw.law/2"


@dataclass(frozen=True)
class Axis:
    """What a budget counts, whether the law is in its log10, and the range in which the frontier is drawn."""

    name: Literal["compute", "tokens", "wall_s", "steps"]
    unit: str
    log10: bool
    range: tuple[float, float]


@dataclass(frozen=True)
class GridEntry:
    """A configuration: its runs and checkpoints, what a step costs, first and last compute measured."""

    problems_per_batch: int
    rollouts_per_problem: int
    runs: int
    checkpoints: int
    step_cost: float
    measured: tuple[float, float]


BoundBy = Literal["grid_edge", "neighbour"]


@dataclass(frozen=True)
class FrontierPoint:
    """n* at one x.

    Attributes
    ----------
    n_star, n_star_strict, n_star_tolerance
        the method's n*; the n of the highest curve; the smallest n within 0.005 of it.
    band
        of the family that holds 95 % of the drawn n* at every x at once; an open end is None.
    reward
        at n*.
    censored, censored_by
        whether n* is only a bound, and why: an end of the grid, or a neighbouring n that was not measured.
    """

    x: float
    n_star: Quantity
    band: Interval | None
    n_star_strict: int
    n_star_tolerance: int
    reward: Quantity
    censored: bool
    censored_by: tuple[BoundBy, ...]


@dataclass(frozen=True)
class Crossing:
    """Where the curve of one n overtakes that of another; ``supported`` where both were measured there."""

    from_: int
    to: int
    x: float | None
    supported: bool
    interval: Interval | None
    status: Status


@dataclass(frozen=True)
class CurveEntry:
    """The learning curve of a configuration.

    Attributes
    ----------
    parameters
        by name, as the curve family has them.
    ceiling
        whether what was measured determines it.
    rms, late
        of the residuals; mean reward less curve, from a quarter of its compute on.
    """

    problems_per_batch: int
    rollouts_per_problem: int
    parameters: dict[str, Quantity]
    ceiling: Literal["seen", "open"]
    rms: float
    late: float
    measured: tuple[float, float]


@dataclass(frozen=True)
class DrawsInfo:
    """What was drawn and how often, how many draws failed and why, and the file that holds them.

    ``unit`` is what the draws resample: runs; where there is one of each, its distance from a smooth surface
    over n (``lack of fit``), or blocks of its residuals.
    """

    unit: Literal["run", "lack of fit", "block"]
    draws: int
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    file: str | None = None


@dataclass(frozen=True)
class Regret:
    """What a rule loses in reward."""

    mean_regret: float
    max_regret: float


@dataclass(frozen=True)
class ConstantRule(Regret):
    """What the best constant n loses."""

    n: int


@dataclass(frozen=True)
class LawEntry(Regret):
    """One of the laws compared: θ along n* (empty in some laws of version 1) and its intervals.

    ``better`` is the share of draws in which it loses less than each other law.
    """

    theta: tuple[float, ...]
    interval: tuple[tuple[float, float], ...] | None
    better: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FamilyFit:
    """How well a curve family fits all checkpoints."""

    rms: float
    aicc: float


@dataclass(frozen=True)
class Comparison:
    """Which law holds, and what it is worth.

    Attributes
    ----------
    constant, logistic
        what the best constant n and the logistic lose on the fitted curves; None where they do not exist.
    monotone
        False where n* comes down again; of a surface, where it does in 95 % of draws.
    verdict
        the law that is worth having; ``constant`` where one n loses at most 0.005 anywhere; ``no law``. None
        where it is refused, and where draws prefer none.
    laws
        by name; empty where laws were not compared.
    preferred
        of those; None where none were compared, and where a preference is refused.
    falls, levels_off
        of a surface: the share of draws in which n* comes down again, and in which it rises and levels off.
    refused, seeds
        why no preference is stated, if none is; the fewest runs of a configuration.
    curves
        by curve family.
    """

    constant: ConstantRule | None
    logistic: Regret | None
    monotone: bool
    verdict: str | None
    laws: dict[str, LawEntry] = field(default_factory=dict)
    preferred: str | None = None
    falls: float | None = None
    levels_off: float | None = None
    refused: Literal["few_seeds"] | None = None
    seeds: int = 0
    curves: dict[str, FamilyFit] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchHealth:
    """The runs of one B_p: how many were judged, how many are healthy; why it is not stable, if not."""

    problems_per_batch: int
    share_healthy: Quantity
    healthy: int
    judged: int
    reason: str | None


@dataclass(frozen=True)
class HealthInfo:
    """The smallest stable B_p, the health at each, and the number of runs that cannot be judged."""

    smallest_stable: Quantity
    batches: tuple[BatchHealth, ...]
    unknown: int


@dataclass(frozen=True)
class SurfaceInfo:
    """What the surface is made of, its draws aside (`isolaw.fits.surface`).

    ``observations`` as in `Observations.to_dict`, ``theta`` the most likely hyperparameters, ``misfit`` by
    how much draws are wider for lack of fit, ``bounds`` of the reward.
    """

    observations: dict[str, Any]
    theta: tuple[float, ...]
    misfit: float
    bounds: tuple[float | None, float | None]


@dataclass(frozen=True)
class LawDocument:
    """What a fit found: the content of ``law.json``."""

    setting: Literal["fixed-bp", "fixed-b", "joint"]
    fixed: dict[str, Any]
    metric: str
    eval_set: str
    method: Literal["surface", "paper"]
    curve: Literal["exp", "hill", "power"]
    records: float | None
    robust: bool
    x: Axis
    grid: tuple[GridEntry, ...]
    sources: tuple[str, ...]
    n_train_problems: int | None
    epochs_seen: float | None
    params: dict[str, Quantity]
    frontier: tuple[FrontierPoint, ...]
    crossovers: tuple[Crossing, ...]
    curves: tuple[CurveEntry, ...]
    bootstrap: DrawsInfo
    comparison: Comparison
    health: HealthInfo
    surface: SurfaceInfo | None = None
    flags: tuple[Flag, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data without NaN."""
        return {"format": FORMAT, **encoded(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LawDocument:
        """Invert `to_dict`; raise `Malformed` where something is missing or of another type."""
        return decoded(cls, data)


@dataclass(frozen=True)
class StandardErrors:
    """Of least squares, on the assumption that ``label`` names; None where the points determine none."""

    label: str
    b: float | None
    L: float | None
    k: float | None
    x0: float | None


@dataclass(frozen=True)
class PointsDocument:
    """The law of ready-made points, which has no curves: the other content that ``law.json`` may have."""

    x: Axis
    points: int
    params: dict[str, Quantity]
    standard_errors: StandardErrors
    sse: float
    sources: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {"format": FORMAT, "method": "points", **encoded(self)}
