"""W&B's run folders, written by W&B itself in offline mode."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wandb.proto.wandb_internal_pb2 import Record

import isolaw
from isolaw.errors import DataError, NoHistory
from isolaw.readers.containers.wandb_offline import CONTAINER
from isolaw.readers.raw_log import RawLog

HELD_OUT = "val-core/aime24/acc/mean@8"
# As veRL does it: the nested configuration, one call to log for each step. The long lists make records that
# go over a block's end, and one that is longer than a block. Printed is what TRL prints.
SCRIPT = f"""
import wandb

def start(id, name, config=None):
    settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True)
    return wandb.init(project="p", id=id, name=name, config=config, settings=settings)

config = {{"data": {{"train_batch_size": 32}}, "actor_rollout_ref": {{"rollout": {{"n": 8}}}}}}
with start("aaaa1111", "qwen n8", config) as run:
    run.config.update({{"trainer": {{"total_epochs": 2}}}})
    for step in range(1, 61):
        values = {{"critic/score/mean": step / 64, "text": "so", "samples": list(range(500)),
                  "response": {{"length": 100 + step}}, "grad_norm": float("nan") if step == 3 else 1.5}}
        if step % 20 == 0:
            values["{HELD_OUT}"] = step / 128
        if step == 30:
            values["table"] = list(range(20_000))
        run.log(values, step=step)
with start("cccc3333", "nothing") as run:
    pass
"""
TABLE = {
    "critic/score/mean": {step: step / 64 for step in range(1, 61)},
    "response.length": {step: 100 + step for step in range(1, 61)},
    "grad_norm": {step: 1.5 for step in range(1, 61) if step != 3},
    HELD_OUT: {20: 0.15625, 40: 0.3125, 60: 0.46875},
}
pytestmark = pytest.mark.slow  # W&B's own service is started
HEADER = b":W&B\xe1\xbe\x00"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder ``wandb`` with three runs."""
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(home), "WANDB_CACHE_DIR": str(home), "WANDB_CONFIG_DIR": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return home / "wandb"


@pytest.fixture
def run(folder: Path) -> Path:
    return next(folder.glob("offline-run-*-aaaa1111"))


@pytest.fixture
def content(run: Path) -> bytes:
    return (run / "run-aaaa1111.wandb").read_bytes()


def read(path: Path) -> RawLog:
    (log,) = CONTAINER.read(path)
    return log


def table(log: RawLog) -> dict[str, dict[int, float]]:
    return {
        key: {int(log.step[r]): v for r, v in zip(curve.record, curve.value, strict=True)}
        for key, curve in log.series.items()
    }


def wandb_file(folder: Path, *records: bytes) -> Path:
    """A run's folder with these records, each in a chunk of its own."""
    folder.mkdir(exist_ok=True)
    chunks = [
        struct.pack("<IHB", zlib.crc32(data, zlib.crc32(b"\x01")), len(data), 1) + data for data in records
    ]
    (folder / "run-dddd4444.wandb").write_bytes(HEADER + b"".join(chunks))
    return folder


def history(step: int, **values: str) -> bytes:
    record = Record()
    record.history.step.num = step
    for key, value in values.items():
        record.history.item.add(key=key, value_json=value)
    return record.SerializeToString()


def test_the_known_table(run: Path) -> None:
    log = read(run)
    assert table(log) == TABLE
    assert log.run == "qwen n8 (aaaa1111)"
    assert log.container == "wandb-offline"
    assert log.config == {
        "data.train_batch_size": 32,
        "actor_rollout_ref.rollout.n": 8,
        "trainer.total_epochs": 2,
    }
    assert log.config_source == "run-aaaa1111.wandb"
    assert log.dropped == {"values that are not finite": 1}
    assert list(log.wall_s) == sorted(log.wall_s)
    assert 0 <= log.wall_s[0] < 60


def test_it_becomes_a_run(run: Path) -> None:
    runs = isolaw.read(run)
    held_out = runs.points[(runs.points["eval_set"] == "aime24") & (runs.points["metric"] == "avg@8")]
    assert dict(zip(held_out["compute"], held_out["value"], strict=True)) == {
        step * 32 * 8: value for step, value in TABLE[HELD_OUT].items()
    }
    assert len(runs) == 1


def test_the_file_alone(run: Path) -> None:
    file = run / "run-aaaa1111.wandb"
    assert CONTAINER.file(run / "renamed", file.read_bytes()[:65_536])
    assert table(read(file)) == TABLE


def test_what_is_a_runs_folder(folder: Path, run: Path, tmp_path: Path) -> None:
    assert CONTAINER.directory(run)
    assert not CONTAINER.directory(folder)
    assert not CONTAINER.directory(tmp_path)
    (tmp_path / "run-20250101_000000-abcd1234" / "files").mkdir(parents=True)
    assert CONTAINER.directory(tmp_path / "run-20250101_000000-abcd1234")  # its .wandb was deleted
    assert not CONTAINER.file(tmp_path / "run-x.wandb", b'{"step": 1}\n')


def test_neither_history_nor_print(folder: Path, tmp_path: Path) -> None:
    nothing = next(folder.glob("offline-run-*-cccc3333"))
    with pytest.raises(DataError, match=r"cccc3333: the W&B run has no history"):
        read(nothing)
    empty = wandb_file(tmp_path / "run")
    with pytest.raises(NoHistory, match=r"run: the W&B run has no history$"):
        read(empty)


