"""Define the sections of a sweep file, and the values that their keys accept."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
    model_validator,
)

from isolaw.errors import InputError
from isolaw.step_cost import parse_rollouts

MOST_POINTS = 10_000  # maximum evaluations of one run
_MOST_SEEDS = 10_000
_LARGEST = 2**53  # larger integers are not exact in float64


class Section(BaseModel):
    """The base class of the sections of a sweep file, which are immutable and accept no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _as_whole(value: Any) -> Any:
    """Return an integer, a NumPy integer or a whole float such as 1e7 as int, and other values unchanged."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _parse_rollouts(value: Any) -> Any:
    """Convert a number, or a text such as ``"1M"`` or ``"1e6"``, to a budget in rollouts."""
    if isinstance(value, str):
        try:
            value = parse_rollouts(value)
        except InputError:
            return value
    return _as_whole(value)


def listed(value: Any) -> Any:
    """Return a list or tuple unchanged, and any other value as a list with one element."""
    return value if isinstance(value, list | tuple) else [value]


def _without_duplicates(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without duplicates."""
    return tuple(dict.fromkeys(values))


def _as_pair(value: Any) -> Any:
    """Return a pair (first, last), given as a pair or as one number for both."""
    return value if isinstance(value, list | tuple) else (value, value)


def _ordered(values: tuple[int, int]) -> tuple[int, int]:
    """Return a pair (first, last); raise `ValueError` if first is larger than last."""
    if values[0] > values[1]:
        raise ValueError(f"{values[0]} is after {values[1]}; expected [first, last]")
    return values


