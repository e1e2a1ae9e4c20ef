"""Store the states from which runs resume: in ``state/<step>/`` of a run's folder, or on another disk.

With ``store.states = FOLDER``, a sweep's states are in ``FOLDER/isolaw-<token>/<run_id>/<step>/``. isolaw
creates the folder ``isolaw-<token>`` and changes nothing else in FOLDER. The file ``isolaw.json`` in it names
the sweep, and the sweep's ``states.json`` names the folder. isolaw therefore detects a disk that is not
mounted. It also detects a copied sweep directory, which must neither resume from nor remove the states of the
original.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from isolaw.errors import StoreError
from isolaw.files import give_usual_modes
from isolaw.store import checksums, locks
from isolaw.store.folder import Folder, SweepFolders

FORMAT = "isolaw.states/1"
STATE, WHERE, MARKER = "state", "states.json", "isolaw.json"
# A published state is a folder named after its step. Before a state is published, its name begins with a dot.
_STATE = re.compile(r"0|[1-9][0-9]*")


def is_own(name: str) -> bool:
    """Return whether a name has the form of isolaw's names for folders of states."""
    return bool(_STATE.fullmatch(name.removeprefix(".")))


class States:
    """The states of one run of a sweep."""

    def __init__(self, sweep: SweepFolders, run_id: str) -> None:
        self._sweep, self._run_id = sweep, run_id
        self._opened: Folder | None = None

    def _folder(self, make: bool = True) -> Folder:
        if self._opened is None:
            parent, name = self._sweep.states(), self._run_id
            if parent is None:
                parent, name = self._sweep.runs(make).folder(self._run_id, make), STATE
            self._opened = parent.folder(name, make)
        return self._opened

    def steps(self) -> list[int]:
        """Return the steps of the published states, in descending order."""
        try:
            here = self._folder(make=False)
        except FileNotFoundError:
            return []
        states = {name: kind for name, kind in here.entries().items() if _STATE.fullmatch(name)}
        for name, kind in states.items():
            if kind != "folder":
                raise here.not_ours(name, "folder")
        return sorted(map(int, states), reverse=True)

    def folder(self, step: int) -> Path:
        """Return the folder of a published state."""
        return self._folder().path / str(step)

    def open(self, step: int) -> Folder:
        """Open the folder of a published state."""
        return self._folder().folder(str(step))

    def unfinished(self, step: int) -> Folder:
        """Open the folder of an unpublished state, and create it if necessary."""
        return self._folder().folder(f".{step}", make=True)

    def write(self, step: int, save: Callable[[Path], None], sync: bool) -> str:
        """Write a state without publishing it, and return its checksum; with ``sync``, sync its files."""
        folder = self._folder().new_folder(f".{step}")
        try:
            save(folder.path)
            give_usual_modes(folder.path)
        except OSError as error:
            error.filename = error.filename or str(folder.path)  # for example, to name a full disk
            raise
        return checksums.of_state(folder, f"{self._run_id} {step}", sync)

    def is_sound(self, step: int, checksum: str) -> bool:
        """Return whether a published state matches its checksum."""
        return checksums.of_state(self.open(step), f"{self._run_id} {step}") == checksum

    def publish(self, step: int, sync: bool) -> None:
        """Publish the state that `write` stored, and remove the earlier states."""
        before = self.steps()
        self._folder().rename(f".{step}", str(step))
        if sync:
            self._folder().sync()
        for old in before:
            self._folder().remove_folder(str(old))

    def keep(self, step: int | None) -> None:
        """Remove all states except the published state of ``step`` (None: remove all states)."""
        for name in self._folder().entries():
            if is_own(name) and name != str(step):
                self._folder().remove_folder(name)


class ExternalStates:
    """The folder of a sweep's states outside the sweep's directory, if there is one."""

    def __init__(self, sweep: Folder) -> None:
        self._sweep = sweep
        self._folder: Folder | None = None
        self._absent = False  # True if states are in the runs' folders, which does not change after the start

    @property
    def given(self) -> str | None:
        """Value of ``store.states`` at the start of the sweep; None if states are in the runs' folders."""
        record = checksums.read(self._sweep, WHERE)
        return None if record is None else str(record["folder"])

    def folder(self) -> Folder | None:
        """Open and return the folder of all runs' states, or None if states are in the runs' folders.

        Raise `StoreError` if the folder is missing or belongs to another sweep.
        """
        if self._folder is not None or self._absent:
            return self._folder
        record = checksums.read(self._sweep, WHERE)
        if record is None:
            self._absent = True
            return None
        path = Path(record["folder"])
        name = f"isolaw-{record['token']}"
        hint = f"{self._sweep.path / WHERE} names this folder for the sweep's states; is the disk mounted?"
        try:
            folder = Folder.at(path).folder(name)
        except OSError as error:
            raise StoreError(f"{path / name}: {error.strerror}. {hint}") from None
        marker = checksums.read(folder, MARKER, record["token"])
        if marker is None:
            raise StoreError(f"{path / name}: it contains no {MARKER}. {hint}")
        owner = Path(marker["sweep"])
        if self._is_copied_from(owner):
            raise StoreError(
                f"{path / name}: contains the states of {owner}; {self._sweep.path} is a copy of that sweep. "
                f"Remove {self._sweep.path / WHERE}; the unfinished runs of the copy then start again"
            )
        self._folder = folder
        return folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the states for this engine, and update the marker if the sweep's directory was moved.

        If there are two copies of a moved sweep, the first copy to run gets the states.
        """
        self._folder = None
        folder = self.folder()
        if folder is None:
            yield
            return
        with locks.locked(folder, wait_s=0.3):
            self._folder = None
            self.folder()  # check again, because another copy could have adopted the states meanwhile
            token = folder.path.name.removeprefix("isolaw-")
            if checksums.read(folder, MARKER, token) != self._marker():
                checksums.write(folder, MARKER, self._marker(), token)
            yield

    def _is_copied_from(self, owner: Path) -> bool:
        """Return whether another directory ``owner`` names the same folder for its states."""
        with contextlib.suppress(OSError, StoreError):
            other = not owner.samefile(self._sweep.path)
            return other and Folder.at(owner).read(WHERE) == self._sweep.read(WHERE)
        return False

    def _marker(self) -> dict[str, str]:
        return {"format": FORMAT, "sweep": os.path.realpath(self._sweep.path)}

    def make(self, parent: str) -> None:
        """Create the folder in ``parent``, and record it in the sweep's directory."""
        token = secrets.token_hex(8)
        folder = Folder.at(Path(parent)).new_folder(f"isolaw-{token}")
        checksums.write(folder, MARKER, self._marker(), token)
        checksums.write(self._sweep, WHERE, {"folder": parent, "token": token})
        self._absent = False
