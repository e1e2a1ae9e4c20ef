"""The sections of a sweep file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from isolaw.config.values import Count, Index, Positive, Rate, Section, Share, listed, once, seed_list, whole

MOST_LOOKS = 10_000  # at one run
DEFAULT_ROLLOUTS_PER_PROBLEM = [8, 16, 32, 64, 128, 256, 512]


class Recipe(Section):
    """How an update is made from a batch. None means: the backend's or the algorithm's own choice.

    A backend refuses what it cannot represent. Equations: `algorithms.objective` for language
    models, `isolaw.simulators` for the simulators (whose lr is their own η, not an optimiser's).

    ``lr_scaling`` says how lr follows the batch: ``sqrt`` is lr · sqrt(B / 1024), the paper's rule
    (arXiv 2603.12151, App. A), with B the rollouts in a step's gradient; the three agree at B = 1,024.
    `RunSpec.lr_factor` has the equation, for every backend.
    """

    algorithm: str = "grpo"
    lr: Positive | None = None
    lr_scaling: Literal["sqrt", "linear", "constant"] = "sqrt"
    warmup_steps: Index | None = None
    weight_decay: Rate | None = None
    max_grad_norm: Positive | None = None
    # The advantage and which rollouts enter the gradient.
    advantage: Literal["group_std", "batch_std", "centred", "leave_one_out", "none"] | None = None
    gradient_rollouts: Count | None = None
    zero_variance_filter: bool = False
    dynamic_sampling: bool | None = None
    no_positive_resampling: Share | None = None
    replacement: bool = False
    # The loss.
    aggregation: Literal["token", "sequence", "prompt", "fixed_length"] | None = None
    clip_low: Rate | None = None
    clip_high: Rate | None = None
    importance_sampling: Literal["none", "token", "sequence"] | None = None
    importance_cap: Positive | None = None
    kl: Rate | None = None
    kl_estimator: Literal["k1", "k3"] | None = None
    kl_in: Literal["loss", "reward"] | None = None
    entropy: Rate | None = None
    float32_head: bool = False
    # Sampling.
    staleness: Index = 0
    temperature: Positive | None = None
    top_p: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    max_response_tokens: Count | None = None
    overlong_buffer: Index | None = None


class ProblemsSpec(Section):
    """The problem set that is trained on and the size of its parts (None: all there are).

    ``difficulty`` says what the base model makes of the problems; recipes start from it (None: not said).
    """

    set: str = "easy"
    difficulty: Literal["easy", "hard"] | None = None
    n_train: Annotated[Count, Field(le=10_000_000)] | None = None
    n_validation: Annotated[Count, Field(le=10_000_000)] | None = None


class EvaluationSpec(Section):
    """When runs are evaluated, and what is measured.

    The schedule is common to all runs of a sweep, so that no configuration gets more looks than
    another: step 0, for each of ``points`` log-spaced budgets from ``start`` to ``end`` the last
    step that it pays for, and the last step of each horizon. Budgets beyond ``end`` continue the
    same spacing, so a sweep that is extended later looks where an uninterrupted one would have.
    ``samples`` answers to each problem are measured; 0 asks for exact values, which a simulator has.
    ``start`` (the smallest batch), ``end`` (the first horizon) and ``horizons`` are filled in when
    the sweep starts.
    """

    points: Annotated[int, BeforeValidator(whole), Field(ge=2, le=MOST_LOOKS, strict=True)] = 60
    metrics: Annotated[tuple[str, ...], AfterValidator(once), Field(min_length=1)] = (
        "avg@4",
        "best@4",
        "worst@4",
    )
    samples: Annotated[Index, Field(le=1_000_000)] = 4
    sets: Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(once), Field(min_length=1)] = (
        "validation",
    )
    start: Count | None = None
    end: Count | None = None
    horizons: tuple[Count, ...] = ()

    @model_validator(mode="after")
    def _start_before_end(self) -> EvaluationSpec:
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ValueError(f"start = {self.start} is after end = {self.end}")
        return self


class SweepSection(Section):
    """Which backend, the budget C of each run in rollouts, and the seeds (a number or a list)."""

    backend: str = "bandit"
    compute: Count = 2_000_000
    seeds: Annotated[tuple[Index, ...], BeforeValidator(seed_list), Field(min_length=1)] = (0, 1, 2)


class GridSection(BaseModel):
    """The axes: B_p, n, and any key of the recipe."""

    model_config = ConfigDict(extra="allow", frozen=True)
    problems_per_batch: Annotated[tuple[Count, ...], BeforeValidator(listed), Field(min_length=1)] = (32,)
    rollouts_per_problem: Annotated[tuple[Count, ...], BeforeValidator(listed), Field(min_length=1)] = tuple(
        DEFAULT_ROLLOUTS_PER_PROBLEM
    )

    @property
    def recipe_axes(self) -> dict[str, list[Any]]:
        """The recipe keys that are axes, each with its values."""
        return {key: list(listed(value)) for key, value in (self.model_extra or {}).items()}


class LimitsSection(Section):
    """The hardware's cap on rollouts per step, B_max (the paper's for its easy set)."""

    max_batch_rollouts: Count = 65_536


class StoreSection(Section):
    """Where a sweep keeps what is large.

    ``states`` is a folder, say on another disk, in which isolaw makes one of its own for the states that the
    runs continue from; all machines that make runs must see it. Unless given, states are in the sweep's
    directory.
    """

    states: Annotated[str, Field(min_length=1)] | None = None


class TrackingSection(Section):
    """Trackers that runs are mirrored to; the sweep's own files stay the truth.

    ``directory`` is where they put their files (the sweep's own unless given), ``project`` what W&B
    calls a project and MLflow an experiment.
    """

    to: Annotated[
        tuple[Literal["tensorboard", "wandb", "mlflow"], ...], BeforeValidator(listed), AfterValidator(once)
    ] = ()
    directory: Annotated[str, Field(min_length=1)] | None = None
    project: Annotated[str, Field(min_length=1, max_length=128)] = "isolaw"
