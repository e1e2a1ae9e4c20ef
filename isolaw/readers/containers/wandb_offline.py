"""The folder of a Weights & Biases run, ``wandb/offline-run-<time>-<id>`` or ``wandb/run-<time>-<id>``.

::

    run-<id>.wandb            every record of the run: configuration, and history, not sampled
    files/config.yaml         the configuration again (online runs)
    files/output.log          what was printed

The ``.wandb`` file is a LevelDB log (blocks of 32 KiB; chunks with CRC-32, length and kind) of protocol
buffers. isolaw reads the blocks itself, because the wandb library has no reader for them; the library decodes
the messages.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.errors import DataError, NoHistory, NotInstalled
from isolaw.files import leads_out
from isolaw.readers import limits
from isolaw.readers.configs import find_config, flatten
from isolaw.readers.literals import loads
from isolaw.readers.raw_log import Container, RawLog, number

_MAGIC = b":W&B"
_FILE_HEADER = 7  # the magic number, two bytes of check, and a version
_BLOCK_SIZE = 32_768
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST_RECORD = 2 << 20  # bytes of a record; a logged table can be large, the numbers of a step are not
_LARGEST_CONFIG = 4 * limits.MB  # of all records; a changed configuration is logged again
_WANDB_KEY = "_wandb"


def _is_run(path: Path) -> bool:
    """Return whether a directory is a single run's folder, not one with a ``.wandb`` among other files."""
    if path.name.startswith(("offline-run-", "run-")) and (path / "files").is_dir():
        return True
    with limits.os_errors(path):
        names = {entry.name for entry in os.scandir(path)} - {"files", "logs", "tmp"}
    return (
        bool(names)
        and all(name.startswith("run-") and ".wandb" in name for name in names)
        and (sum(name.endswith(".wandb") for name in names) == 1)
    )


def _read(path: Path) -> Iterator[RawLog]:
    """Read a run's folder, or just its ``.wandb`` file.

    Raises `NotInstalled` without wandb, and `NoHistory` if the run has none.
    """
    folder = path if path.is_dir() else path.parent
    is_whole_run = _is_run(folder)
    log = RawLog(str(path), "wandb-offline", folder.name if is_whole_run else path.stem)
    with limits.os_errors(path):
        for file in sorted(folder.glob("run-*.wandb")) if path.is_dir() else [path]:
            # Opening a pipe could block forever.
            if file.is_file() and file.stat().st_size and not (path.is_dir() and leads_out(file, path)):
                _add_records(log, file)
        if not log.config and is_whole_run:  # otherwise the files could belong to another run
            log.config, log.config_source = find_config(folder)
        if not log.series:
            console = folder / "files" / "output.log"
            has_console = is_whole_run and console.is_file()
            hint = f". If its console has metrics, name the console: {console}" if has_console else ""
            raise NoHistory(f"{path}: the W&B run has no history{hint}")
        yield log


def _add_records(log: RawLog, file: Path) -> None:
    try:
        from google.protobuf.message import DecodeError
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise NotInstalled(
            f"{file}: a W&B run, but wandb is not installed: {commands.install('isolaw[wandb]')}"
        ) from None
    config: dict[str, Any] = {}
    config_size = 0  # bytes of configuration
    for data in _chunks(file, log):
        try:
            record = Record.FromString(data)
        except DecodeError:
            log.count_damaged("damaged records")
            continue
        record_type = record.WhichOneof("record_type")
        config_size += len(data) if record_type in ("config", "run") else 0
        if config_size > _LARGEST_CONFIG:
            raise DataError(
                f"{file}: over {_LARGEST_CONFIG // limits.MB} MB of configuration, but a run has a few kB"
            )
        if record_type == "history":
            _add_history(log, record.history)
        elif record_type == "config":
            _update_config(config, record.config)
        elif record_type == "run":
            _update_config(config, record.run.config)
            name, run_id = record.run.display_name, record.run.run_id
            log.run = f"{name} ({run_id})" if name else run_id or log.run
    if config:
        with limits.errors_in(file):
            log.config, log.config_source = flatten(config), file.name


def _chunks(file: Path, log: RawLog) -> Iterator[bytes]:
    """Yield the records, joined across blocks. After damage, the rest of the block is skipped."""
    chunks: list[bytes] | None = None  # start of a record that continues in the next block
    record_size = 0
    with limits.opened(file) as blocks:
        block, position = blocks.read(_BLOCK_SIZE), _FILE_HEADER
        if not block:  # the run was killed before anything was written
            return
        if not block.startswith(_MAGIC):
            raise DataError(f"{file}: not a .wandb file (it does not begin with {_MAGIC.decode()!r})")
        while block:
            while position + _CHUNK_HEADER.size <= len(block):
                crc, length, chunk_type = _CHUNK_HEADER.unpack_from(block, position)
                data = block[position + _CHUNK_HEADER.size : position + _CHUNK_HEADER.size + length]
                position += _CHUNK_HEADER.size + length
                if position > len(block) and len(block) < _BLOCK_SIZE:
                    chunks = [data]  # the file ends within this chunk
                    break
                if zlib.crc32(data, zlib.crc32(bytes([chunk_type]))) != crc:
                    log.count_damaged("damaged records")
                    chunks = None
                    break
                if chunk_type in (_FULL, _FIRST):
                    chunks, record_size = [], 0
                elif chunk_type not in (_MIDDLE, _LAST) or chunks is None:
                    continue  # the rest of a damaged record
                record_size += len(data)
                if record_size <= _LARGEST_RECORD:
                    chunks.append(data)
                if chunk_type in (_FULL, _LAST):
                    if record_size > _LARGEST_RECORD:
                        log.dropped["records over 2 MiB"] += 1
                    else:
                        yield b"".join(chunks)
                    chunks = None
            else:
                if position < len(block) < _BLOCK_SIZE:
                    chunks = []  # the header of the last chunk is truncated
            block, position = blocks.read(_BLOCK_SIZE), 0
    if chunks is not None:
        log.dropped["torn last record"] += 1


def _add_history(log: RawLog, history: Any) -> None:
    values: dict[str, str] = {}
    wandb_values: dict[str, float] = {}
    for item in history.item:
        key = item.key or ".".join(item.nested_key)
        text = item.value_json.strip('"')  # numbers are sometimes logged as text
        if not key.startswith("_"):
            values[key] = text
        elif (value := number(text)) is not None:
            wandb_values[key] = value
    if values:
        step = float(history.step.num) if history.HasField("step") else wandb_values.get("_step", math.nan)
        log.add(values, step, wandb_values.get("_runtime", math.nan))


def _update_config(config: dict[str, Any], record: Any) -> None:
    """Apply a configuration record, in which the last value of each key counts."""
    for item in record.update:
        *outer_keys, key = [item.key] if item.key else item.nested_key or [_WANDB_KEY]
        section = config
        for outer_key in outer_keys:
            subsection = section.get(outer_key)
            section[outer_key] = section = subsection if isinstance(subsection, dict) else {}
        if key != _WANDB_KEY:
            with contextlib.suppress(ValueError, RecursionError):
                section[key] = loads(item.value_json)


CONTAINER = Container(
    "wandb-offline",
    _read,
    file=lambda path, head: head.startswith(_MAGIC) or (path.suffix == ".wandb" and not head),
    directory=_is_run,
)
