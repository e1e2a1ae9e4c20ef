"""One TRL run, as its trainer leaves it and as its trackers do: the curves are the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

import isolaw

ARGUMENTS = {
    "per_device_train_batch_size": 6, "gradient_accumulation_steps": 16, "num_generations": 8,
    "num_iterations": 1, "steps_per_generation": 16, "generation_batch_size": 384, "learning_rate": 1e-06,
    "beta": 0.0, "seed": 42, "logging_steps": 5, "lr_scheduler_kwargs": {},
    "output_dir": "out", "report_to": ["tensorboard"],
}  # fmt: skip
SETTINGS = {"n": 8, "B_p": 48}


def history() -> list[dict[str, Any]]:
    """`log_history` of TRL 0.24: a record each 5 steps, an evaluation each 20, the summary at the end."""
    draw = random.Random(3)
    out: list[dict[str, Any]] = []
    for step in range(5, 101, 5):
        out.append(
            {
                "loss": round(draw.uniform(-0.01, 0.01), 4), "grad_norm": draw.random(),
                "learning_rate": 1e-06, "num_tokens": 38_411.0 * step,
                "completions/mean_length": draw.uniform(100, 500),
                "completions/clipped_ratio": draw.randrange(384) / 384,
                "rewards/accuracy_reward/mean": step / 300, "rewards/accuracy_reward/std": 0.3,
                "reward": step / 300, "reward_std": draw.random(),
                "frac_reward_zero_std": draw.randrange(48) / 48, "kl": draw.random() / 100,
                "entropy": draw.random(), "epoch": round(step / 250, 2), "step": step,
            }
        )  # fmt: skip
        if step % 20 == 0:
            out.append(
                {
                    "eval_loss": 0.0, "eval_runtime": 21.5, "eval_reward": step / 250, "eval_reward_std": 0.4,
                    "eval_rewards/accuracy_reward/mean": step / 250, "eval_entropy": draw.random(),
                    "eval_completions/mean_length": 310.25, "epoch": round(step / 250, 2), "step": step,
                }
            )  # fmt: skip
    out.append({"train_loss": 0.0012, "train_runtime": 512.5, "total_flos": 0.0, "epoch": 0.4, "step": 100})
    return out


def tracked(record: Mapping[str, Any]) -> dict[str, float]:
    """As transformers' ``rewrite_logs`` names what it gives to trackers."""
    return {
        f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}": value
        for key, value in record.items()
        if key != "step"
    }


def trainer_state(folder: Path) -> Path:
    folder.mkdir()
    state = {"global_step": 100, "log_history": history(), "logging_steps": 5, "train_batch_size": 6}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))
    return folder


def tensorboard(folder: Path) -> Path:
    """As transformers' callback writes it: an event a value; the last evaluation opens a second file."""
    began = 1_753_700_000.0
    runs = folder / "runs" / "Jul28_12-00-00_host"
    text = text_pb("args/text_summary", json.dumps(ARGUMENTS, indent=2))
    whole = history()
    for part, texts in ((whole[:-1], [text]), (whole[-1:], [])):
        writer = EventFileWriter(str(runs))
        for one in texts:
            writer.add_event(Event(step=0, wall_time=began, summary=one))
        for record in part:
            for tag, value in tracked(record).items():
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(
                    Event(step=record["step"], wall_time=began + record["step"], summary=summary)
                )
        writer.close()
    return folder


def mlflow_store(folder: Path) -> Path:
    """MLflow's layout, as transformers' callback has it written: metrics are the rewritten names."""
    run = folder / "0" / "8a61a2e6e3b94b1c8f6a2c9f1f3a0b5d"
    (run / "params").mkdir(parents=True)
    (run / "meta.yaml").write_text("lifecycle_stage: active\nrun_name: out\n")
    for key, value in ARGUMENTS.items():
        (run / "params" / key).write_text(str(value))
    for record in history():
        for tag, value in tracked(record).items():
            path = run / "metrics" / tag
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{1_753_700_000_000 + 1000 * record['step']} {value} {record['step']}\n")
    return folder


def wandb_history(folder: Path) -> Path:
    """``run.history().to_csv()``: W&B counts calls to log; the step is ``train/global_step``."""
    folder.mkdir()
    rows = [
        {"_step": i, "_runtime": record["step"], "_timestamp": 1_753_700_000 + record["step"]}
        | {"train/global_step": record["step"]}
        | tracked(record)
        for i, record in enumerate(history())
    ]
    pd.DataFrame(rows).to_csv(folder / "history.csv")
    return folder


def curves(folder: Path) -> pd.DataFrame:
    points = isolaw.read(folder, set=SETTINGS).points
    points = points.sort_values(["eval_set", "metric", "step"]).reset_index(drop=True)
    return points[["eval_set", "metric", "step", "compute", "value"]]


@pytest.mark.parametrize("write", [tensorboard, mlflow_store, wandb_history], ids=lambda w: w.__name__)
def test_the_curves_are_those_of_the_trainer_state(write: Callable[[Path], Path], tmp_path: Path) -> None:
    own, other = curves(trainer_state(tmp_path / "out")), curves(write(tmp_path / "tracked"))
    if write is tensorboard:  # which has 32 bits
        own, other = (table.assign(value=table["value"].astype(np.float32)) for table in (own, other))
    pd.testing.assert_frame_equal(own, other)
    reward = own[(own["eval_set"] == "validation") & (own["metric"] == "reward")]
    assert list(reward["step"]) == [20, 40, 60, 80, 100]
    assert list(reward["compute"]) == [step * 384 for step in (20, 40, 60, 80, 100)]
    assert {("train", "reward"), ("train", "entropy"), ("train", "response_length")} <= set(
        zip(own["eval_set"], own["metric"], strict=True)
    )


@pytest.mark.parametrize("write", [tensorboard, mlflow_store], ids=lambda w: w.__name__)
def test_trackers_have_the_arguments_too(write: Callable[[Path], Path], tmp_path: Path) -> None:
    runs = isolaw.read(write(tmp_path / "tracked"))
    ((_, run),) = runs.table().iterrows()
    assert (run["problems_per_batch"], run["rollouts_per_problem"], run["seed"]) == (48, 8, 42)
    assert run["lr"] == 1e-6


def test_a_state_and_its_event_files_are_one_run(tmp_path: Path) -> None:
    """Of two folders and, as far as their files say, of two seeds: the values at shared steps tell."""
    tensorboard(trainer_state(tmp_path / "n8")).joinpath("runs").rename(tmp_path / "n8" / "logs")
    runs = isolaw.read(tmp_path)  # n and the seed are in the event files, the exact values in the state
    ((_, run),) = runs.table().iterrows()
    assert (run["problems_per_batch"], run["rollouts_per_problem"], run["seed"]) == (48, 8, 42)
    kl = runs.points[(runs.points["metric"] == "kl") & (runs.points["eval_set"] == "train")]
    assert kl["value"].tolist() == [entry["kl"] for entry in history() if "kl" in entry]


def test_a_console_is_the_run_of_its_state(tmp_path: Path) -> None:
    folder = trainer_state(tmp_path / "n8")
    records = [{k: v for k, v in entry.items() if k != "step"} for entry in history()[:-1]]
    bars = "".join(f"\r{step}%|#    | {step}/250 [10:00<20:00, 1.5s/it]" for step in range(101))
    (folder / "train.log").write_text(bars + "\n" + "\n".join(map(str, records)))
    runs = isolaw.read(tmp_path, set=SETTINGS)
    assert len(runs) == 1
    assert sorted(runs.points["step"].unique()) == list(range(5, 101, 5))
