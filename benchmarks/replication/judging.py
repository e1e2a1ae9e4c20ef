"""Execute one battery, judge the findings from its runs, and return one document.

::

    DIR/battery.json      what determines the results of the battery
    DIR/easy, DIR/hard …  its sweeps (`benchmarks.replication.battery`), which a second call continues
    DIR/jitter/000.json … one similar preset each (`benchmarks.replication.jitter`)
    DIR/findings.json     the document
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.replication import execution
from benchmarks.replication.battery import SETS, Battery
from benchmarks.replication.measurements import MeasuredFindings
from isolaw.backends.bandit import _Bandit
from isolaw.errors import StoreError


def judge(
    battery: Battery,
    out: Path | None = None,
    jobs: int = 1,
    progress: execution.Progress = lambda _: None,
) -> dict[str, Any]:
    """Execute the remaining runs of a battery in ``jobs`` threads and judge the findings from all runs.

    Returns the document. It contains the keys of `description`, ``seeds``, ``findings`` (one
    `verdicts.Finding.to_dict` per row), ``failed_runs``, ``jitter`` (None) and ``pictures`` (the curves of
    the figures). Raises `StoreError` if ``out`` has the runs of another battery.
    """
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory(prefix="isolaw-")))
        _claim(battery, folder)
        planned = execution.plan(battery, folder)
        runs, failed = execution.execute(planned, jobs, progress)
    measured = MeasuredFindings(battery, runs)
    return {
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
        "preset": battery.base.options.get("preset", run.options["preset"]),
        "constants": run.options["parameters"],
        "recipe": battery.base.recipe.model_dump(exclude_defaults=True),
        "eta": {name: battery.eta(name) for name in SETS},
        "compute": battery.compute,
        "problems_per_batch": battery.batch,
        "rollouts_per_problem": battery.levels,
        "n_train": battery.n_train,
        "n_validation": run.problems.n_validation,
        "backend_version": _Bandit.version,
    }


def save(document: dict[str, Any], path: Path) -> None:
    """Write a JSON file, creating its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def _claim(battery: Battery, folder: Path) -> None:
    """Mark a folder as belonging to this battery; raise `StoreError` if it belongs to another one."""
    marker, mine = folder / "battery.json", description(battery)
    if not marker.exists():
        save(mine, marker)
        return
    theirs = json.loads(marker.read_text(encoding="utf-8"))
    differing = [
        f"{k}: found {theirs.get(k)!r}; expected {v!r}" for k, v in mine.items() if theirs.get(k) != v
    ]
    if differing:
        raise StoreError(f"{folder}: contains another battery ({', '.join(differing)}); use a new --out")
