"""JSON lines: veRL's, EasyR1's and prime-rl's give the known table; damaged ones are counted."""

from __future__ import annotations

import contextlib
import json
import math
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.errors import DataError
from isolaw.readers import frameworks
from isolaw.readers.containers.jsonlines import CONTAINER
from isolaw.readers.raw_log import RawLog
from isolaw.readers.survey import survey

HEAD = 65_536


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def one(content: bytes | str | list[Any], name: str = "run.jsonl") -> Path:
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return one


@pytest.fixture
def read(write: Any) -> Any:
    def one(content: Any, name: str = "run.jsonl") -> RawLog:
        path = write(content, name)
        assert CONTAINER.file(path, path.read_bytes()[:HEAD])
        (log,) = CONTAINER.read(path)
        return log

    return one


def verl(step: Any, **data: Any) -> dict[str, Any]:
    return {"step": step, "data": data}


# Round trips


@pytest.mark.parametrize("first", [0, 1])
def test_verl_round_trip(read: Any, verl_run: Any, by_step: Any, first: int) -> None:
    run = verl_run(first=first)
    log = read(run.jsonl())
    assert by_step(log) == run.table
    assert list(log.step) == list(run.table)
    assert (log.config, log.config_source, log.dropped, log.notes) == ({}, "", {}, [])


def test_easyr1_round_trip(read: Any, tmp_path: Path, by_step: Any) -> None:
    """Nested by its logger; keys are what it calls them elsewhere."""
    config = {"data": {"rollout_batch_size": 512}, "worker": {"rollout": {"n": 5}}}
    (tmp_path / "experiment_config.json").write_text(json.dumps(config))
    table = {
        0: {"val/reward_score": 0.25, "val/accuracy_reward": 0.5, "val_response_length/mean": 700.5},
        1: {"reward/overall": 0.125, "critic/score/mean": 0.125, "actor/grad_norm": 1.5, "actor/lr": 1e-6},
        2: {"reward/overall": 0.25, "critic/score/mean": 0.25, "actor/grad_norm": 1.75, "actor/lr": 1e-6},
    }
    rows = []
    for step, curve in table.items():
        row: dict[str, Any] = {"step": step}
        for key, value in curve.items():
            *parts, last = key.split("/")
            inner = row
            for part in parts:
                inner = inner.setdefault(part, {})
            inner[last] = value
        rows.append(row)
    log = read(rows, "experiment_log.jsonl")
    assert by_step(log) == table
    assert log.config == {"data.rollout_batch_size": 512, "worker.rollout.n": 5}
    assert log.config_source == "experiment_config.json"
    assert log.run == str(tmp_path)


def test_prime_rl_round_trip(read: Any, tmp_path: Path, by_step: Any) -> None:
    """Flat, several lines for one step, of trainer and orchestrator, and lines without a step."""
    rows = [
        {"step": 1, "time": 1.75e9, "train/agg/effective/agent/reward/mean": 0.5, "progress/rollouts": 300},
        {"step": 1, "time": 1.75e9 + 12.5, "optim/grad_norm": 0.25, "entropy/all/mean": 0.75},
        {"step": None, "time": 1.75e9 + 13, "inference/agg/running_requests": 7},
        {"step": 2, "time": 1.75e9 + 20, "train/agg/effective/agent/reward/mean": 0.625},
    ]
    log = read(rows, "run7/monitors/file/metrics.jsonl")
    table = by_step(RawLog(**{**vars(log), "step": [-1 if math.isnan(s) else s for s in log.step]}))
    assert table[1] == {
        "time": 1.75e9 + 12.5,
        "train/agg/effective/agent/reward/mean": 0.5,
        "progress/rollouts": 300,
        "optim/grad_norm": 0.25,
        "entropy/all/mean": 0.75,
    }
    assert table[-1]["inference/agg/running_requests"] == 7
    assert list(log.wall_s) == [0, 12.5, 13, 20]
    assert log.run == str(tmp_path / "run7")


