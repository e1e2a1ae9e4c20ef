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
_FRAME = struct.Struct("<QI")  # length and its CRC; the data and their CRC follow
_CRC = struct.Struct("<I")
_LARGEST = 1 << 20  # bytes; scalars and configurations are far smaller, images and graphs are larger
_MOST_JOINED = 10_000  # scalars joined into one step
# Tags under which Hugging Face's callback and isolaw's mirror store the configuration → key prefix.
_CONFIGS = {"args/text_summary": "", "config/text_summary": "", "model_config/text_summary": "model_config."}


def _is_events(_path: Path, head: bytes) -> bool:
    """Return whether the first record of a file is an event with the file version."""
    if len(head) < _FRAME.size:
        return False
    length, _ = _FRAME.unpack_from(head)
    return length < len(head) and VERSION in head[_FRAME.size : _FRAME.size + length]


def _read(path: Path) -> Iterator[RawLog]:
    """Read one event file; raise `DataError` if it cannot be read or TensorBoard is not installed."""
    log = RawLog(str(path), "tensorboard", str(path.parent))
    began = step = wall_s = math.nan
    values: dict[str, float] = {}
    for event in _events(path, log):
        began = event.wall_time if math.isnan(began) else began
        values_of_event = _scalars(event, log)
        if not values_of_event:
            continue
        # Writers create one event per scalar; consecutive events with the same step form one record.
        if values and (
            event.step != step or len(values) > _MOST_JOINED or values.keys() & values_of_event.keys()
        ):
            log.add(values, step, wall_s)
            values = {}
        if not values:
            step, wall_s = float(event.step), event.wall_time - began
        values |= values_of_event
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
        needed = f"TensorBoard events need TensorBoard: {commands.install('isolaw[tensorboard]')}"
        raise NotInstalled(f"{path}: {needed}") from None
    try:
        with limits.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            while len(frame := file.read(_FRAME.size)) == _FRAME.size:
                length, crc = _FRAME.unpack(frame)
                if masked_crc32c(frame[:8]) != crc:  # without a length, the next record cannot be found
                    log.dropped[
                        f"damaged from byte {file.tell() - _FRAME.size:,} to the end of the file"
                    ] += 1
                    return
                if file.tell() + length + _CRC.size > size:
                    log.dropped["torn last record"] += 1
                    return
                if not length or length > _LARGEST:
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
                values = len(event.summary.value)
                if values > _MOST_JOINED:
                    log.dropped[f"records of over {_MOST_JOINED:,} values"] += 1
                elif values and masked_crc32c(data) != crc:
                    log.count_damaged("damaged records")
                elif values:
                    yield event
            if frame:
                log.dropped["torn last record"] += 1
    except struct.error as error:  # the file shrank during reading
        raise DataError(f"{path}: {error}") from None


def _scalars(event: Any, log: RawLog) -> dict[str, float]:
    """Return the scalars of an event by tag, and add any configuration in its texts to the log."""
    scalars = {}
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            scalars[value.tag] = _shortest(value.simple_value)
        elif kind == "tensor" and value.tag in _CONFIGS:
            _configure(log, value.tag, value.tensor)
        elif kind == "tensor" and (number := _only_number(value.tensor)) is not None:
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


def _configure(log: RawLog, tag: str, tensor: Any) -> None:
    """Add a text that contains a JSON object to the configuration."""
    if len(tensor.string_val) != 1:
        return
    flat: dict[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError, DataError):
        text = tensor.string_val[0]
        config = loads(text) if len(text) <= limits.LARGEST_CONFIG else None
        flat = flatten(config) if isinstance(config, dict) else {}
    if flat:
        log.config |= {f"{_CONFIGS[tag]}{key}": value for key, value in flat.items()}
        log.config_source = log.config_source or tag
    else:
        log.dropped[f"text {tag}: not a JSON object"] += 1


CONTAINER = Container("tensorboard", _read, file=_is_events)
