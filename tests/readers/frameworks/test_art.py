"""ART, as openpipe-art 0.5.18 writes ``history.jsonl`` (`art/model.py`, ``Model._log_metrics``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import isolaw
from isolaw.errors import DataError


def history(folder: Path, trajectories: float) -> Path:
    path = folder / "models" / "agent-001" / "history.jsonl"
    path.parent.mkdir(parents=True)
    rows = []
    for step in range(4):
        own = {"training_step": step, "time/wall_clock_sec": 1.5 * step}
        end = {"step": step, "recorded_at": "2026-01-02T10:00:00"}
        rows.append(
            {"val/reward": step / 8, "val/exception_rate": 0.0, "val/reward_std_dev": 0.1} | own | end
        )
        if step:
            train = {"train/reward": step / 4, "train/exception_rate": 0.0, "loss/grad_norm": 0.5}
            rows.append(train | {"data/step_num_trajectories": trajectories} | own | end)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_its_step_counts_updates_and_it_counts_trajectories(tmp_path: Path) -> None:
    path = history(tmp_path, 48.0)
    with pytest.raises(DataError, match="data/step_num_trajectories"):
        isolaw.read(path)
    with pytest.raises(DataError, match=r"rollouts per step = 48 .* B_p · n = 8 · 8 = 64"):
        isolaw.read(path, set=["n=8", "B_p=8"])
    points = isolaw.read(path, set=["n=8"]).points
    own = points.set_index(["eval_set", "metric", "step"])["value"].sort_index()
    assert own["validation", "reward"].to_dict() == {0: 0, 1: 0.125, 2: 0.25, 3: 0.375}
    assert own["train", "reward"].to_dict() == {1: 0.25, 2: 0.5, 3: 0.75}
    assert points["compute"].max() == 144
