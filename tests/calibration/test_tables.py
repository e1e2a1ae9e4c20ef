"""The tables of docs/calibrate.md are of this version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from isolaw.backends.bandit import Bandit
from isolaw.calibration.calibrate import VERSION
from isolaw.fits import ESTIMATOR
from isolaw.simulators.presets import read_preset, shipped

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import calibration


def test_the_page_has_the_measured_tables_of_this_version() -> None:
    found = json.loads(calibration.SUMMARY.read_text())
    versions = found["calibration"], found["estimator"], found["simulator"]
    assert versions == (VERSION, ESTIMATOR, Bandit.version)
    assert "\n".join(calibration.lines(found)) in calibration.DOCS.read_text()


def test_the_page_has_the_presets_that_ship_of_this_version() -> None:
    assert {read_preset(name).provenance["calibration"] for name in shipped()} == {VERSION}
    assert "\n".join(calibration.preset_lines()) in calibration.DOCS.read_text()
    error = f"{read_preset('published-easy').provenance['error']:.3f}".lstrip("0")
    assert f"fitted to within {error}" in " ".join(
        (calibration.DOCS.parents[1] / "README.md").read_text().split()
    )
