"""Define the sweeps of a recipe check: their batch sizes, horizons and recipe keys.

Each stage is an ordinary sweep in its own folder, which `isolaw status` and `isolaw.read` can read:

========= ===============================================================================================
lr        the lr at one batch size, searched at a short horizon
lr-full   the lr that the search predicts for the sweep's C, and its neighbours, run to that C
batch     at a smaller and a larger batch: the lr that the recipe's rule gives, half of it and twice it
terms     the chosen lr with the KL and entropy terms off if they were on, and on if they were off
========= ===============================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolaw import allocation
from isolaw.allocation import BatchShape
from isolaw.config import RunSpec, SweepSpec
from isolaw.config.sections import DesignSection, Grid
from isolaw.design.directory import issues_of_comparison
from isolaw.errors import Issue, SpecError, StoreError
from isolaw.files import check_destination
from isolaw.registry import traits
from isolaw.resolve import resolved_run

LR, FULL, BATCH, TERMS = "lr", "lr-full", "batch", "terms"
FOLDERS = (LR, FULL, BATCH, TERMS)
SHARE = 8  # the search runs to C / SHARE, or for `STEPS` steps if that is more
STEPS = 40
LEAST_STEPS = 20  # fewest steps of a run that is judged; the paper's warm-up takes 10
FACTOR = 4  # ratio of batch sizes at which the lr of the rules √B, B and constant differ by factors of 2
_TERMS = ("kl", "entropy")
_OF_KL = ("kl_in", "kl_estimator")


@dataclass(frozen=True)
class CheckSweep:
    """The sweep of one stage of a check, and its directory."""

    name: str
    spec: SweepSpec
    directory: Path


@dataclass(frozen=True)
class Setup:
    """The starting point of a check: batch shapes, initial lr, and weights of the KL and entropy terms.

    The lr search uses the batch shape (B_p, n) ``base`` and starts at ``lr``. ``others`` are a smaller and a
    larger batch. ``on`` contains the weights of the KL and entropy terms when they are on, and ``given``
    their weights in the recipe for this difficulty.
    """

    spec: SweepSpec
    base: BatchShape
    others: tuple[BatchShape, ...]
    lr: float
    on: dict[str, float]
    given: dict[str, float]

    @property
    def compute(self) -> int:
        """The compute C of the sweep, in rollouts."""
        return self.spec.sweep.compute

    @property
    def horizon(self) -> int:
        """The compute of the runs in the lr search, in rollouts."""
        return min(max(self.compute // SHARE, STEPS * _size(self.base)), self.compute)

    @property
    def batch_horizon(self) -> int:
        """The compute of the runs at the other batch sizes, in rollouts."""
        least = LEAST_STEPS * max(map(_size, self.others), default=0)
        return min(max(self.horizon, least), self.compute)

    def horizons(self) -> list[int]:
        """Return the horizons that the search compares.

        The horizons are ``horizon``, and half and a quarter of ``horizon`` if they have enough steps.
        """
        least = LEAST_STEPS * _size(self.base)
        return [c for c in (self.horizon // 4, self.horizon // 2) if c >= least] + [self.horizon]

    def lr_at(self, k: int) -> float:
        """Return the learning rate lr_0 2^k. Equal k give exactly equal floats."""
        return self.lr * 2.0**k

    def stage(
        self, name: str, out: Path, cells: Sequence[BatchShape], lr: Iterable[float], compute: int
    ) -> CheckSweep:
        """Return the sweep of a stage over the given cells (B_p, n), which differ along one axis only."""
        b, n = (tuple(sorted({cell[i] for cell in cells})) for i in (0, 1))
        grid = Grid.model_validate({"problems_per_batch": b, "rollouts_per_problem": n, "lr": sorted(lr)})
        spec = self.spec
        recipe = spec.recipe
        if name == TERMS:
            other = self.other_terms()
            unused = {} if other["kl"] else dict.fromkeys(_OF_KL)
            recipe = recipe.model_copy(update={**other, **unused})
        update = {
            "sweep": spec.sweep.model_copy(update={"compute": compute}),
            "evaluation": spec.evaluation.model_copy(update={"start": None, "end": None, "horizons": ()}),
            "grid": grid,
            "design": DesignSection(),
            "recipe": recipe,
        }
        return CheckSweep(name, spec.model_copy(update=update), out / name)

    @property
    def has_terms(self) -> bool:
        """Whether the recipe has KL or entropy terms that can be turned on or off."""
        return any(self.on.values())

    def other_terms(self) -> dict[str, float]:
        """Return the alternative weights of the terms: off if the recipe has any term, otherwise on."""
        return dict.fromkeys(_TERMS, 0.0) if any(self.given.values()) else self.on

    def expected(self) -> list[dict[str, Any]]:
        """Return the expected runs and rollouts of each stage, for a typical number of lr in the search."""
        searched, seeds = 7, len(self.spec.sweep.seeds)
        full = [self.base] * 3 if self.horizon < self.compute else []
        plans = [
            (LR, [self.base] * searched, self.horizon),
            (FULL, full, self.compute),
            (BATCH, [cell for cell in self.others for _ in range(3)], self.batch_horizon),
            (TERMS, [self.base] * self.has_terms, self.compute),
        ]
        return [
            {
                "stage": name,
                "configurations": sorted(set(cells)),
                "runs": len(cells) * seeds,
                "compute": compute,
                "rollouts": seeds * sum(compute // _size(cell) * _size(cell) for cell in cells),
            }
            for name, cells, compute in plans
            if cells
        ]


def setup(spec: SweepSpec) -> Setup:
    """Return the starting point for a check of a sweep file's recipe.

    Raises `SpecError` with every issue that prevents the check.
    """
    issues = [
        Issue(f"grid.{key}", "a recipe check chooses lr, KL and entropy", values, "no axes of the recipe")
        for key, values in spec.grid.recipe_axes.items()
    ]
    if traits(spec.sweep.backend).recorded:
        accepted = "a backend that makes runs: isolaw fit --retune lr finds the lr of runs that exist"
        issues.append(Issue("sweep.backend", found=spec.sweep.backend, accepted=accepted))
    issues += issues_of_comparison(spec, "a recipe check compares there")
    if issues:
        raise SpecError(issues)
    line = _line(allocation.grid(*spec.axes)[0])
    base = line[(len(line) - 1) // 2]
    smaller = min((c for c in line if c < base), key=lambda c: _away(c, _size(base) / FACTOR), default=None)
    larger = min((c for c in line if c > base), key=lambda c: _away(c, _size(base) * FACTOR), default=None)
    own, easy = _resolved(spec, base), _resolved(spec, base, "easy")
    assert own.recipe.lr is not None
    return Setup(
        spec,
        base,
        tuple(cell for cell in (smaller, larger) if cell is not None),
        own.recipe.lr,
        *({key: getattr(run.recipe, key) or 0.0 for key in _TERMS} for run in (easy, own)),
    )


def claim(out: Path) -> None:
    """Raise `StoreError` if a directory contains anything but the folders of a check."""
    check_destination(out)
    if out.exists() and not out.is_dir():
        raise StoreError(f"{out}: is a file; expected a new directory or a recipe check's")
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if held := [name for name in names if name not in FOLDERS]:
        raise StoreError(
            f"{out}: the directory contains other files ({', '.join(held[:4])}); expected a new or empty "
            "directory, or a recipe check's"
        )


def _line(cells: Sequence[BatchShape]) -> list[BatchShape]:
    """Return all n at the middle B_p or, if there is a single n, all B_p, in ascending order."""
    batches = sorted({b for b, _ in cells})
    middle = batches[(len(batches) - 1) // 2]
    line = sorted(cell for cell in cells if cell[0] == middle)
    return line if len(line) > 1 else sorted(cell for cell in cells if cell[1] == line[0][1])


def _resolved(spec: SweepSpec, cell: BatchShape, difficulty: str | None = None) -> RunSpec:
    """Return a run as resolved by its backend."""
    update = {} if difficulty is None else {"difficulty": difficulty}
    problems = spec.problems.model_copy(update=update)
    return resolved_run(spec.model_copy(update={"problems": problems}), cell)


def _size(cell: BatchShape) -> int:
    return cell[0] * cell[1]


def _away(cell: BatchShape, size: float) -> float:
    return abs(math.log2(_size(cell) / size))
