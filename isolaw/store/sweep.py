"""`SweepStore`: the directory of one sweep."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from isolaw import locks
from isolaw.errors import StoreError
from isolaw.parsing import parse_section
from isolaw.spec import SweepSpec
from isolaw.store.files import read_json, write_atomically
from isolaw.store.run import PUBLISH_EVERY_S, RunStore

if TYPE_CHECKING:
    from isolaw.runs import Runs

FORMAT = "isolaw.sweep/1"
_LAST_SYNC_S = 5.0


class SweepStore:
    """The directory of one sweep.

    Parameters
    ----------
    directory
        an existing sweep, an empty folder, or a path that does not exist yet.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def exists(self) -> bool:
        """Whether the directory holds a sweep."""
        return (self.directory / "sweep.json").is_file()

    @property
    def in_use(self) -> bool:
        """Whether an engine holds the directory now."""
        return locks.in_use(self.directory / "lock")

    def claim(self) -> None:
        """Refuse a path that holds something else; nothing is created or changed."""
        d = self.directory
        if d.exists() and not d.is_dir():
            raise StoreError(f"{d}: is a file; accepted: a new directory or a sweep's")
        if d.is_dir() and not self.exists:
            own = {d / "lock", *_leftovers(d)}
            held = sorted(p.name for p in d.iterdir() if p not in own)
            if held:
                shown = ", ".join(held[:4]) + (" …" if len(held) > 4 else "")
                raise StoreError(
                    f"{d}: holds something else ({shown}); accepted: a new or empty directory, or a sweep's"
                )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory as its only engine."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # Long enough for somebody's look at `in_use` to pass.
        with locks.locked(self.directory / "lock", f"{self.directory}", wait_s=0.3):
            for leftover in _leftovers(self.directory):
                leftover.unlink()
            yield

    def read_spec(self) -> SweepSpec:
        """Return the resolved spec of the sweep."""
        data = read_json(self.directory / "sweep.json")
        if data.pop("format", None) != FORMAT:
            raise StoreError(f"{self.directory / 'sweep.json'}: not an isolaw sweep of format {FORMAT!r}")
        return parse_section(SweepSpec, data, source=str(self.directory / "sweep.json"))

    def write_spec(self, spec: SweepSpec, written: str | None) -> None:
        """Write ``sweep.json``, and ``sweep.toml`` as the user wrote it."""
        data = {"format": FORMAT, **spec.model_dump(mode="json")}
        write_atomically(self.directory / "sweep.json", json.dumps(data, indent=1) + "\n")
        if written is not None:
            write_atomically(self.directory / "sweep.toml", written)

    def run(self, run_id: str) -> RunStore:
        """Return the folder of one run."""
        return RunStore(self.directory / "runs" / run_id)

    def run_ids(self) -> list[str]:
        """Return all runs that the directory holds, sorted."""
        return sorted(p.name for p in self._folders() if _has_content(p / "spec.json"))

    def damaged(self) -> list[str]:
        """Return the runs with checkpoints of which it is not known what they are: no spec is left."""
        folders = [p for p in self._folders() if not _has_content(p / "spec.json")]
        return sorted(p.name for p in folders if _has_content(p / "points.jsonl"))

    def _folders(self) -> list[Path]:
        runs = self.directory / "runs"
        return list(runs.iterdir()) if runs.is_dir() else []

    @contextlib.contextmanager
    def synced(self) -> Iterator[threading.Event]:
        """While entered, what was written is made to survive a power cut, at most once a second.

        Yields what to set when something was. One call for the whole file system (``syncfs``) takes as long
        as one for a single file. Where that has other things to write, its end is not waited for for ever.
        """
        news, ended = threading.Event(), threading.Event()

        def sync() -> None:
            while not ended.wait(PUBLISH_EVERY_S) or news.is_set():
                if news.is_set():
                    news.clear()
                    with contextlib.suppress(FileNotFoundError):  # moved; its runs say so
                        descriptor = os.open(self.directory, os.O_RDONLY)
                        ctypes.CDLL(None).syncfs(descriptor)
                        os.close(descriptor)

        thread = threading.Thread(target=sync, daemon=True)
        thread.start()
        try:
            yield news
        finally:
            ended.set()
            thread.join(_LAST_SYNC_S)

    def collect(self) -> Runs:
        """Return all recorded checkpoints, also those of unfinished runs."""
        from isolaw.store import tables  # workers need no pandas

        return tables.collect(self)

    def publish(self, runs: Runs) -> Path:
        """Write ``points.parquet``, and ``problems.parquet`` where there are results of single problems."""
        from isolaw.store import tables

        return tables.publish(self.directory, runs)


def _has_content(path: Path) -> bool:
    """Whether a file is there, and not left empty by a power cut."""
    return path.is_file() and path.stat().st_size > 0


def _leftovers(folder: Path) -> list[Path]:
    """Temporary files of a writer that was killed."""
    names = ("sweep", "points", "problems", "clock")
    return [path for name in names for path in folder.glob(f".{name}.*.tmp")]
