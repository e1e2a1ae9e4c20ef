"""The example logs are one sweep in every form: each folder reads as the same table."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw

LOGS = Path(__file__).parents[2] / "examples" / "logs"
BY_NAME = {"B_p": 32, "*seed1:seed": 1} | {f"*n{n}-*:n": n for n in (8, 32, 128, 512)}
FORMS: list[tuple[str, str, str, Mapping[str, Any]]] = [
    ("verl-console", "math", "avg@4", {"group_by": "directory"}),
    ("easyr1", "validation", "accuracy_reward", {}),
    ("trl", "validation", "rewards/accuracy_reward", {"set": BY_NAME}),
    ("tensorboard", "validation", "rewards/accuracy_reward", {}),
    ("openrlhf", "math", "pass@1", {}),
    ("prime-rl", "math", "avg@4", {}),
    ("nemo-rl", "validation", "accuracy", {}),
    ("skyrl", "validation", "reward", {}),
    ("slime", "math", "reward", {}),
    ("open-instruct", "validation", "pass@1", {}),
    ("wandb-export", "math", "avg@4", {"set": BY_NAME}),
]
IS = ["rollouts_per_problem", "problems_per_batch", "seed", "step", "compute", "value"]


def table(runs: isolaw.Runs, eval_set: str, metric: str) -> pd.DataFrame:
    points = runs.points
    own = points[(points["eval_set"] == eval_set) & (points["metric"] == metric)][IS]
    return own.sort_values(IS, ignore_index=True)


@pytest.fixture(scope="module")
def verl() -> pd.DataFrame:
    return table(isolaw.read(LOGS / "verl"), "math", "avg@4")


@pytest.mark.parametrize(("folder", "eval_set", "metric", "options"), FORMS, ids=[form[0] for form in FORMS])
def test_each_form_is_one_table(
    verl: pd.DataFrame, folder: str, eval_set: str, metric: str, options: Mapping[str, Any]
) -> None:
    known = verl
    if folder == "nemo-rl":  # one seed
        known = verl[verl["seed"] == 0].reset_index(drop=True)
    if folder == "slime":  # numbers the evaluation after its first update as the one before training
        known = verl[verl["step"] != 1].reset_index(drop=True)
    found = table(isolaw.read(LOGS / folder, **options), eval_set, metric)
    pd.testing.assert_frame_equal(found, known, check_exact=False, rtol=1e-6)


@pytest.mark.slow
def test_they_are_what_their_script_writes(verl: pd.DataFrame, tmp_path: Path) -> None:
    runpy.run_path(str(LOGS / "make.py"))["write"](tmp_path)

    def files(top: Path) -> set[Path]:
        return {path.relative_to(top) for path in top.rglob("*") if path.is_file()}

    assert files(tmp_path) == {p for p in files(LOGS) if p.parts[0] not in ("make.py", "README.md")}
    again = table(isolaw.read(tmp_path / "verl"), "math", "avg@4")
    pd.testing.assert_frame_equal(again, verl, check_exact=False, atol=0.005)
