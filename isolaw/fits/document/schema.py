"""`LawDocument`: the content of ``law.json``, as documented in docs/formats.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isolaw.evidence import Simulated
from isolaw.fits.cell import AxisName, Cell
from isolaw.fits.document.codec import decoded, encoded
from isolaw.fits.flags import Flag, simulated_by
from isolaw.fits.quantity import Interval, Quantity, Status

FORMAT = "isolaw.law/2"


@dataclass(frozen=True)
class Axis:
    """What a budget counts, whether the law is in its log10, and the range of the frontier."""

    name: Literal["compute", "tokens", "wall_s", "steps"]
    unit: str
    log10: bool
    range: tuple[float, float]


@dataclass(frozen=True)
class GridEntry(Cell):
    """A configuration: its runs and checkpoints, what a step costs, first and last measured compute."""

    runs: int
    checkpoints: int
    step_cost: float
    measured: tuple[float, float]

    @property
    def end(self) -> float:
        """The compute to which the reward of the last step lasts: that of the next step."""
        return self.measured[1] + self.step_cost


BoundBy = Literal["grid_edge", "neighbour"]


@dataclass(frozen=True)
class FrontierPoint:
    """n* at one x."""

    x: float
    n_star: Quantity  # by the method
    band: Interval | None  # of the bands that hold 95 % of drawn n* at every x at once
    n_star_strict: int  # the n of the highest curve
    n_star_tolerance: int  # the smallest n within 0.005 of it
    reward: Quantity  # at n*
    censored: bool  # n* is only a bound
    censored_by: tuple[BoundBy, ...]  # an end of the grid, or a neighbouring n without measurements


@dataclass(frozen=True)
class Crossing:
    """Where the curve of one n overtakes another's; ``supported`` where both were measured there."""

    from_: int
    to: int
    x: float | None
    supported: bool
    interval: Interval | None
    status: Status


@dataclass(frozen=True)
class CurveEntry(Cell):
    """The learning curve of a configuration."""

    parameters: dict[str, Quantity]  # by the names of the curve family
    ceiling: Literal["seen", "open"]  # whether the checkpoints determine it
    rms: float  # of the residuals
    late: float  # mean reward less curve, from a quarter of the compute on
    measured: tuple[float, float]


@dataclass(frozen=True)
class DrawsInfo:
    """How many draws a fit made, how many failed and why, and the file that holds them."""

    # What draws resample. With one run each: distances from a smooth surface over n, or blocks of residuals.
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
    """A compared law."""

    theta: tuple[float, ...]  # along n*; empty in some laws of version 1
    interval: tuple[tuple[float, float], ...] | None
    better: dict[str, float] = field(default_factory=dict)  # share of draws in which it loses less, by law


@dataclass(frozen=True)
class FamilyFit:
    """How well a curve family fits all checkpoints."""

    rms: float
    aicc: float


@dataclass(frozen=True)
class Comparison:
    """Which law holds, and what it is worth."""

    constant: ConstantRule | None  # on the fitted curves or surface
    logistic: Regret | None
    monotone: bool  # False where n* comes down again; of a surface, where it does in 95 % of draws
    # The law worth having: ``constant`` where one n loses at most 0.005 anywhere; ``no law``; None where
    # draws prefer none, or a preference is refused.
    verdict: str | None
    laws: dict[str, LawEntry] = field(default_factory=dict)
    preferred: str | None = None
    falls: float | None = None  # share of draws in which n* comes down again
    levels_off: float | None = None  # share of draws in which it rises and levels off
    refused: Literal["few_seeds"] | None = None
    seeds: int = 0  # the fewest runs of a configuration
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
    """What the surface is made of, its draws aside (`isolaw.fits.surface`)."""

    observations: dict[str, Any]  # as in `Observations.to_dict`
    theta: tuple[float, ...]  # the most likely hyperparameters
    misfit: float  # by how much draws are wider for lack of fit
    bounds: tuple[float | None, float | None]  # of the reward


@dataclass(frozen=True)
class LawDocument:
    """What a fit found: the content of ``law.json``."""

    setting: Literal["fixed-bp", "fixed-b", "fixed-n", "joint"]
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
        first = {"format": FORMAT, "simulated": self.simulated.json, "axis": self.axis}
        return {**first, **encoded(self)}

    @property
    def axis(self) -> AxisName:
        """What the law is of: n, or B_p in the setting ``fixed-n``; ``n_star`` is its best value."""
        return "problems_per_batch" if self.setting == "fixed-n" else "rollouts_per_problem"

    @property
    def simulated(self) -> Simulated:
        """Whether a simulator made the runs."""
        return simulated_by(self.flags)

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
        simulated = self.simulated.json
        return {"format": FORMAT, "simulated": simulated, "method": "points", **encoded(self)}

    @property
    def simulated(self) -> Simulated:
        """Whether the points are of simulated runs."""
        return simulated_by(self.flags)
