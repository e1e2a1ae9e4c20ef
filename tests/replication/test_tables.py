"""The table of findings on the published curves is of the shipped preset and of this version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from isolaw.backends.bandit import Bandit
from isolaw.simulators.presets import read_preset

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks import findings


def test_the_page_has_the_findings_of_the_preset_that_ships() -> None:
    found = json.loads(findings.SUMMARY.read_text())
    preset = read_preset(found["preset"])
    assert found["backend_version"] == Bandit.version
    assert found["constants"] == {k: v for k, v in preset.constants.items() if k in found["constants"]}
    assert found["jitter"]["presets"] == len(preset.members)
    assert "\n".join(findings.lines(found)) in findings.DOCS.read_text()
