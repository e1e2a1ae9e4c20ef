"""Define `SweepStore`, which reads and writes the directory of one sweep."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from isolaw import commands
from isolaw.backend import Response
from isolaw.config import RunSpec, SweepSpec
from isolaw.documents.validation import parse_section
from isolaw.errors import Damaged, InputError, NotOurs, StoreError
from isolaw.files import check_destination
from isolaw.store import checksums, locks
from isolaw.store.folder import POINTS, PROBLEMS, RECORDED, EntryKind, Folder, is_leftover
from isolaw.store.run import PUBLISH_EVERY_S, RunStore, kinds_in_run

if TYPE_CHECKING:
    from isolaw.runs import Runs

FORMAT = "isolaw.sweep/1"
SPEC, USER_SPEC = "sweep.json", "sweep.toml"
DECISIONS = "decisions.jsonl"  # the decisions of a race
_RUNS, _RUN_ID = "runs", re.compile(r"[0-9a-f]{64}")
_FILES = (SPEC, USER_SPEC, POINTS, PROBLEMS, RECORDED, DECISIONS, locks.NAME)
# All entries that isolaw creates in a sweep's directory; libraries that it calls create the last three.
_OWN_ENTRIES: dict[str, EntryKind] = {
    **dict.fromkeys(_FILES, "file"),
    **dict.fromkeys((_RUNS, "slurm", "scripts", "tensorboard", "wandb", "mlruns"), "folder"),
}
_WRITTEN_FILES = (*_FILES, locks.CLOCK)
_LAST_SYNC_S = 5.0
_MOST_SHOWN_RUNS = 5  # number of runs in a message about an ambiguous name
_SHOWN_ID_LENGTH = 16  # number of characters of an id to show, which is enough to be unambiguous


@dataclass(frozen=True)
class SavedResponses:
    """The responses that a run saved at one evaluation, for people to read."""

    spec: RunSpec
    step: int
    compute: int
    responses: list[Response]


class SweepStore:
    """The directory of one sweep.

    The directory can contain an existing sweep, be empty, or not exist yet.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._runs: Folder | None = None

    @cached_property
    def root(self) -> Folder:
        """The open directory; raises `FileNotFoundError` if it does not exist."""
        try:
            return Folder.at(self.directory)
        except NotADirectoryError as error:  # the path is a file, or is below a file
            raise FileNotFoundError(*error.args) from None

    def runs(self, make: bool = False) -> Folder:
        """Open the folder of all runs; ``make`` creates it if it does not exist."""
        if make:
            self.directory.mkdir(parents=True, exist_ok=True)
        if self._runs is None:
            self._runs = self.root.folder(_RUNS, make)
        return self._runs

    @property
    def exists(self) -> bool:
        """True if the directory contains a sweep, even if ``sweep.json`` is missing."""
        with contextlib.suppress(OSError, NotOurs):
            return self.root.entries().get(SPEC) in ("file", "symbolic link") or bool(self.specs()[0])
        return False

    @property
    def in_use(self) -> bool:
        """True if an engine has currently locked the directory."""
        return locks.holder(self.root) is not None

    @property
    def lock_message(self) -> str:
        """Unique message in the lock of the engine that has locked the directory."""
        return locks.message(self.root)

    def claim(self) -> None:
        """Check that the directory can be used for a sweep.

        Raise `StoreError` if the path contains something other than a sweep, `NotOurs` as `check` does, and
        `DataError` if the directory would be inside another sweep.
        """
        path = self.directory
        check_destination(path)
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            what = "is a file" if path.exists() else "is a broken link"
            raise StoreError(f"{path}: {what}; expected a new directory or a sweep's")
        if not self.exists:
            names = sorted(self.root.entries().keys() - {locks.NAME})
            if other_entries := [name for name in names if not is_leftover(name, _WRITTEN_FILES)]:
                shown = ", ".join(other_entries[:4]) + (" …" if len(other_entries) > 4 else "")
                raise StoreError(
                    f"{path}: the directory contains other files ({shown}); expected a new or empty "
                    "directory, or a sweep's"
                )
        self.check()

    def check(self) -> None:
        """Raise `NotOurs` if isolaw's entries are links or of the wrong kind; the error lists all of them."""
        self.root.check(_accepted_kinds)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory for this engine inside the block."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # Wait longer than another process takes to check the holder, which locks the file briefly.
        with locks.locked(self.root, wait_s=0.3):
            self.root.remove_leftovers(_WRITTEN_FILES)
            yield

    def read_spec(self) -> SweepSpec:
        """Return the resolved spec of the sweep.

        Raise `Damaged` if the file is missing or was changed, and `StoreError` if it has another format.
        """
        path = self.directory / SPEC
        try:
            document = checksums.read(self.root, SPEC)
        except Damaged as error:
            raise Damaged(f"{error}. {self._rewrite_hint}") from None
        if document is None:
            raise Damaged(f"{path}: missing. {self._rewrite_hint}")
        if document.pop("format", None) != FORMAT:
            raise StoreError(f"{path}: not an isolaw sweep of format {FORMAT!r}")
        try:
            return parse_section(SweepSpec, document, source=str(path))
        except InputError as error:
            raise StoreError(str(error)) from None

    @property
    def _rewrite_hint(self) -> str:
        if self.root.status(USER_SPEC):
            command = commands.rewrite_sweep(self.directory / USER_SPEC, self.directory)
            return f"This command rewrites the file with the sweep's options: {command}"
        return "Repeat the sweep's own command, with its options, to rewrite the file"

    def write_spec(self, spec: SweepSpec, user_text: str | None) -> None:
        """Write ``sweep.json``, and ``sweep.toml`` as the user wrote it."""
        document = spec.model_dump(mode="json")
        if "set" not in spec.problems.model_fields_set:  # the backend names the set, also when it continues
            del document["problems"]["set"]
        checksums.write(self.root, SPEC, {"format": FORMAT, **document})
        if user_text is not None:
            self.root.write(USER_SPEC, user_text.encode())

    def run(self, run_id: str) -> RunStore:
        """Return the store of one run."""
        return RunStore(self, run_id)

    def specs(self) -> tuple[dict[str, RunSpec], dict[str, str]]:
        """Return the specs of runs by id, and a cause by id for runs with results but no valid spec."""
        spec_by_run, cause_by_run = {}, {}
        run_ids: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            run_ids = sorted(run_id for run_id in self.runs().entries() if _RUN_ID.fullmatch(run_id))
        for run_id in run_ids:
            run = self.run(run_id)
            try:
                spec_by_run[run_id] = run.read_spec()
            except NotOurs as error:
                cause_by_run[run_id] = error.what
            except OSError as error:
                cause_by_run[run_id] = str(error)
            except Damaged as error:
                if run.bytes_recorded:
                    cause_by_run[run_id] = f"{error}. Repeat the sweep's own command to rewrite the file"
        return spec_by_run, cause_by_run

    def run_ids(self) -> list[str]:
        """Return the sorted ids of all runs in the directory with a valid spec."""
        return list(self.specs()[0])

    @contextlib.contextmanager
    def synced(self) -> Iterator[threading.Event]:
        """Sync the disk at most once a second inside the block, so that results survive a power failure.

        Yield an event that the caller sets after each change. ``syncfs`` syncs a whole file system and takes
        as long as syncing a single file. At the end of the block, isolaw waits only for a limited time,
        because the file system can be busy.
        """
        changed, is_over = threading.Event(), threading.Event()

        def sync() -> None:
            while not is_over.wait(PUBLISH_EVERY_S) or changed.is_set():
                if changed.is_set():
                    changed.clear()
                    ctypes.CDLL(None).syncfs(self.root.descriptor)

        thread = threading.Thread(target=sync, daemon=True)
        thread.start()
        try:
            yield changed
        finally:
            is_over.set()
            thread.join(_LAST_SYNC_S)

    def collect(self) -> Runs:
        """Return all recorded checkpoints, including checkpoints of unfinished runs."""
        from isolaw.store import tables  # workers do not need pandas

        return tables.collect(self)

    def responses(self) -> Iterator[SavedResponses]:
        """Yield the evaluations with responses, run by run; damaged lines are omitted, as in tables."""
        for run_id, spec in self.specs()[0].items():
            try:
                lines = self.run(run_id).recorded().checkpoints
            except (NotOurs, OSError):
                continue
            for line in lines:
                if responses := [Response(**response) for response in line.get("responses", [])]:
                    yield SavedResponses(spec, line["step"], line["compute"], responses)


