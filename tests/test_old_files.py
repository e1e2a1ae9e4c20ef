"""What isolaw 0.1.0 wrote still works: a law, a sweep, and the state of a run in training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw import engine

DATA = Path(__file__).parent / "data" / "0.1.0"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old files, as the working directory: their paths are relative to it."""
    folder = tmp_path / "old"
    shutil.copytree(DATA, folder)
    monkeypatch.chdir(folder)
    return folder


def test_a_law_has_the_rewards_that_it_had(old: Path) -> None:
    """Its best n may lie beyond the measured ones, so more n compete now; the surface is the same."""
    law = isolaw.Law.load(old / "law.json")
    before = json.loads((old / "prediction.json").read_text())
    assert law.surface is not None
    for option in before["options"]:
        place = np.log2([option["rollouts_per_problem"]]), np.log2([option["problems_per_batch"]])
        found = law.surface.rewards(*place, np.array([30_000.0]))[0, 0]
        assert found == pytest.approx(option["reward"]["value"], rel=1e-6)
    prediction = law.predict(30_000)
    renamed = {"expected_regret": "expected_loss", "probability_within_0.005": "probability_within_tolerance"}
    assert {renamed.get(name, name) for name in before} < set(prediction.to_dict())
    assert prediction.models is not None
    assert (prediction.compute, prediction.comparable) == (before["compute"], before["comparable"])


def test_a_sweep_is_read_and_continued(old: Path, same: Callable[..., None]) -> None:
    state = engine.status(old / "bandit")
    assert (state["done"], state["failed"]) == (6, 0)
    assert len(isolaw.read(old / "bandit")) > 0
    text = (old / "bandit.toml").read_text().replace("40_000", "60_000")
    (old / "bandit.toml").write_text(text)
    continued = isolaw.sweep("bandit.toml", out="bandit")
    anew = isolaw.sweep("bandit.toml", out="anew")
    last = ["problems_per_batch", "rollouts_per_problem", "seed", "metric"]
    ends = [
        runs.to_pandas().query("compute == compute.max()").set_index(last)["value"]
        for runs in (continued, anew)
    ]
    pd.testing.assert_series_equal(ends[0].sort_index(), ends[1].sort_index())


@pytest.mark.real
@pytest.mark.slow
def test_a_training_run_continues_from_its_state(old: Path, isolaw: Callable[..., Any]) -> None:
    """It stopped after step 2 of 6; the rest is that of the same run left alone."""
    (points,) = (old / "real" / "runs").glob("*/points.jsonl")
    before = points.read_bytes()
    code, _, said = isolaw("sweep", "real.toml", "--out", "real")
    assert code == 0, said
    assert points.read_bytes().startswith(before)

    def curve(path: Path) -> dict[tuple[int, str, str], float]:
        lines = map(json.loads, path.read_text().splitlines())
        return {
            (line["step"], row["eval_set"], row["metric"]): row["value"]
            for line in lines
            for row in line["rows"]
            if row["metric"] != "step_seconds"
        }

    whole = curve(old / "real-whole.jsonl")
    assert max(step for step, *_ in whole) == 6
    assert curve(points) == pytest.approx(whole, rel=1e-4, abs=1e-6, nan_ok=True)
