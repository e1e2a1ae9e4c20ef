"""Define the schema of a preset file: the accepted values of each key, and checks that its parts agree.

`isolaw calibrate` adds a checksum to the files that it writes (``preset.crc``). A file without a checksum was
written by the user. isolaw rejects a file with a wrong checksum, since its content has been changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from isolaw.config import Recipe
from isolaw.config.sections import Count, Section
from isolaw.documents import seal
from isolaw.documents.validation import parse_section
from isolaw.errors import InputError, Issue, SpecError
from isolaw.simulators.problems import difficulty

FORMAT = "isolaw.preset/1"
OWNER = "preset"  # the owner's name, which the checksum includes
_LARGEST = 1e12
_MOST_MEMBERS, _MOST_VALUES = 10_000, 100_000
# Ranges of the constants of `isolaw.calibration.space`; a constant that is not listed is positive.
_RANGES = {
    "q": (0.0, 1.0), "rho": (0.0, 0.99), "mean": (0.0, 1.0), "r": (1.0, 4096.0),
    **dict.fromkeys(("kl", "kl_easy", "kl_hard", "c"), (0.0, _LARGEST)),
}  # fmt: skip
_LISTS = ("compute", "rollouts_per_problem", "problems_per_batch", "left")
_REQUIRED = {"lr", "sigma2", "rho", "kappa", "s", "m", "c", "q", "problems"}


def _set(text: str) -> str:
    try:
        difficulty(text)
    except SpecError as error:
        raise ValueError(f"a problem set ({error})") from None
    return text


Number = Annotated[float, Field(allow_inf_nan=False, ge=-_LARGEST, le=_LARGEST)]
PositiveNumber = Annotated[float, Field(allow_inf_nan=False, gt=0, le=1e18)]
Fraction = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Error = Annotated[float, Field(allow_inf_nan=False, ge=0, le=_LARGEST)]
Problems = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_set)]
Numbers = Annotated[list[Number], Field(max_length=_MOST_VALUES)]
Positives = Annotated[list[PositiveNumber], Field(max_length=_MOST_VALUES)]
CountList = Annotated[list[Count], Field(min_length=1, max_length=1000)]


class Head(Section):
    """The section ``[preset]``: the format, the model, the problem set, D and the checksum."""

    format: Literal["isolaw.preset/1"]
    model: Literal["interference"] = "interference"
    problems: Problems
    n_train: Annotated[Count, Field(le=10_000_000)]
    crc: str | None = None


class Provenance(BaseModel):
    """The section ``[provenance]``: the runs behind a preset, and measures of its fit to them.

    isolaw ignores unknown keys.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    reward: Annotated[str, Field(min_length=1, max_length=500)]
    problems_per_batch: CountList | None = None
    rollouts_per_problem: CountList | None = None
    compute: Annotated[list[PositiveNumber], Field(min_length=1, max_length=_MOST_VALUES)]
    cells: Annotated[list[tuple[Count, Count]], Field(max_length=_MOST_VALUES)] = []
    ends: Positives = []
    error: Error = 0.0
    noise: Error = 0.0
    discrepancy: Error = 0.0
    covered: Fraction | None = None
    moved: bool = True

    @model_validator(mode="after")
    def _ends_of_cells(self) -> Provenance:
        if self.ends and len(self.ends) != len(self.cells):
            raise ValueError(f"ends: {len(self.ends)} values; expected {len(self.cells)}, one for each cell")
        if not self.cells and not (self.problems_per_batch and self.rollouts_per_problem):
            raise ValueError("cells, or problems_per_batch and rollouts_per_problem")
        return self


class Left(Section):
    """The section ``[discrepancy]``: the runs' rewards minus the ensemble's mean, at each (C, n, B_p)."""

    noise: Annotated[list[Error], Field(min_length=3, max_length=3)]
    lengths: Annotated[list[PositiveNumber], Field(min_length=2, max_length=2)]
    compute: Positives
    rollouts_per_problem: Positives
    problems_per_batch: Positives
    left: Numbers

    @model_validator(mode="after")
    def _of_one_length(self) -> Left:
        sizes = {name: len(getattr(self, name)) for name in _LISTS}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"lists of one length; found {sizes}")
        return self


class PresetFile(Section):
    """The content of a whole preset file."""

    preset: Head
    recipe: Recipe
    constants: dict[str, Number]
    provenance: Provenance
    discrepancy: Annotated[Left | None, BeforeValidator(lambda value: value or None)] = None
    ensemble: dict[str, list[Number] | list[Problems]]


def read(data: Mapping[str, Any], path: Path) -> PresetFile:
    """Return the validated content of a preset file.

    Raises `SpecError` with an issue for each wrong key, and `InputError` for another format or a wrong
    checksum.
    """
    head = data.get("preset")
    form = head.get("format") if isinstance(head, Mapping) else None
    if form != FORMAT:
        raise InputError(
            f"{path}: found format {repr(form)[:80]}; expected a preset of isolaw calibrate ({FORMAT})"
        )
    out = parse_section(PresetFile, data, source=str(path))
    if issues := [*_constants(out.constants, "constants"), *_ensemble(out.ensemble)]:
        raise SpecError(issues, str(path))
    if out.preset.crc is not None and out.preset.crc != checksum(data):
        raise InputError(
            f"{path}: the file changed after isolaw calibrate wrote it, since preset.crc does not match. "
            "Remove preset.crc to use the file as a preset of your own"
        )
    return out


def checksum(data: Mapping[str, Any]) -> str:
    """Return the checksum of a preset's content without the key ``crc``."""
    head = {key: value for key, value in data["preset"].items() if key != "crc"}
    return str(seal.sealed({**data, "preset": head}, OWNER)["crc"])


def _constants(values: Mapping[str, float], where: str) -> list[Issue]:
    out = []
    for name, value in values.items():
        low, high = _RANGES.get(name, (0.0, _LARGEST))
        inside = low <= value <= high if name in _RANGES else low < value <= high
        if not inside:
            bounds = f"{low:g} to {high:g}" if name in _RANGES else "a positive number"
            out.append(Issue(f"{where}.{name}", found=value, accepted=bounds))
    return out


def _ensemble(columns: Mapping[str, list[Any]]) -> list[Issue]:
    sizes = {name: len(values) for name, values in columns.items()}
    if not sizes or len(set(sizes.values())) > 1 or not 1 <= max(sizes.values()) <= _MOST_MEMBERS:
        accepted = f"1 to {_MOST_MEMBERS:,} members, each constant a list of as many values"
        return [Issue("ensemble", found=sizes, accepted=accepted)]
    texts = {name for name, values in columns.items() if isinstance(values[0], str)}
    out = [
        Issue(f"ensemble.{name}", found=columns[name][0], accepted="numbers")
        for name in sorted(texts - {"problems"})
    ]
    if "problems" in columns and "problems" not in texts:
        out.append(Issue("ensemble.problems", found=columns["problems"][0], accepted="problem sets"))
    missing = sorted(_REQUIRED - sizes.keys())
    out += [Issue(f"ensemble.{name}", "a required key is missing") for name in missing]
    for name in sorted(sizes.keys() - texts - {"problems"}):
        for value in sorted({min(columns[name]), max(columns[name])}):
            out += _constants({name: value}, "ensemble")
    return out
