"""Transfer a run in pieces to and from a machine that cannot access its sweep's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from isolaw.store.run import DONE, FAILED, LOG, OWN, POINTS, PROBLEMS, RunStore

_PIECE_BYTES = 2**24


def pieces(run: RunStore) -> Iterator[dict[str, Any]]:
    """Yield a run's files up to its last state, in pieces from which `accept` reassembles them."""
    last = run.last_state
    if last is not None:
        for path, folder, name in run.states.open(last).files():
            with os.fdopen(folder.open(name), "rb") as file:
                while data := file.read(_PIECE_BYTES):
                    yield {"state": last, "file": path, "data": data}
    for name in (PROBLEMS, POINTS):
        if (content := run.open().read(name)) is not None:
            yield {"write": name, "data": content}
    if last is not None:
        yield {"publish": last}


def ending(run: RunStore, kind: str) -> Iterator[dict[str, Any]]:
    """Yield, in pieces, the files that a run has written before an event of this ``kind``."""
    name = {"done": DONE, "failed": FAILED}.get(kind)
    if name and (content := run.open().read(name)) is not None:
        yield {"write": name, "data": content}
    if kind != "checkpoint" and (log := run.open().read(LOG)) is not None:
        yield {"log": log}


def accept(run: RunStore, piece: dict[str, Any]) -> None:
    """Store a piece of a run from another machine: part of a file, a whole file, or the end of a state."""
    match piece:
        case {"publish": step}:
            run.states.publish(step, run.sync_alone)
        case {"write": name, "data": data}:
            assert name in OWN
            run.open().write(name, data)
        case {"log": data}:
            _append(run.open_log(), data)
        case {"state": step, "file": path, "data": data}:
            *folders, name = path.split("/")
            folder = run.states.unfinished(step)
            for one in folders:
                folder = folder.folder(one, make=True)
            _append(folder.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), data)


def _append(file: int, data: bytes) -> None:
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