def test_a_file_that_ends_anywhere(content: bytes, tmp_path: Path) -> None:
    """A killed run: what is whole counts; what is torn is counted once."""
    whole = set(TABLE["critic/score/mean"].items())
    torn = 0
    for end in range(7, len(content), 1_997):
        folder = wandb_file(tmp_path / "run")
        (folder / "run-dddd4444.wandb").write_bytes(content[:end])
        try:
            log = read(folder)
        except DataError as error:
            assert "has no history" in str(error)  # noqa: PT017
            assert end < 40_000
            continue
        assert set(table(log)["critic/score/mean"].items()) <= whole
        torn += log.dropped.get("torn last record", 0)
    assert torn > 30


def test_records_over_several_blocks_end_in_time(content: bytes, tmp_path: Path) -> None:
    """Cut at every byte around a block's end, where chunks are split and padded."""
    folder = wandb_file(tmp_path / "run")
    for end in range(3 * 32_768 - 12, 3 * 32_768 + 12):
        (folder / "run-dddd4444.wandb").write_bytes(content[:end])
        log = read(folder)
        assert set(log.dropped) <= {"torn last record", "values that are not finite"}
        steps = table(log)["critic/score/mean"]
        assert list(steps) == list(range(1, len(steps) + 1))


def test_a_damaged_block_costs_what_is_left_of_it(content: bytes, tmp_path: Path) -> None:
    folder = wandb_file(tmp_path / "run")
    damaged = bytearray(content)
    damaged[32_768 + 5_000] ^= 1
    (folder / "run-dddd4444.wandb").write_bytes(damaged)
    log = read(folder)
    assert log.dropped["damaged records"] == 1
    steps = table(log)["critic/score/mean"]
    assert {1, 2, 60} <= set(steps) < set(range(1, 61))
    assert steps.items() <= TABLE["critic/score/mean"].items()


def test_a_configuration_that_changed(tmp_path: Path) -> None:
    records = []
    for kind in ("run", "config"):
        record = Record()
        config = record.run.config if kind == "run" else record.config
        config.update.add(key="lr", value_json="1e-6" if kind == "run" else "2e-6")
        config.update.add(nested_key=["data", "n"], value_json="8" if kind == "run" else "{}}")
        config.update.add(key="_wandb", value_json="{}")
        records.append(record.SerializeToString())
    log = read(wandb_file(tmp_path / "run", *records, history(1, reward="0.5")))
    assert log.config == {"lr": 2e-6, "data.n": 8}


def test_a_configuration_in_files(tmp_path: Path) -> None:
    folder = wandb_file(tmp_path / "run", history(1, reward="0.5"))
    (folder / "files").mkdir()
    assert read(folder).config == {}
    (folder / "files" / "config.yaml").write_text("_wandb:\n  value: {}\nlr:\n  desc: null\n  value: 1e-6\n")
    log = read(folder)
    assert (log.config, log.config_source) == ({"lr": 1e-6}, "files/config.yaml")


def test_numbers_as_they_were_logged(tmp_path: Path) -> None:
    record = history(
        4, a='"0.5"', b="true", c="[1]", d="1e400", e="null", _runtime="7.5", _step="4", f="Infinity"
    )
    log = read(wandb_file(tmp_path / "run", record))
    assert table(log) == {"a": {4: 0.5}}
    assert (list(log.wall_s), log.dropped) == ([7.5], {"values that are not finite": 2})


def test_without_wandb_it_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    with pytest.raises(DataError, match=r"pip install 'isolaw\[wandb\]'"):
        read(run)


def test_a_file_among_others_does_not_make_their_folder_a_run(folder: Path, tmp_path: Path) -> None:
    content = next(folder.glob("*aaaa1111/*.wandb")).read_bytes()
    (tmp_path / "run-aaaa1111.wandb").write_bytes(content)
    assert CONTAINER.directory(tmp_path)  # as W&B's own folder, under another name
    (tmp_path / "run-killed.wandb").touch()
    (tmp_path / "metrics.jsonl").touch()
    assert not CONTAINER.directory(tmp_path)
    (log,) = CONTAINER.read(tmp_path / "run-aaaa1111.wandb")
    assert log.run == "qwen n8 (aaaa1111)"
    assert log.config_source == "run-aaaa1111.wandb"
    assert CONTAINER.file(tmp_path / "run-killed.wandb", b"")
    with pytest.raises(NoHistory, match=r"run-killed\.wandb: the W&B run has no history"):
        list(CONTAINER.read(tmp_path / "run-killed.wandb"))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "run-x.wandb"
    file.write_bytes(b"hello")
    with pytest.raises(DataError, match=r"run-x\.wandb: not a \.wandb file"):
        read(file)
    with pytest.raises(DataError, match="gone"):
        read(tmp_path / "gone")


@pytest.fixture(scope="module")
def survives(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], None]:
    folder = wandb_file(tmp_path_factory.mktemp("fuzz") / "run")

    def check(content: bytes) -> None:
        (folder / "run-dddd4444.wandb").write_bytes(content)
        try:
            said = [log.source for log in CONTAINER.read(folder)]
        except DataError as error:
            said = [str(error)]
        assert all(str(folder) in one for one in said)

    return check


@given(st.data())
def test_any_change_of_bytes_is_survived(survives, folder: Path, data: st.DataObject) -> None:
    content = bytearray(next(folder.glob("*aaaa1111/*.wandb")).read_bytes()[:40_000])
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(content[: data.draw(st.integers(0, len(content)))]))


@given(st.binary(max_size=200))
def test_any_message_is_survived(survives, message: bytes) -> None:
    chunk = struct.pack("<IHB", zlib.crc32(message, zlib.crc32(b"\x01")), len(message), 1) + message
    survives(HEADER + chunk)
    survives(HEADER + message)
