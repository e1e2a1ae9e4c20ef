"""A run by what a user calls it: its folder, or a sweep's directory and the beginning of the run's id."""

from __future__ import annotations

import glob
from pathlib import Path

from isolaw.errors import StoreError
from isolaw.store.run import RunStore
from isolaw.store.sweep import SweepStore

_SHOWN, _MOST = 5, 40
_CUT = 16  # of an id: enough to be unambiguous


def find_run(name: str | Path) -> RunStore:
    """Return the run in ``OUT/runs/<run_id>``, or ``OUT/<run_id>``; the id may be an unambiguous prefix.

    Raise `StoreError` where that is not exactly one run.
    """
    folder = Path(name).absolute()
    if not folder.exists():
        above = folder.parent / "runs" if SweepStore(folder.parent).exists else folder.parent
        found = sorted(above.glob(f"{glob.escape(folder.name)}*")) if above.is_dir() else []
        if len(found) != 1:
            runs = ", ".join(own.name[:_CUT] for own in found[:_SHOWN]) or "none"
            raise StoreError(f"{folder}: found {len(found)} runs with this prefix ({runs}); expected one")
        (folder,) = found
    folder = folder.resolve()
    run = SweepStore(folder.parent.parent).run(folder.name)
    if run.folder != folder or not run.sweep.exists:
        message = f"{name}: not a run of a sweep; expected OUT/runs/<run_id>"
        raise StoreError("\n  - ".join([message, *_runs_of(SweepStore(folder))]))
    return run


def _runs_of(sweep: SweepStore) -> list[str]:
    """Return a line for each run, up to `_MOST`; none for a folder that is no sweep's."""
    specs = sweep.specs()[0] if sweep.exists else {}
    facts = sorted((s.rollouts_per_problem, s.problems_per_batch, s.seed, run) for run, s in specs.items())
    lines = [f"{run[:_CUT]}: n = {n:,}, B_p = {b:,}, seed {seed}" for n, b, seed, run in facts]
    return lines[:_MOST] + ([f"and {len(lines) - _MOST:,} more"] if len(lines) > _MOST else [])
