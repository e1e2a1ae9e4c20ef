"""The tables of docs/calibrate.md are of this version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from isolaw.backends.bandit import Bandit
from isolaw.calibration.calibrate import VERSION
from isolaw.fits import ESTIMATOR

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import calibration


def test_the_page_has_the_measured_tables_of_this_version() -> None:
    found = json.loads(calibration.SUMMARY.read_text())
    versions = found["calibration"], found["estimator"], found["simulator"]
    assert versions == (VERSION, ESTIMATOR, Bandit.version)
    assert "\n".join(calibration.lines(found)) in calibration.DOCS.read_text()
