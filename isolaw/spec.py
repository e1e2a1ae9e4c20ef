"""What is to be run: `Recipe`, `RunSpec`, `SweepSpec`; TOML in, canonical JSON and its hash out.

A sweep file's sections are the fields of `SweepSpec`. Everything wrong with it is reported at once,
each with its line, what was found, what is accepted and the nearest valid name. What belongs to one
backend (``[bandit]``, ``[replay]``, ``[real]``) is passed on to it unread.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from isolaw.errors import InputError, Problem, SpecError, nearest
from isolaw.parsing import parse_section, problems_of, read_text, with_line

IDENTITY_VERSION = 1
_MOST_SEEDS = 10_000
_MOST_LOOKS = 10_000
DEFAULT_ROLLOUTS_PER_PROBLEM = [8, 16, 32, 64, 128, 256, 512]


def _whole(value: Any) -> Any:
    """Accept 1e7 where a whole number is meant."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    """What is named twice counts once."""
    return tuple(dict.fromkeys(values))


def _seed_list(value: Any) -> Any:
    """``seeds = 3`` means the seeds 0, 1, 2."""
    value = _whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= _MOST_SEEDS:
            raise ValueError(f"a number of seeds from 1 to {_MOST_SEEDS:,}, or a list of seeds")
        return list(range(value))
    return value


_LARGEST = 2**53  # beyond this a float64 is no longer exact
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=_LARGEST, strict=True)]
Index = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=_LARGEST, strict=True)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class Recipe(_Section):
    """How an update is made from a batch. None means: the backend's or the algorithm's own choice.

    A backend refuses what it cannot represent. Equations: `isolaw.backends.real.objective` for language
    models, `isolaw.simulators` for the simulators (whose lr is their own η, not an optimiser's).

    ``lr_scaling`` says how the step follows the batch B = B_p · n: ``sqrt`` is lr · sqrt(B / 1024),
    the paper's rule (arXiv 2603.12151, App. A); the three agree at B = 1,024.
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


class ProblemsSpec(_Section):
    """The problem set that is trained on and the size of its parts (None: all there are)."""

    set: str = "easy"
    n_train: Annotated[Count, Field(le=10_000_000)] | None = None
    n_validation: Annotated[Count, Field(le=10_000_000)] | None = None


class EvaluationSpec(_Section):
    """When runs are evaluated, and what is measured.

    The schedule is common to all runs of a sweep, so that no configuration gets more looks than
    another: step 0, for each of ``points`` log-spaced budgets from ``start`` to ``end`` the last
    step that it pays for, and the last step of each horizon. Budgets beyond ``end`` continue the
    same spacing, so a sweep that is extended later looks where an uninterrupted one would have.
    ``samples`` answers to each problem are measured; 0 asks for exact values, which a simulator has.
    ``start`` (the smallest batch), ``end`` (the first horizon) and ``horizons`` are filled in when
    the sweep starts.
    """

    points: Annotated[int, BeforeValidator(_whole), Field(ge=2, le=_MOST_LOOKS, strict=True)] = 60
    metrics: Annotated[tuple[str, ...], AfterValidator(_once), Field(min_length=1)] = (
        "avg@4",
        "best@4",
        "worst@4",
    )
    samples: Annotated[Index, Field(le=1_000_000)] = 4
    sets: Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_once), Field(min_length=1)] = (
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


class SweepSection(_Section):
    """Which backend, the budget C of each run in rollouts, and the seeds (a number or a list)."""

    backend: str = "bandit"
    compute: Count = 2_000_000
    seeds: Annotated[tuple[Index, ...], BeforeValidator(_seed_list), Field(min_length=1)] = (0, 1, 2)


class GridSection(BaseModel):
    """The axes: B_p, n, and any key of the recipe."""

    model_config = ConfigDict(extra="allow", frozen=True)
    problems_per_batch: Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(min_length=1)] = (32,)
    rollouts_per_problem: Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(min_length=1)] = tuple(
        DEFAULT_ROLLOUTS_PER_PROBLEM
    )

    @property
    def recipe_axes(self) -> dict[str, list[Any]]:
        """The recipe keys that are axes, each with its values."""
        return {key: list(_listed(value)) for key, value in (self.model_extra or {}).items()}


