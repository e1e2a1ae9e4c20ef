"""`RunSpec`: one run of a sweep, its identity and the steps of its evaluations."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from isolaw.config.sections import MOST_POINTS, Count, EvaluationSpec, Index, ProblemsSpec, Recipe, Section
from isolaw.documents.seal import canonical_json

IDENTITY_VERSION = 1
REFERENCE_BATCH = 1024  # B at which the recipe's lr holds, whatever its lr_scaling
REFERENCE_PROBLEMS = 64  # B_p at which it holds if lr depends on B_p alone: B = 1024 at n = 16
# lr ∝ B_p^α n^β, as (α, β), by ``recipe.lr_scaling``
EXPONENTS = {"sqrt": (0.5, 0.5), "linear": (1.0, 1.0), "constant": (0.0, 0.0), "sqrt_problems": (0.5, 0.0)}


def lr_ratio(problems: float, rollouts: float, rule: str) -> float:
    """Return lr(B_p, n) / lr by a rule of ``recipe.lr_scaling``.

    >>> lr_ratio(256, 16, "sqrt_problems"), lr_ratio(256, 16, "sqrt"), lr_ratio(256, 64, "sqrt_problems")
    (2.0, 2.0, 2.0)
    """
    alpha, beta = EXPONENTS[rule]
    if alpha == beta:  # bit for bit as before there were other rules
        return float((problems * rollouts / REFERENCE_BATCH) ** alpha)
    own = rollouts * REFERENCE_PROBLEMS / REFERENCE_BATCH
    return float((problems / REFERENCE_PROBLEMS) ** alpha * own**beta)


class RunSpec(Section):
    """One run: a configuration, a seed, its horizon and its evaluations.

    ``options`` are the backend's own; ``sources`` are paths that it reads, and ``content`` the hashes of
    their content. Options and hashes are part of the run's identity, paths are not.
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

    @property
    def rollouts(self) -> int:
        """C = M · B, the rollouts that the run generates."""
        return self.steps * self.batch_rollouts

    @property
    def lr_factor(self) -> float:
        """lr(B_g) / lr = (B_g / 1024)^a, with a = ½ (``sqrt``), 1 (``linear``) or 0 (``constant``).

        B_g = B_p · n_train is the number of rollouts in a step's gradient, where n_train is
        ``recipe.gradient_rollouts`` or n; ``recipe.minibatches`` divides them. ``sqrt_problems`` is (B_p /
        64)^½ at any n; at n = 16 it equals the square-root rule (`lr_ratio`). The paper's rule is lr = 1e-6 ·
        sqrt(B / 1024) (arXiv 2603.12151, App. A), with n_train = n. Where n_train < n, the rule follows
        n_train: the square root compensates the gradient's noise, whose variance is ∝ 1 / B_g (derived for
        Adam in arXiv 2205.10287). A run with n_train = 64 then differs from a run with n = 64 in its baseline
        alone. A filter does not change the factor.

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
        """Temperature and top_p of the evaluations: the recipe's unless ``evaluation`` has its own."""
        own = {"temperature": self.evaluation.temperature, "top_p": self.evaluation.top_p}
        return {key: getattr(self.recipe, key) if value is None else value for key, value in own.items()}

    def identity(self) -> dict[str, Any]:
        """Return the data that identify this run, without path, device, executor, horizon or schedule.

        Recipe keys that are off or at their default are left out, so that a new key changes no identity. The
        resolved recipe holds the choices that follow from ``problems.difficulty``. The temperature and top_p
        of the evaluation count if they differ from the recipe's, since they change the measurements.
        """
        recipe = self.recipe
        evaluation = {key: v for key, v in self.evaluated_at.items() if v != getattr(recipe, key)}
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
        """SHA-256 of the canonical JSON of `identity`, 64 hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()

    def __copy__(self) -> RunSpec:
        copied = super().__copy__()
        vars(copied).pop("run_id", None)  # the copy may be about to change
        return copied

    def schedule(self) -> list[int]:
        """Return the steps of the evaluations, ascending, with 0 and the last step.

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
            beyond = min(int(np.log(self.compute / end) / np.log(ratio)), MOST_POINTS)
            budgets = np.append(budgets, end * ratio ** np.arange(1, beyond + 1))
        # The nudge keeps a budget that is a whole number of batches from losing a step to rounding.
        budgets = budgets[budgets <= self.compute] * (1 + 1e-12)
        steps = {min(int(c // self.batch_rollouts), self.steps) for c in budgets}
        ends = {h // self.batch_rollouts for h in (*e.horizons, self.compute) if h <= self.compute}
        return sorted({0} | steps | ends)
