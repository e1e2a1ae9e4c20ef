"""The folder of a Weights & Biases run, ``wandb/offline-run-<time>-<id>`` or ``wandb/run-<time>-<id>``.

::

    run-<id>.wandb            every record of the run: configuration, and history, not sampled
    files/config.yaml         the configuration again (online runs)
    files/output.log          what was printed

The ``.wandb`` file is a LevelDB log (blocks of 32 KiB; chunks with CRC-32, length and kind) of protocol
buffers. isolaw reads the blocks itself, because the wandb library has no reader for them; the library decodes
the messages. Without a history, or without the library, isolaw reads `files/output.log` if it is a known
console.
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
from isolaw.readers.raw_log import HEAD, Container, RawLog, number

_MAGIC = b":W&B"
_HEADER = 7  # the magic number, two bytes of check, and a version
_BLOCK = 32_768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST = 2 << 20  # bytes of a record; a logged table can be large, the numbers of a step are not
_LARGEST_CONFIG = 4 * limits.MB  # of all records; a changed configuration is logged again
_OWN = "_wandb"


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

    Raises `DataError` if wandb is not installed, or if the run has neither a history nor a known console.
    """
    folder = path if path.is_dir() else path.parent
    whole = _is_run(folder)
    log = RawLog(str(path), "wandb-offline", folder.name if whole else path.stem)
    missing: NotInstalled | None = None
    with limits.os_errors(path):
        for file in sorted(folder.glob("run-*.wandb")) if path.is_dir() else [path]:
            if (
                file.is_file() and file.stat().st_size and not (path.is_dir() and leads_out(file, path))
            ):  # opening a pipe could block forever
                try:
                    _add_records(log, file)
                except NotInstalled as error:
                    missing = error
        if not log.config and whole:  # otherwise the files could belong to another run
            log.config, log.config_source = find_config(folder)
        if log.series:
            yield log
            return
        if not whole:
            raise missing or NoHistory(f"{path}: the W&B run has no history")
        try:
            yield from _console(log, folder / "files" / "output.log")
        except NoHistory:
            if missing:
                raise missing from None
            raise


def _add_records(log: RawLog, file: Path) -> None:
    try:
        from google.protobuf.message import DecodeError
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise NotInstalled(
            f"{file}: a W&B run, but wandb is not installed: {commands.install('isolaw[wandb]')}"
        ) from None
    config: dict[str, Any] = {}
    size = 0  # bytes of configuration
    for data in _chunks(file, log):
        try:
            record = Record.FromString(data)
        except DecodeError:
            log.damaged("damaged records")
            continue
        kind = record.WhichOneof("record_type")
        size += len(data) if kind in ("config", "run") else 0
        if size > _LARGEST_CONFIG:
            raise DataError(
                f"{file}: over {_LARGEST_CONFIG // limits.MB} MB of configuration, but a run has a few kB"
            )
        if kind == "history":
            _add_history(log, record.history)
        elif kind == "config":
            _update(config, record.config)
        elif kind == "run":
            _update(config, record.run.config)
            name, run_id = record.run.display_name, record.run.run_id
            log.run = f"{name} ({run_id})" if name else run_id or log.run
    if config:
        with limits.errors_in(file):
            log.config, log.config_source = flatten(config), file.name


def _chunks(file: Path, log: RawLog) -> Iterator[bytes]:
    """Yield the records, joined across blocks. After damage, the rest of the block is skipped."""
    parts: list[bytes] | None = None  # start of a record that continues in the next block
    size = 0
    with limits.opened(file) as blocks:
        block, at = blocks.read(_BLOCK), _HEADER
        if not block:  # the run was killed before anything was written
            return
        if not block.startswith(_MAGIC):
            raise DataError(f"{file}: not a .wandb file (it does not begin with {_MAGIC.decode()!r})")
        while block:
            while at + _CHUNK.size <= len(block):
                crc, length, kind = _CHUNK.unpack_from(block, at)
                data = block[at + _CHUNK.size : at + _CHUNK.size + length]
                at += _CHUNK.size + length
                if at > len(block) and len(block) < _BLOCK:
                    parts = [data]  # the file ends within this chunk
                    break
                if zlib.crc32(data, zlib.crc32(bytes([kind]))) != crc:
                    log.damaged("damaged records")
                    parts = None
                    break
                if kind in (_FULL, _FIRST):
                    parts, size = [], 0
                elif kind not in (_MIDDLE, _LAST) or parts is None:
                    continue  # the rest of a damaged record
                size += len(data)
                if size <= _LARGEST:
                    parts.append(data)
                if kind in (_FULL, _LAST):
                    if size > _LARGEST:
                        log.dropped["records over 2 MiB"] += 1
                    else:
                        yield b"".join(parts)
                    parts = None
            else:
                if at < len(block) < _BLOCK:
                    parts = []  # the header of the last chunk is truncated
            block, at = blocks.read(_BLOCK), 0
    if parts is not None:
        log.dropped["torn last record"] += 1


def _add_history(log: RawLog, history: Any) -> None:
    values: dict[str, str] = {}
    internal: dict[str, float] = {}
    for item in history.item:
        key = item.key or ".".join(item.nested_key)
        text = item.value_json.strip('"')  # numbers are sometimes logged as text
        if not key.startswith("_"):
            values[key] = text
        elif (value := number(text)) is not None:
            internal[key] = value
    if values:
        step = float(history.step.num) if history.HasField("step") else internal.get("_step", math.nan)
        log.add(values, step, internal.get("_runtime", math.nan))


def _update(config: dict[str, Any], record: Any) -> None:
    """Apply a configuration record, in which the last value of each key counts."""
    for item in record.update:
        *outer, key = [item.key] if item.key else item.nested_key or [_OWN]
        inside = config
        for name in outer:
            below = inside.get(name)
            inside[name] = inside = below if isinstance(below, dict) else {}
        if key != _OWN:
            with contextlib.suppress(ValueError, RecursionError):
                inside[key] = loads(item.value_json)


def _console(log: RawLog, path: Path) -> Iterator[RawLog]:
    """Read the printed output as the log of this run."""
    from isolaw.readers.containers import candidates

    lacks = f"{log.source}: the W&B run has no history"
    if not path.is_file() or leads_out(path, path.parents[1]):
        raise NoHistory(f"{lacks}, and no files/output.log to read instead")
    head = limits.start(path, HEAD)
    console = next((container for container in candidates() if container.file(path, head)), None)
    if console is None:
        raise NoHistory(f"{lacks}, and its files/output.log has no known metrics")
    for printed in console.read(path):
        printed.run = log.run
        if log.config:
            printed.config, printed.config_source = log.config, log.config_source
        printed.notes.append("W&B has no history of this run, so isolaw read its console, files/output.log")
        printed.dropped += log.dropped
        yield printed


CONTAINER = Container(
    "wandb-offline",
    _read,
    file=lambda path, head: head.startswith(_MAGIC) or (path.suffix == ".wandb" and not head),
    directory=_is_run,
)
