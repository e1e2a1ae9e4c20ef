"""Logs elsewhere: data sets of the Hugging Face Hub, and projects of Weights & Biases.

::

    hf://datasets/OWNER/NAME[@REVISION][/PATH]
    wandb://ENTITY/PROJECT[/RUN_ID]

huggingface_hub downloads a data set once, into its own cache, and reads the cache if there is no network.
isolaw does not download model weights. W&B's own client downloads the whole history of each run, and its
configuration, as the table of a history that `containers.wandb_csv` reads. The tables stay in the user's
cache, and isolaw downloads a run again only if it has made more steps.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from isolaw import commands
from isolaw.errors import DataError, NotInstalled, shown
from isolaw.files import Walk, replacing
from isolaw.readers.containers.wandb_csv import CONFIG

_HUB, _WANDB = ELSEWHERE = ("hf://", "wandb://")  # sources that are not on this machine
_SOURCE_FORM = "hf://datasets/OWNER/NAME[@REVISION][/PATH]"
_SOURCE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
_WEIGHT_FILES = [f"*.{kind}" for kind in ("safetensors", "bin", "pt", "pth", "ckpt", "gguf", "distcp")]
# Files next to a log or above it: its configuration, and how isolaw reads it.
_CONFIG_FILES = ["*.yaml", "*.yml", "*.toml", "*config*.json", "*args.json"]
_WANDB_NAME = r"[\w-][\w.-]{0,127}"
_WANDB_SOURCE = re.compile(
    rf"wandb://(?P<entity>{_WANDB_NAME})/(?P<project>{_WANDB_NAME})(/(?P<run>{_WANDB_NAME}))?/?", re.ASCII
)
_MOST_CELL = 100_000  # characters that a cell of a table, such as a configuration, can have
_WANDB_TIMEOUT_S = 30  # seconds that W&B may take to answer
_COPY_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


def local(source: str | Path) -> str | Path:
    """Return the local path of a data set of logs, or of a file, folder or glob in it, or of a W&B project.

    Any other source is returned unchanged.

    Raises `NotInstalled` without huggingface_hub, and `DataError` if the data set is neither on the Hub nor
    in its cache, or requires a login.
    """
    if str(source).startswith(_WANDB):
        return _fetch_tables(str(source))
    if not str(source).startswith(_HUB):
        return source
    source_match = _SOURCE.fullmatch(str(source))
    path = (source_match["path"] or "").strip("/") if source_match else ""
    if source_match is None or ".." in path.split("/"):
        raise DataError(f"source: found {shown(str(source))}; expected {_SOURCE_FORM}")
    repo, revision = source_match["repo"], unquote(source_match["revision"] or "main")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        message = f"huggingface_hub is not installed: {commands.install('isolaw[hub]')}"
        raise NotInstalled(f"{source}: {message}") from None
    try:
        folder = snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            allow_patterns=_download_patterns(path),
            ignore_patterns=_WEIGHT_FILES,
        )
    except Exception as error:  # of the network, or of the Hub, whose messages say what to do
        text = " ".join(str(error).split())[:500]
        raise DataError(f"{source}: not downloaded: {type(error).__name__}: {text}") from None
    local_path = os.path.join(folder, path) if path else folder
    if os.path.isdir(local_path) and any(path.name == "sweep.json" for path in Walk(Path(local_path))):
        return _copy_folder(local_path)
    if os.path.lexists(local_path):
        return local_path
    if glob.has_magic(path) and glob.glob(path, root_dir=folder, recursive=True):
        return os.path.join(glob.escape(folder), path)
    raise DataError(f"{source}: no such file or folder in the data set")


def _copy_folder(folder: str) -> str:
    """Return a copy for this process, since the cache consists of links, which isolaw does not follow."""
    copy_folder = tempfile.TemporaryDirectory(prefix="isolaw-")
    _COPY_FOLDERS.append(copy_folder)
    return shutil.copytree(folder, os.path.join(copy_folder.name, os.path.basename(folder)))


def _download_patterns(path: str) -> list[str] | None:
    """Return patterns for the files to download (the named files and their neighbours); None means all."""
    if not path:
        return None
    patterns = [pattern for name in (path, glob.escape(path)) for pattern in (name, f"{name}/*")]
    stem = PurePosixPath(path).with_suffix("")  # such as run1.yaml for run1.jsonl
    neighbours = [f"{glob.escape(str(stem))}[._]*"] if str(stem) != path and not glob.has_magic(path) else []
    return [*patterns, *neighbours, *_CONFIG_FILES]


def _fetch_tables(source: str) -> Path:
    """Return the folder with a table for each run of a project, or the table of one run.

    Raises `NotInstalled` without wandb, and `DataError` without a key or a network, or if there is no such
    project.
    """
    source_match = _WANDB_SOURCE.fullmatch(source)
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
        api = Api(timeout=_WANDB_TIMEOUT_S)
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
    if not re.fullmatch(_WANDB_NAME, name, re.ASCII):
        raise ValueError(f"found a run with the id {shown(str(run.id))}")
    path = folder / name
    if not path.is_file():
        rows = [{key: value for key, value in row.items() if _is_number(value)} for row in run.scan_history()]
        columns = ["run_name", CONFIG, "_step", "_runtime"]
        columns += dict.fromkeys(key for row in rows for key in row if not key.startswith("_"))
        config = json.dumps(run.config, default=str)
        cells = {
            "run_name": f"{run.name} ({run.id})",
            CONFIG: config if len(config) < _MOST_CELL else "",
        }
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
