"""`advise`: where to start without runs, and the three sweeps to run first.

The starting point is that of publications (`isolaw.design.advice`). The sweeps follow section 3 of the
IsoCompute Playbook (arXiv 2603.12151): find the lr at one batch size, check its rule, then compare n.

===== ================================================================================================
lr    five lr, each twice the previous one, at one B_p and n
batch half, one and two times the lr of the rule lr ∝ √B, at half and at twice this n
grid  a race over the n around the starting point, each twice the previous one, at one B_p
===== ================================================================================================

The runs of the grid end at C / 10, the smallest compute from which `isolaw predict` recommends an allocation
for C. The other runs end at a twentieth of this compute, or later if they need more for `_LR_STEPS` steps.
They use the n in the middle of the grid, or a smaller batch if they would cost more than an eighth of C. The
sweeps take at most 80 % of C, and the final run gets the rest. All have two seeds, which ``isolaw fit
--retune lr`` needs to choose the lr on one and judge it on the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from isolaw import commands
from isolaw.allocation import Allocation
from isolaw.config import RunSpec, SweepSpec
from isolaw.design.advice import LEAST_N, Case, StartingPoint, starting_point
from isolaw.design.published import DifficultyKind
from isolaw.documents.reading import toml_text
from isolaw.documents.validation import parse_section
from isolaw.errors import DataError, InputError
from isolaw.files import check_destination
from isolaw.fits.allocations import FAR, LEAST_STEPS
from isolaw.fits.predict import seconds_of
from isolaw.preview import read_cost, remaining_cost, share_of_grid
from isolaw.registry import Shown, traits
from isolaw.resolve import new_runs, resolved_run
from isolaw.step_cost import Cost, Spent, is_hours, parse_rollouts

_BASE_LR = 1e-6  # at B = 1,024, for language models (arXiv 2603.12151, App. A)
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the starting point's n in the grid, and of the lr that are tried
_LEAST_LEVELS = 3  # n that a race compares
_SEEDS = 2
_MOST_SHARE = 0.8  # of the budget, on the sweeps: the final run needs the rest
_BUDGET_ROUNDS = 4
_RACE_SPEND = 0.35  # of the race, as a share of its grid
_SPARE_RUNS = 0.3  # of a run to the target, that the race can pay for beyond one run of each n it starts
_LR_DIVISOR = 20  # the lr is searched with runs to this part of the grid's compute
_LR_STEPS = 40
_LR_RUNS = _SEEDS * (len(_FACTORS) + 2 * len(_FACTORS[1:-1]))  # of the sweeps lr and batch
# What only the user knows, in the file of a sweep.
_PLACEHOLDER_SECTIONS: dict[str, dict[str, Any]] = {
    "real": {"problems": {"set": "problems"}, "real": {"model": "model"}},
    "command": {"problems": {"set": "problems"}, "command": {"run": ["train"], "framework": "verl"}},
}
BackendName = Literal["real", "command", "bandit"]
SweepName = Literal["lr", "batch", "grid"]
# The head of each file: the question, and what to set in it.
_HEADS: dict[SweepName, tuple[str, str]] = {
    "lr": ("Which lr is best at one batch size?", ""),
    "batch": ("Does the best lr grow as √B?", "Set grid.lr to half, one and two times the best lr: {fit}"),
    "grid": ("Which n is best?", "Set recipe.lr to the best lr: {fit}"),
}


class _AdviceArguments(Case):
    backend: BackendName


@dataclass(frozen=True)
class FirstSweep:
    """One of the sweeps to run first: the sections of its file, its limit on rollouts, and what they cost."""

    name: SweepName
    sections: Mapping[str, Any]
    cost: Cost | None

    @cached_property
    def spec(self) -> SweepSpec:
        """The sweep that the sections describe."""
        return SweepSpec.parse(self.sections)

    @cached_property
    def runs(self) -> list[RunSpec]:
        """All runs of the sweep's grid."""
        return new_runs(self.spec)

    @property
    def rollouts(self) -> int:
        """The largest number of rollouts that the sweep can generate."""
        return round(share_of_grid(self.spec, self.runs) * sum(run.rollouts for run in self.runs))

    @property
    def spent(self) -> Spent | None:
        """The hours, as ``isolaw sweep --dry-run`` computes them; None without a cost, or if not known."""
        if self.cost is None:
            return None
        return remaining_cost(None, self.runs, self.cost, share_of_grid(self.spec, self.runs))

    @property
    def directory(self) -> str:
        """The directory for its runs."""
        return f"runs/{self.name}"

    def text(self, path: Path) -> str:
        """Return the content of its file, which begins with the question and what to set in the file."""
        question, instruction = _HEADS[self.name]
        earlier = [*_HEADS][: [*_HEADS].index(self.name)]
        fit = commands.fit([commands.unused(f"runs/{name}") for name in earlier], ["--retune", "lr"])
        to_set = {"real": "problems.set and real.model", "command": "problems.set, command.run and framework"}
        unset_keys = to_set.get(self.spec.sweep.backend)
        comments = [
            f"isolaw advise, from published results: {question}",
            *([f"Set {unset_keys}."] if unset_keys else []),
            *([instruction.format(fit=fit)] if instruction else []),
            str(commands.sweep_file(path, self.directory)),
        ]
        return "\n".join([*(f"# {line}" for line in comments), "", toml_text(self.sections)])


