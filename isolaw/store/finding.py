"""Find a run by its folder, or by a sweep's directory and a prefix of the run's id."""

from __future__ import annotations

import contextlib
import glob
from pathlib import Path

from isolaw.errors import StoreError, Wording
from isolaw.store.run import RunStore
from isolaw.store.sweep import SweepStore
from isolaw.store.tables import attributes_of, columns_of

_SHOWN, _MOST = 5, 40
_CUT = 16  # number of characters of an id to show, which is enough to be unambiguous


def find_run(name: str | Path) -> RunStore:
    """Return the run with the name ``OUT/runs/<run_id>`` or ``OUT/<run_id>``.

    An unambiguous prefix of the id is enough. Raise `StoreError` unless exactly one run matches.
    """
    folder = Path(name).absolute()
    if not folder.exists():
        above = folder.parent / "runs" if SweepStore(folder.parent).exists else folder.parent
        folders = sorted(above.glob(f"{glob.escape(folder.name)}*")) if above.is_dir() else []
        if len(folders) != 1:
            runs = ", ".join(candidate.name[:_CUT] for candidate in folders[:_SHOWN]) or "none"
            raise StoreError(f"{folder}: found {len(folders)} runs with this prefix ({runs}); expected one")
        (folder,) = folders
    folder = folder.resolve()
    run = SweepStore(folder.parent.parent).run(folder.name)
    if run.folder != folder or not run.sweep.exists:
        message = f"{name}: not a run of a sweep; expected OUT/runs/<run_id>"
        raise StoreError(Wording(message, *(f"  - {line}" for line in _runs_of(SweepStore(folder)))))
    return run


def _runs_of(sweep: SweepStore) -> list[str]:
    """Return a line of text for each run, up to `_MOST` runs; empty if the folder contains no sweep."""
    if not sweep.exists:
        return []
    axes: list[str] = []
    with contextlib.suppress(StoreError):  # if the file is damaged, the lines have fewer columns
        axes = list(sweep.read_spec().grid.recipe_axes)
    facts = []
    for run, s in sweep.specs()[0].items():
        known = columns_of(s) | attributes_of(s)
        also = [f"{key} = {known[key]}" for key in axes if key in known]
        facts.append((s.rollouts_per_problem, s.problems_per_batch, s.seed, also, run))
    lines = [
        ", ".join([f"{run[:_CUT]}: n = {n:,}", f"B_p = {b:,}", f"seed {seed}", *also])
        for n, b, seed, also, run in sorted(facts)
    ]
    return lines[:_MOST] + ([f"and {len(lines) - _MOST:,} more"] if len(lines) > _MOST else [])
