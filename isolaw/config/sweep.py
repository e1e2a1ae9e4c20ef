"""Define `SweepSpec`, the content of a sweep file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from isolaw.arguments import checked
from isolaw.config.executor import ExecutorSection
from isolaw.config.sections import (
    DesignSection,
    EvaluationSpec,
    Grid,
    GridSection,
    LimitsSection,
    ProblemsSpec,
    Recipe,
    Section,
    SweepSection,
    TrackingSection,
)
from isolaw.documents.reading import parse_toml, read_toml
from isolaw.documents.validation import parse_section, with_lines
from isolaw.errors import InputError, Issue, SpecError, Spelled
from isolaw.registry import BACKENDS


class _Sections(Section):
    sweep: SweepSection = SweepSection()
    grid: Grid = Grid()
    limits: LimitsSection = LimitsSection()
    design: DesignSection = DesignSection()
    recipe: Recipe = Recipe()
    problems: ProblemsSpec = ProblemsSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    executor: ExecutorSection = ExecutorSection()
    tracking: TrackingSection = TrackingSection()


if TYPE_CHECKING:
    _AllSections = _Sections
else:
    # Each backend validates its own section.
    _BACKEND_SECTIONS = {name: (dict[str, Any], {}) for name in BACKENDS}
    _AllSections = create_model("_AllSections", __base__=_Sections, **_BACKEND_SECTIONS)


class SweepSpec(_AllSections):
    """The specification of a sweep: all sections of a sweep file.

    >>> spec = SweepSpec.parse({"sweep": {"compute": 1e5}, "grid": {"rollouts_per_problem": [4, 8]}})
    >>> spec.sweep.compute, spec.grid.rollouts_per_problem
    (100000, (4, 8))
    >>> SweepSpec.parse({"recipe": {"lrs": 1}})
    Traceback (most recent call last):
    isolaw.errors.SpecError: recipe.lrs: unknown key; found 1 (did you mean 'lr'?)
    """

    @property
    def options(self) -> dict[str, Any]:
        """The section of the sweep's backend; empty for an unknown backend."""
        name = self.sweep.backend
        return getattr(self, name) if name in BACKENDS else {}

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """The B_p and the n of the grid, and the cap on B_p · n."""
        return self.grid.problems_per_batch, self.grid.rollouts_per_problem, self.limits.max_batch_rollouts

    @classmethod
    @checked
    def parse(
        cls, data: Mapping[str, Any], check: Callable[[SweepSpec], list[Issue]] | None = None
    ) -> SweepSpec:
        """Build a sweep from plain data; raise `SpecError` with all issues.

        If some keys are invalid, ``check`` still checks the spec without them, and the error also lists the
        issues that it finds.
        """
        data = _with_modules(data, Path.cwd())
        try:
            return parse_section(cls, data)
        except SpecError as error:
            valid_data = _without(data, error.issues)
            if check and valid_data is not None:
                other_issues = check(cls.model_validate(valid_data))
            else:
                other_issues = _issues_of_backend(data, check) if check else []
            raise SpecError([*error.issues, *other_issues]) from None

    @classmethod
    @checked
    def read(
        cls,
        path: str | Path | None = None,
        settings: Iterable[str] = (),
        base: SweepSpec | None = None,
        check: Callable[[SweepSpec], list[Issue]] | None = None,
    ) -> SweepSpec:
        """Build a sweep from a TOML file, from ``base``, or from the defaults.

        ``settings`` are ``section.key=value`` texts that override keys. ``check`` is as in `parse`. Raise
        `SpecError` with all issues and their lines, and `InputError` if the file cannot be read or a setting
        has no ``=``.
        """
        settings = list(settings)
        data = read_toml(path) if path is not None else {}
        if base is not None:
            data = base.model_dump(mode="json", exclude_unset=True)
        for setting in settings:
            _apply_setting(data, setting)
        # A sweep's directory is data: the modules that it names are only where it says.
        folder = None if base is not None else Path.cwd() if path is None else Path(path).absolute().parent
        data = _with_modules(data, folder)
        try:
            return cls.parse(data, check)
        except SpecError as error:
            raise (error if path is None else with_lines(error, path, settings)) from None


def _with_modules(data: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the data with the folder of the modules that ``[real]`` names, unless the data sets one."""
    real = data.get("real")
    if not real or not isinstance(real, Mapping):
        return dict(data)
    return {**data, "real": {"modules": folder and str(folder), **real}}


def _without(data: Mapping[str, Any], issues: Iterable[Issue]) -> dict[str, Any] | None:
    """Return the data without the invalid keys, or None if these keys decide which runs exist."""
    sections = {
        name: dict(content) if isinstance(content, Mapping) else content for name, content in data.items()
    }
    for issue in issues:
        section, _, key = issue.where.partition(".")
        if section == "sweep" or key in GridSection.model_fields:
            return None
        if key in ("", "kind"):  # remove the whole section, because its other keys depend on its kind
            sections.pop(section, None)
        elif section in sections:
            sections[section].pop(key.split(".")[0], None)
    return sections


def _issues_of_backend(data: Mapping[str, Any], check: Callable[[SweepSpec], list[Issue]]) -> list[Issue]:
    """Return the issue of an unknown backend, which ``check`` can find even if the runs are unknown."""
    section = data.get("sweep")
    name = section.get("backend") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        return []
    issues = check(SweepSpec.model_validate({"sweep": {"backend": name}}))
    return [issue for issue in issues if issue.where == "sweep.backend"]


def _setting_name(setting: str) -> Spelled:
    return Spelled(f"settings: {setting!r}", ("--set", setting))


def _apply_setting(data: dict[str, Any], setting: str) -> None:
    """Apply one ``section.key=value`` setting to ``data``; a value that is not TOML is a string."""
    name, separator, text = setting.partition("=")
    *sections, key = name.strip().split(".")
    if not separator or not sections or not key:
        raise InputError(_setting_name(setting) + ": expected section.key=value, e.g. sweep.compute=1e7")
    try:
        value: Any = parse_toml(f"value = {text}", "--set")["value"]
    except InputError:
        value = text.strip()
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise InputError(_setting_name(setting) + f": {section!r} is not a section")
    data[key] = value
