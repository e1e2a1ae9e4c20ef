"""Define the ``[bandit]`` section: the simulator, its constants and its problems."""

from __future__ import annotations

import importlib
from dataclasses import asdict, fields, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from isolaw.config import RunSpec
from isolaw.config.sections import OFF
from isolaw.documents.validation import parse_section
from isolaw.errors import InputError, Issue, SpecError
from isolaw.simulators.model import Model
from isolaw.simulators.presets import read_preset, shipped
from isolaw.simulators.problems import Difficulty, difficulty

_ADVANTAGE_OF = {"grpo": "group_std", "dr_grpo": "centred"}


class _BanditOptions(BaseModel):
    """The keys of the ``[bandit]`` section.

    ``preset`` is the name of a preset, or the file of a fitted population (`isolaw.simulators.presets`). The
    problems and D of a fitted population are then the defaults. ``parameters`` overrides constants of the
    preset.
    """

    model_config = ConfigDict(extra="forbid")
    model: Literal["interference", "tabular"] = "interference"
    preset: str | None = None
    parameters: dict[str, float] = {}


def simulator(name: str) -> Any:
    """Import and return the module of a simulator; `isolaw.simulators.model` describes its interface."""
    return importlib.import_module(f"isolaw.simulators.{name}")


def resolve(spec: RunSpec, version: int) -> RunSpec:
    """Return a spec with all defaults filled in; raise `SpecError` for an invalid section."""
    options = parse_section(_BanditOptions, spec.options, prefix="bandit")
    module = simulator(options.model)
    preset = options.preset or next(iter(module.PRESETS))
    is_fitted = preset in shipped() or preset.endswith(".toml")
    if options.model == "interference" and preset not in module.PRESETS and is_fitted:
        spec, options = _with_preset_content(spec, options, preset)
        preset = next(iter(module.PRESETS))
    constants = asdict(module.PRESETS[preset]) if preset in module.PRESETS else {}
    changed = {k: v for k, v in options.parameters.items() if v != constants.get(k)}
    resolved_options = {"model": options.model, "preset": preset, "parameters": changed}
    spec = spec.model_copy(update={"options": resolved_options, "backend_version": version})
    constants |= changed
    level = spec.problems.difficulty
    if level is None:  # a simulator knows the difficulty of its problems
        try:
            level = "easy" if difficulty_of(spec).easy else "hard"
        except SpecError:
            level = "hard"
    recipe_defaults = OFF | {
        "lr": constants.get(f"lr_{level}"),
        "kl": constants.get(f"kl_{level}"),
        "entropy": 0.0,
        "advantage": _ADVANTAGE_OF.get(spec.recipe.algorithm, "group_std"),
    }
    problem_defaults = dict(zip(("n_train", "n_validation"), module.SIZES, strict=True))
    recipe, problems = _fill(spec.recipe, recipe_defaults), _fill(spec.problems, problem_defaults)
    return spec.model_copy(update={"recipe": recipe, "problems": problems})


def _with_preset_content(spec: RunSpec, options: _BanditOptions, name: str) -> tuple[RunSpec, _BanditOptions]:
    """Return the spec and the section with the content of a preset file instead of its name."""
    try:
        preset = read_preset(name)
    except InputError as error:
        raise SpecError([Issue("bandit.preset", str(error), name)]) from None
    problems: dict[str, Any] = {}
    if "set" not in spec.problems.model_fields_set:
        problems["set"] = preset.preset.problems
    if spec.problems.n_train is None:
        problems["n_train"] = preset.preset.n_train
    constants = {**preset.constants, **options.parameters}
    return (
        spec.model_copy(update={"problems": spec.problems.model_copy(update=problems)}),
        options.model_copy(update={"preset": None, "parameters": constants}),
    )


def _fill(section: BaseModel, defaults: dict[str, Any]) -> BaseModel:
    return section.model_copy(update={k: v for k, v in defaults.items() if getattr(section, k) is None})


def difficulty_of(spec: RunSpec) -> Difficulty:
    """Return the difficulty that a resolved spec names; raise `SpecError` if it is unknown."""
    return difficulty(spec.problems.set)


def create(spec: RunSpec) -> Model:
    """Return the initial model of a resolved and checked spec."""
    module = simulator(spec.options["model"])
    preset = module.PRESETS[spec.options["preset"]]
    integer_names = {f.name for f in fields(preset) if f.type == "int"}
    parameters = {k: int(v) if k in integer_names else v for k, v in spec.options["parameters"].items()}
    sizes = spec.problems.n_train, spec.problems.n_validation
    model: Model = module.create(replace(preset, **parameters), difficulty_of(spec), spec.seed, *sizes)
    return model
