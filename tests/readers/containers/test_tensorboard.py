"""TensorBoard event files, written by TensorBoard's own writer."""

from __future__ import annotations

import json
import math
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.tensorboard import CONTAINER
from isolaw.readers.raw_log import RawLog

BEGAN = 1_720_000_000.0
SCORE, ENTROPY = "critic/score/mean", "actor/entropy"
HELD_OUT = "val-core/aime24/acc/mean@8"
TABLE = {
    SCORE: {1: 0.25, 2: 0.3125, 3: 0.7},
    ENTROPY: {1: 0.5, 2: 0.41, 3: 0.3},
    HELD_OUT: {2: 0.1, 3: 0.123456},
}


def text(tag: str, content: str) -> Summary.Value:
    """As torch's `SummaryWriter.add_text` writes it, without its suffix of the tag."""
    plugin = SummaryMetadata.PluginData(plugin_name="text", content=b"\x08\x00")
    tensor = TensorProto(
        dtype="DT_STRING",
        string_val=[content.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def scalar(tag: str, value: float) -> Summary.Value:
    return Summary.Value(tag=tag, simple_value=value)


def write(folder: Path, values: Iterable[tuple[int, float, Summary.Value]]) -> Path:
    """One event for each value, as torch's `SummaryWriter` and Hugging Face's callback write them."""
    before = set(folder.glob("*"))
    writer = EventFileWriter(str(folder))
    for step, seconds, value in values:
        writer.add_event(Event(step=step, wall_time=BEGAN + seconds, summary=Summary(value=[value])))
    writer.close()
    (file,) = set(folder.glob("*")) - before
    return file


def verl(folder: Path) -> Path:
    return write(
        folder,
        (
            (step, 60.0 * (step - 1), scalar(key, TABLE[key][step]))
            for step in (1, 2, 3)
            for key in TABLE
            if step in TABLE[key]
        ),
    )


def read(path: Path) -> RawLog:
    (log,) = CONTAINER.read(path)
    return log


def table(log: RawLog) -> dict[str, dict[int, float]]:
    return {
        key: {int(log.step[r]): v for r, v in zip(curve.record, curve.value, strict=True)}
        for key, curve in log.series.items()
    }


def record(data: bytes, length: int | None = None) -> bytes:
    """A TFRecord; with another length than that of the data, its checksum is right all the same."""
    frame = struct.pack("<Q", len(data) if length is None else length)
    return frame + struct.pack("<I", masked_crc32c(frame)) + data + struct.pack("<I", masked_crc32c(data))


def test_the_known_table(tmp_path: Path) -> None:
    log = read(verl(tmp_path))
    assert table(log) == TABLE  # 0.7, not the 0.699999988 of 32 bits
    assert list(log.step) == [1, 2, 3]
    assert list(log.wall_s) == [0, 60, 120]
    assert (log.container, log.run, log.dropped, log.config) == (
        "tensorboard",
        str(tmp_path),
        {},
        {},
    )


def test_it_becomes_a_run(tmp_path: Path) -> None:
    """veRL writes no configuration to TensorBoard."""
    file = verl(tmp_path)
    with pytest.raises(DataError, match="n and B_p unknown"):
        isolaw.read(file)
    runs = isolaw.read(tmp_path, set={"n": 8, "B_p": 32})
    held_out = runs.points[(runs.points["eval_set"] == "aime24") & (runs.points["metric"] == "avg@8")]
    assert dict(zip(held_out["compute"], held_out["value"], strict=True)) == {
        step * 32 * 8: value for step, value in TABLE[HELD_OUT].items()
    }


def test_it_is_found_by_content(tmp_path: Path) -> None:
    file = verl(tmp_path)
    assert CONTAINER.file(tmp_path / "renamed.txt", file.read_bytes()[:65_536])
    for other in (
        b"",
        b"\x01",
        b'{"step": 1}\n' * 10,
        b"\xff" * 100,
        struct.pack("<QI", 2**63, 0) + b"x" * 50,
    ):
        assert not CONTAINER.file(tmp_path / "events.out.tfevents.1720000000.host.1.0", other)
    assert not CONTAINER.directory(tmp_path)


def test_every_event_is_read(tmp_path: Path) -> None:
    """TensorBoard's own page keeps 1,000 points of a curve."""
    log = read(write(tmp_path, ((step, step, scalar("reward", step / 8)) for step in range(3_000))))
    assert list(log.series["reward"].value) == [step / 8 for step in range(3_000)]


def test_values_of_one_step_are_one_record_and_a_repeated_key_is_another(tmp_path: Path) -> None:
    values = [("a", 1, 0.5), ("b", 1, 0.25), ("a", 2, 0.75), ("a", 2, 1.0), ("b", 2, 2.0), ("b", 1, 3.0)]
    log = read(write(tmp_path, ((step, 0, scalar(key, value)) for key, step, value in values)))
    assert list(log.step) == [1, 2, 2, 1]
    assert list(log.series["a"].record) == [0, 1, 2]
    assert list(log.series["b"].record) == [0, 2, 3]


def test_a_configuration_of_trl(tmp_path: Path) -> None:
    """Hugging Face's callback: ``add_text("args", args.to_json_string())``, and of the model."""
    args = {
        "num_generations": 8,
        "per_device_train_batch_size": 4,
        "beta": 0.04,
        "fsdp_config": {"min_num_params": 0},
    }
    model = {"_name_or_path": "Qwen/Qwen2.5-7B", "hidden_size": 3584}
    log = read(
        write(
            tmp_path,
            [
                (0, 0.0, text("args/text_summary", json.dumps(args, indent=2))),
                (0, 0.0, text("model_config/text_summary", json.dumps(model))),
                (0, 0.0, text("notes/text_summary", "{")),
                (5, 9.0, scalar("train/reward", 0.5)),
            ],
        )
    )
    assert log.config == {
        "num_generations": 8,
        "per_device_train_batch_size": 4,
        "beta": 0.04,
        "fsdp_config.min_num_params": 0,
        "model_config._name_or_path": "Qwen/Qwen2.5-7B",
        "model_config.hidden_size": 3584,
    }
    assert log.config_source == "args/text_summary"
    assert table(log) == {"train/reward": {5: 0.5}}


@pytest.mark.parametrize("content", ["", "{", "[" * 200_000, "[1]", '{"a": ' * 200 + "1" + "}" * 200, "null"])
def test_a_configuration_that_is_none_is_counted(content: str, tmp_path: Path) -> None:
    log = read(write(tmp_path, [(0, 0, text("args/text_summary", content)), (1, 1, scalar("reward", 0.5))]))
    assert log.config == {}
    assert log.dropped == {"text args/text_summary: not a JSON object": 1}
    assert table(log) == {"reward": {1: 0.5}}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.float16])
