"""The bandit backend: the sweep engine on simulators (`isolaw.simulators`).

The model is the interference population. The recipe's lr (η) and KL weight (β) default to the
preset's for the problem set. What the model cannot represent is refused by `check`.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from isolaw import metrics
from isolaw.backends.base import Checkpoint, DamagedState, Row, RunContext
from isolaw.errors import Problem, RunError, SpecError, nearest
from isolaw.parsing import parse_section
from isolaw.simulators import interference
from isolaw.simulators.problems import INITIAL_SUCCESS, order_stream, population
from isolaw.spec import RunSpec

# The paper's rule lr · sqrt(B / 1024) written with η = lr at B = 1: a common factor at this batch.
_REFERENCE_BATCH = 1024
_MOST_INDICES = 2**20  # of problems, drawn ahead at a time
_ROLLOUTS, _EVALUATION = range(2)
DEFAULT_TRAIN, DEFAULT_VALIDATION = 2000, 1000
EVAL_SETS = ("validation", "train")


class Options(BaseModel):
    """The ``[bandit]`` section."""

    model_config = ConfigDict(extra="forbid")
    model: Literal["interference"] = "interference"
    preset: Literal["I"] = "I"
    parameters: dict[str, float] = {}


class Bandit:
    """`Backend` over the simulators."""

    name = "bandit"
    version = 2

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in lr and KL from the preset; keep only parameters that differ from it."""
        options = _options(spec)
        preset = asdict(interference.PRESETS[options.preset])
        changed = {k: v for k, v in options.parameters.items() if v != preset[k]}
        parameters = {**preset, **changed}
        kind = "easy" if spec.problems.set == "easy" else "hard"
        recipe = spec.recipe.model_copy(
            update={
                "lr": spec.recipe.lr if spec.recipe.lr is not None else parameters[f"lr_{kind}"],
                "kl": spec.recipe.kl if spec.recipe.kl is not None else parameters[f"kl_{kind}"],
                "entropy": spec.recipe.entropy or 0.0,
                "advantage": spec.recipe.advantage or "group_std",
            }
        )
        problems = spec.problems.model_copy(
            update={
                "n_train": spec.problems.n_train or DEFAULT_TRAIN,
                "n_validation": spec.problems.n_validation or DEFAULT_VALIDATION,
            }
        )
        return spec.model_copy(
            update={
                "problems": problems,
                "recipe": recipe,
                "backend_version": self.version,
                "options": {"model": options.model, "preset": options.preset, "parameters": changed},
            }
        )

    def check(self, spec: RunSpec) -> list[Problem]:
        """Return what this simulator cannot represent, and what makes no sense."""
        return [*_spec_problems(spec), *_parameter_problems(spec)]

    def jobs(self, spec: RunSpec) -> int:
        """One for each core."""
        return os.cpu_count() or 1

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Simulate, from the start or from ``ctx.state``."""
        parameters = _parameters(spec)
        p = spec.problems
        assert p.n_train is not None
        assert p.n_validation is not None
        problems = population(
            p.set, spec.seed, p.n_train, p.n_validation, parameters.s, parameters.m, parameters.r
        )
        rollouts = _stream(spec, _ROLLOUTS)
        order = _Epochs(order_stream(spec.seed, p.set), p.n_train, spec.problems_per_batch)
        state = interference.State.initial(p.n_train, parameters.r)
        done = -1
        if ctx.state is not None:
            try:
                done = _restore(ctx.state, state, rollouts, order)
            except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
                raise DamagedState(f"{ctx.state}: {error}") from error
        assert spec.recipe.lr is not None
        assert spec.recipe.kl is not None
        step_size = spec.recipe.lr * _lr_factor(spec.recipe.lr_scaling, spec.batch_rollouts)
        for step in spec.schedule():
            if step <= done:
                continue
            for batches in order.take(step - max(done, 0)):
                interference.advance(
                    state,
                    problems,
                    batches,
                    parameters,
                    rollouts_per_problem=spec.rollouts_per_problem,
                    step_size=step_size,
                    kl=spec.recipe.kl,
                    rng=rollouts,
                )
            done = step

            def save(folder: Path, step: int = step) -> None:
                _save(folder, step, state, rollouts, order)

            rows = _evaluate(spec, step, state, problems, parameters)
            yield Checkpoint(step, step * spec.batch_rollouts, rows, save, final=step == spec.steps)


BACKEND = Bandit()


class _Epochs:
    """Batches of distinct problems: each epoch a new permutation, its incomplete last batch dropped.

    Epochs are the same for every B_p and n under one seed.
    """

    def __init__(self, rng: np.random.Generator, n_train: int, batch: int) -> None:
        self.rng, self.batch = rng, batch
        self.permutation = np.arange(n_train)
        self.left = np.empty((0, batch), dtype=np.int64)

    def take(self, steps: int) -> Iterator[NDArray[np.int64]]:
        """Yield arrays (some steps, B_p) that add up to ``steps``, none of them large."""
        most = max(1, _MOST_INDICES // self.batch)
        while steps > 0:
            wanted = min(steps, most)
            parts = [self.left]
            have = len(self.left)
            while have < wanted:
                self.permutation = self.rng.permutation(self.permutation.size)
                whole = self.permutation.size // self.batch
                parts.append(self.permutation[: whole * self.batch].reshape(whole, self.batch))
                have += whole
            batches = np.concatenate(parts)
            self.left = batches[wanted:]
            yield batches[:wanted]
            steps -= wanted


def _save(
    folder: Path, step: int, state: interference.State, rollouts: np.random.Generator, order: _Epochs
) -> None:
    np.savez(folder / "arrays.npz", w=state.w, u=state.u, scalars=state.scalars, left=order.left)
    streams = {"rollouts": rollouts.bit_generator.state, "order": order.rng.bit_generator.state}
    (folder / "state.json").write_text(json.dumps({"step": step, **streams}))


def _restore(folder: Path, state: interference.State, rollouts: np.random.Generator, order: _Epochs) -> int:
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        state.w, state.u, state.scalars = arrays["w"], arrays["u"], arrays["scalars"]
        order.left = arrays["left"]
    saved = json.loads((folder / "state.json").read_text())
    rollouts.bit_generator.state = saved["rollouts"]
    order.rng.bit_generator.state = saved["order"]
    return int(saved["step"])


def _stream(spec: RunSpec, *key: int) -> np.random.Generator:
    """A random stream keyed on the run, and on nothing that depends on order or place."""
    return np.random.default_rng(np.random.SeedSequence(int(spec.run_id, 16), spawn_key=key))


def _lr_factor(scaling: str, batch: int) -> float:
    """lr(B) / η: √B under the square-root rule; the others agree with it at a batch of 1,024."""
    power = {"sqrt": 0.5, "linear": 1.0, "constant": 0.0}[scaling]
    return math.sqrt(_REFERENCE_BATCH) * (batch / _REFERENCE_BATCH) ** power


def _parameters(spec: RunSpec) -> interference.Parameters:
    preset = interference.PRESETS[spec.options["preset"]]
    changed: dict[str, Any] = dict(spec.options["parameters"])
    if "r" in changed:
        changed["r"] = int(changed["r"])
    return replace(preset, **changed)


def _options(spec: RunSpec) -> Options:
    """The ``[bandit]`` section; what is wrong with it is reported with all the rest."""
    problems = []
    given = spec.options.get("parameters", {})
    for name in given if isinstance(given, dict) else ():
        if name not in interference.PARAMETER_NAMES:
            close = nearest(name, interference.PARAMETER_NAMES)
            accepted = "" if close else ", ".join(interference.PARAMETER_NAMES)
            where = f"bandit.parameters.{name}"
            problems.append(Problem(where, "unknown parameter", given[name], accepted, close))
    try:
        options = parse_section(Options, spec.options, prefix="bandit")
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError([*problems, *_spec_problems(spec)])
    return options


def _spec_problems(spec: RunSpec) -> list[Problem]:
    """What this simulator cannot represent, and what makes no sense, whatever its parameters."""
    out = []
    recipe, problems = spec.recipe, spec.problems
    if problems.set not in INITIAL_SUCCESS:
        accepted = ", ".join(INITIAL_SUCCESS)
        out.append(Problem("problems.set", found=problems.set, accepted=accepted))
    if recipe.algorithm != "grpo":
        out.append(Problem("recipe.algorithm", found=recipe.algorithm, accepted="grpo"))
    if recipe.advantage not in (None, "group_std"):
        out.append(Problem("recipe.advantage", found=recipe.advantage, accepted="group_std"))
    if recipe.entropy:
        out.append(Problem("recipe.entropy", found=recipe.entropy, accepted="0, there is no such term here"))
    represented = {"algorithm", "lr", "lr_scaling", "kl", "entropy", "advantage"}
    out += [
        Problem(f"recipe.{key}", "the simulator has nothing of the kind", found=value)
        for key, value in recipe.model_dump(exclude_defaults=True).items()
        if key not in represented
    ]
    out += [
        Problem(
            "evaluation.sets", found=name, accepted=", ".join(EVAL_SETS), nearest=nearest(name, EVAL_SETS)
        )
        for name in spec.evaluation.sets
        if name not in EVAL_SETS
    ]
    if spec.rollouts_per_problem < 2:
        note = "a group of one rollout has no advantage"
        out.append(Problem("grid.rollouts_per_problem", note, found=1, accepted="at least 2"))
    if spec.problems_per_batch > (problems.n_train or DEFAULT_TRAIN):
        out.append(
            Problem(
                "grid.problems_per_batch",
                "a batch takes distinct problems",
                found=spec.problems_per_batch,
                accepted=f"at most problems.n_train = {problems.n_train}",
            )
        )
    out += [
        Problem(
            "evaluation.metrics",
            found=name,
            accepted=f"avg@k, best@k, worst@k, k ≤ {spec.evaluation.samples}",
        )
        for name in spec.evaluation.metrics
        if (parsed := metrics.parse(name)) is None or parsed[1] > spec.evaluation.samples
    ]
    return out


def _parameter_problems(spec: RunSpec) -> list[Problem]:
    out = []
    for name, value in spec.options["parameters"].items():
        least, most = (1.0, 4096.0) if name == "r" else (0.0, 1.0) if name == "f_in" else (0.0, math.inf)
        if not (math.isfinite(value) and least <= value <= most) or (name == "r" and value != int(value)):
            accepted = f"a finite number from {least:g} to {most:g}"
            out.append(Problem(f"bandit.parameters.{name}", found=value, accepted=accepted))
    return out


def _evaluate(
    spec: RunSpec,
    step: int,
    state: interference.State,
    problems: Any,
    parameters: interference.Parameters,
) -> list[Row]:
    rows = []
    samples = spec.evaluation.samples
    for index, eval_set in enumerate(EVAL_SETS):
        if eval_set not in spec.evaluation.sets:
            continue
        p = interference.success(state, problems, parameters, train=eval_set == "train")
        if not np.all(np.isfinite(p)):
            raise RunError(f"the simulation diverged by step {step}; try a smaller lr")
        # Keyed on the step: what is measured does not depend on how often one looks.
        correct = _stream(spec, _EVALUATION, index, step).binomial(samples, p)
        rows += [
            Row(eval_set, name, metrics.evaluate(name, correct, samples), p.size, samples)
            for name in spec.evaluation.metrics
        ]
    return rows