def test_configuration_of_the_files_own_name(read: Any, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("data: {train_batch_size: 64}")
    (tmp_path / "config.yaml").write_text("data: {train_batch_size: 32}")
    log = read([verl(1, **{"a/b": 1})])
    assert (log.config, log.config_source) == ({"data.train_batch_size": 64}, "run.yaml")
    assert log.run == str(tmp_path / "run")


# Numbers


def test_numbers_in_every_form(read: Any) -> None:
    lines = [
        b'{"step":1,"data":{"a":0.1,"b":2,"c":"0.5","d":"np.float64(0.25)","e":null,"f":true,"g":"text","h":[1]}}',
        b'{"step":2,"data":{"a":NaN,"b":Infinity,"c":-Infinity}}',
        b'{"step":"3","data":{"a":1e-320,"b":123456789012345678901234567890}}',
    ]
    log = read(b"\n".join(lines))
    assert {key: list(series.value) for key, series in log.series.items()} == {
        "a": [0.1, 1e-320],
        "b": [2, 123456789012345678901234567890.0],
        "c": [0.5],
        "d": [0.25],
    }
    assert list(log.step) == [1, 2, 3]
    assert log.dropped == {"values that are not finite": 3}


@pytest.mark.parametrize("step", ["null", '"x"', "[]", "NaN", "1e999", "true"])
def test_what_is_no_step(read: Any, step: str) -> None:
    log = read(f'{{"step": {step}, "data": {{"a/b": 1}}}}\n{{"step": 1, "data": {{"a/b": 1}}}}\n')
    assert math.isnan(log.step[0])
    assert log.step[1] == 1


def test_time_that_is_no_clock(read: Any) -> None:
    log = read([{"step": i, "time": 30.0, "mismatch_kl/all/mean": 1} for i in range(2)])
    assert all(map(math.isnan, log.wall_s))


def test_repeated_steps_are_kept_in_order(read: Any) -> None:
    log = read([verl(1, a=1), verl(2, a=2), verl(2, a=3), verl(3, a=4)])
    assert list(log.step) == [1, 2, 2, 3]
    assert list(log.series["a"].value) == [1, 2, 3, 4]


# Damage


def test_half_a_last_line(read: Any, verl_run: Any, by_step: Any) -> None:
    run = verl_run()
    whole = run.jsonl().encode()
    for cut in (1, 2, 30, 400):
        log = read(whole[:-cut])
        last = list(run.table)[-1]
        assert by_step(log) == (run.table if cut == 1 else {k: v for k, v in run.table.items() if k != last})
        assert log.dropped == ({} if cut == 1 else {"torn last line": 1})


def test_a_broken_line_in_the_middle_is_named(read: Any) -> None:
    rows = [json.dumps(verl(i, a=i)) for i in range(1, 8)]
    rows[2], rows[4] = rows[2][:9], "[1, 2]"
    log = read("\n".join(rows) + "\n\n")
    assert list(log.step) == [1, 2, 4, 6, 7]
    assert log.dropped == {"lines that are not JSON objects": 2}
    assert log.notes == ["isolaw left out lines that are not JSON objects: line 3, 5"]


def test_nul_bytes(read: Any) -> None:
    """What a crash leaves of a block, alone on a line or before what came after."""
    row = json.dumps(verl(1, a=1)).encode()
    log = read(
        row + b"\n" + b"\0" * 500 + row + b"\n" + b"\0" * 70 + b"\n" + row[:9] + b"\0" + row[9:] + b"\r\n"
    )
    assert list(log.step) == [1, 1, 1]
    assert not log.dropped


def test_a_line_of_a_megabyte(read: Any) -> None:
    rows = [verl(1, a=1), verl(2, a=1, samples="x" * 1_500_000), verl(3, a=1)]
    log = read(rows)
    assert list(log.step) == [1, 3]
    assert log.dropped == {"lines longer than 1 MB": 1}


def test_keys_that_cannot_be_shown(read: Any) -> None:
    log = read(b'{"step":1,"data":{"a\\ud800b":1,"c\\u001b[31md":2,"e\\nf":3,"g\\u2194":4}}\n')
    assert {key: series.value[0] for key, series in log.series.items()} == {
        "a?b": 1,
        "c?[31md": 2,
        "e?f": 3,
        "g↔": 4,
    }
    "".join(log.series).encode()


def test_nesting_costs_no_memory(write: Any) -> None:
    """A long key over many short ones would be written out with each of them."""
    inner = ",".join(f'"{i}":1' for i in range(40_000))
    path = write(f'{{"step":1,"{"k" * 400_000}":{{{inner}}},"val":{{"accuracy_reward":1}}}}\n')
    tracemalloc.start()
    (log,) = CONTAINER.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000
    assert list(log.series) == ["val/accuracy_reward"]


# What it is not


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\0" * 100,
        "[1, 2]\n",
        "step:1 - a/b:1\n",
        '{"a": 1, "b": 2}\n',
        '{"loss": 0.5, "reward": 1}\n',
        '{"prompt": "x", "answer": "y", "score": 1.0}\n',
        '{\n  "step": 1,\n  "data": {"critic/score/mean": 1}\n}\n',
        '{"step": 1, "data": [1, 2]}\n',
        '{"step": 1, "data": {"a": 1}}\nthen\na\ntext\n',
    ],
)
def test_not_metrics(write: Any, content: str) -> None:
    path = write(content)
    assert not CONTAINER.file(path, content.encode())


