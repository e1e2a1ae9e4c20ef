"""Store the states from which runs resume, in ``state/<step>/`` of a run's folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from isolaw.files import give_usual_modes
from isolaw.store import checksums
from isolaw.store.folder import Folder, SweepFolders

STATE = "state"
# A published state is a folder named after its step. Before a state is published, its name begins with a dot.
_STATE_NAME = re.compile(r"0|[1-9][0-9]*")


def is_own(name: str) -> bool:
    """Return whether a name has the form of isolaw's names for folders of states."""
    return bool(_STATE_NAME.fullmatch(name.removeprefix(".")))


class States:
    """The states of one run of a sweep."""

    def __init__(self, sweep: SweepFolders, run_id: str) -> None:
        self._sweep, self._run_id = sweep, run_id
        self._open_folder: Folder | None = None

    def _folder(self, make: bool = True) -> Folder:
        if self._open_folder is None:
            self._open_folder = self._sweep.runs(make).folder(self._run_id, make).folder(STATE, make)
        return self._open_folder

    def steps(self) -> list[int]:
        """Return the steps of the published states, in descending order."""
        try:
            folder = self._folder(make=False)
        except FileNotFoundError:
            return []
        kind_of_state = {name: kind for name, kind in folder.entries().items() if _STATE_NAME.fullmatch(name)}
        for name, kind in kind_of_state.items():
            if kind != "folder":
                raise folder.not_ours(name, "folder")
        return sorted(map(int, kind_of_state), reverse=True)

    def folder(self, step: int) -> Path:
        """Return the folder of a published state."""
        return self._folder().path / str(step)

    def open(self, step: int) -> Folder:
        """Open the folder of a published state."""
        return self._folder().folder(str(step))

    def write(self, step: int, save: Callable[[Path], None], sync: bool) -> str:
        """Write a state without publishing it, and return its checksum; with ``sync``, sync its files."""
        folder = self._folder().new_folder(f".{step}")
        try:
            save(folder.path)
            give_usual_modes(folder.path)
        except OSError as error:
            error.filename = error.filename or str(folder.path)  # for example, to name a full disk
            raise
        return checksums.state_checksum(folder, f"{self._run_id} {step}", sync)

    def is_sound(self, step: int, checksum: str) -> bool:
        """Return whether a published state matches its checksum."""
        return checksums.state_checksum(self.open(step), f"{self._run_id} {step}") == checksum

    def publish(self, step: int, sync: bool) -> None:
        """Publish the state that `write` stored, and remove the earlier states."""
        earlier_steps = self.steps()
        self._folder().rename(f".{step}", str(step))
        if sync:
            self._folder().sync()
        for step_before in earlier_steps:
            self._folder().remove_folder(str(step_before))

    def keep(self, step: int | None) -> None:
        """Remove all states except the published state of ``step`` (None: remove all states)."""
        for name in self._folder().entries():
            if is_own(name) and name != str(step):
                self._folder().remove_folder(name)
