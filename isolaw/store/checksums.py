r"""Compute and check checksums of a sweep's files, so that isolaw detects damage and ignores damaged content.

The checksum is CRC-32, which detects every change of up to 32 consecutive bits, and all but one in 2³² of
other changes. It is initialised with an owner (the run's id), so a file of another run also counts as
damaged.

A document is JSON with its checksum under the key ``crc``. In ``points.jsonl``, each line has a checksum that
continues the checksum of the previous line. All lines after a lost, repeated or misplaced line therefore
count as damaged. If a line published a state, its key ``state`` contains the checksum of the state's files.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from isolaw.config import RunSpec
from isolaw.documents.reading import parse_json
from isolaw.documents.seal import is_sealed, sealed
from isolaw.errors import Damaged
from isolaw.store.folder import Folder

_LINE_KEYS = {"step", "compute", "tokens", "wall_s", "rows"}
_EMPTY_END = b', "crc": "00000000"}'
_CHUNK_BYTES = 2**20
# States of at least this many bytes are read by several threads, because checksums release the GIL.
_LARGE_BYTES = 2**26


def read(folder: Folder, name: str, owner: str = "") -> dict[str, Any] | None:
    """Return a document in a folder without its checksum, or None if the file does not exist.

    Raise `Damaged` for changed content or another owner, and `NotOurs` if the entry is not a regular file.
    """
    content = folder.read(name)
    if content is None:
        return None
    path = folder.path / name
    if not content.strip(b"\0"):
        raise Damaged(f"{path}: damaged: the file is empty")
    try:
        document = parse_json(content)
    except ValueError as error:
        raise Damaged(f"{path}: damaged: not JSON ({error})") from None
    if not is_sealed(document, owner):
        raise Damaged(f"{path}: damaged: its checksum does not match")
    return {key: value for key, value in document.items() if key != "crc"}


def write(folder: Folder, name: str, document: Mapping[str, Any], owner: str = "", sync: bool = True) -> None:
    """Write a document with its checksum to a file in a folder."""
    folder.write(name, f"{json.dumps(sealed(document, owner), indent=1)}\n".encode(), sync)


@dataclass
class Lines:
    """The checkpoints in a run's ``points.jsonl``, up to the first damaged line.

    ``damage`` is the reason why later lines are ignored. It is empty if there are no later lines, or only an
    incomplete last line.
    """

    crcs: list[int]  # checksums of the run's id, and of each line
    checkpoints: list[dict[str, Any]] = field(default_factory=list)  # the lines without checksums
    states: dict[int, str] = field(default_factory=dict)  # checksums of the published states, by step
    sizes: list[int] = field(default_factory=list)  # sizes of the lines in bytes
    damage: str = ""
    marker: dict[str, Any] | None = None  # the content of the run's DONE, if it is not damaged

    @classmethod
    def of(cls, run_id: str, content: bytes = b"", marker: dict[str, Any] | None = None) -> Lines:
        """Parse the content of a run's ``points.jsonl``."""
        lines = cls([zlib.crc32(run_id.encode())], marker=marker)
        complete, newline, _torn = content.rpartition(b"\n")
        for number, line in enumerate(complete.split(b"\n") if newline else (), 1):
            body = line[: -len(_EMPTY_END)]
            crc = zlib.crc32(body, lines.crcs[-1])
            try:
                record = parse_json(body + b"}") if line == body + _line_end(crc) else {}
            except ValueError:
                record = {}
            if not record.keys() >= _LINE_KEYS:
                lines.damage = f"line {number} is damaged"
                break
            if "state" in record:
                lines.states[record["step"]] = record.pop("state")
            lines.checkpoints.append(record)
            lines.crcs.append(crc)
            lines.sizes.append(len(line) + 1)
        if not lines.damage and marker and marker["lines"] not in lines.marks:
            lines.damage = (
                f"{marker['checkpoints']} checkpoints were recorded, but only {len(lines.sizes)} are there"
            )
        return lines

    @property
    def marks(self) -> list[str]:
        """Checksums as text: after no line, after one line, after two lines, …"""
        return [f"{crc:08x}" for crc in self.crcs]

    @property
    def notes(self) -> list[dict[str, Any]]:
        """The notes of all checkpoints (`isolaw.backend.RunNote`)."""
        return [note for checkpoint in self.checkpoints for note in checkpoint.get("notes", ())]

    @property
    def reached(self) -> int:
        """Number of rollouts that the run has generated so far."""
        return int(self.checkpoints[-1]["compute"]) if self.checkpoints else 0

    @property
    def done_compute(self) -> int:
        """Horizon of a finished run; 0 if it is unfinished, or if the marker belongs to other lines."""
        marker = self.marker
        return int(marker["compute"]) if marker and marker["lines"] == self.marks[-1] else 0

    def is_done(self, spec: RunSpec) -> bool:
        """Return whether the run has reached the horizon of ``spec``."""
        return self.done_compute // spec.batch_rollouts >= spec.steps

    def up_to(self, step: int | None) -> Lines:
        """Return the lines of the checkpoints up to a step (None: no lines)."""
        count = 0 if step is None else sum(checkpoint["step"] <= step for checkpoint in self.checkpoints)
        return Lines(self.crcs[: count + 1], self.checkpoints[:count], sizes=self.sizes[:count])


def line(checkpoint: Mapping[str, Any], previous_crc: int, state: str | None = None) -> tuple[bytes, int]:
    """Return a line of ``points.jsonl`` and its checksum, given the checksum of the previous line.

    ``state`` is the checksum of the state that this checkpoint publishes, or None.
    """
    record = {**checkpoint, "state": state} if state else checkpoint
    body = json.dumps(record, allow_nan=False).encode()[:-1]
    crc = zlib.crc32(body, previous_crc)
    return body + _line_end(crc) + b"\n", crc


def _line_end(crc: int) -> bytes:
    return b', "crc": "%08x"}' % crc


def state_checksum(state: Folder, owner: str, sync: bool = False) -> str:
    """Return the checksum over ``owner`` and the names, sizes and contents of a state's files.

    With ``sync``, also sync the files to disk. Raise `NotOurs` for an entry that is neither file nor folder.
    """

    def file_crc(file: tuple[str, Folder, str]) -> int:
        _, folder, name = file
        crc = 0
        with open(folder.open(name), "rb", buffering=0) as stream:
            if sync:
                os.fsync(stream.fileno())
            while chunk := stream.read(_CHUNK_BYTES):
                crc = zlib.crc32(chunk, crc)
        return crc

    files = sorted(state.files(), key=lambda file: file[0])
    sizes = [status.st_size if (status := folder.status(name)) else 0 for _, folder, name in files]
    if sum(sizes) < _LARGE_BYTES:
        crcs = list(map(file_crc, files))
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            crcs = list(pool.map(file_crc, files))
    crc = zlib.crc32(owner.encode())
    for (path, *_), size, content_crc in zip(files, sizes, crcs, strict=True):
        crc = zlib.crc32(f"{path}\0{size}\0{content_crc}\n".encode(errors="surrogateescape"), crc)
    return f"{crc:08x}"
