"""Hugging Face's trainer_state.json: whole, torn, one of several checkpoints."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.errors import DataError
from isolaw.readers.containers.json_document import TRAINER_STATE as CONTAINER
from isolaw.readers.raw_log import RawLog

REWARD = {5: 0.25, 10: 0.375, 15: 0.5}


def record(step: int, **more: Any) -> dict[str, Any]:
    """As TRL 0.24 leaves it."""
    return {
        "clip_ratio/region_mean": 0.0, "completions/clipped_ratio": 0.1, "completions/mean_length": 200.5,
        "entropy": 0.4, "epoch": step / 100, "frac_reward_zero_std": 0.2, "grad_norm": 0.01, "kl": 0.001,
        "learning_rate": 1e-06, "loss": 0.0, "num_tokens": 1000.0 * step, "reward": REWARD[step],
        "reward_std": 0.3, "rewards/accuracy_reward/mean": REWARD[step], "step": step, **more,
    }  # fmt: skip


EVALUATION = {"eval_loss": 0.0, "eval_reward": 0.3, "eval_runtime": 12.5, "epoch": 0.1, "step": 10}


def state(history: list[Any], step: int = 15) -> str:
    """As `TrainerState.save_to_json` writes it, transformers 4.57."""
    return json.dumps(
        {
            "best_global_step": None, "best_metric": None, "best_model_checkpoint": None, "epoch": 0.15,
            "eval_steps": 10, "global_step": step, "is_hyper_param_search": False,
            "is_world_process_zero": True, "log_history": history, "logging_steps": 5, "max_steps": 100,
            "num_input_tokens_seen": 15000, "num_train_epochs": 1, "save_steps": 5,
            "stateful_callbacks": {"TrainerControl": {"args": {"should_log": False}, "attributes": {}}},
            "total_flos": 0.0, "train_batch_size": 6, "trial_name": None, "trial_params": None,
        },
        indent=2,
        sort_keys=True,
    ) + "\n"  # fmt: skip


HISTORY = [record(5), record(10), EVALUATION, record(15)]


def write(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trainer_state.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path: Path) -> RawLog:
    assert CONTAINER.file(path, path.read_bytes()[:65_536])
    (log,) = CONTAINER.read(path)
    return log


def curve(log: RawLog, key: str) -> dict[float, float]:
    own = log.series[key]
    return {log.step[r]: v for r, v in zip(own.record, own.value, strict=True)}


def test_known_table(tmp_path: Path) -> None:
    log = read(write(tmp_path, state(HISTORY)))
    assert curve(log, "reward") == REWARD
    assert curve(log, "eval_reward") == {10: 0.3}
    assert curve(log, "completions/mean_length") == dict.fromkeys(REWARD, 200.5)
    assert list(log.step) == [5, 10, 10, 15]
    assert log.config == {
        "train_batch_size": 6, "logging_steps": 5, "max_steps": 100, "num_train_epochs": 1, "eval_steps": 10,
        "save_steps": 5,
    }  # fmt: skip
    assert log.config_source == "trainer_state.json"
    assert (log.dropped, log.notes) == ({}, [])


def test_checkpoints_are_parts_of_one_run(tmp_path: Path) -> None:
    logs = [read(write(tmp_path / f"checkpoint-{step}", state(HISTORY[: step // 5]))) for step in (5, 10)]
    logs.append(read(write(tmp_path, state(HISTORY))))
    assert {log.run for log in logs} == {str(tmp_path)}
    assert read(write(tmp_path / "checkpoints", state(HISTORY))).run == str(tmp_path / "checkpoints")


def test_killed_while_it_was_written(tmp_path: Path) -> None:
    whole = state(HISTORY)
    half = whole[: whole.index('"step": 15')]
    log = read(write(tmp_path, half + "\0" * 4096))
    assert curve(log, "reward") == {5: 0.25, 10: 0.375}
    assert log.dropped == {"incomplete end of the file": 1}
    assert log.config == {"eval_steps": 10}  # the rest comes after the history
    # Torn after the history, nothing of it is lost.
    log = read(write(tmp_path, whole[: whole.index('"num_train_epochs"')]))
    assert curve(log, "reward") == REWARD
    assert log.dropped == {}


def test_torn_anywhere(tmp_path: Path) -> None:
    whole = state(HISTORY)
    first = whole.index('"step": 5') + len('"step": 5\n    }')
    path = write(tmp_path, whole)
    for end in range(0, len(whole), 11):
        path.write_text(whole[:end])
        if end < first:
            with pytest.raises(DataError):
                list(CONTAINER.read(path))
        else:
            (log,) = CONTAINER.read(path)
            assert curve(log, "reward").items() <= REWARD.items()


def test_values_that_are_none(tmp_path: Path) -> None:
    odd = record(
        10, reward=float("nan"), kl=None, grad_norm=float("inf"), entropy="0.25", loss=True, extra=[1]
    )
    log = read(write(tmp_path, state([record(5), odd, "text", {"reward": 0.7}])))
    assert curve(log, "reward")[5] == 0.25
    assert 10 not in curve(log, "reward")
    assert curve(log, "entropy") == {5: 0.4, 10: 0.25}
    assert not {"extra"} & set(log.series)
    assert log.dropped == {"values that are not finite": 2, "records that are not objects": 1}
    assert log.step[-1] != log.step[-1]  # a record without a step has none


def test_configuration_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 6\n")
    log = read(write(tmp_path / "checkpoint-5", state(HISTORY)))
    assert log.config["num_generations"] == 8
    assert log.config["logging_steps"] == 5
    assert log.config_source == "../config.yaml"


class Bomb:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('unpickled')",)


def test_the_pickle_is_left_closed(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps(Bomb()))
    log = read(write(tmp_path, state(HISTORY)))
    assert "training_args.bin" in log.notes[0]
    assert "pickle" in log.notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"global_step": 5, "log_history": []}', "has no record"),
        ('{"global_step": 5, "log_history": {}}', "no list 'log_history'"),
        ("[1, 2]", "not a trainer's state"),
        ("", "not a trainer's state"),
    ],
)
def test_nothing_to_read(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        list(CONTAINER.read(write(tmp_path, content)))
    assert str(tmp_path / "trainer_state.json") in str(error.value)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        list(CONTAINER.read(tmp_path / "trainer_state.json"))


def test_what_it_is_not(tmp_path: Path) -> None:
    for head in (b"", b'{"step": 1}', b'["log_history", "global_step"]', b'"log_history" "global_step"'):
        assert not CONTAINER.file(tmp_path, head)
    assert not CONTAINER.directory(tmp_path)


def test_hostile_nesting_and_numbers(tmp_path: Path) -> None:
    for bad in ("[" * 100_000, '{"a":' * 50_000, "9" * 10_000):
        whole = state([record(5)])
        text = whole.replace('"loss": 0.0', f'"loss": 0.0}}, {bad}')
        (log,) = CONTAINER.read(write(tmp_path, text))
        assert log.dropped == {"incomplete end of the file": 1}


def test_time_and_memory(tmp_path: Path) -> None:
    path = write(tmp_path, state([record(5) | {"step": i} for i in range(2_500)]))
    assert path.stat().st_size > 1_000_000
    began = time.process_time()
    read(path)
    assert time.process_time() - began < 10
    tracemalloc.start()
    read(path)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@given(st.binary(max_size=300), st.integers(0, 2_000))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, garbage: bytes, at: int) -> None:
    content = state(HISTORY).encode()
    path = write(tmp_path_factory.mktemp("state"), content[:at] + garbage + content[at:])
    CONTAINER.file(path, path.read_bytes())
    with suppress(DataError):
        list(CONTAINER.read(path))