class LimitsSection(_Section):
    """The hardware's cap on rollouts per step, B_max (the paper's for its easy set)."""

    max_batch_rollouts: Count = 65_536


def _minutes(value: Any) -> Any:
    """Accept a time as SLURM writes it, ``[days-]hours:minutes[:seconds]``, or a number of minutes."""
    if isinstance(value, str):
        found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?", value.strip())
        if not found:
            raise ValueError("minutes, or a time as 1-12:00:00 or 08:00")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        if minutes > 59 or seconds > 59:
            raise ValueError("minutes, or a time as 1-12:00:00 or 08:00")
        return 60 * (24 * days + hours) + minutes + seconds / 60
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _within_a_year(minutes: float) -> float:
    # SLURM takes a limit of zero for none at all.
    if not 1 / 60 <= minutes <= 366 * 24 * 60:
        raise ValueError("from a second to a year")
    return minutes


# What isolaw writes into a job's script itself, and finds its jobs again by.
_OWN_OPTIONS = {
    **dict.fromkeys(("job-name", "output", "error", "open-mode", "array", "signal"), "is isolaw's own"),
    **dict.fromkeys(("requeue", "no-requeue", "wrap", "ntasks-per-node", "ntasks"), "is isolaw's own"),
    **{name: f"is executor.{name}" for name in ("nodes", "time", "partition")},
    "cpus-per-task": "is executor.cpus",
    "gpus-per-node": "is executor.gpus",
}


def _one_line(text: str) -> str:
    """What goes into a script's comment must not leave it."""
    if not text.isprintable():
        raise ValueError("text without line breaks and control characters")
    return text


def _lines(text: str) -> str:
    if not text.translate({9: " ", 10: " "}).isprintable():
        raise ValueError("text without control characters")
    return text