def _parse_share(value: Any) -> Any:
    """Return a share, given as a number or as a percentage: ``"20%"`` means 0.2."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value
    return value


def _parse_seeds(value: Any) -> Any:
    """Return a list of seeds, given as a list or as the number of seeds: ``seeds = 3`` means 0, 1, 2."""
    value = _as_whole(value)
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_SEEDS:
        raise ValueError(f"a number of seeds from 1 to {_MOST_SEEDS:,}, or a list of seeds")
    return list(range(value))


RolloutBudget = Annotated[int, BeforeValidator(_parse_rollouts), Field(ge=1, le=_LARGEST, strict=True)]
Count = Annotated[int, BeforeValidator(_as_whole), Field(ge=1, le=_LARGEST, strict=True)]
Index = Annotated[int, BeforeValidator(_as_whole), Field(ge=0, le=_LARGEST, strict=True)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(listed), Field(min_length=1)]
Names = Annotated[tuple[str, ...], AfterValidator(_without_duplicates), Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]
CountRange = Annotated[tuple[Count, Count], BeforeValidator(_as_pair), AfterValidator(_ordered)]
# Defaults of recipe keys that neither the sweep file nor the algorithm sets.
OFF: dict[str, Any] = {
    "zero_variance_filter": False, "float32_head": False, "staleness": 0,
}  # fmt: skip


class Recipe(Section):
    """The training recipe, which defines how a batch becomes an update.

    The backend or the algorithm chooses a value for each key that is None. A backend rejects settings that it
    does not support. The equations are in `algorithms.objective` for language models and in
    `isolaw.simulators` for simulators. The lr of a simulator is its own η and not the lr of an optimiser.
    ``lr_scaling`` is the rule by which lr depends on the batch size (`RunSpec.lr_factor`).
    """

    algorithm: str = "grpo"
    lr: Positive | None = None
    lr_scaling: Literal["sqrt", "sqrt_problems", "linear", "constant"] = "sqrt"
    warmup_steps: Index | None = None
    weight_decay: Rate | None = None
    max_grad_norm: Positive | None = None
    # Keys of the advantage, and of the rollouts that enter the gradient.
    advantage: (
        Literal["group_std", "batch_std", "advantage_std", "centred", "leave_one_out", "none"] | None
    ) = None
    gradient_rollouts: Count | None = None
    zero_variance_filter: bool | None = None
    dynamic_sampling: bool | None = None
    no_positive_resampling: Share | None = None
    replacement: bool = False
    # The loss.
    aggregation: Literal["token", "sequence", "prompt", "fixed_length"] | None = None
    clip_low: Rate | None = None
    clip_high: Rate | None = None
    importance_sampling: Literal["none", "token"] | None = None
    importance_cap: Positive | None = None
    kl: Rate | None = None
    entropy: Rate | None = None
    float32_head: bool | None = None
    # Updates on a batch: ``epochs`` passes over it, each with ``minibatches`` optimiser steps.
    epochs: Count = 1
    minibatches: Count = 1
    # The critic of PPO.
    gamma: Share | None = None
    gae_lambda: Share | None = None
    value_clip: Positive | None = None
    critic_lr: Positive | None = None
    # Low-rank adapters (LoRA), which are trained instead of the weights.
    lora_rank: Count | None = None
    lora_alpha: Positive | None = None
    # Sampling.
    staleness: Index | None = None
    temperature: Positive | None = None
    top_p: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    max_response_tokens: Count | None = None
    overlong_buffer: Index | None = None
    interrupt_at: CountRange | None = None
    interrupt_phrase: Text | None = None
    answer_tokens: Count | None = None

    @property
    def updates_per_batch(self) -> int:
        """The number of optimiser steps on one batch."""
        return self.epochs * self.minibatches

    def chosen(self) -> dict[str, Any]:
        """Return the keys and values that differ from their defaults and from `OFF`.

        >>> Recipe(lr=1e-6, float32_head=False).chosen()
        {'lr': 1e-06}
        """
        changed = self.model_dump(exclude_defaults=True)
        return {key: value for key, value in changed.items() if key not in OFF or value != OFF[key]}


class ProblemsSpec(Section):
    """The problem set, and the number of its training and validation problems; None means all problems.

    ``difficulty`` states whether the problems are easy or hard for the base model (None: unknown). Some of
    the recipe's defaults depend on it.
    """

    set: str = "easy"
    difficulty: Literal["easy", "hard"] | None = None
    n_train: Annotated[Count, Field(le=10_000_000)] | None = None
    n_validation: Annotated[Count, Field(le=10_000_000)] | None = None


class EvaluationSpec(Section):
    """The schedule of evaluations, and the metrics of each evaluation.

    All runs of a sweep have the same schedule in rollouts, so that all configurations are evaluated equally
    often. A run is evaluated at step 0, at the last step within each of ``points`` log-spaced budgets from
    ``start`` to ``end``, and at the last step of each horizon. Budgets beyond ``end`` have the same spacing,
    so an extended sweep has the same evaluations as an uninterrupted sweep. The policy gives ``samples``
    answers to each problem; 0 requests exact values, which only simulators support. isolaw fills in ``start``
    (the smallest batch), ``end`` (the first horizon) and ``horizons`` when the sweep starts.

    Evaluations sample with ``temperature`` and ``top_p`` (None: the recipe's values). Unlike the schedule,
    these keys are part of a run's identity, because they change the measurements. Each evaluation saves
    ``responses`` responses of each set for people to read (None: the backend chooses).
    """

    points: Annotated[int, BeforeValidator(_as_whole), Field(ge=2, le=MOST_POINTS, strict=True)] = 60
    metrics: Names = ("avg@4", "best@4", "worst@4")
    samples: Annotated[Index, Field(le=1_000_000)] = 4
    sets: Annotated[Names, BeforeValidator(listed)] = ("validation",)
    temperature: Positive | None = None
    top_p: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    responses: Annotated[Index, Field(le=100)] | None = None
    start: Count | None = None
    end: Count | None = None
    horizons: tuple[Count, ...] = ()

    @model_validator(mode="after")
    def _start_before_end(self) -> EvaluationSpec:
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ValueError(f"start = {self.start} is after end = {self.end}")
        return self


class SweepSection(Section):
    """The backend, the budget C of each run in rollouts, and the seeds (a number or a list)."""

    backend: str = "bandit"
    compute: RolloutBudget = 2_000_000
    seeds: Annotated[tuple[Index, ...], BeforeValidator(_parse_seeds), Field(min_length=1)] = (0, 1, 2)


class GridSection(Section):
    """The axes of the grid: B_p, n, and any key of the recipe."""

    problems_per_batch: Counts = (32,)
    rollouts_per_problem: Counts = (8, 16, 32, 64, 128, 256, 512)

    @property
    def recipe_axes(self) -> dict[str, list[Any]]:
        """Recipe keys that are axes, each with its values."""
        keys = Recipe.model_fields
        return {key: list(values) for key in keys if (values := getattr(self, key)) is not None}

    @model_serializer(mode="wrap")
    def _only_axes(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: values for key, values in serialize(self).items() if values is not None}


if TYPE_CHECKING:
    Grid = GridSection
else:
    # Each key of the recipe can be an axis, which is a list of values that the recipe accepts.
    _AXES = {
        key: (Annotated[tuple[kind, ...], BeforeValidator(listed), Field(min_length=1)], None)
        for key, kind in get_type_hints(Recipe, include_extras=True).items()
        if key in Recipe.model_fields
    }
    Grid = create_model("Grid", __base__=GridSection, **_AXES)


class LimitsSection(Section):
    """The hardware's limit B_max on rollouts per step; the default is the paper's value for its easy set."""

    max_batch_rollouts: Count = 65_536


Cells = tuple[tuple[Count, Count], ...]


class DesignSection(Section):
    """The choice of runs in the grid: all runs (``grid``), or the runs that a ``race`` selects.

    A race (`isolaw.design.race`) compares configurations by ``metric`` on the validation set. ``spend``
    limits its rollouts: a value up to 1 is a share of the grid's rollouts, and a larger value is a number of
    rollouts. The race ends when the expected loss at ``sweep.compute`` is at most ``tolerance`` (default:
    0.001 of the metric's unit, which is 1 for shares and 100 for percent). ``start``
    is the B_p at which the race first compares different n (default: the middle B_p). The race always
    includes the [B_p, n] in ``pinned``, and never includes pairs in ``forbidden``.
    """

    kind: Literal["grid", "race"] = "grid"
    spend: Annotated[Positive, BeforeValidator(_parse_share)] = 0.35
    tolerance: Positive | None = None
    start: Count | None = None
    metric: Text = "avg@4"
    pinned: Cells = ()
    forbidden: Cells = ()


class TrackingSection(Section):
    """The trackers to which isolaw copies the runs; the sweep's own files remain authoritative.

    ``directory`` is the folder in which trackers write files (default: the sweep's directory), and
    ``project`` is the name of the project in W&B.
    """

    to: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...],
        BeforeValidator(listed),
        AfterValidator(_without_duplicates),
    ] = ()
    directory: Text | None = None
    project: Annotated[Text, Field(max_length=128)] = "isolaw"