def _accepted_kinds(*place: str) -> tuple[EntryKind, ...]:
    """Return the accepted kinds of an entry in a sweep's directory, or () for an entry of the user."""
    match place:
        case (name,) if name in _OWN_ENTRIES:
            return (_OWN_ENTRIES[name],)
        case ("runs", name) if _RUN_ID.fullmatch(name):
            return ("folder",)
        case ("runs", _, *inside):
            return kinds_in_run(*inside)
    return ()


def find_run(name: str | Path) -> RunStore:
    """Return the run with the name ``OUT/runs/<run_id>`` or ``OUT/<run_id>``.

    An unambiguous prefix of the id is enough. Raise `StoreError` unless exactly one run matches.
    """
    folder = Path(name).absolute()
    if not folder.exists():
        parent = folder.parent / "runs" if SweepStore(folder.parent).exists else folder.parent
        folders = sorted(parent.glob(f"{glob.escape(folder.name)}*")) if parent.is_dir() else []
        if len(folders) != 1:
            ids = ", ".join(each.name[:_SHOWN_ID_LENGTH] for each in folders[:_MOST_SHOWN_RUNS]) or "none"
            raise StoreError(f"{folder}: found {len(folders)} runs with this prefix ({ids}); expected one")
        (folder,) = folders
    folder = folder.resolve()
    run = SweepStore(folder.parent.parent).run(folder.name)
    if run.folder != folder or not run.sweep.exists:
        hint = f"; to list its runs: {commands.read_sweep(name)}" if SweepStore(folder).exists else ""
        raise StoreError(f"{name}: not a run of a sweep; expected OUT/runs/<run_id>{hint}")
    return run
