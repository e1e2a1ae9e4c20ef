"""What isolaw 0.1.0 wrote still works: a law, a sweep, and the state of a run in training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def test_a_law_predicts_what_it_predicted(old: Path) -> None:
    found = isolaw.Law.load(old / "law.json").predict(30_000).to_dict()
    before = json.loads((old / "prediction.json").read_text())
    numbers, expected = dict(leaves(found)), dict(leaves(before))
    assert numbers.keys() == {*expected, ".simulated"}  # newer than the file
    for place, value in expected.items():
        near = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        assert numbers[place] == near, place


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers, codes and names of a JSON document by their places; sentences may change."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if key != "text":
                yield from leaves(part, f"{path}.{key}")
    elif value is not None:
        yield path, value


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
