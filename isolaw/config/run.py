"""Define `RunSpec`: one run of a sweep, its identity, and the steps of its evaluations."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.config.sections import MOST_POINTS, Count, EvaluationSpec, Index, ProblemsSpec, Recipe, Section
from isolaw.documents.seal import canonical_json

IDENTITY_VERSION = 1
REFERENCE_BATCH = 1024  # the B at which lr equals the recipe's lr for any lr_scaling that depends on B
REFERENCE_PROBLEMS = 64  # the B_p at which lr equals the recipe's lr if it depends only on B_p
# The exponents (α, β) in lr ∝ B_p^α n^β for each ``recipe.lr_scaling``.
EXPONENTS = {"sqrt": (0.5, 0.5), "linear": (1.0, 1.0), "constant": (0.0, 0.0), "sqrt_problems": (0.5, 0.0)}


def lr_ratio(problems: float, rollouts: float, rule: str) -> float:
    """Return the ratio lr(B_p, n) / lr for a rule of ``recipe.lr_scaling``.

    >>> lr_ratio(256, 16, "sqrt_problems"), lr_ratio(256, 16, "sqrt"), lr_ratio(256, 64, "sqrt_problems")
    (2.0, 2.0, 2.0)
    """
    alpha, beta = EXPONENTS[rule]
    if alpha == beta:  # equal batches get the same rate, to the last bit
        return float((problems * rollouts / REFERENCE_BATCH) ** alpha)
    batch = rollouts * REFERENCE_PROBLEMS / REFERENCE_BATCH
    return float((problems / REFERENCE_PROBLEMS) ** alpha * batch**beta)


class RunSpec(Section):
    """The specification of one run: its configuration, seed, recipe, horizon and evaluations.

    ``options`` contains the options of the backend, ``sources`` the paths that the backend reads, and
    ``content`` the hashes of these files. Options and hashes are part of the run's identity, but paths are
    not.
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
    def shape(self) -> BatchShape:
        """The pair (B_p, n)."""
        return self.problems_per_batch, self.rollouts_per_problem

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n, the number of rollouts per step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def steps(self) -> int:
        """M = floor(C / B), the number of steps of the run."""
        return self.compute // self.batch_rollouts

    @property
    def rollouts(self) -> int:
        """C = M · B, the number of rollouts that the run generates."""
        return self.steps * self.batch_rollouts

    @property
    def lr_factor(self) -> float:
        """Factor by which the run's learning rate differs from ``recipe.lr``.

        The factor is (B_g / 1024)^a, with a = ½ (``sqrt``), 1 (``linear``) or 0 (``constant``). Here
        B_g = B_p · n_train / ``recipe.minibatches`` is the number of rollouts in the gradient of one update,
        and n_train is ``recipe.gradient_rollouts`` if set, otherwise n. For ``sqrt_problems``, the factor is
        (B_p / ``recipe.minibatches`` / 64)^½ at any n, which equals ``sqrt`` at n_train = 16 (`lr_ratio`).

        The paper's rule is lr = 1e-6 · sqrt(B / 1024) (arXiv 2603.12151, App. A), with n_train = n. If
        n_train < n, isolaw scales with n_train. The square root compensates for the noise of the gradient,
        which has a variance ∝ 1 / B_g (derived for Adam in arXiv 2205.10287). A run with n_train = 64 then
        differs from a run with n = 64 only in its baseline. Filters do not change the factor.

        >>> run = RunSpec(backend="real", problems_per_batch=16, rollouts_per_problem=256, compute=10**6)
        >>> run.lr_factor
        2.0
        >>> run.model_copy(update={"recipe": Recipe(gradient_rollouts=64)}).lr_factor
        1.0
        """
        rollouts = self.recipe.gradient_rollouts or self.rollouts_per_problem
        problems = self.problems_per_batch / self.recipe.minibatches
        return lr_ratio(problems, rollouts, self.recipe.lr_scaling)

    @property
    def evaluated_at(self) -> dict[str, float | None]:
        """Temperature and top_p of evaluations, from ``evaluation`` or, if unset, from the recipe."""
        sampling = {"temperature": self.evaluation.temperature, "top_p": self.evaluation.top_p}
        return {key: getattr(self.recipe, key) if value is None else value for key, value in sampling.items()}

    def identity(self) -> dict[str, Any]:
        """Return the data that identify this run, without paths, device, executor, horizon and schedule.

        Recipe keys that are off or have their default value are omitted, so a new key does not change the
        identity of existing runs. The resolved recipe includes the values that follow from
        ``problems.difficulty``. The temperature and top_p of evaluations are included if they differ from the
        recipe's values, because they change the measurements.
        """
        recipe = self.recipe
        evaluation = {key: value for key, value in self.evaluated_at.items() if value != getattr(recipe, key)}
        return {
            "identity": IDENTITY_VERSION,
            "backend": [self.backend, self.backend_version],
            "problems_per_batch": self.problems_per_batch,
            "rollouts_per_problem": self.rollouts_per_problem,
            "seed": self.seed,
            "recipe": recipe.chosen(),
            "problems": self.problems.model_dump(exclude={"difficulty"}),
            "options": self.options,
            "content": self.content,
            **({"evaluation": evaluation} if evaluation else {}),
        }

    @cached_property
    def run_id(self) -> str:
        """SHA-256 of the canonical JSON of `identity`, as 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()

    def __copy__(self) -> RunSpec:
        copied = super().__copy__()
        vars(copied).pop("run_id", None)  # clear the cached id, because the caller can change the copy
        return copied

    def schedule(self) -> list[int]:
        """Return the steps of the evaluations in ascending order, including 0 and the last step.

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
            extra_count = min(int(np.log(self.compute / end) / np.log(ratio)), MOST_POINTS)
            budgets = np.append(budgets, end * ratio ** np.arange(1, extra_count + 1))
        # The factor prevents that rounding removes the last step of a budget with a whole number of batches.
        budgets = budgets[budgets <= self.compute] * (1 + 1e-12)
        steps = {min(int(c // self.batch_rollouts), self.steps) for c in budgets}
        ends = {h // self.batch_rollouts for h in (*e.horizons, self.compute) if h <= self.compute}
        return sorted({0} | steps | ends)
