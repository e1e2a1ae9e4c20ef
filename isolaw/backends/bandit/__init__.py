"""Define the bandit backend, which runs sweeps on simulators (`isolaw.simulators`).

``bandit.model`` names the simulator. The defaults of the recipe's lr (η) and KL weight (β) are the preset's
values for ``problems.difficulty``. If the difficulty is not set, isolaw derives it from the mean success
probability before training. isolaw rejects settings that a simulator cannot represent.

For each evaluation set, the metrics of a checkpoint are computed from the success probabilities p_i, which
the simulator knows:

- ``avg@k``, ``best@k``, ``worst@k``: from ``evaluation.samples`` answers to each problem, as for a language
  model. With ``samples = 0`` they are exact (`isolaw.metrics.expected`).
- ``zero_fraction``, ``gini``: the pass@1 landscape (`isolaw.metrics.landscape`), always exact.

For the whole run, metrics of the set ``train`` include ``drift``, the squared distance of the policy's
parameters from their initial values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw import metrics
from isolaw.backend import Backend, Checkpoint, Measurement, RunContext, UnreadableState, sampling_issues
from isolaw.backends.bandit import options
from isolaw.backends.bandit.options import difficulty_of, simulator
from isolaw.config import RunSpec
from isolaw.config.run import REFERENCE_BATCH
from isolaw.errors import Issue, RunError, SpecError, nearest
from isolaw.simulators.draws import binomial, permutations
from isolaw.simulators.model import ADVANTAGES, Floats, Model, Update
from isolaw.simulators.presets import shipped
from isolaw.simulators.problems import ORDER

_EVAL_SETS = ("validation", "train")
_ADVANTAGES_OF: dict[str, tuple[str, ...]] = {"grpo": ADVANTAGES, "dr_grpo": ("centred",)}
_LARGEST_GB = 4.0
_MODELLED_KEYS = {
    "algorithm", "lr", "lr_scaling", "advantage", "gradient_rollouts", "zero_variance_filter", "replacement",
    "kl", "entropy", "staleness",
}  # fmt: skip


class _Evaluation:
    """Computes the metrics of the simulated model of a run.

    ``stream(index, step)`` returns the random stream of one measurement. Streams depend on the step, so
    results do not depend on the number of evaluations.
    """

    def __init__(self, spec: RunSpec, stream: Callable[[int, int], np.random.Generator]) -> None:
        self.spec, self.stream = spec, stream

    def rows(self, model: Model, step: int) -> list[Measurement]:
        """Return all measurements after ``step`` steps; raise `RunError` if the run has diverged."""
        rows: list[Measurement] = []
        names = [name for name in _EVAL_SETS if name in self.spec.evaluation.sets]
        success_of = {name: model.success(train=name == "train") for name in names}
        is_finite = all(np.isfinite(p).all() for p in success_of.values())
        if not is_finite or not math.isfinite(drift := model.drift()):
            raise RunError(f"the simulation diverged by step {step}; try a smaller lr")
        for name, p in success_of.items():
            rows += self._accuracies(name, p, _EVAL_SETS.index(name), step)
            rows += self._landscape(name, p)
        return [*rows, Measurement("train", "drift", drift)]

    def _accuracies(self, eval_set: str, p: Floats, index: int, step: int) -> Iterator[Measurement]:
        samples = self.spec.evaluation.samples
        correct: Any = binomial(self.stream(index, step), samples, p) if samples else None
        for name in self.spec.evaluation.metrics:
            value = metrics.evaluate(name, correct, samples) if samples else metrics.expected(name, p)
            yield Measurement(eval_set, name, value, p.size, samples or None)

    def _landscape(self, eval_set: str, p: Floats) -> Iterator[Measurement]:
        landscape = metrics.landscape(p)
        yield Measurement(eval_set, "zero_fraction", landscape.zero_fraction, p.size)
        yield Measurement(eval_set, "gini", landscape.gini, p.size)


def _model_issues(spec: RunSpec) -> Iterator[Issue]:
    module = simulator(spec.options["model"])
    preset, any_preset = spec.options["preset"], next(iter(module.PRESETS.values()))
    type_of = {f.name: f.type for f in fields(any_preset)}
    if preset not in module.PRESETS:
        names, accepted = list(module.PRESETS), ", ".join(module.PRESETS)
        if spec.options["model"] == "interference":
            names += shipped()
            accepted = f"{', '.join(names)}, or the file of a preset (.toml)"
        yield Issue("bandit.preset", found=preset, accepted=accepted, nearest=nearest(preset, names))
    parameters = spec.options["parameters"]
    for name, value in parameters.items():
        where = f"bandit.parameters.{name}"
        if name not in type_of:
            close = nearest(name, type_of)
            accepted = "" if close else ", ".join(type_of)
            yield Issue(where, "unknown parameter", value, accepted, close)
            continue
        minimum, maximum = module.BOUNDS.get(name, (0.0, math.inf))
        is_whole = type_of[name] == "int"
        if name.startswith("lr_") and value == 0:
            yield Issue(where, found=value, accepted="a finite number above 0")
        if not (math.isfinite(value) and minimum <= value <= maximum) or (is_whole and value != int(value)):
            number_kind = "whole" if is_whole else "finite"
            limits = f"from {minimum:g} to {maximum:g}" if maximum < math.inf else f"of at least {minimum:g}"
            yield Issue(where, found=value, accepted=f"a {number_kind} number {limits}")
    if preset not in module.PRESETS:
        return
    constants = asdict(module.PRESETS[preset]) | parameters
    if "correct" in type_of and constants["correct"] >= constants["arms"] >= 2:
        accepted = f"fewer than arms = {constants['arms']:g}"
        yield Issue("bandit.parameters.correct", found=constants["correct"], accepted=accepted)
    problems = (spec.problems.n_train or 0) + (spec.problems.n_validation or 0)
    gigabytes = constants.get("r", 1) * constants.get("arms", 1) * problems * 8e-9
    if gigabytes > _LARGEST_GB:
        note = f"the features of these problems take {gigabytes:.3g} GB"
        yield Issue("problems.n_train", note, problems, f"problems for at most {_LARGEST_GB:g} GB")


def _set_issues(spec: RunSpec) -> Iterator[Issue]:
    try:
        difficulty_of(spec)
    except SpecError as error:
        yield from error.issues


def _recipe_issues(spec: RunSpec) -> Iterator[Issue]:
    recipe = spec.recipe
    if recipe.algorithm not in _ADVANTAGES_OF:
        accepted, close = ", ".join(_ADVANTAGES_OF), nearest(recipe.algorithm, _ADVANTAGES_OF)
        yield Issue("recipe.algorithm", found=recipe.algorithm, accepted=accepted, nearest=close)
    elif recipe.advantage not in _ADVANTAGES_OF[recipe.algorithm]:
        accepted = f"{', '.join(_ADVANTAGES_OF[recipe.algorithm])} with algorithm = {recipe.algorithm!r}"
        yield Issue("recipe.advantage", found=recipe.advantage, accepted=accepted)
    if (recipe.gradient_rollouts or 0) > spec.rollouts_per_problem:
        accepted = f"at most n = {spec.rollouts_per_problem}, the rollouts that are generated"
        yield Issue("recipe.gradient_rollouts", found=recipe.gradient_rollouts, accepted=accepted)
    if (recipe.staleness or 0) >= spec.steps > 0:
        accepted = f"fewer than the run's steps, M = {spec.steps} at n = {spec.rollouts_per_problem}"
        yield Issue("recipe.staleness", found=recipe.staleness, accepted=accepted)
    for key, value in recipe.chosen().items():
        if key not in _MODELLED_KEYS:
            yield Issue(f"recipe.{key}", "the simulator does not model it", found=value)


def _grid_issues(spec: RunSpec) -> Iterator[Issue]:
    b, problems = spec.problems_per_batch, spec.problems
    n_train = problems.n_train or 1
    if spec.options["model"] == "tabular":
        sizes = {"problems.n_train": n_train, "problems.n_validation": problems.n_validation}
        for where, count in {"grid.problems_per_batch": b, **sizes}.items():
            if count != 1:
                yield Issue(where, "the tabular bandit is one problem", found=count, accepted="1")
    elif b > n_train and not spec.recipe.replacement:
        accepted = f"at most problems.n_train = {n_train}, or recipe.replacement = true"
        yield Issue("grid.problems_per_batch", "a batch takes distinct problems", b, accepted)
    if spec.rollouts_per_problem < 2 and spec.recipe.advantage != "none":
        note = "a group of one rollout has no advantage"
        yield Issue("grid.rollouts_per_problem", note, spec.rollouts_per_problem, "at least 2")


def _evaluation_issues(spec: RunSpec) -> Iterator[Issue]:
    samples = spec.evaluation.samples
    for name in spec.evaluation.sets:
        if name not in _EVAL_SETS:
            accepted, close = ", ".join(_EVAL_SETS), nearest(name, _EVAL_SETS)
            yield Issue("evaluation.sets", found=name, accepted=accepted, nearest=close)
    yield from sampling_issues(spec, "the simulator does not model it")
    for name in spec.evaluation.metrics:
        parsed = metrics.parse(name)
        if parsed is None or (samples and parsed[1] > samples):
            limit = f" with k ≤ {samples} (or evaluation.samples = 0, exact)" if samples else ""
            yield Issue("evaluation.metrics", found=name, accepted=f"avg@k, best@k, worst@k{limit}")


# The simulators' η is the lr at B = 1 with square-root scaling.
_LR_PER_ETA = math.sqrt(REFERENCE_BATCH)
_ROLLOUT_STREAM, _EVALUATION_STREAM = range(2)
_INDICES_AT_ONCE = 2**20  # maximum number of problem indices to draw at a time


class _Batches:
    """Batches of B_p training problems; a seed gives the same sequence of problems for every B_p and n.

    Without replacement, the problems of a batch are distinct. Each epoch is a new permutation of all D
    problems without its incomplete last batch. With replacement, every problem is drawn independently.
    ``rng`` determines the order. ``remaining`` contains the remaining batches of the epoch and has shape
    (batches, B_p).

    >>> [b.tolist() for b in _Batches(np.random.default_rng(0), n_train=4, problems_per_batch=2).take(2)]
    [[[3, 0], [1, 2]]]
    """

    def __init__(
        self, rng: np.random.Generator, n_train: int, problems_per_batch: int, replacement: bool = False
    ) -> None:
        self.rng, self.n_train, self.size, self.replacement = rng, n_train, problems_per_batch, replacement
        self.remaining = np.empty((0, problems_per_batch), dtype=np.int64)

    def take(self, steps: int) -> Iterator[NDArray[np.int64]]:
        """Yield the batches of ``steps`` steps in chunks, as arrays of shape (steps in the chunk, B_p)."""
        chunk_steps = max(1, _INDICES_AT_ONCE // self.size)
        while steps > 0:
            count = min(steps, chunk_steps)
            if self.replacement:
                yield self.rng.integers(self.n_train, size=(count, self.size))
            else:
                yield self._from_epochs(count)
            steps -= count

    def _from_epochs(self, steps: int) -> NDArray[np.int64]:
        epoch_batches = self.n_train // self.size
        epoch_count = -(-max(steps - len(self.remaining), 0) // epoch_batches)
        epochs = permutations(self.rng, epoch_count, self.n_train)[:, : epoch_batches * self.size]
        batches = np.concatenate([self.remaining, epochs.reshape(epoch_count * epoch_batches, self.size)])
        self.remaining = batches[steps:]
        return batches[:steps]


class _Bandit(Backend):
    """The `Backend` that simulates runs with `isolaw.simulators`."""

    name = "bandit"
    version = 3

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the preset, its lr and KL weight, the algorithm's advantage, and the number of problems."""
        try:
            return options.resolve(spec, self.version)
        except SpecError as error:  # also report issues of the other options
            wrong_keys = {issue.where.split(".")[1] for issue in error.issues}
            others = {key: value for key, value in spec.options.items() if key not in wrong_keys}
            partial = options.resolve(spec.model_copy(update={"options": others}), self.version)
            raise SpecError([*error.issues, *self.check(partial)]) from None

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return an issue for each setting that the simulator rejects, or that contradicts another."""
        checks = (_model_issues, _set_issues, _recipe_issues, _grid_issues, _evaluation_issues)
        return [issue for check in checks for issue in check(spec)]

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Simulate the run from its start, or from ``ctx.state``, and yield its checkpoints."""
        model, update, stream = options.create(spec), _update_of(spec), _streams_of(spec)
        rollouts, order = stream(_ROLLOUT_STREAM), options.difficulty_of(spec).stream(spec.seed, ORDER)
        assert spec.problems.n_train is not None
        batches = _Batches(order, spec.problems.n_train, spec.problems_per_batch, spec.recipe.replacement)
        last_step = -1
        if ctx.state is not None:
            try:
                last_step = _restore(ctx.state, model, rollouts, batches)
            except Exception as error:
                raise UnreadableState(ctx.state, error) from error
        evaluation = _Evaluation(spec, lambda *key: stream(_EVALUATION_STREAM, *key))
        for step in spec.schedule():
            if step <= last_step:
                continue
            for chunk in batches.take(step - max(last_step, 0)):
                model.advance(chunk, update, rollouts)
            last_step = step

            def save(folder: Path, step: int = step) -> None:
                _save(folder, step, model, rollouts, batches)

            rows = evaluation.rows(model, step)
            yield Checkpoint(step, step * spec.batch_rollouts, rows, save, final=step == spec.steps)