@dataclass(frozen=True)
class Advice(StartingPoint, Shown):
    """The starting point that published results give for a case, and the sweeps to run first.

    ``sweeps`` is empty if the budget is too small for them.
    """

    TEXT = "text.advise.document"

    sweeps: tuple[FirstSweep, ...]

    @property
    def rollouts(self) -> int:
        """The largest number of rollouts that the sweeps take from the budget together."""
        return sum(sweep.rollouts for sweep in self.sweeps)

    @property
    def final(self) -> Allocation | None:
        """The final run that the rest of the budget buys; None without a starting point."""
        if self.start is None:
            return None
        allocation = self.start.allocation
        return Allocation.within(
            self.case.budget - self.rollouts, allocation.problems_per_batch, allocation.rollouts_per_problem
        )

    def write(self, directory: str | Path) -> list[Path]:
        """Write the file of each sweep to a directory, and return the paths.

        Raises `DataError`, without writing any file, if one of them exists or the directory is a link.
        """
        folder = Path(directory)
        paths = [folder / f"{sweep.name}.toml" for sweep in self.sweeps]
        for path in paths:
            check_destination(path)
        if links := [str(path) for path in (folder, *paths) if path.is_symlink()]:
            raise DataError(
                f"{links[0]}: is a link, through which isolaw writes no sweep; expected a new directory"
            )
        if existing := [str(path) for path in paths if os.path.lexists(path)]:
            raise DataError(
                f"{', '.join(existing)}: exists, and isolaw replaces no sweep file; expected a new directory"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for sweep, path in zip(self.sweeps, paths, strict=True):
                with path.open("x", encoding="utf-8") as file:
                    file.write(sweep.text(path))
        except OSError as error:
            raise DataError(f"{error.filename or folder}: {error.strerror or error}") from None
        return paths


def advise(
    budget: float | str,
    difficulty: DifficultyKind | None = None,
    model_size: float | None = None,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
    *,
    backend: BackendName = "real",
    cost: Any = None,
) -> Advice:
    """Recommend a starting point for a budget from published results, and the sweeps to run first.

    Parameters
    ----------
    budget
        C in rollouts, e.g. ``"1M"``, or with ``cost`` in hours, e.g. ``"1344gpuh"``. It pays for the sweeps
        and for the final run.
    difficulty
        ``easy`` (0.3 to 0.6 of the base model's answers are correct) or ``hard`` (at most 0.0625).
    model_size
        in billions of parameters; by default that of the model in ``cost``.
    max_batch_rollouts, n_train_problems
        B_max, and the number of training problems D.
    backend
        what the sweeps run on; ``bandit`` rehearses them on the simulator.
    cost
        anything that `isolaw.read_cost` accepts.

    Raises
    ------
    SpecError
        with an issue for each argument that is out of range.

    >>> advice = advise(3e6, difficulty="easy", model_size=7)
    >>> advice.start.allocation
    Allocation(problems_per_batch=32, rollouts_per_problem=512, steps=183)
    >>> advice.sweeps[-1].spec.grid.rollouts_per_problem
    (128, 256, 512)
    >>> advise(1e9).start is None
    True
    """
    cost_model = None if cost is None else read_cost(cost)
    is_hours_budget = isinstance(budget, str) and is_hours(budget)
    arguments: dict[str, Any] = {
        "budget": 1e6 if is_hours_budget else parse_rollouts(budget, ", or with a cost hours"),
        "difficulty": difficulty,
        "model_size": cost_model.billions if model_size is None and cost_model else model_size,
        "max_batch_rollouts": max_batch_rollouts, "n_train_problems": n_train_problems, "backend": backend,
    }  # fmt: skip
    parsed = parse_section(_AdviceArguments, arguments)
    case = Case(**parsed.model_dump(include=set(Case.model_fields)))
    point = starting_point(case)
    # The hours of a step depend on the batch, and the batch on C.
    for _ in range(_BUDGET_ROUNDS if is_hours_budget else 0):
        shape = _batch_shape(point)
        seconds = seconds_of(str(budget), cost_model)
        step_s = cost_model.step(*shape) if cost_model is not None else None
        if step_s is None:
            source = cost_model.where if cost_model else ""
            raise InputError(f"cost: {source} has timed steps of one size only")
        case = case.model_copy(update={"budget": max(int(seconds / step_s * shape[0] * shape[1]), 1)})
        point = starting_point(case)
    sweeps = _sweeps(point, backend, cost_model)
    if sum(sweep.rollouts for sweep in sweeps) > _MOST_SHARE * case.budget:
        sweeps = ()
    return Advice(point.case, point.start, point.readings, point.nearest, point.caveats, sweeps)


def _batch_shape(point: StartingPoint) -> tuple[int, int]:
    """Return the B_p and n of a starting point, or of the nearest published result."""
    if point.start is None:
        return point.least_batch, max(round(point.nearest.n.value), LEAST_N)
    return point.start.allocation.problems_per_batch, point.start.allocation.rollouts_per_problem


def _sweeps(point: StartingPoint, backend: str, cost: Cost | None) -> tuple[FirstSweep, ...]:
    """Return the three sweeps, or nothing if the race or the search for the lr costs more than the budget."""
    case, problems = point.case, point.least_batch
    compute, levels = _grid(point, problems)
    lr_problems, n, lr_compute = _lr_search(case, problems, levels, compute)
    if levels[0] < LEAST_N or _LR_RUNS * lr_compute > case.budget:
        return ()
    common = _common_sections(case, backend, cost.model if cost and cost.billions else "")
    lr = _base_lr(backend, common, (lr_problems, n))
    lr_sweep = {"backend": backend, "compute": lr_compute, "seeds": _SEEDS}
    lr_batch = {"problems_per_batch": [lr_problems]}
    sections_of: dict[SweepName, dict[str, Any]] = {
        "lr": {
            "sweep": lr_sweep,
            "grid": {**lr_batch, "rollouts_per_problem": [n], "lr": [lr * factor for factor in _FACTORS]},
        },
        "batch": {
            "sweep": lr_sweep,
            "grid": {
                **lr_batch,
                "rollouts_per_problem": [n // 2, 2 * n],
                "lr": [lr * factor for factor in _FACTORS[1:-1]],
            },
        },
        "grid": {
            "sweep": {"backend": backend, "compute": compute, "seeds": _SEEDS},
            "grid": {"problems_per_batch": [problems], "rollouts_per_problem": levels},
            "design": {"kind": "race", "spend": _race_spend(len(levels))},
            "recipe": {"lr": lr},
        },
    }
    return tuple(FirstSweep(name, {**sections, **common}, cost) for name, sections in sections_of.items())


def _race_spend(levels: int) -> float:
    """Return the spend of a race over this many n: even if it drops none, all that it starts reach C."""
    started = math.ceil(levels / 2) if levels == len(_FACTORS) else levels  # every second of five n
    return math.ceil(1000 * max(_RACE_SPEND, (started + _SPARE_RUNS) / (_SEEDS * levels))) / 1000


def _lr_search(case: Case, b: int, levels: Sequence[int], compute: int) -> tuple[int, int, int]:
    """Return the B_p and the n of the search for the lr, and the compute of its runs."""
    n = levels[(len(levels) - 1) // 2]
    largest_batch = min(case.budget / (8 * _LR_RUNS * _LR_STEPS), case.most / 2)  # rollouts of a step
    while b * n > largest_batch and (n > 2 * LEAST_N or b > 1):
        b, n = (b, n // 2) if n > 2 * LEAST_N else (b // 2, n)
    return b, n, min(max(compute // _LR_DIVISOR, _LR_STEPS * b * n), compute)


def _common_sections(case: Case, backend: str, model: str) -> dict[str, Any]:
    """Return the sections that all files share; ``model`` is known from the cost, or empty."""
    max_batch, difficulty = case.max_batch_rollouts, case.difficulty
    limits = {"limits": {"max_batch_rollouts": max_batch}} if max_batch else {}
    if traits(backend).simulated:
        return {**limits, "problems": {"set": difficulty or "easy"}}
    placeholders = _PLACEHOLDER_SECTIONS[backend]
    problems = {**placeholders["problems"], **({"difficulty": difficulty} if difficulty else {})}
    model_section = {"real": {"model": f"models/{Path(model).name}"}} if model and backend == "real" else {}
    return {**limits, **placeholders, **model_section, "problems": problems}


def _grid(point: StartingPoint, b: int) -> tuple[int, list[int]]:
    """Return the compute of the grid's runs and its n, from which runs of too few steps are left out."""
    start, case = point.start, point.case
    n = start.allocation.rollouts_per_problem if start else 2 ** round(math.log2(point.nearest.n.value))
    compute = math.ceil(case.budget / FAR)
    levels = [
        level
        for factor in _FACTORS
        if (level := int(n * factor)) >= LEAST_N and b * level <= min(case.most, compute // LEAST_STEPS)
    ]
    if len(levels) < _LEAST_LEVELS:
        largest = max(n, 4 * LEAST_N)
        while b * largest > case.most:
            largest //= 2
        levels = [largest // 4, largest // 2, largest]
        compute = max(compute, LEAST_STEPS * b * levels[-1])
    return compute, levels


def _base_lr(backend: str, sections: Mapping[str, Any], shape: tuple[int, int]) -> float:
    """Return the lr at B = 1,024: of language models, or of the simulator."""
    if not traits(backend).simulated:
        return _BASE_LR
    lr = resolved_run(SweepSpec.parse({"sweep": {"backend": backend}, **sections}), shape).recipe.lr
    assert lr is not None
    return lr
