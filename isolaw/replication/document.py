"""One battery of `isolaw replicate`: execute its runs, judge the findings, and return one document.

::

    DIR/battery.json      identifies the battery
    DIR/easy, DIR/hard …  its sweeps (`isolaw.replication.battery`), which a second call continues
    DIR/jitter/000.json … one jittered preset each (`isolaw.replication.jitter`)
    DIR/findings.json     the document
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from isolaw import backends
from isolaw.documents.reading import read_json
from isolaw.errors import InputError, StoreError
from isolaw.evidence import Simulated
from isolaw.files import check_destination
from isolaw.replication import execution
from isolaw.replication.battery import SETS, Battery
from isolaw.replication.measurements import MeasuredFindings
from isolaw.store import Folder

FORMAT = "isolaw.findings/1"
_MARKER = "battery.json"


def judge(
    battery: Battery,
    out: str | Path | None = None,
    jobs: int = 1,
    progress: execution.Progress = lambda _: None,
) -> dict[str, Any]:
    """Execute the remaining runs of a battery in ``jobs`` threads and judge the findings from all runs.

    Returns the document. It contains the keys of `description`, ``seeds``, ``findings`` (one
    `verdicts.Finding.to_dict` per row), ``failed_runs``, ``jitter`` (None) and ``pictures`` (the curves of
    the figures).
    """
    with ExitStack() as stack:
        folder = Path(out or stack.enter_context(TemporaryDirectory(prefix="isolaw-")))
        planned = execution.plan(battery, folder)
        if out is not None:
            claim(battery, folder)
        runs, failed = execution.execute(planned, jobs, progress)
    measured = MeasuredFindings(battery, runs)
    return {
        "format": FORMAT,
        "simulated": Simulated.YES.json,
        **description(battery),
        "seeds": list(battery.seeds),
        "findings": [finding.to_dict() for finding in measured.findings],
        "failed_runs": failed,
        "jitter": None,
        "pictures": measured.pictures,
    }


def description(battery: Battery) -> dict[str, Any]:
    """Return everything that determines the results, except the seeds."""
    run = battery.resolved(SETS[0])
    return {
        "model": run.options["model"],
        "preset": battery.base.options.get("preset", run.options["preset"]),
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
    """Mark a folder as belonging to this battery; raise `StoreError` if it contains anything else."""
    check_destination(folder)
    marker = folder / _MARKER
    mine = {"format": FORMAT, **description(battery)}
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: found a file; expected a new directory or a battery's")
    if not marker.is_file():
        if folder.exists() and any(folder.iterdir()):
            message = "contains other files; expected a new or empty directory, or a battery's"
            raise StoreError(f"{folder}: {message}")
        save(mine, marker)
        return
    try:
        found = read_json(marker)
    except InputError:
        found = {}
    if found.get("format") != FORMAT:
        raise StoreError(f"{marker}: found another format; expected a battery of format {FORMAT!r}")
    differing = [f"{k}: found {found.get(k)!r}; expected {v!r}" for k, v in mine.items() if found.get(k) != v]
    if differing:
        raise StoreError(f"{folder}: contains another battery ({', '.join(differing)}); use a new --out")


def save(document: dict[str, Any], path: Path) -> None:
    """Write a JSON file atomically, creating its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    Folder.at(path.parent).write(path.name, f"{text}\n".encode())