BACKEND = _Bandit()


def _update_of(spec: RunSpec) -> Update:
    """Return the update of a resolved spec; its step size is recipe.lr · √1024 · `RunSpec.lr_factor`."""
    recipe = spec.recipe
    assert recipe.lr is not None
    keys = ("kl", "entropy", "advantage", "gradient_rollouts", "zero_variance_filter", "staleness")
    step_size = recipe.lr * _LR_PER_ETA * spec.lr_factor
    return Update(spec.rollouts_per_problem, step_size, **{name: getattr(recipe, name) for name in keys})


def _streams_of(spec: RunSpec) -> Callable[..., np.random.Generator]:
    """Return a function that maps keys to random streams of the run, independent of the execution order."""
    entropy = int(spec.run_id, 16)
    return lambda *key: np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=key))


def _save(folder: Path, step: int, model: Model, rollouts: np.random.Generator, batches: _Batches) -> None:
    arrays: dict[str, Any] = {f"model_{name}": array for name, array in model.arrays().items()}
    np.savez(folder / "arrays.npz", left=batches.remaining, **arrays)
    streams = {"rollouts": rollouts.bit_generator.state, "batches": batches.rng.bit_generator.state}
    (folder / "state.json").write_text(json.dumps({"step": step, **streams}))


def _restore(folder: Path, model: Model, rollouts: np.random.Generator, batches: _Batches) -> int:
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        batches.remaining = arrays["left"]
        model.restore({k.removeprefix("model_"): arrays[k] for k in arrays if k.startswith("model_")})
    saved = json.loads((folder / "state.json").read_text())
    rollouts.bit_generator.state = saved["rollouts"]
    batches.rng.bit_generator.state = saved["batches"]
    return int(saved["step"])
