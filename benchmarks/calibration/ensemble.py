"""The ensemble in a preset file: populations that all reproduce the runs, and what they leave unexplained."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.calibration.discrepancy import Discrepancy
from isolaw.simulators.presets import FOLDER, read_preset, shipped


@dataclass(frozen=True)
class Ensemble:
    """The populations of one preset file.

    Each of the ``members`` maps the coordinates of `benchmarks.calibration.space` to values, and the key
    ``problems`` to a problem set. The first member is the population that a sweep simulates. ``recipe``
    contains the settings of the runs, ``provenance`` identifies the runs and measures the fit, and
    ``discrepancy`` extrapolates the residuals of the runs from the ensemble's mean.
    """

    name: str
    n_train: int
    recipe: Mapping[str, Any]
    members: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any]
    discrepancy: Discrepancy


def read_ensemble(name: str | Path) -> Ensemble:
    """Return the ensemble of the preset with this name that ships with isolaw, or of a preset file.

    >>> len(read_ensemble("published-easy").members)
    100
    """
    n_train = read_preset(name).preset.n_train
    path = FOLDER / f"{name}.toml" if str(name) in shipped() else Path(name)
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    columns = data["ensemble"]
    return Ensemble(
        path.stem,
        n_train,
        data["recipe"],
        tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)),
        data["provenance"],
        Discrepancy.read(data["provenance"]["discrepancy"], data.get("discrepancy", {})),
    )