def test_tensors_with_one_number(dtype: Any, tmp_path: Path) -> None:
    """TensorFlow 2 writes scalars so, and torch with ``double_precision``."""
    value = Summary.Value(tag="reward", tensor=make_tensor_proto(dtype(3)))
    one = Summary.Value(tag="loss", tensor=make_tensor_proto(np.asarray([2], dtype)))
    assert table(read(write(tmp_path, [(1, 0, value), (1, 0, one)]))) == {"reward": {1: 3}, "loss": {1: 2}}


def test_double_precision_is_kept(tmp_path: Path) -> None:
    value = Summary.Value(tag="reward", tensor=TensorProto(dtype="DT_DOUBLE", double_val=[0.1234567890123]))
    assert table(read(write(tmp_path, [(1, 0, value)]))) == {"reward": {1: 0.1234567890123}}


def test_what_is_no_scalar_is_left_out(tmp_path: Path) -> None:
    def tensor(**fields: Any) -> Summary.Value:
        return Summary.Value(tag="x", tensor=TensorProto(**fields))

    huge = TensorShapeProto(dim=[TensorShapeProto.Dim(size=2**40)])
    log = read(
        write(
            tmp_path,
            [
                (1, 0, Summary.Value(tag="x", histo=HistogramProto(num=1))),
                (1, 0, Summary.Value(tag="x", tensor=make_tensor_proto(np.ones(3)))),
                (1, 0, tensor(dtype="DT_FLOAT", float_val=[1.0], tensor_shape=huge)),
                (1, 0, tensor(dtype="DT_FLOAT")),
                (1, 0, tensor(dtype="DT_FLOAT", tensor_content=b"abc")),
                (1, 0, tensor(dtype="DT_STRING", string_val=[b"1.0"])),
                (1, 0, tensor(dtype="DT_RESOURCE")),
                (1, 0, tensor()),
                (1, 0, scalar("nan", math.nan)),
                (1, 0, scalar("reward", 1.0)),
            ],
        )
    )
    assert table(log) == {"reward": {1: 1.0}}
    assert log.dropped == {"values that are not finite": 1}


