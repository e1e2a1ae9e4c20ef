"""`SweepSpec`: a whole sweep file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from isolaw.config.executor import ExecutorSection
from isolaw.config.parsing import issues_of, located, parse_section, read_text
from isolaw.config.sections import (
    EvaluationSpec,
    GridSection,
    LimitsSection,
    ProblemsSpec,
    Recipe,
    StoreSection,
    SweepSection,
    TrackingSection,
)
from isolaw.config.values import Section, listed
from isolaw.errors import InputError, Issue, SpecError, nearest


class SweepSpec(Section):
    """A whole sweep: everything that a sweep file can say.

    >>> spec = SweepSpec.parse({"sweep": {"compute": 1e5}, "grid": {"rollouts_per_problem": [4, 8]}})
    >>> spec.sweep.compute, spec.grid.rollouts_per_problem
    (100000, (4, 8))
    >>> SweepSpec.parse({"recipe": {"lrs": 1}})
    Traceback (most recent call last):
    isolaw.errors.SpecError: recipe.lrs: unknown key; found 1; did you mean 'lr'?
    """

    sweep: SweepSection = SweepSection()
    grid: GridSection = GridSection()
    limits: LimitsSection = LimitsSection()
    recipe: Recipe = Recipe()
    problems: ProblemsSpec = ProblemsSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    executor: ExecutorSection = ExecutorSection()
    store: StoreSection = StoreSection()
    tracking: TrackingSection = TrackingSection()
    bandit: dict[str, Any] = {}
    replay: dict[str, Any] = {}
    real: dict[str, Any] = {}

    @model_validator(mode="after")
    def _axes_are_recipe_keys(self) -> SweepSpec:
        problems = _axis_issues(self.grid.recipe_axes)
        if problems:
            raise SpecError(problems)
        return self

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> SweepSpec:
        """Build from plain data; raise `SpecError` with all problems."""
        # Axes first and apart, so that their faults and all others are reported together.
        grid = data.get("grid")
        axes = (
            {k: v for k, v in grid.items() if k not in GridSection.model_fields}
            if isinstance(grid, dict)
            else {}
        )
        problems = _axis_issues({key: list(listed(value)) for key, value in axes.items()})
        if problems:
            own = {k: v for k, v in grid.items() if k not in axes} if grid else {}
            try:
                parse_section(cls, {**data, "grid": own})
            except SpecError as error:
                problems += error.issues
            raise SpecError(problems, rest=_rest(cls, data, problems))
        try:
            return parse_section(cls, data)
        except SpecError as error:
            raise SpecError(error.issues, rest=_rest(cls, data, error.issues)) from None

    @classmethod
    def read(
        cls, path: str | Path | None = None, settings: Iterable[str] = (), base: SweepSpec | None = None
    ) -> SweepSpec:
        """Build from a TOML file, or ``base``, or the defaults, and ``section.key=value`` settings.

        Raises
        ------
        SpecError
            unknown keys, wrong values, not TOML; all at once, with their lines.
        InputError
            the file cannot be read, or a setting has no ``=``.
        """
        settings = list(settings)
        try:
            data = tomllib.loads(read_text(path) if path is not None else "")
        except (ValueError, RecursionError) as error:  # of TOML, or of a number in it
            raise SpecError([Issue("not valid TOML", str(error))], source=str(path)) from None
        if base is not None:
            data = base.model_dump(mode="json")
        for setting in settings:
            _apply(data, setting)
        try:
            return cls.parse(data)
        except SpecError as error:
            raise (error if path is None else located(error, path, settings)) from None


def _rest(cls: type[SweepSpec], data: Mapping[str, Any], problems: Iterable[Issue]) -> SweepSpec | None:
    """The spec without what is wrong with it; None where the configurations themselves are."""
    sections = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    for problem in problems:
        section, _, key = problem.where.partition(".")
        own = sections.get(section)
        if section == "sweep" or key in ("problems_per_batch", "rollouts_per_problem"):
            return None
        if isinstance(own, dict) and key not in ("", "kind"):  # what else an executor accepts hangs on it
            own.pop(key.split(".")[0], None)
        else:
            sections.pop(section, None)
    try:
        return cls.model_validate(sections)
    except (SpecError, ValidationError):
        return None


def _axis_issues(axes: Mapping[str, list[Any]]) -> list[Issue]:
    """What is wrong with the recipe keys that are axes of the grid."""
    problems = []
    valid = [*GridSection.model_fields, *Recipe.model_fields]
    for key, values in axes.items():
        if key not in Recipe.model_fields:
            problems.append(Issue(f"grid.{key}", "unknown key", found=values, nearest=nearest(key, valid)))
            continue
        if not values:
            problems.append(Issue(f"grid.{key}", found=values, accepted="at least one value"))
        for value in values:
            try:
                Recipe.model_validate({key: value})
            except ValidationError as error:
                problems += issues_of(error, "grid", Recipe)
    return problems


def _apply(data: dict[str, Any], setting: str) -> None:
    """Write one ``section.key=value`` into ``data``; the value is TOML, or else a bare string."""
    name, equals, raw = setting.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not sections or not key:
        raise InputError(f"--set {setting!r}: accepted: section.key=value, as in sweep.compute=1e7")
    try:
        value: Any = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        value = raw.strip()
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise InputError(f"--set {setting!r}: {section!r} is not a section")
    data[key] = value
