"""A run by what a user calls it: its folder, or a sweep's directory and the beginning of the run's id."""

from __future__ import annotations

import glob
from pathlib import Path

from isolaw.errors import StoreError
from isolaw.store.run import RunStore
from isolaw.store.sweep import SweepStore

_SHOWN = 5


def find_run(name: str | Path) -> RunStore:
    """Return the run in ``OUT/runs/<run_id>``, or ``OUT/<run_id>``; the id may be an unambiguous prefix.

    Raise `StoreError` where that is not exactly one run.
    """
    folder = Path(name).absolute()
    if not folder.exists():
        above = folder.parent / "runs" if SweepStore(folder.parent).exists else folder.parent
        found = sorted(above.glob(f"{glob.escape(folder.name)}*")) if above.is_dir() else []
        if len(found) != 1:
            runs = ", ".join(own.name[:16] for own in found[:_SHOWN]) or "none"
            raise StoreError(f"{folder}: found {len(found)} runs with this prefix ({runs}); expected one")
        (folder,) = found
    folder = folder.resolve()
    run = SweepStore(folder.parent.parent).run(folder.name)
    if run.folder != folder or not run.sweep.exists:
        raise StoreError(f"{name}: not a run of a sweep; expected OUT/runs/<run_id>")
    return run
