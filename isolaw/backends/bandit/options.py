"""The ``[bandit]`` section: which simulator, with which constants, on which problems."""

from __future__ import annotations

import importlib
import re
from dataclasses import asdict, fields, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from isolaw.config import RunSpec
from isolaw.config.parsing import parse_section, read_text
from isolaw.errors import InputError, Issue, SpecError
from isolaw.simulators.model import Model
from isolaw.simulators.problems import Difficulty, difficulty

ModelName = Literal["interference", "arms", "tabular"]
_ADVANTAGE = {"grpo": "group_std", "dr_grpo": "centred"}


class Options(BaseModel):
    """The ``[bandit]`` section.

    ``parameters`` are constants that differ from the preset's; ``histograms`` name further problem
    sets by their avg@16 histograms, 17 shares each or a text file with them.
    """

    model_config = ConfigDict(extra="forbid")
    model: ModelName = "interference"
    preset: str | None = None
    parameters: dict[str, float] = {}
    histograms: dict[str, list[float] | str] = {}


def simulator(name: str) -> Any:
    """Return the simulator's module (`isolaw.simulators.model` says what it offers)."""
    return importlib.import_module(f"isolaw.simulators.{name}")


def resolved(spec: RunSpec, version: int) -> RunSpec:
    """Fill in what is left open; raise `SpecError` where the section cannot be understood.

    What can be understood and makes no sense is left to `checks.issues_of`.
    """
    options = parse_section(Options, spec.options, prefix="bandit")
    module = simulator(options.model)
    preset = options.preset or next(iter(module.PRESETS))
    constants = asdict(module.PRESETS[preset]) if preset in module.PRESETS else {}
    changed = {k: v for k, v in options.parameters.items() if v != constants.get(k)}
    histograms = {name: _shares(name, given) for name, given in options.histograms.items()}
    own = {
        "model": options.model,
        "preset": preset,
        "parameters": changed,
        **({"histograms": histograms} if histograms else {}),
    }
    spec = spec.model_copy(update={"options": own, "backend_version": version})
    constants |= changed
    kind = spec.problems.difficulty
    if kind is None:  # a simulator knows its problems
        try:
            kind = "easy" if difficulty_of(spec).easy else "hard"
        except SpecError:
            kind = "hard"
    recipe, problems = spec.recipe, spec.problems
    n_train, n_validation = module.SIZES
    return spec.model_copy(
        update={
            "recipe": recipe.model_copy(
                update={
                    "lr": recipe.lr if recipe.lr is not None else constants.get(f"lr_{kind}"),
                    "kl": recipe.kl if recipe.kl is not None else constants.get(f"kl_{kind}"),
                    "entropy": recipe.entropy or 0.0,
                    "advantage": recipe.advantage or _ADVANTAGE.get(recipe.algorithm, "group_std"),
                }
            ),
            "problems": problems.model_copy(
                update={
                    "n_train": problems.n_train or n_train,
                    "n_validation": problems.n_validation or n_validation,
                }
            ),
        }
    )


def _shares(name: str, given: list[float] | str) -> list[float]:
    """The shares of a histogram; those of a file are separated by commas, blanks or new lines."""
    if not isinstance(given, str):
        return given
    try:
        return [float(word) for word in re.split(r"[\s,]+", read_text(given).strip())]
    except (InputError, ValueError) as error:
        where = f"bandit.histograms.{name}"
        raise SpecError([Issue(where, str(error), given, "a text file of 17 numbers")]) from None


def difficulty_of(spec: RunSpec) -> Difficulty:
    """Return the difficulty that a resolved spec names; raise `SpecError` where there is none such."""
    return difficulty(spec.problems.set, spec.options.get("histograms", {}))


def create(spec: RunSpec) -> Model:
    """Return the model of a resolved and checked spec, before its first step."""
    module = simulator(spec.options["model"])
    preset = module.PRESETS[spec.options["preset"]]
    whole = {f.name for f in fields(preset) if f.type == "int"}
    given = {k: int(v) if k in whole else v for k, v in spec.options["parameters"].items()}
    parameters = replace(preset, **given)
    model: Model = module.create(
        parameters, difficulty_of(spec), spec.seed, spec.problems.n_train, spec.problems.n_validation
    )
    return model
