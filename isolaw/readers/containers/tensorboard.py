"""TensorBoard event files, ``events.out.tfevents.*``: every scalar of every event, without sampling.

A file consists of TFRecords (length, masked CRC-32C of the length, data, masked CRC-32C of the data). Each is
an ``Event`` message, and the first one contains the file version ``brain.Event:2``. isolaw iterates over the
records itself, so that it can check each length against the file size before reading. TensorBoard's code
decodes messages and computes checksums. The files of one directory are parts of one run, and their names sort
by time.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isolaw import commands
from isolaw.errors import DataError, NotInstalled
from isolaw.readers import limits
from isolaw.readers.configs import flatten
from isolaw.readers.literals import loads
from isolaw.readers.raw_log import Container, RawLog

VERSION = b"brain.Event:2"
_FRAME_HEADER = struct.Struct("<QI")  # length and its CRC; the data and their CRC follow
_CRC = struct.Struct("<I")
_LARGEST_RECORD = 1 << 20  # bytes; scalars and configurations are far smaller, images and graphs are larger
_MAX_STEP_VALUES = 10_000  # scalars joined into one step
# Tags under which Hugging Face's callback and isolaw's mirror store the configuration → key prefix.
_PREFIX = {"args/text_summary": "", "config/text_summary": "", "model_config/text_summary": "model_config."}


def _is_events(_path: Path, head: bytes) -> bool:
    """Return whether the first record of a file is an event with the file version."""
    if len(head) < _FRAME_HEADER.size:
        return False
    length, _ = _FRAME_HEADER.unpack_from(head)
    return length < len(head) and VERSION in head[_FRAME_HEADER.size : _FRAME_HEADER.size + length]


def _read(path: Path) -> Iterator[RawLog]:
    """Read one event file; raise `DataError` if it cannot be read or TensorBoard is not installed."""
    log = RawLog(str(path), "tensorboard", str(path.parent))
    start_time = step = wall_s = math.nan
    values: dict[str, float] = {}
    for event in _events(path, log):
        start_time = event.wall_time if math.isnan(start_time) else start_time
        event_values = _scalars(event, log)
        if not event_values:
            continue
        # Writers create one event per scalar; consecutive events with the same step form one record.
        if values and (
            event.step != step or len(values) > _MAX_STEP_VALUES or values.keys() & event_values.keys()
        ):
            log.add(values, step, wall_s)
            values = {}
        if not values:
            step, wall_s = float(event.step), event.wall_time - start_time
        values |= event_values
    if values:
        log.add(values, step, wall_s)
    yield log


def _events(path: Path, log: RawLog) -> Iterator[Any]:
    """Yield the events of the file. Truncated and damaged records are skipped and counted."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    except ImportError:
        message = f"TensorBoard events need TensorBoard: {commands.install('isolaw[tensorboard]')}"
        raise NotInstalled(f"{path}: {message}") from None
    try:
        with limits.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            while len(frame := file.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
                length, crc = _FRAME_HEADER.unpack(frame)
                if masked_crc32c(frame[:8]) != crc:  # without a length, the next record cannot be found
                    log.dropped[
                        f"damaged from byte {file.tell() - _FRAME_HEADER.size:,} to the end of the file"
                    ] += 1
                    return
                if file.tell() + length + _CRC.size > size:
                    log.dropped["torn last record"] += 1
                    return
                if not length or length > _LARGEST_RECORD:
                    if length:
                        log.dropped["records over 1 MiB (pictures, graphs)"] += 1
                    else:
                        log.count_damaged("empty records")
                    file.seek(length + _CRC.size, 1)
                    continue
                data = file.read(length)
                (crc,) = _CRC.unpack(file.read(_CRC.size))
                try:
                    event = Event.FromString(data)
                except DecodeError:
                    log.count_damaged("damaged records")
                    continue
                value_count = len(event.summary.value)
                if value_count > _MAX_STEP_VALUES:
                    log.dropped[f"records of over {_MAX_STEP_VALUES:,} values"] += 1
                elif value_count and masked_crc32c(data) != crc:
                    log.count_damaged("damaged records")
                elif value_count:
                    yield event
            if frame:
                log.dropped["torn last record"] += 1
    except struct.error as error:  # the file shrank during reading
        raise DataError(f"{path}: {error}") from None


def _scalars(event: Any, log: RawLog) -> dict[str, float]:
    """Return the scalars of an event by tag, and add any configuration in its texts to the log."""
    scalars = {}
    for value in event.summary.value:
        value_kind = value.WhichOneof("value")
        if value_kind == "simple_value":
            scalars[value.tag] = _shortest(value.simple_value)
        elif value_kind == "tensor" and value.tag in _PREFIX:
            _add_config(log, value.tag, value.tensor)
        elif value_kind == "tensor" and (number := _only_number(value.tensor)) is not None:
            scalars[value.tag] = number
    return scalars


def _only_number(tensor: Any) -> float | None:
    """Return the number in a tensor with one element, or None for any other tensor."""
    from tensorboard.util.tensor_util import make_ndarray

    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None  # checked first, because decoding allocates the memory that the shape claims
    try:
        array = make_ndarray(tensor)
    except (TypeError, ValueError, KeyError):
        return None
    if array.size != 1 or array.dtype.kind not in "fiu":
        return None
    return _shortest(array.item()) if array.dtype == np.float32 else float(array.item())


def _shortest(value: float) -> float:
    """Return the shortest decimal with this 32-bit value: 0.7 as logged, not 0.69999999."""
    return float(str(np.float32(value)))


def _add_config(log: RawLog, tag: str, tensor: Any) -> None:
    """Add a text that contains a JSON object to the configuration."""
    if len(tensor.string_val) != 1:
        return
    flat_config: dict[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError, DataError):
        text = tensor.string_val[0]
        config = loads(text) if len(text) <= limits.LARGEST_CONFIG else None
        flat_config = flatten(config) if isinstance(config, dict) else {}
    if flat_config:
        log.config |= {f"{_PREFIX[tag]}{key}": value for key, value in flat_config.items()}
        log.config_source = log.config_source or tag
    else:
        log.dropped[f"text {tag}: not a JSON object"] += 1


CONTAINER = Container("tensorboard", _read, file=_is_events)
