r"""Checksums of what a sweep's directory holds: damage is found when a file is read, and never believed.

CRC-32 finds every change of up to 32 bits in a row, and any other but one in 2³². It starts from an owner
(the run's id), so that a file of another run is damage, too.

A document is JSON with its checksum as the key ``crc``. ``points.jsonl`` has one checksum a line, which goes
on from the line before: a line that is lost, repeated or in another's place is damage from there on. A line
at which a state was published holds the checksum of that state's files as ``state``.

>>> document = sealed({"compute": 512}, "a")
>>> document
{'compute': 512, 'crc': 'c00b2c46'}
>>> is_sealed(document, "a"), is_sealed(document, "b"), is_sealed(document | {"compute": 513}, "a")
(True, False, False)
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn

from isolaw.config import canonical_json
from isolaw.errors import Damaged
from isolaw.store.folder import Folder

_LINE = {"step", "compute", "tokens", "wall_s", "rows"}
_END = b', "crc": "00000000"}'
_PIECE_BYTES = 2**20
# States of this many bytes are worth threads: checksums do not hold the interpreter's lock.
_LARGE_BYTES = 2**26


def sealed(document: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return a JSON document with its checksum; ``owner`` is what it must belong to."""
    return {**document, "crc": f"{_of_document(document, owner):08x}"}


def is_sealed(document: Mapping[str, Any], owner: str) -> bool:
    """Return whether a document is as `sealed` made it."""
    rest = {key: value for key, value in document.items() if key != "crc"}
    try:
        return document.get("crc") == f"{_of_document(rest, owner):08x}"
    except (ValueError, RecursionError):  # what parses need not be what can be written: 1e999
        return False


def read(folder: Folder, name: str, owner: str = "") -> dict[str, Any] | None:
    """Return a document of a folder without its checksum; None where there is no such file.

    Raises
    ------
    Damaged
        it is not as it was written, or another's.
    NotOurs
        it is a link, or no file.
    """
    content = folder.read(name)
    if content is None:
        return None
    path = folder.path / name
    if not content.strip(b"\0"):
        raise Damaged(f"{path}: damaged: the file is empty")
    try:
        document = parsed(content)
    except ValueError as error:
        raise Damaged(f"{path}: damaged: not JSON ({error})") from None
    if not is_sealed(document, owner):
        raise Damaged(f"{path}: damaged: its checksum does not match")
    return {key: value for key, value in document.items() if key != "crc"}


def write(folder: Folder, name: str, document: Mapping[str, Any], owner: str = "", sync: bool = True) -> None:
    """Write a document with its checksum."""
    folder.write(name, f"{json.dumps(sealed(document, owner), indent=1)}\n".encode(), sync)


def _of_document(document: Mapping[str, Any], owner: str) -> int:
    return zlib.crc32(canonical_json(document).encode(), zlib.crc32(owner.encode()))


def parsed(text: bytes | str) -> dict[str, Any]:
    """Return a JSON object.

    Raises
    ------
    ValueError
        it is none, nested too deeply, or holds numbers that JSON has not (NaN, Infinity).
    """
    try:
        data = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    return data


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@dataclass
class Lines:
    """The checkpoints of a run's ``points.jsonl``, up to the first damage.

    Attributes
    ----------
    checkpoints
        one dictionary a line, without checksums.
    states
        the checksums of the states that were published, by step.
    crcs, sizes
        the checksum of each line, before the first of which there is that of the run's id, and its bytes.
    damage
        why what follows is not believed; empty if nothing follows but, perhaps, a torn last line.
    marker
        what the run's ``DONE`` says, where that is sound.
    """

    crcs: list[int]
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    damage: str = ""
    marker: dict[str, Any] | None = None

    @classmethod
    def of(cls, run_id: str, content: bytes) -> Lines:
        """Read the content of the ``points.jsonl`` of a run."""
        out = cls([zlib.crc32(run_id.encode())])
        whole, end, _torn = content.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if end else (), 1):
            body = line[: -len(_END)]
            crc = zlib.crc32(body, out.crcs[-1])
            try:
                record = parsed(body + b"}") if line == body + _end(crc) else {}
            except ValueError:
                record = {}
            if not record.keys() >= _LINE:
                out.damage = f"line {number} is damaged"
                break
            if "state" in record:
                out.states[record["step"]] = record.pop("state")
            out.checkpoints.append(record)
            out.crcs.append(crc)
            out.sizes.append(len(line) + 1)
        return out

    @property
    def marks(self) -> list[str]:
        """The checksums as text, of no line, one line, two lines, …"""
        return [f"{crc:08x}" for crc in self.crcs]

    def up_to(self, step: int) -> Lines:
        """Return the lines of the checkpoints up to a step."""
        kept = sum(checkpoint["step"] <= step for checkpoint in self.checkpoints)
        states = {own: crc for own, crc in self.states.items() if own <= step}
        return Lines(self.crcs[: kept + 1], self.checkpoints[:kept], states, self.sizes[:kept])


def line(checkpoint: Mapping[str, Any], before: int, state: str | None = None) -> tuple[bytes, int]:
    """Return a line of ``points.jsonl`` and its checksum, given that of the line before.

    ``state`` is the checksum of the state that is published at this checkpoint, if one is.
    """
    full = {**checkpoint, "state": state} if state else checkpoint
    body = json.dumps(full, allow_nan=False).encode()[:-1]
    crc = zlib.crc32(body, before)
    return body + _end(crc) + b"\n", crc


def _end(crc: int) -> bytes:
    return b', "crc": "%08x"}' % crc


def of_state(state: Folder, owner: str, sync: bool = False) -> str:
    """Return the checksum of a state: of the names, sizes and contents of all its files.

    Raises
    ------
    NotOurs
        a link in it, or something that is neither file nor folder.
    """

    def of_file(name: str) -> int:
        *folders, last = name.split("/")
        folder, crc = state, 0
        for one in folders:
            folder = folder.folder(one)
        with open(folder.open(last), "rb", buffering=0) as file:
            if sync:
                os.fsync(file.fileno())
            while piece := file.read(_PIECE_BYTES):
                crc = zlib.crc32(piece, crc)
        return crc

    files = sorted(_files(state))
    if sum(size for _, size in files) < _LARGE_BYTES:
        contents = [of_file(name) for name, _ in files]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            contents = list(pool.map(of_file, (name for name, _ in files)))
    crc = zlib.crc32(owner.encode())
    for (name, size), content in zip(files, contents, strict=True):
        crc = zlib.crc32(f"{name}\0{size}\0{content}\n".encode(errors="surrogateescape"), crc)
    return f"{crc:08x}"


def _files(folder: Folder, prefix: str = "") -> list[tuple[str, int]]:
    """Return the name, from the top, and the bytes of each file of a folder."""
    out = []
    for name, kind in folder.entries().items():
        if kind == "folder":
            out += _files(folder.folder(name), f"{prefix}{name}/")
        elif kind == "file":
            status = folder.status(name)
            out.append((f"{prefix}{name}", status.st_size if status else 0))
        else:
            raise folder.not_ours(name, "file")
    return out
