"""One run, written in every form, is one table; and the sample logs read as their README says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

LOGS = Path(__file__).parents[3] / "shared" / "data" / "logs"
SETTINGS = {"n": 8, "B_p": 16}
STEPS = range(1, 13)
COLUMNS = ["step", "compute", "eval_set", "metric", "value"]
Records = dict[int, dict[str, float]]

VERL: Records = {0: {"val-core/aime24/acc/mean@8": 0.0625}} | {
    s: {
        "critic/score/mean": s / 16 - 0.25,
        "actor/entropy": 1 / s,
        "timing_s/step": 61.5 + s,
        **(
            {"val-core/aime24/acc/mean@8": s / 32, "val-core/aime24/acc/best@8/mean": s / 16}
            if s % 4 == 0
            else {}
        ),
    }
    for s in STEPS
}
TRL: Records = {
    s: {
        "loss": 0.0,
        "reward": s / 16 - 0.25,
        "reward_std": 0.5,
        "rewards/accuracy_reward/mean": s / 32,
        "completions/mean_length": 300.0 + s,
        "learning_rate": 1e-6,
        "epoch": s / 100,
    }
    for s in STEPS
}
for _s in (4, 8, 12):
    TRL[_s] |= {"eval_reward": _s / 16, "eval_rewards/accuracy_reward/mean": _s / 32}


def rows(run: isolaw.Runs) -> list[list[Any]]:
    return run.points[COLUMNS].values.tolist()


def expected(records: Records, names: dict[str, tuple[str, str]]) -> list[list[Any]]:
    out = [
        [s, 128 * s, *names[k], v] for s, record in records.items() for k, v in record.items() if k in names
    ]
    return sorted(out)


VERL_NAMES = {
    "val-core/aime24/acc/mean@8": ("aime24", "avg@8"),
    "val-core/aime24/acc/best@8/mean": ("aime24", "best@8"),
    "critic/score/mean": ("train", "reward"),
    "actor/entropy": ("train", "entropy"),
    "timing_s/step": ("train", "step_seconds"),
}
TRL_NAMES = {
    "loss": ("train", "loss"),
    "reward": ("train", "reward"),
    "reward_std": ("train", "reward_std"),
    "rewards/accuracy_reward/mean": ("train", "rewards/accuracy_reward"),
    "completions/mean_length": ("train", "response_length"),
    "eval_reward": ("validation", "reward"),
    "eval_rewards/accuracy_reward/mean": ("validation", "rewards/accuracy_reward"),
}


def jsonl(folder: Path, records: Records) -> Path:
    path = folder / "run.jsonl"
    path.write_text("".join(json.dumps({"step": s, "data": record}) + "\n" for s, record in records.items()))
    return path


def console(folder: Path, records: Records) -> Path:
    lines = ["[36m(TaskRunner pid=12)[0m training begins"]
    for step, record in records.items():
        said = " - ".join(f"{k}:np.float64({v!r})" if "val" in k else f"{k}:{v!r}" for k, v in record.items())
        lines += [f"\x1b[36m(TaskRunner pid=12)\x1b[0m step:{step} - {said}", "<think> step by step </think>"]
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def events(folder: Path, records: Records, rename: Callable[[str], str] = lambda key: key) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, record in records.items():
        for key, value in record.items():
            scalar = Summary.Value(tag=rename(key), simple_value=value)
            writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=[scalar])))
    writer.close()
    return folder


def wandb_wide(folder: Path, records: Records) -> Path:
    keys = dict.fromkeys(key for record in records.values() for key in record)
    frame = pd.DataFrame({"Step": list(records)})
    for key in keys:
        for end in ("", "__MIN", "__MAX"):
            frame[f"lucky-sun-3 - {key}{end}"] = [record.get(key) for record in records.values()]
    frame.to_csv(folder / "wandb_export.csv", index=False)
    return folder / "wandb_export.csv"


def wandb_long(folder: Path, records: Records) -> Path:
    long = [("lucky-sun-3", k, s, v) for s, record in records.items() for k, v in record.items()]
    frame = pd.DataFrame(long, columns=["run_name", "metric", "step", "value"])
    frame.to_csv(folder / "export.csv", index=False)
    return folder / "export.csv"


def mlflow(folder: Path, records: Records) -> Path:
    run = folder / "mlruns" / "0" / ("ab" * 16)
    run.mkdir(parents=True)
    (run / "meta.yaml").write_text("run_name: lucky\nlifecycle_stage: active\n")
    for step, record in records.items():
        for key, value in record.items():
            path = run / "metrics" / key.replace("@", "_at_")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{1_700_000_000_000 + step} {value!r} {step}\n")
    return folder / "mlruns"


@pytest.mark.parametrize("form", [jsonl, console, events, wandb_wide, wandb_long, mlflow])
def test_verl_in_every_form_is_one_table(tmp_path: Path, form: Callable[[Path, Records], Path]) -> None:
    runs = isolaw.read(form(tmp_path, VERL), set=SETTINGS)
    found, known = rows(runs), expected(VERL, VERL_NAMES)
    assert [result[:4] for result in found] == [value[:4] for value in known]
    np.testing.assert_allclose([result[4] for result in found], [value[4] for value in known], rtol=1e-6)
    if form is not events:  # 32-bit numbers
        assert found == known


def test_the_same_run_in_several_forms_is_found_once(tmp_path: Path) -> None:
    for form in (jsonl, console, events):
        form(tmp_path, VERL)
    reading = survey([tmp_path], HowToRead.of(set=SETTINGS))
    assert len(reading.runs) == 1
    (provenance,) = reading.ready
    assert any(
        "13 steps repeated with the same values; isolaw counts them once" in note for note in provenance.notes
    )
    assert any("a copy of this run" in note for note in provenance.notes)
    found, known = rows(reading.runs), expected(VERL, VERL_NAMES)
    assert [result[:4] for result in found] == [value[:4] for value in known]
    np.testing.assert_allclose([result[4] for result in found], [value[4] for value in known], rtol=1e-6)


def test_what_is_exact_wins_over_what_was_rounded(tmp_path: Path) -> None:
    exact = jsonl(tmp_path, VERL)
    exact.rename(tmp_path / "metrics.jsonl")
    rounded = {s: {k: round(v, 3) for k, v in record.items()} for s, record in VERL.items()}
    console(tmp_path, rounded).rename(tmp_path / "train.log")
    reading = survey([tmp_path], HowToRead.of(set=SETTINGS))
    assert rows(reading.runs) == expected(VERL, VERL_NAMES)
    (provenance,) = reading.ready
    assert provenance.container == "jsonl, verl-console"
    assert "13 steps repeated with the same values; isolaw counts them once" in provenance.notes


def trainer_state(folder: Path, records: Records, last: int) -> Path:
    history = []
    for step, record in records.items():
        if step <= last:
            history.append({k: v for k, v in record.items() if not k.startswith("eval")} | {"step": step})
            held_out = {k: v for k, v in record.items() if k.startswith("eval")}
            history += [held_out | {"epoch": 0.1, "step": step}] if held_out else []
    path = folder / f"checkpoint-{last}" / "trainer_state.json"
    path.parent.mkdir(parents=True)
    state = {"global_step": last, "log_history": history, "train_batch_size": 6, "logging_steps": 1}
    path.write_text(json.dumps(state, indent=2))
    return path


def test_a_trainers_state_and_its_events_are_the_same_curves(tmp_path: Path) -> None:
    for last in (4, 12):
        trainer_state(tmp_path / "state", TRL, last)

    def tag(key: str) -> str:
        return f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"

    events(tmp_path / "runs" / "May06_host", TRL, tag)
    state = isolaw.read(tmp_path / "state", set=SETTINGS)
    board = isolaw.read(tmp_path / "runs", set=SETTINGS)
    assert rows(state) == expected(TRL, TRL_NAMES)
    assert "4 steps repeated with the same values; isolaw counts them once" in state.notes
    pd.testing.assert_frame_equal(state.points[COLUMNS], board.points[COLUMNS], check_exact=False, rtol=1e-6)
    together = survey([tmp_path], HowToRead.of(set=SETTINGS))
    assert len(together.runs) == 1


def test_dictionaries_on_stdout_have_no_step(tmp_path: Path) -> None:
    """Recent TRL prints its values as texts, and no step: it is asked for, never counted."""
    lines = []
    for record in TRL.values():
        bare = {k: str(v) for k, v in record.items() if not k.startswith("eval")}
        lines.append(str(bare))
        if held_out := {k: str(v) for k, v in record.items() if k.startswith("eval")}:
            lines.append(str({**held_out, "eval_runtime": "3.5", "epoch": "0.1"}))
    (tmp_path / "train.out").write_text("\n".join(lines))
    with pytest.raises(DataError, match="set logging_steps, the number of update"):
        isolaw.read(tmp_path / "train.out", set=SETTINGS)
    runs = isolaw.read(tmp_path / "train.out", set={**SETTINGS, "logging_steps": 1})
    assert rows(runs) == expected(TRL, TRL_NAMES)
    assert any("the log has no steps; isolaw numbered 12 records in order" in note for note in runs.notes)
    every = isolaw.read(tmp_path / "train.out", set={**SETTINGS, "logging_steps": 5})
    assert every.points["step"].unique().tolist() == [5 * s for s in STEPS]


# The samples


@pytest.fixture
def samples() -> Path:
    if not LOGS.is_dir():
        pytest.skip("the shared sample logs are not here")
    return LOGS


@pytest.mark.parametrize("name", ["a2_vi_42", "a3_enlang_42", "reproduce_openrs_rs2_42"])
def test_old_trl(samples: Path, name: str) -> None:
    """6 prompts or completions per device × 16 accumulation, n = 6: the file alone cannot tell."""
    path = samples / "trl" / "nhockid235" / name / "trainer_state.json"
    with pytest.raises(DataError) as error:
        isolaw.read(path)
    for word in (": n and B_p unknown", 'set={"n": <number>', "counts prompts"):
        assert word in str(error.value)
    points = isolaw.read(path, set={"n": 6, "B": 96}).points
    history = json.loads(path.read_text())["log_history"]
    reward = points[points["metric"] == "reward"]
    assert reward["value"].tolist() == [entry["reward"] for entry in history if "reward" in entry]
    assert reward["step"].tolist() == [entry["step"] for entry in history if "reward" in entry]
    assert set(points["problems_per_batch"]) == {16}
    assert reward["compute"].iloc[-1] == 96 * history[-1]["step"]


def test_old_trl_on_stdout_is_its_state(samples: Path) -> None:
    folder = samples / "trl" / "nhockid235"
    settings = {"n": 6, "B_p": 16, "logging_steps": 5}
    printed = isolaw.read(folder / "training.log", set=settings).points
    state = isolaw.read(folder / "reproduce_openrs_rs2_42", set=settings).points
    for metric in ("reward", "response_length", "kl"):
        one, other = (p[p["metric"] == metric].set_index("step")["value"] for p in (printed, state))
        pd.testing.assert_series_equal(one, other, check_exact=False, rtol=1e-6)


def test_unsloth(samples: Path) -> None:
    path = samples / "trl" / "IMJONEZZ-UnslothGRPO"
    with pytest.raises(DataError, match="n and B_p unknown"):
        isolaw.read(path)
    points = isolaw.read(path, set={"n": 6, "B_p": 1}).points
    assert points["compute"].max() == 6 * 250
    assert len(points[points["metric"] == "reward"]) == 250


def test_a_verl_console(samples: Path) -> None:
    path = samples / "verl_console" / "logic-rl-output.log"
    with pytest.raises(DataError, match="n and B_p unknown"):
        isolaw.read(path)
    points = isolaw.read(path, set={"n": 8, "B_p": 8}).points
    reward = points[points["metric"] == "reward"]
    assert reward["step"].tolist() == list(range(1, 10))
    assert reward["value"].iloc[0] == 0.094
    assert math.isclose(points.loc[points["metric"] == "test_score", "value"].iloc[0], 0.0)
