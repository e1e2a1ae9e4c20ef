"""The judge of other people's logs (`benchmarks/survey.py`), and the table that it left in docs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONSOLE = """step:1 - critic/score/mean:0.25 - actor/ppo_kl:0.0
step:2 - critic/score/mean:np.float64(0.5) - actor/ppo_kl:0.0 - val-core/math/acc/mean@4:0.125
step:3 - critic/score/mean:0.75 - actor/ppo_kl:0.0
"""


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("survey", ROOT / "benchmarks" / "survey.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_set(folder: Path, **changed: Any) -> dict[str, Any]:
    (folder / "trial.log").write_text(CONSOLE)
    curve = {"run": "*trial", "file": "trial.log", "form": "verl", "n": 4, "B_p": 8}
    truth = [
        curve | {"curve": "train: reward", "key": "critic/score/mean"} | changed,
        curve | {"curve": "math: avg@4", "key": "val-core/math/acc/mean@4"},
    ]
    own = {"source": "a/b: trial.log", "what": "veRL", "paths": ["trial.log"], "truth": truth}
    return own | {"set": ["n=4", "B_p=8"]}


def test_a_set_is_asked_then_equal(judge: ModuleType, tmp_path: Path) -> None:
    found = judge.outcome(a_set(tmp_path), tmp_path)
    assert (found["first"], found["rounds"], found["ready"], found["equal"]) == ("asked", 2, 1, 4)
    assert not found["silently_wrong"]


@pytest.mark.parametrize(
    "changed",
    [
        {"n": 8},
        {"B_p": 4},
        {"key": "actor/ppo_kl"},
        {"form": "lines", "key": r"step:(?P<value>(?P<step>\d)) "},
    ],
)
def test_what_differs_is_found(judge: ModuleType, tmp_path: Path, changed: dict[str, Any]) -> None:
    assert judge.outcome(a_set(tmp_path, **changed), tmp_path)["silently_wrong"]


def test_the_documentation_has_the_table_that_was_measured(judge: ModuleType) -> None:
    measured = json.loads((ROOT / "benchmarks" / "survey.json").read_text())
    assert judge.table(measured) in (ROOT / "benchmarks" / "survey.md").read_text()
    assert not any(measurement["silently_wrong"] for measurement in measured)
    assert len({measurement["source"].partition(":")[0] for measurement in measured}) >= 15
