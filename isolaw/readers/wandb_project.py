"""Runs of a Weights & Biases project: ``wandb://ENTITY/PROJECT`` or ``wandb://ENTITY/PROJECT/RUN_ID``.

W&B's own client downloads the whole history of each run, and its configuration, as the table of a history
that `containers.wandb_csv` reads. The tables stay in the user's cache, and isolaw downloads a run again only
if it has made more steps.
"""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.errors import DataError, NotInstalled, shown
from isolaw.files import replacing
from isolaw.readers.containers.wandb_csv import CONFIG

PREFIX = "wandb://"
_NAME = r"[\w-][\w.-]{0,127}"
_SOURCE = re.compile(rf"wandb://(?P<entity>{_NAME})/(?P<project>{_NAME})(/(?P<run>{_NAME}))?/?", re.ASCII)
_LARGEST = 100_000  # characters of a configuration, which a cell of a table can have
_TIMEOUT_S = 30  # seconds that W&B may take to answer


def fetch_tables(source: str) -> Path:
    """Return the folder with a table for each run of a project, or the table of one run.

    Raises `NotInstalled` without wandb, and `DataError` without a key or a network, or if there is no such
    project.
    """
    source_match = _SOURCE.fullmatch(source)
    if source_match is None:
        raise DataError(f"source: found {shown(source)}; expected wandb://ENTITY/PROJECT[/RUN_ID]")
    try:
        from wandb import Api
    except ImportError:  # also for a folder wandb/ with logs, which Python takes for a package
        message = f"wandb is not installed: {commands.install('isolaw[wandb]')}"
        raise NotInstalled(f"{source}: {message}") from None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "isolaw", "wandb")
    folder = cache / source_match["entity"] / source_match["project"]
    path = f"{source_match['entity']}/{source_match['project']}"
    try:
        api = Api(timeout=_TIMEOUT_S)
        runs = [api.run(f"{path}/{source_match['run']}")] if source_match["run"] else list(api.runs(path))
        tables = [_cached_table(run, folder) for run in runs]
    except OSError as error:
        raise DataError(f"{error.filename or source}: {error.strerror or error}") from None
    except Exception as error:  # of the network, or of W&B, whose messages say what to do
        text = " ".join(str(error).split())[:500]
        raise DataError(f"{source}: not downloaded: {type(error).__name__}: {text}") from None
    if source_match["run"]:
        return tables[0]
    if not tables:
        raise DataError(f"{source}: the project has no runs")
    for old in {*folder.glob("*.csv")} - {*tables}:  # deleted on W&B, or downloaded before its last steps
        old.unlink()
    return folder


def _cached_table(run: Any, folder: Path) -> Path:
    """Return the table of a run; download it unless the cache has all of its steps."""
    name = f"{run.id}-{run.lastHistoryStep}.csv"
    if not re.fullmatch(_NAME, name, re.ASCII):
        raise ValueError(f"found a run with the id {shown(str(run.id))}")
    path = folder / name
    if not path.is_file():
        rows = [{key: value for key, value in row.items() if _is_number(value)} for row in run.scan_history()]
        columns = ["run_name", CONFIG, "_step", "_runtime"]
        columns += dict.fromkeys(key for row in rows for key in row if not key.startswith("_"))
        config = json.dumps(run.config, default=str)
        cells = {"run_name": f"{run.name} ({run.id})", CONFIG: config if len(config) < _LARGEST else ""}
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, columns, extrasaction="ignore")
            table.writeheader()
            table.writerows({**row, **cells} for row in rows[:1])
            table.writerows({**row, "run_name": cells["run_name"]} for row in rows[1:])
    return path


def _is_number(value: object) -> bool:
    """Return whether W&B logged a number; it writes NaN and infinity as text."""
    return isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
