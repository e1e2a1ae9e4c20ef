"""Find all issues of a simulated run before it starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, fields

from isolaw import metrics
from isolaw.backend import sampling_issues
from isolaw.backends.bandit.evaluation import EVAL_SETS, EXTRA
from isolaw.backends.bandit.options import difficulty_of, simulator
from isolaw.config import RunSpec
from isolaw.errors import Issue, SpecError, nearest
from isolaw.simulators.model import ADVANTAGES
from isolaw.simulators.presets import shipped
from isolaw.simulators.problems import NAMED

_ALGORITHMS: dict[str, tuple[str, ...]] = {"grpo": ADVANTAGES, "dr_grpo": ("centred",)}
_MOST_GIGABYTES = 4.0
_REPRESENTED = {
    "algorithm", "lr", "lr_scaling", "advantage", "gradient_rollouts", "zero_variance_filter", "replacement",
    "kl", "entropy", "staleness",
}  # fmt: skip


def issues_of(spec: RunSpec) -> list[Issue]:
    """Return all issues of a resolved spec that prevent its simulation."""
    return [*_model(spec), *_problem_set(spec), *_recipe(spec), *_grid(spec), *_evaluation(spec)]


def _model(spec: RunSpec) -> Iterator[Issue]:
    module = simulator(spec.options["model"])
    preset, first = spec.options["preset"], next(iter(module.PRESETS.values()))
    kinds = {f.name: f.type for f in fields(first)}
    if preset not in module.PRESETS:
        names, accepted = list(module.PRESETS), ", ".join(module.PRESETS)
        if spec.options["model"] == "interference":
            names += shipped()
            accepted = f"{', '.join(names)}, or the file of a preset (.toml)"
        yield Issue("bandit.preset", found=preset, accepted=accepted, nearest=nearest(preset, names))
    given = spec.options["parameters"]
    for name, value in given.items():
        where = f"bandit.parameters.{name}"
        if name not in kinds:
            close = nearest(name, kinds)
            accepted = "" if close else ", ".join(kinds)
            yield Issue(where, "unknown parameter", value, accepted, close)
            continue
        least, most = module.BOUNDS.get(name, (0.0, math.inf))
        whole = kinds[name] == "int"
        if name.startswith("lr_") and value == 0:
            yield Issue(where, found=value, accepted="a finite number above 0")
        if not (math.isfinite(value) and least <= value <= most) or (whole and value != int(value)):
            kind = "whole" if whole else "finite"
            limits = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
            yield Issue(where, found=value, accepted=f"a {kind} number {limits}")
    if preset not in module.PRESETS:
        return
    values = asdict(module.PRESETS[preset]) | given
    if "correct" in kinds and values["correct"] >= values["arms"] >= 2:
        accepted = f"fewer than arms = {values['arms']:g}"
        yield Issue("bandit.parameters.correct", found=values["correct"], accepted=accepted)
    problems = (spec.problems.n_train or 0) + (spec.problems.n_validation or 0)
    gigabytes = values.get("r", 1) * values.get("arms", 1) * problems * 8e-9
    if gigabytes > _MOST_GIGABYTES:
        note = f"the features of these problems take {gigabytes:.3g} GB"
        yield Issue("problems.n_train", note, problems, f"problems for at most {_MOST_GIGABYTES:g} GB")


def _problem_set(spec: RunSpec) -> Iterator[Issue]:
    for name in spec.options.get("histograms", {}):
        if name in NAMED or not name.replace("-", "").replace("_", "").isalnum():
            accepted = f"a name of letters and digits, not {', '.join(NAMED)}"
            yield Issue(f"bandit.histograms.{name}", found=name, accepted=accepted)
    try:
        difficulty_of(spec)
    except SpecError as error:
        yield from error.issues


def _recipe(spec: RunSpec) -> Iterator[Issue]:
    recipe = spec.recipe
    if recipe.algorithm not in _ALGORITHMS:
        accepted, close = ", ".join(_ALGORITHMS), nearest(recipe.algorithm, _ALGORITHMS)
        yield Issue("recipe.algorithm", found=recipe.algorithm, accepted=accepted, nearest=close)
    elif recipe.advantage not in _ALGORITHMS[recipe.algorithm]:
        accepted = f"{', '.join(_ALGORITHMS[recipe.algorithm])} with algorithm = {recipe.algorithm!r}"
        yield Issue("recipe.advantage", found=recipe.advantage, accepted=accepted)
    if (recipe.gradient_rollouts or 0) > spec.rollouts_per_problem:
        accepted = f"at most n = {spec.rollouts_per_problem}, the rollouts that are generated"
        yield Issue("recipe.gradient_rollouts", found=recipe.gradient_rollouts, accepted=accepted)
    if (recipe.staleness or 0) >= spec.steps > 0:
        accepted = f"fewer than the run's steps, M = {spec.steps} at n = {spec.rollouts_per_problem}"
        yield Issue("recipe.staleness", found=recipe.staleness, accepted=accepted)
    for key, value in recipe.chosen().items():
        if key not in _REPRESENTED:
            yield Issue(f"recipe.{key}", "the simulator does not model it", found=value)


def _grid(spec: RunSpec) -> Iterator[Issue]:
    b, problems = spec.problems_per_batch, spec.problems
    n_train = problems.n_train or 1
    if spec.options["model"] == "tabular":
        sizes = {"problems.n_train": n_train, "problems.n_validation": problems.n_validation}
        for where, size in {"grid.problems_per_batch": b, **sizes}.items():
            if size != 1:
                yield Issue(where, "the tabular bandit is one problem", found=size, accepted="1")
    elif b > n_train and not spec.recipe.replacement:
        accepted = f"at most problems.n_train = {n_train}, or recipe.replacement = true"
        yield Issue("grid.problems_per_batch", "a batch takes distinct problems", b, accepted)
    if spec.rollouts_per_problem < 2 and spec.recipe.advantage != "none":
        note = "a group of one rollout has no advantage"
        yield Issue("grid.rollouts_per_problem", note, spec.rollouts_per_problem, "at least 2")


def _evaluation(spec: RunSpec) -> Iterator[Issue]:
    samples = spec.evaluation.samples
    for name in spec.evaluation.sets:
        if name not in EVAL_SETS:
            accepted, close = ", ".join(EVAL_SETS), nearest(name, EVAL_SETS)
            yield Issue("evaluation.sets", found=name, accepted=accepted, nearest=close)
    yield from sampling_issues(spec, "the simulator does not model it")
    for name in spec.evaluation.metrics:
        parsed = metrics.parse(name)
        if name not in EXTRA and (parsed is None or (samples and parsed[1] > samples)):
            limit = f" with k ≤ {samples} (or evaluation.samples = 0, exact)" if samples else ""
            accepted = f"avg@k, best@k, worst@k{limit}, {', '.join(EXTRA)}"
            yield Issue("evaluation.metrics", found=name, accepted=accepted, nearest=nearest(name, EXTRA))