def _sbatch(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
            raise ValueError(f"names of sbatch's options without dashes before them, not {name!r}")
        if name in _OWN_OPTIONS:
            raise ValueError(f"other options than {name}, which {_OWN_OPTIONS[name]}")
        if value is False:
            raise ValueError(f"{name} = true, or nothing of it")
        if isinstance(value, str):
            _one_line(value)
    return options


class ExecutorSection(_Section):
    """Where runs execute. By default worker processes, one for each core.

    ``jobs``, ``max_rollouts`` and ``max_gpus`` bound what is at work at a time: runs, rollouts of their
    batches, GPUs. ``same_failures`` runs in a row that fail with one cause end the sweep; a run that is lost
    (`ray`, `slurm`) is made again, at most ``retries`` times without getting further.

    ``nodes`` machines make one run, with ``cpus`` and ``gpus`` on each: unless given, what its processes
    need on machines like this one. ``address`` and ``shared`` are Ray's: where its cluster is, and whether
    its machines see the sweep's directory (tried out unless given). The rest is SLURM's: ``time`` in minutes,
    ``partition``, further ``sbatch`` options, lines of ``setup`` before the command, and ``cluster =
    "local"`` to run the same jobs on this machine.
    """

    kind: Literal["inline", "processes", "ray", "slurm"] = "processes"
    jobs: Count | None = None
    max_rollouts: Count | None = None
    max_gpus: Count | None = None
    same_failures: Count = 5
    retries: Index = 3
    nodes: Count = 1
    cpus: Count | None = None
    gpus: Index | None = None
    address: Annotated[str, Field(min_length=1)] | None = None
    shared: bool | None = None
    cluster: Literal["slurm", "local"] = "slurm"
    time: Annotated[Positive, BeforeValidator(_minutes), AfterValidator(_within_a_year)] = 60.0
    partition: Annotated[str, Field(min_length=1), AfterValidator(_one_line)] | None = None
    sbatch: Annotated[dict[str, str | int | bool], AfterValidator(_sbatch)] = {}
    setup: Annotated[tuple[Annotated[str, AfterValidator(_lines)], ...], BeforeValidator(_listed)] = ()


class TrackingSection(_Section):
    """Trackers that runs are mirrored to; the sweep's own files stay the truth.

    ``directory`` is where they put their files (the sweep's own unless given), ``project`` what W&B
    calls a project and MLflow an experiment.
    """

    to: Annotated[
        tuple[Literal["tensorboard", "wandb", "mlflow"], ...], BeforeValidator(_listed), AfterValidator(_once)
    ] = ()
    directory: Annotated[str, Field(min_length=1)] | None = None
    project: Annotated[str, Field(min_length=1, max_length=128)] = "isolaw"


class SweepSpec(_Section):
    """A whole sweep: everything that a sweep file can say.

    >>> spec = SweepSpec.parse({"sweep": {"compute": 1e5}, "grid": {"rollouts_per_problem": [4, 8]}})
    >>> spec.sweep.compute, spec.grid.rollouts_per_problem
    (100000, (4, 8))
    >>> SweepSpec.parse({"recipe": {"lrs": 1}})
    Traceback (most recent call last):
    isolaw.errors.SpecError: recipe.lrs: unknown key; found 1; did you mean 'lr'?
    """

    sweep: SweepSection = SweepSection()
    grid: GridSection = GridSection()
    limits: LimitsSection = LimitsSection()
    recipe: Recipe = Recipe()
    problems: ProblemsSpec = ProblemsSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    executor: ExecutorSection = ExecutorSection()
    tracking: TrackingSection = TrackingSection()
    bandit: dict[str, Any] = {}
    replay: dict[str, Any] = {}
    real: dict[str, Any] = {}

    @model_validator(mode="after")
    def _axes_are_recipe_keys(self) -> SweepSpec:
        problems = _axis_problems(self.grid.recipe_axes)
        if problems:
            raise SpecError(problems)
        return self

    @classmethod
    def parse(cls, data: Mapping[str, Any], source: str = "", text: str = "") -> SweepSpec:
        """Build from plain data; raise `SpecError` with all problems (and their lines in ``text``)."""
        # Axes first and apart, so that their faults and all others are reported together.
        grid = data.get("grid")
        axes = (
            {k: v for k, v in grid.items() if k not in GridSection.model_fields}
            if isinstance(grid, dict)
            else {}
        )
        problems = _axis_problems({key: list(_listed(value)) for key, value in axes.items()})
        if problems:
            own = {k: v for k, v in grid.items() if k not in axes} if grid else {}
            try:
                parse_section(cls, {**data, "grid": own})
            except SpecError as error:
                problems += error.problems
            raise SpecError([with_line(p, text) for p in problems], source, _rest(cls, data, problems))
        try:
            return parse_section(cls, data, source=source, text=text)
        except SpecError as error:
            raise SpecError(error.problems, source, _rest(cls, data, error.problems)) from None

    @classmethod
    def read(
        cls, path: str | Path | None = None, settings: Iterable[str] = (), base: SweepSpec | None = None
    ) -> SweepSpec:
        """Build from a TOML file, or ``base``, or the defaults, and ``section.key=value`` settings.

        Raises
        ------
        SpecError
            unknown keys, wrong values, not TOML; all at once, with their lines.
        InputError
            the file cannot be read, or a setting has no ``=``.
        """
        text = read_text(path) if path is not None else ""
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # of TOML, or of a number in it
            raise SpecError([Problem("not valid TOML", str(error))], source=str(path)) from None
        if base is not None:
            data = base.model_dump(mode="json")
        for setting in settings:
            _apply(data, setting)
        return cls.parse(data, source=str(path or ""), text=text)


class RunSpec(_Section):
    """One run: a configuration, a seed, and how far and how often it is looked at.

    ``options`` are the backend's own (they count for identity); ``sources`` are paths that it reads
    (they do not; the hashes of what they hold, in ``content``, do).
    """

    backend: str
    backend_version: int = 1
    problems_per_batch: Count
    rollouts_per_problem: Count
    seed: Index = 0
    recipe: Recipe = Recipe()
    problems: ProblemsSpec = ProblemsSpec()
    options: dict[str, Any] = {}
    content: dict[str, str] = {}
    sources: dict[str, Any] = {}
    compute: Count
    evaluation: EvaluationSpec = EvaluationSpec()

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def steps(self) -> int:
        """M = floor(C / B), the run's last step."""
        return self.compute // self.batch_rollouts

    def identity(self) -> dict[str, Any]:
        """Return what makes this run this run: no path, device, executor, horizon or schedule.

        Recipe keys at their default are left out, so a key that is added later changes no identity.
        """
        return {
            "identity": IDENTITY_VERSION,
            "backend": [self.backend, self.backend_version],
            "problems_per_batch": self.problems_per_batch,
            "rollouts_per_problem": self.rollouts_per_problem,
            "seed": self.seed,
            "recipe": self.recipe.model_dump(exclude_defaults=True),
            "problems": self.problems.model_dump(),
            "options": self.options,
            "content": self.content,
        }

    @property
    def run_id(self) -> str:
        """SHA-256 of the canonical JSON of `identity`, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()

    def schedule(self) -> list[int]:
        """Return the steps that are evaluated, ascending, 0 and the last among them.

        >>> run = RunSpec(backend="bandit", problems_per_batch=1, rollouts_per_problem=10, compute=1000,
        ...               evaluation=EvaluationSpec(points=3, start=10, end=1000))
        >>> run.schedule()
        [0, 1, 10, 100]
        """
        e = self.evaluation
        start = e.start or self.batch_rollouts
        end = max(e.end or self.compute, start)
        budgets = np.geomspace(start, end, e.points)
        ratio = (end / start) ** (1 / (e.points - 1))
        if self.compute > end and ratio > 1:
            beyond = min(int(np.log(self.compute / end) / np.log(ratio)), _MOST_LOOKS)
            budgets = np.append(budgets, end * ratio ** np.arange(1, beyond + 1))
        # The nudge keeps a budget that is a whole number of batches from losing a step to rounding.
        budgets = budgets[budgets <= self.compute] * (1 + 1e-12)
        looks = {min(int(c // self.batch_rollouts), self.steps) for c in budgets}
        ends = {h // self.batch_rollouts for h in (*e.horizons, self.compute) if h <= self.compute}
        return sorted({0} | looks | ends)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text.

    >>> canonical_json({"b": 1, "a": [1.0]})
    '{"a":[1.0],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _rest(cls: type[SweepSpec], data: Mapping[str, Any], problems: Iterable[Problem]) -> SweepSpec | None:
    """The spec without what is wrong with it; None where the configurations themselves are."""
    sections = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    for problem in problems:
        section, _, key = problem.where.rpartition(", ")[2].partition(".")
        own = sections.get(section)
        if section == "sweep" or key in ("problems_per_batch", "rollouts_per_problem"):
            return None
        if isinstance(own, dict) and key:
            own.pop(key.split(".")[0], None)
        else:
            sections.pop(section, None)
    try:
        return cls.model_validate(sections)
    except (SpecError, ValidationError):
        return None


def _axis_problems(axes: Mapping[str, list[Any]]) -> list[Problem]:
    """What is wrong with the recipe keys that are axes of the grid."""
    problems = []
    valid = [*GridSection.model_fields, *Recipe.model_fields]
    for key, values in axes.items():
        if key not in Recipe.model_fields:
            problems.append(Problem(f"grid.{key}", "unknown key", found=values, nearest=nearest(key, valid)))
            continue
        if not values:
            problems.append(Problem(f"grid.{key}", found=values, accepted="at least one value"))
        for value in values:
            try:
                Recipe.model_validate({key: value})
            except ValidationError as error:
                problems += problems_of(error, "grid", Recipe)
    return problems


def _apply(data: dict[str, Any], setting: str) -> None:
    """Write one ``section.key=value`` into ``data``; the value is TOML, or else a bare string."""
    name, equals, raw = setting.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not sections or not key:
        raise InputError(f"--set {setting!r}: accepted: section.key=value, as in sweep.compute=1e7")
    try:
        value: Any = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        value = raw.strip()
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise InputError(f"--set {setting!r}: {section!r} is not a section")
    data[key] = value