def test_without_an_object_it_is_refused(write: Any) -> None:
    with pytest.raises(DataError, match=r"run\.jsonl: found no JSON object"):
        list(CONTAINER.read(write("one\ntwo\n")))


def test_a_first_line_longer_than_the_head(write: Any) -> None:
    path = write([verl(1, **{f"val-aux/set {i}/acc/mean@1": 0.5 for i in range(5000)})])
    assert CONTAINER.file(path, path.read_bytes()[:HEAD])


@pytest.mark.parametrize(
    ("key", "framework"),
    [
        ("critic/score/mean", "veRL"),
        ("val/test_score/a", "veRL"),
        ("val-core/a/acc/mean@1", "veRL"),
        ("mismatch_kl/all/mean", "prime-rl"),
        ("train/agg/effective/agent/reward/mean", "prime-rl"),
        ("progress/total_samples", "prime-rl"),
    ],
)
def test_flat_lines_of_a_framework(write: Any, key: str, framework: str) -> None:
    path = write([{"step": 1, key: 0.5}])
    assert CONTAINER.file(path, path.read_bytes())
    found = frameworks.find([key], {})
    assert found is not None
    assert found.name == framework


# Arbitrary bytes


@given(
    content=st.binary(max_size=200)
    | st.lists(st.sampled_from([b'{"step":1,', b'"data":{"a/b":1}}', b"\n", b"{", b"}"])).map(b"".join)
)
def test_arbitrary_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "run.jsonl"
    path.write_bytes(content)
    CONTAINER.file(path, content)
    try:
        (log,) = CONTAINER.read(path)
    except DataError as error:
        assert "run.jsonl" in str(error)  # noqa: PT017
    else:
        assert len(log.step) == len(log.wall_s) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "[",
        '{"a":',
        '"',
        "\\",
        '{"a":1}\n',
        '{"step":1,"data":{}}\n',
        "-",
        "9",
        "\0",
        "{\n",
        '{"a":{"b":',
    ],
)
def test_time_is_linear(tmp_path: Path, piece: str) -> None:
    """A quadratic reader would take minutes."""
    content = b'{"step":1,"data":{"a/b":' + piece.encode() * (200_000 // len(piece))
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    started = time.process_time()
    CONTAINER.file(path, content[:HEAD])
    with contextlib.suppress(DataError):
        list(CONTAINER.read(path))
    assert time.process_time() - started < 5


def test_a_configuration_in_the_middle_that_has_another_n_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for n in (4, 8):
        lines: list[dict[str, Any]] = []
        for first, value in ((1, 4), (4, n)):
            rollout = {"rollout": {"n": value}}
            lines.append({"config": {"actor_rollout_ref": rollout, "data": {"train_batch_size": 16}}})
            lines += [{"step": i, "data": {"critic/score/mean": 0.5}} for i in range(first, first + 3)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (found,) = survey([path]).candidates
        assert found.needs == ([] if n == 4 else ["n"])
    assert "4 (actor_rollout_ref.rollout.n in line 1 of run.jsonl)" in found.message
    assert "8 (actor_rollout_ref.rollout.n in line 5 of run.jsonl)" in found.message
