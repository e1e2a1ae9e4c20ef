"""Read preset files: constants of the interference population, an ensemble of constants, and the evidence.

A preset file is a TOML file. ``[constants]`` describes one population. ``[ensemble]`` describes many
populations, with a list of values for each constant; their spread shows how well the runs determine it.
``problems`` is a value of ``problems.set``, and ``n_train`` is D. ``[recipe]`` contains the settings of the
runs, ``[provenance]`` identifies the runs and measures the fit, and ``[discrepancy]`` contains the residuals
of the runs (`isolaw.simulators.preset_file`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from isolaw.documents.reading import read_toml
from isolaw.errors import InputError, nearest, shown
from isolaw.files import open_file
from isolaw.simulators import preset_file
from isolaw.simulators.preset_file import FORMAT

FOLDER = Path(__file__).with_name("presets")


@dataclass(frozen=True)
class Preset:
    """A calibrated population and its ensemble.

    Each of the ``members`` maps the coordinates of `isolaw.calibration.space` to values, and the key
    ``problems`` to a problem set. The first member is the population itself. ``left`` contains the residuals
    of the runs from the ensemble's mean (`isolaw.calibration.discrepancy`).
    """

    name: str
    problems: str
    n_train: int
    recipe: Mapping[str, Any]
    constants: Mapping[str, float]
    members: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any]
    left: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[tuple[int, int], ...]:
        """The measured (B_p, n). If the file has no ``cells``, these are all pairs of its B_p and n."""
        of = self.provenance
        pairs = of.get("cells") or itertools.product(of["problems_per_batch"], of["rollouts_per_problem"])
        return tuple(sorted((int(b), int(n)) for b, n in pairs))

    @property
    def measured(self) -> float:
        """The largest compute C that the runs measured."""
        return float(max(self.provenance["compute"]))

    @property
    def ends(self) -> dict[tuple[int, int], float]:
        """The largest C of each measured (B_p, n); empty if the file does not contain it."""
        found = self.provenance.get("ends", [])
        pairs = self.provenance.get("cells", [])
        return {(int(b), int(n)): float(end) for (b, n), end in zip(pairs, found, strict=False)}

    @property
    def reward(self) -> str:
        """The measured reward, e.g. ``avg@4 on validation``."""
        return str(self.provenance["reward"])

    @property
    def discrepancy(self) -> float:
        """δ, the misfit of the constants to the runs beyond noise (`isolaw.calibration.emulator`)."""
        return float(self.provenance.get("discrepancy", 0.0))

    @property
    def missed(self) -> float:
        """The error of the ensemble's mean on the runs, relative to the combined noise and discrepancy."""
        explained = math.hypot(float(self.provenance.get("noise", 0.0)), self.discrepancy)
        return float(self.provenance.get("error", 0.0)) / explained if explained else 0.0

    @property
    def moved(self) -> bool:
        """Whether training changed the rewards of the runs by more than noise."""
        return bool(self.provenance.get("moved", True))


def shipped() -> list[str]:
    """Return the names of the presets that ship with isolaw."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_preset(name: str | Path) -> Preset:
    """Return the preset with this name that ships with isolaw, or the preset in a file.

    Raises `InputError` if neither exists.

    >>> read_preset("qwen-7b-bsae")
    Traceback (most recent call last):
    isolaw.errors.InputError: preset: found 'qwen-7b-bsae', which is neither ... (did you mean ...
    """
    if str(name) in shipped():
        return _shipped(str(name))
    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        close = nearest(str(name), shipped())
        hint = f" (did you mean {close!r}?)" if close else f"; expected a file or {', '.join(shipped())}"
        raise InputError(
            f"preset: found {shown(str(name))}, which is neither a shipped preset nor a file{hint}"
        )
    return _read(path)


@cache
def _shipped(name: str) -> Preset:
    return _read(FOLDER / f"{name}.toml")


def is_preset(path: Path) -> bool:
    """Return whether a file is a preset file."""
    try:
        with open_file(path) as file:
            return FORMAT.encode() in file.read(2000)
    except OSError:
        return False


def _read(path: Path) -> Preset:
    data = read_toml(path)
    found = preset_file.read(data, path)
    columns = found.ensemble
    return Preset(
        path.stem,
        found.preset.problems,
        found.preset.n_train,
        data["recipe"],
        found.constants,
        tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)),
        found.provenance.model_dump(exclude_unset=True),
        data.get("discrepancy", {}),
    )
