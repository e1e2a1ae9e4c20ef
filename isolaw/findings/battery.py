"""The whole of `isolaw findings`: make the runs, judge them, say what was done, as one document.

::

    DIR/battery.json      which battery this is
    DIR/easy, DIR/hard …  its sweeps (`isolaw.findings.experiments`), which a second call continues
    DIR/jitter/000.json … one jittered preset each (`isolaw.findings.jitter`)
    DIR/findings.json     the document
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isolaw import backends
from isolaw.errors import StoreError
from isolaw.findings import execute
from isolaw.findings.experiments import SETS, Battery
from isolaw.findings.measure import Measured
from isolaw.store import Folder

FORMAT = "isolaw.findings/1"
_MARKER = "battery.json"


def judge(
    battery: Battery,
    out: str | Path | None = None,
    jobs: int = 1,
    progress: execute.Progress = lambda _: None,
) -> dict[str, Any]:
    """Make the battery's runs, or what is left of them, and judge them.

    Parameters
    ----------
    battery
        from `isolaw.findings.experiments.battery`.
    out
        where the runs are kept and continued; None: a temporary folder.
    jobs
        threads.
    progress
        called with the share of the work done since its last call.

    Returns
    -------
    The document: ``format``, ``model``, ``preset``, ``constants``, ``seeds``, …, ``findings`` (a row
    each: `isolaw.findings.finding.Finding.to_dict`) and ``pictures`` (what they show).

    Raises
    ------
    SpecError, StoreError
        before anything is spent.
    """
    with execute.directory(out) as folder:
        planned = execute.plan(battery, folder)
        if out is not None:
            claim(battery, folder)
        made = execute.execute(planned, jobs, progress)
    measured = Measured(battery, made)
    return {
        "format": FORMAT,
        **description(battery),
        "seeds": list(battery.seeds),
        "findings": [finding.to_dict() for finding in measured.findings],
        "failed_runs": made.failed,
        "jitter": None,
        "pictures": measured.pictures,
    }


def description(battery: Battery) -> dict[str, Any]:
    """Return all that the results depend on, but for the seeds."""
    run = battery.resolved(SETS[0])
    return {
        "model": run.options["model"],
        "preset": run.options["preset"],
        "constants": run.options["parameters"],
        "recipe": battery.base.recipe.model_dump(exclude_defaults=True),
        "eta": {name: battery.eta(name) for name in SETS},
        "compute": battery.compute,
        "problems_per_batch": battery.batch,
        "rollouts_per_problem": battery.levels,
        "n_train": battery.n_train,
        "n_validation": run.problems.n_validation,
        "backend_version": backends.get(battery.base.sweep.backend).version,
    }


def claim(battery: Battery, folder: Path) -> None:
    """Mark a folder as this battery's; refuse one that holds another battery or something else."""
    marker = folder / _MARKER
    mine = {"format": FORMAT, **description(battery)}
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: is a file; accepted: a new directory or a battery's")
    if marker.is_file():
        try:
            there = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            there = None
        if not isinstance(there, dict) or there.get("format") != FORMAT:
            raise StoreError(f"{marker}: not an isolaw battery of format {FORMAT!r}")
        differing = [
            f"{k} is {there.get(k)!r} there and {v!r} here" for k, v in mine.items() if there.get(k) != v
        ]
        if differing:
            raise StoreError(f"{folder}: holds another battery ({'; '.join(differing)}); use a new --out")
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise StoreError(
            f"{folder}: holds something else; accepted: a new or empty directory, or a battery's"
        )
    folder.mkdir(parents=True, exist_ok=True)
    Folder.at(folder).write(marker.name, f"{json.dumps(mine, indent=1)}\n".encode())


def save(document: dict[str, Any], folder: str | Path) -> Path:
    """Write ``findings.json``."""
    path = Path(folder) / "findings.json"
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    Folder.at(path.parent).write(path.name, f"{text}\n".encode())
    return path
