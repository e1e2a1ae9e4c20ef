"""Define the bandit backend, which runs sweeps on simulators (`isolaw.simulators`).

``bandit.model`` names the simulator. The defaults of the recipe's lr (η) and KL weight (β) are the preset's
values for ``problems.difficulty``. If the difficulty is not set, isolaw derives it from the mean success
probability before training. isolaw rejects settings that a simulator cannot represent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.backend import Backend, Checkpoint, RunContext, UnreadableState
from isolaw.backends.bandit import checks, options
from isolaw.backends.bandit.evaluation import Evaluation
from isolaw.config import RunSpec
from isolaw.config.run import REFERENCE_BATCH
from isolaw.errors import Issue, SpecError
from isolaw.simulators.draws import permutations
from isolaw.simulators.model import Model, Update
from isolaw.simulators.problems import ORDER

# The simulators' η is the lr at B = 1 with square-root scaling.
_LR_PER_ETA = math.sqrt(REFERENCE_BATCH)
_ROLLOUTS, _EVALUATION = range(2)
_MOST_INDICES = 2**20  # maximum number of problem indices to draw at a time


class _Batches:
    """Batches of B_p training problems; a seed gives the same sequence of problems for every B_p and n.

    Without replacement, the problems of a batch are distinct. Each epoch is a new permutation of all D
    problems without its incomplete last batch. With replacement, every problem is drawn independently.
    ``rng`` determines the order. ``left`` contains the remaining batches of the epoch and has shape
    (batches, B_p).

    >>> [b.tolist() for b in _Batches(np.random.default_rng(0), n_train=4, problems_per_batch=2).take(2)]
    [[[3, 0], [1, 2]]]
    """

    def __init__(
        self, rng: np.random.Generator, n_train: int, problems_per_batch: int, replacement: bool = False
    ) -> None:
        self.rng, self.n_train, self.size, self.replacement = rng, n_train, problems_per_batch, replacement
        self.left = np.empty((0, problems_per_batch), dtype=np.int64)

    def take(self, steps: int) -> Iterator[NDArray[np.int64]]:
        """Yield the batches of ``steps`` steps in chunks, as arrays of shape (steps in the chunk, B_p)."""
        most = max(1, _MOST_INDICES // self.size)
        while steps > 0:
            wanted = min(steps, most)
            if self.replacement:
                yield self.rng.integers(self.n_train, size=(wanted, self.size))
            else:
                yield self._of_epochs(wanted)
            steps -= wanted

    def _of_epochs(self, steps: int) -> NDArray[np.int64]:
        whole = self.n_train // self.size
        wanted = -(-max(steps - len(self.left), 0) // whole)
        epochs = permutations(self.rng, wanted, self.n_train)[:, : whole * self.size]
        batches = np.concatenate([self.left, epochs.reshape(wanted * whole, self.size)])
        self.left = batches[steps:]
        return batches[:steps]


class _Bandit(Backend):
    """The `Backend` that simulates runs with `isolaw.simulators`."""

    name = "bandit"
    version = 3

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the preset, its lr and KL weight, the algorithm's advantage, and the number of problems."""
        try:
            return options.resolved(spec, self.version)
        except SpecError as error:  # also report issues of the other options
            wrong = {issue.where.split(".")[1] for issue in error.issues}
            rest = {key: value for key, value in spec.options.items() if key not in wrong}
            more = self.check(options.resolved(spec.model_copy(update={"options": rest}), self.version))
            if "histograms" in wrong:
                more = [issue for issue in more if issue.where != "problems.set"]
            raise SpecError([*error.issues, *more]) from None

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return an issue for each setting that the simulator rejects, or that contradicts another."""
        return checks.issues_of(spec)

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Simulate the run from its start, or from ``ctx.state``, and yield its checkpoints."""
        model, update, stream = options.create(spec), _update_of(spec), _streams_of(spec)
        rollouts, order = stream(_ROLLOUTS), options.difficulty_of(spec).stream(spec.seed, ORDER)
        assert spec.problems.n_train is not None
        batches = _Batches(order, spec.problems.n_train, spec.problems_per_batch, spec.recipe.replacement)
        done = -1
        if ctx.state is not None:
            try:
                done = _restore(ctx.state, model, rollouts, batches)
            except Exception as error:
                raise UnreadableState(ctx.state, error) from error
        evaluation = Evaluation(spec, update, lambda *key: stream(_EVALUATION, *key))
        for step in spec.schedule():
            if step <= done:
                continue
            for some in batches.take(step - max(done, 0)):
                model.advance(some, update, rollouts)
            done = step

            def save(folder: Path, step: int = step) -> None:
                _save(folder, step, model, rollouts, batches)

            rows = evaluation.rows(model, step)
            yield Checkpoint(step, step * spec.batch_rollouts, rows, save, final=step == spec.steps)


BACKEND = _Bandit()


def _update_of(spec: RunSpec) -> Update:
    """Return the update of a resolved spec; its step size is recipe.lr · √1024 · `RunSpec.lr_factor`."""
    recipe = spec.recipe
    assert recipe.lr is not None
    same = ("kl", "entropy", "advantage", "gradient_rollouts", "zero_variance_filter", "staleness")
    step_size = recipe.lr * _LR_PER_ETA * spec.lr_factor
    return Update(spec.rollouts_per_problem, step_size, **{name: getattr(recipe, name) for name in same})


def _streams_of(spec: RunSpec) -> Callable[..., np.random.Generator]:
    """Return a function that maps keys to random streams of the run, independent of the execution order."""
    run = int(spec.run_id, 16)
    return lambda *key: np.random.default_rng(np.random.SeedSequence(run, spawn_key=key))


def _save(folder: Path, step: int, model: Model, rollouts: np.random.Generator, batches: _Batches) -> None:
    arrays: dict[str, Any] = {f"model_{name}": array for name, array in model.arrays().items()}
    np.savez(folder / "arrays.npz", left=batches.left, **arrays)
    streams = {"rollouts": rollouts.bit_generator.state, "batches": batches.rng.bit_generator.state}
    (folder / "state.json").write_text(json.dumps({"step": step, **streams}))


def _restore(folder: Path, model: Model, rollouts: np.random.Generator, batches: _Batches) -> int:
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        batches.left = arrays["left"]
        model.restore({k.removeprefix("model_"): arrays[k] for k in arrays if k.startswith("model_")})
    saved = json.loads((folder / "state.json").read_text())
    rollouts.bit_generator.state = saved["rollouts"]
    batches.rng.bit_generator.state = saved["batches"]
    return int(saved["step"])
