"""Read preset files: constants of the interference population that were fitted to published runs.

A preset file is a TOML file. ``[constants]`` describes one population, ``preset.problems`` is a value of
``problems.set``, and ``preset.n_train`` is D. The other sections describe the fit, which
``benchmarks/calibration`` makes, and isolaw does not read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from isolaw.config.sections import Count, Section
from isolaw.documents.reading import read_toml
from isolaw.documents.validation import parse_section
from isolaw.errors import InputError, SpecError, nearest, shown
from isolaw.simulators.problems import difficulty

FORMAT = "isolaw.preset/1"
FOLDER = Path(__file__).with_name("presets")


def _valid_problem_set(text: str) -> str:
    try:
        difficulty(text)
    except SpecError as error:
        raise ValueError(f"a problem set ({error})") from None
    return text


class _Head(Section):
    """The section ``[preset]``: the format, the model, the problem set and D."""

    format: Literal["isolaw.preset/1"]
    model: Literal["interference"] = "interference"
    problems: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_valid_problem_set)]
    n_train: Annotated[Count, Field(le=10_000_000)]


class Preset(BaseModel):
    """The content of a preset file: the problem set and D in ``preset``, and the population's constants."""

    preset: _Head
    constants: dict[str, Annotated[float, Field(allow_inf_nan=False)]]


def shipped() -> list[str]:
    """Return the names of the presets that ship with isolaw."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_preset(name: str | Path) -> Preset:
    """Return the preset with this name that ships with isolaw, or the preset in a file.

    Raises `InputError` if neither exists, or if the file is damaged.

    >>> read_preset("qwen-7b-bsae")
    Traceback (most recent call last):
    isolaw.errors.InputError: preset: found 'qwen-7b-bsae', which is neither ... (did you mean ...
    """
    if str(name) in shipped():
        return _read_shipped(str(name))
    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        close = nearest(str(name), shipped())
        hint = f" (did you mean {close!r}?)" if close else f"; expected a file or {', '.join(shipped())}"
        raise InputError(
            f"preset: found {shown(str(name))}, which is neither a shipped preset nor a file{hint}"
        )
    return _read(path)


@cache
def _read_shipped(name: str) -> Preset:
    return _read(FOLDER / f"{name}.toml")


def _read(path: Path) -> Preset:
    data: Mapping[str, Any] = read_toml(path)
    head = data.get("preset")
    found_format = head.get("format") if isinstance(head, Mapping) else None
    if found_format != FORMAT:
        raise InputError(f"{path}: found format {repr(found_format)[:80]}; expected a preset ({FORMAT})")
    return parse_section(Preset, data, source=str(path))
