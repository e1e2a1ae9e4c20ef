"""The states that runs continue from: ``state/<step>/`` in a run's folder, or a folder of another disk.

With ``store.states = FOLDER``, a sweep's states are in ``FOLDER/isolaw-<token>/<run_id>/<step>/``. isolaw
makes that folder, and its ``isolaw.json`` says which sweep it belongs to; nothing else in FOLDER is touched.
The sweep's ``states.json`` says where it is. A disk that is not mounted is therefore noticed, and so is a
copy of a sweep's directory, which must not continue from, and remove, the states of the original.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from isolaw.errors import StoreError
from isolaw.store import checksums, locks
from isolaw.store.folder import Folder

if TYPE_CHECKING:
    from isolaw.store.sweep import SweepStore

FORMAT = "isolaw.states/1"
STATE, WHERE, MARKER = "state", "states.json", "isolaw.json"
# The folders that isolaw makes here: of a state, by its step, and of one that is being written.
_STATE, _UNFINISHED = re.compile(r"0|[1-9][0-9]*"), re.compile(r"\.(?:0|[1-9][0-9]*)")


def is_own(name: str) -> bool:
    """Return whether isolaw makes folders of this name for states."""
    return bool(_STATE.fullmatch(name) or _UNFINISHED.fullmatch(name))


class States:
    """The states of one run.

    Parameters
    ----------
    sweep
        the directory of its sweep.
    run_id
        the run.
    """

    def __init__(self, sweep: SweepStore, run_id: str) -> None:
        self._sweep, self._run_id = sweep, run_id
        self._folder: Folder | None = None

    @property
    def path(self) -> Path:
        """The folder that holds them, for those who write states and read them."""
        return self._made().path

    def _here(self) -> Folder | None:
        with contextlib.suppress(FileNotFoundError):
            return self._open(make=False)
        return None

    def _made(self) -> Folder:
        return self._open(make=True)

    def _open(self, make: bool) -> Folder:
        if self._folder is None:
            parent, name = self._sweep.states(), self._run_id
            if parent is None:
                parent, name = self._sweep.runs(make).folder(self._run_id, make), STATE
            self._folder = parent.folder(name, make)
        return self._folder

    def steps(self) -> list[int]:
        """Return the steps of the published states, the last first."""
        here = self._here()
        names = here.entries() if here else {}
        wrong = [name for name, kind in names.items() if _STATE.fullmatch(name) and kind != "folder"]
        if here and wrong:
            raise here.not_ours(wrong[0], "folder")
        return sorted((int(name) for name in names if _STATE.fullmatch(name)), reverse=True)

    def folder(self, step: int) -> Path:
        """Return the folder of a published state."""
        return self._made().path / str(step)

    def open(self, step: int) -> Folder:
        """Open the folder of a published state."""
        return self._made().folder(str(step))

    def begin(self, step: int) -> Path:
        """Make the empty folder into which a state is to be written."""
        return self._made().new_folder(f".{step}").path

    def unfinished(self, step: int) -> Folder:
        """Open the folder into which a state is being written; it need not exist yet."""
        return self._made().folder(f".{step}", make=True)

    def checksum(self, step: int, run_id: str, sync: bool = False) -> str:
        """Return the checksum of the state that was written after `begin`; ``sync`` syncs its files."""
        return checksums.of_state(self.unfinished(step), f"{run_id} {step}", sync)

    def is_sound(self, step: int, run_id: str, checksum: str | None) -> bool:
        """Return whether a published state is as it was written."""
        return checksums.of_state(self.open(step), f"{run_id} {step}") == checksum

    def publish(self, step: int, sync: bool) -> None:
        """Let the state that was written after `begin` take the place of those before."""
        before = self.steps()
        self._made().rename(f".{step}", str(step))
        if sync:
            self._made().sync()
        for old in before:
            self._made().remove_folder(str(old))

    def keep(self, step: int | None) -> None:
        """Remove what was not published, and every state but one."""
        for name in self._made().entries():
            if is_own(name) and name != str(step):
                self._made().remove_folder(name)


class ExternalStates:
    """The folder of a sweep's states on another disk.

    Parameters
    ----------
    sweep
        the sweep's directory.
    """

    def __init__(self, sweep: Folder) -> None:
        self._sweep = sweep
        self._folder: Folder | None = None
        self._absent = False  # chosen before the first run is made, so looked for once

    @property
    def given(self) -> str | None:
        """What ``store.states`` was when the sweep began; None: states are in the runs' folders."""
        found = checksums.read(self._sweep, WHERE)
        return None if found is None else str(found["folder"])

    def folder(self) -> Folder | None:
        """Open the folder of all runs' states; None where states are in the runs' folders.

        Raises
        ------
        StoreError
            it is not there, is not the sweep's, or is still another's.
        """
        if self._folder is not None or self._absent:
            return self._folder
        found = checksums.read(self._sweep, WHERE)
        if found is None:
            self._absent = True
            return None
        path = Path(found["folder"])
        name = f"isolaw-{found['token']}"
        hint = f"{self._sweep.path / WHERE} says that the sweep's states are there; is the disk mounted?"
        try:
            folder = Folder.at(path).folder(name)
        except OSError as error:
            raise StoreError(f"{path / name}: {error.strerror}. {hint}") from None
        marker = checksums.read(folder, MARKER, found["token"])
        if marker is None:
            raise StoreError(f"{path / name}: no {MARKER} in it. {hint}")
        owner = Path(marker["sweep"])
        if not _same(owner, self._sweep.path) and _holds(owner, self._sweep.read(WHERE)):
            raise StoreError(
                f"{path / name}: holds the states of {owner}, of which {self._sweep.path} is a copy. Remove "
                f"{self._sweep.path / WHERE}, and the copy's unfinished runs start again with their own"
            )
        self._folder = folder
        return folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the states as their only engine; of a sweep that was moved, the marker learns where it is.

        So that of two copies of a moved sweep the first to run keeps the states.
        """
        self._folder = None
        folder = self.folder()
        if folder is None:
            yield
            return
        with locks.locked(folder, wait_s=0.3):
            self._folder = None
            self.folder()  # nobody else has adopted them meanwhile
            token, here = folder.path.name.removeprefix("isolaw-"), os.path.realpath(self._sweep.path)
            if checksums.read(folder, MARKER, token) != (marker := {"format": FORMAT, "sweep": here}):
                checksums.write(folder, MARKER, marker, token)
            yield

    def make(self, parent: str) -> None:
        """Make the folder in ``parent``, and let the sweep's directory say where it is."""
        token = secrets.token_hex(8)
        folder = Folder.at(Path(parent)).new_folder(f"isolaw-{token}")
        marker = {"format": FORMAT, "sweep": os.path.realpath(self._sweep.path)}
        checksums.write(folder, MARKER, marker, token)
        checksums.write(self._sweep, WHERE, {"folder": parent, "token": token})
        self._absent = False


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _holds(sweep: Path, where: bytes | None) -> bool:
    """Whether a sweep's directory says that its states are in this place."""
    try:
        return Folder.at(sweep).read(WHERE) == where
    except (OSError, StoreError):
        return False