def test_half_a_last_record(tmp_path: Path) -> None:
    whole = verl(tmp_path).read_bytes()
    file = tmp_path / "torn"
    event = Event(step=4, wall_time=BEGAN, summary=Summary(value=[scalar(SCORE, 0.9)])).SerializeToString()
    for length in range(1, len(record(event))):
        file.write_bytes(whole + record(event)[:length])
        log = read(file)
        assert table(log) == TABLE
        assert log.dropped == {"torn last record": 1}


def test_a_damaged_record_is_left_out_and_the_next_is_read(tmp_path: Path) -> None:
    values = [(step, 0.0, scalar("reward", step / 8)) for step in range(1, 6)]
    file = write(tmp_path, values)
    content = file.read_bytes()
    third = Event(step=3, wall_time=BEGAN, summary=Summary(value=[values[2][2]])).SerializeToString()
    assert content.count(third) == 1
    # A bit of the value, then the message itself.
    for damaged in (third[:-1] + bytes([third[-1] ^ 1]), b"\xff" * len(third)):
        file.write_bytes(content.replace(third, damaged))
        log = read(file)
        assert table(log) == {"reward": {1: 0.125, 2: 0.25, 4: 0.5, 5: 0.625}}
        assert log.dropped == {"damaged records": 1}


def test_a_damaged_length_ends_it(tmp_path: Path) -> None:
    file = verl(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content + b"\0" * 12 + content)
    log = read(file)
    assert table(log) == TABLE
    assert log.dropped == {f"damaged from byte {len(content):,} to the end of the file": 1}


@pytest.mark.parametrize("length", [2**31, 2**40, 2**64 - 1])
def test_a_length_of_gigabytes_allocates_nothing(length: int, tmp_path: Path) -> None:
    file = verl(tmp_path)
    file.write_bytes(file.read_bytes() + record(b"x" * 1000, length=length))
    read(file)  # imports are not what is measured
    tracemalloc.start()
    log = read(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table(log) == TABLE
    assert log.dropped == {"torn last record": 1}
    assert peak < 2**20


def test_a_picture_is_passed_over(tmp_path: Path) -> None:
    file = verl(tmp_path)
    after = Event(step=9, wall_time=BEGAN, summary=Summary(value=[scalar(SCORE, 0.5)])).SerializeToString()
    file.write_bytes(file.read_bytes() + record(b"x" * (2**20 + 1)) + record(after))
    log = read(file)
    assert table(log)[SCORE] == {**TABLE[SCORE], 9: 0.5}
    assert log.dropped == {"records over 1 MiB (pictures, graphs)": 1}


def test_parts_of_one_run_have_its_directory_and_their_names_sort_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for step, began in enumerate((1_720_000_000.0, 1_720_003_600.0), 1):
        monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time", lambda now=began: now)
        files.append(write(tmp_path, [(step, 0, scalar("reward", step))]))
    assert sorted(tmp_path.iterdir()) == files
    assert {read(file).run for file in files} == {str(tmp_path)}


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = verl(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(DataError, match=r"pip install 'isolaw\[tensorboard\]'") as error:
        read(file)
    assert str(file) in str(error.value)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: No such file"):
        read(tmp_path / "gone")


@pytest.fixture(scope="module")
def survives(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], RawLog]:
    folder = tmp_path_factory.mktemp("fuzz")

    def check(content: bytes) -> RawLog:
        file = folder / "events"
        file.write_bytes(content)
        return read(file)

    return check


@given(st.data())
def test_any_change_of_bytes_is_survived(survives: Callable[[bytes], RawLog], data: st.DataObject) -> None:
    events = [
        Event(wall_time=BEGAN, file_version="brain.Event:2"),
        Event(step=1, wall_time=BEGAN, summary=Summary(value=[text("args/text_summary", '{"a": 1}')])),
        *(Event(step=s, wall_time=BEGAN, summary=Summary(value=[scalar("reward", s)])) for s in range(5)),
    ]
    content = bytearray(b"".join(record(event.SerializeToString()) for event in events))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    log = survives(bytes(content[: data.draw(st.integers(0, len(content)))]))
    # Checksums let nothing through that was not written.
    assert set(table(log).get("reward", {}).items()) <= {(s, float(s)) for s in range(5)}


@given(st.binary(max_size=300))
def test_any_message_is_survived(survives: Callable[[bytes], RawLog], message: bytes) -> None:
    survives(record(Event(file_version="brain.Event:2").SerializeToString()) + record(message))
