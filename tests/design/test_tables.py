"""The tables of docs/race.md and docs/plan.md are of this version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from isolaw.backends.bandit import Bandit
from isolaw.fits import SURFACE

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import design, forecasts


@pytest.mark.parametrize("designs", [design.DESIGNS, design.JOINT])
def test_the_page_has_the_measured_table_of_this_version(designs: tuple[str, ...]) -> None:
    found = json.loads(design.SUMMARY.read_text())
    assert (found["surface"], found["simulator"]) == (SURFACE, Bandit.version)
    assert {row["design"] for row in found["rows"]} >= set(designs)
    assert "\n".join(design.lines(found, designs)) in design.DOCS.read_text()


def test_the_forecasts_of_the_page_are_of_this_version_and_hold() -> None:
    found = json.loads(forecasts.SUMMARY.read_text())
    assert (found["surface"], found["simulator"]) == (SURFACE, Bandit.version)
    assert "\n".join(forecasts.table(found["rows"])) in forecasts.DOCS.read_text()
    assert sum(row["held"] * row["plays"] for row in found["rows"]) >= 0.9 * sum(
        row["plays"] for row in found["rows"]
    )
