"""The tables of docs/race.md are of this version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from isolaw.backends.bandit import Bandit
from isolaw.fits import ESTIMATOR

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import design


@pytest.mark.parametrize("designs", [design.DESIGNS, design.JOINT])
def test_the_page_has_the_measured_table_of_this_version(designs: tuple[str, ...]) -> None:
    found = json.loads(design.SUMMARY.read_text())
    assert (found["estimator"], found["simulator"]) == (ESTIMATOR, Bandit.version)
    assert {row["design"] for row in found["rows"]} >= set(designs)
    assert "\n".join(design.lines(found, designs)) in design.DOCS.read_text()
