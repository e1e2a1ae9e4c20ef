"""Simulate the rewards of a population that is trained and evaluated like existing runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isolaw.allocation import Cell
from isolaw.backends.bandit import _Batches
from isolaw.simulators.draws import binomial
from isolaw.simulators.interference import InterferenceParameters, create
from isolaw.simulators.model import Floats, Update
from isolaw.simulators.problems import ORDER, Difficulty

_ROLLOUTS, _EVALUATION = range(2)


@dataclass(frozen=True)
class SimulatedCell(Cell):
    """One configuration: its (B_p, n), its lr(B) / η, and the steps at which it is evaluated.

    ``answers`` is the number of answers per problem in each measured reward of one run; 0 means exact
    rewards.
    """

    factor: float
    steps: tuple[int, ...]
    answers: tuple[int, ...]
    runs: int = 1

    @property
    def compute(self) -> Floats:
        """The compute C of each evaluation, in rollouts."""
        batch = self.problems_per_batch * self.rollouts_per_problem
        return np.array(self.steps, dtype=np.float64) * batch


@dataclass(frozen=True)
class Protocol:
    """How runs were trained and evaluated, so that a simulation can repeat it.

    ``shared`` is true if runs with different seeds have the same problems, as the runs of a language model
    do. ``update`` is the part of a recipe that all simulated models share (`isolaw.simulators.model.Update`).
    The weight β of the KL penalty belongs to the population instead.
    """

    cells: tuple[SimulatedCell, ...]
    n_train: int
    n_validation: int
    shared: bool
    replacement: bool = False
    update: dict[str, Any] = field(default_factory=dict)

    def simulate(self, parameters: InterferenceParameters, difficulty: Difficulty, seed: int) -> Floats:
        """Return the mean reward over the runs of each cell at each of its steps, as one array for all cells.

        If a population diverges, its later rewards are 0.
        """
        return np.concatenate(self.simulate_cells(parameters, difficulty, seed))

    def simulate_cells(
        self, parameters: InterferenceParameters, difficulty: Difficulty, seed: int
    ) -> list[Floats]:
        """Return the rewards of `simulate` as one array per cell."""
        out = []
        for cell in self.cells:
            rewards = np.zeros((cell.runs, len(cell.steps)))
            for run in range(cell.runs):
                for i, (p, answers) in enumerate(self._successes(parameters, difficulty, cell, seed, run)):
                    drawn = cell.answers[i]
                    rewards[run, i] = binomial(answers, drawn, p).mean() / drawn if drawn else p.mean()
            out.append(rewards.mean(axis=0))
        return out

    def moments(
        self, parameters: InterferenceParameters, difficulty: Difficulty, seed: int
    ) -> list[tuple[Floats, Floats]]:
        """Return the mean and variance of p over problems, at each step of the first run of each cell."""
        out = []
        for cell in self.cells:
            reached = [p for p, _ in self._successes(parameters, difficulty, cell, seed, 0)]
            left = [0.0] * (len(cell.steps) - len(reached))  # for steps after the run diverged
            mean, variance = ([moment(p) for p in reached] + left for moment in (np.mean, np.var))
            out.append((np.array(mean), np.array(variance)))
        return out

    def _successes(
        self,
        parameters: InterferenceParameters,
        difficulty: Difficulty,
        cell: SimulatedCell,
        seed: int,
        run: int,
    ) -> Iterator[tuple[Floats, np.random.Generator]]:
        """Yield p of the validation problems and the random stream of answers at each step, until p diverges.

        p has shape (V,).
        """
        b, n = cell.key
        problems = seed if self.shared else seed + (run << 32)
        model = create(parameters, difficulty, problems, self.n_train, self.n_validation)
        order = difficulty.stream(seed + (run << 32), ORDER)
        batches = _Batches(order, self.n_train, min(b, self.n_train), self.replacement)
        step_size = parameters.lr_easy * cell.factor
        update = Update(n, step_size, kl=parameters.kl_easy, **self.update)
        streams = np.random.SeedSequence([seed, run, b, n]).spawn(2)
        rollouts, answers = (np.random.default_rng(streams[i]) for i in (_ROLLOUTS, _EVALUATION))
        done = 0
        for step in cell.steps:
            for some in batches.take(step - done):
                model.advance(some, update, rollouts)
            done = step
            p = model.success()
            if not np.isfinite(p).all():
                break
            yield p, answers
