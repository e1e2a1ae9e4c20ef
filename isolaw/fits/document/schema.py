"""`LawDocument`: the content of ``law.json``. docs/modules.md shows this file as its reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from isolaw.allocation import AxisName, Cell
from isolaw.evidence import Interval, Quantity, Status
from isolaw.fits.document.codec import decoded
from isolaw.fits.flags import Flag, Flagged
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.rules import SimpleRules
from isolaw.fits.selection import law_axis

FORMAT = "isolaw.law/1"


@dataclass(frozen=True)
class Axis:
    """The budget variable x: its unit, whether the law is a function of log10 x, and the frontier's range."""

    name: Literal["compute", "tokens", "steps"]
    unit: str
    log10: bool
    range: tuple[float, float]


@dataclass(frozen=True)
class GridEntry(Cell):
    """A configuration with its numbers of runs and checkpoints, step cost and range of measured compute."""

    runs: int
    checkpoints: int
    step_cost: float
    measured: tuple[float, float]

    @property
    def end(self) -> float:
        """The compute up to which the last measured reward applies, one step after its checkpoint."""
        return self.measured[1] + self.step_cost


BoundBy = Literal["grid_edge", "neighbour"]


@dataclass(frozen=True)
class FrontierPoint:
    """The compute-optimal frontier at one budget x: n*, the reward there, and whether n* is only a bound."""

    x: float
    n_star: Quantity  # the n with the highest fitted reward
    n_star_strict: int  # the measured n with the highest curve
    n_star_tolerance: int  # the smallest n whose reward is within the tolerance of the highest
    reward: Quantity  # the reward at n*
    censored: bool  # whether n* is only a bound
    censored_by: tuple[BoundBy, ...]  # reasons: an end of the grid, or a neighbouring n that was not measured


@dataclass(frozen=True)
class Crossing:
    """The budget x at which the curve of one n overtakes the curve of another.

    ``supported`` is true if both n were measured at x.
    """

    from_: int
    to: int
    x: float | None
    supported: bool
    interval: Interval | None
    status: Status


@dataclass(frozen=True)
class CurveEntry(Cell):
    """The learning curve fitted to one configuration."""

    parameters: dict[str, Quantity]  # the parameters of the curve family, by name
    ceiling: Literal["seen", "open"]  # whether the checkpoints determine the ceiling
    rms: float  # root mean square of the residuals
    measured: tuple[float, float]


@dataclass(frozen=True)
class DrawsInfo:
    """The number of draws of a fit, the number of failed draws by reason, and the file of the draws."""

    # Unit of resampling: runs, or with one run each, residuals from a surface over n, or residual blocks.
    unit: Literal["run", "lack of fit", "block"]
    draws: int
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    file: str | None = None


@dataclass(frozen=True)
class LawEntry:
    """One of the compared laws: its loss in reward, and its parameters."""

    mean_loss: float  # over all budgets, as is the next
    max_loss: float
    theta: tuple[float, ...]  # parameters fitted to n*
    interval: tuple[tuple[float, float], ...] | None
    better: dict[str, float] = field(default_factory=dict)  # share of draws in which it loses less, by law


@dataclass(frozen=True)
class Comparison:
    """The comparison of laws: the preferred law, and the loss of each law in reward."""

    monotone: bool  # False if n* falls after a rise (for a surface, if it falls in 95 % of draws)
    # ``constant`` if one n loses at most the tolerance at every compute, otherwise the preferred law. For the
    # paper's method, ``logistic``, or ``no law`` if n* falls or is a bound. None if none is preferred.
    verdict: str | None
    laws: dict[str, LawEntry] = field(default_factory=dict)
    preferred: str | None = None
    refused: Literal["few_seeds"] | None = None
    seeds: int = 0  # the fewest runs of a configuration


@dataclass(frozen=True)
class BatchHealth:
    """The health of one B_p: numbers of judged and healthy runs, and the reason if it is unstable."""

    problems_per_batch: int
    healthy: int
    judged: int
    reason: str | None


@dataclass(frozen=True)
class SurfaceInfo:
    """The surface without its draws (`isolaw.fits.surface`)."""

    observations: dict[str, Any]  # the result of `Observations.to_dict`
    theta: tuple[float, ...]  # the most likely hyperparameters
    effective: float  # effective number of draws of the hyperparameters
    bounds: tuple[float | None, float | None]  # smallest and largest possible reward
    start: tuple[float | None, float | None]  # reward at step 0 and its standard error


@dataclass(frozen=True)
class LawDocument(Flagged):
    """The results of a fit: the content of ``law.json``, as JSON-able data without NaN."""

    DERIVED = ("format", "simulated", "axis")
    format: ClassVar[str] = FORMAT

    hold: Literal["B_p", "B", "n", "nothing"]
    fixed: dict[str, Any]  # the values that the law holds constant
    metric: str
    eval_set: str
    method: Literal["surface", "paper"]
    curve: Literal["exp", "hill", "power"] | None  # of the paper's method, as is the next
    records: float | None  # width of the bins of record points
    x: Axis
    grid: tuple[GridEntry, ...]
    sources: tuple[str, ...]  # files of the runs
    n_train_problems: int | None  # D
    epochs_seen: float | None  # passes of the runs over the D problems
    params: dict[str, Quantity]  # b, L, k, x0 of the logistic law (x0 is log10 C0, or M0), and saturation
    frontier: tuple[FrontierPoint, ...]
    crossovers: tuple[Crossing, ...]  # for each pair of n
    curves: tuple[CurveEntry, ...]  # empty but for the paper's method
    bootstrap: DrawsInfo
    comparison: Comparison
    health: tuple[BatchHealth, ...]  # of each B_p with a run that isolaw can judge
    rules: SimpleRules  # what simple rules choose
    surface: SurfaceInfo | None = None  # None with the paper's method
    tolerance: float = TOLERANCE  # rewards within this difference count as equal, in the metric's own units
    flags: tuple[Flag, ...] = ()  # "warnings" in the file
    diverged: tuple[Cell, ...] = ()  # configurations of which at least half of the runs diverged
    max_batch_rollouts: int | None = None  # the cap on B_p · n of the machine that made the runs
    framework: str = ""  # the trainer that made the runs, if they share one

    @property
    def axis(self) -> AxisName:
        """The axis of the law: n, or B_p with ``hold="n"``. ``n_star`` is its best value."""
        return law_axis(self.hold)

    @property
    def unit(self) -> float:
        """The metric's unit, a power of ten (`isolaw.fits.metric`)."""
        return float(f"{self.tolerance / TOLERANCE:.3g}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LawDocument:
        """Return the document encoded by `to_dict`; raise `Malformed` if a key is missing or mistyped."""
        return decoded(cls, data)
