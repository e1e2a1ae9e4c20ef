"""MLflow's file store, with one folder per run: ``mlruns/<experiment>/<run>``.

::

    meta.yaml                 run_name, lifecycle_stage (a deleted run is left out)
    metrics/<key>             lines "milliseconds value step"; a key with slashes is nested folders
    params/<key>              one value per file: the configuration
    tags/mlflow.runName

The files are plain text, so MLflow is not needed. isolaw does not read stores behind a server or in a
database.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from isolaw.errors import DataError
from isolaw.files import Walk, leads_out
from isolaw.readers import limits
from isolaw.readers.configs import flatten
from isolaw.readers.literals import scalar
from isolaw.readers.raw_log import Container, RawLog, number

_LONGEST_LINE = 4_096
_LARGEST_TEXT = 16_384  # bytes of a parameter; MLflow stores up to 6,000
_LARGEST = 100 * limits.MB  # bytes of all metrics of a run: more than two million values
_MOST_FILES = 10_000  # of metrics, and of parameters, per run


def _is_run(path: Path) -> bool:
    """Return whether a directory is a run in a file store (an experiment has a meta.yaml, too)."""
    return (path / "meta.yaml").is_file() and (path / "metrics").is_dir()


def _read(path: Path) -> Iterator[RawLog]:
    """Read one run unless it was deleted; raise `DataError` if one of its files cannot be read."""
    if not _is_run(path):
        raise DataError(f"{path}: not a run of an MLflow file store (meta.yaml next to a folder metrics)")
    with limits.os_errors(path):
        lines = (line.partition(":") for line in _read_text(path, "meta.yaml").splitlines())
        metadata = {key.strip(): value.strip().strip("'\"") for key, _, value in lines}
        if metadata.get("lifecycle_stage") == "deleted":
            return
        name = _read_text(path, "tags/mlflow.runName").strip() or metadata.get("run_name", "")
        log = RawLog(str(path), "mlflow", f"{name} ({path.name[:8]})" if name else path.name)
        params = path / "params"
        param_texts = {
            ".".join(param.relative_to(params).parts): _read_text(params, param.relative_to(params))
            for param in _files(params)
        }
        with limits.errors_in(params):
            log.config = flatten({key: scalar(text) for key, text in param_texts.items()})
        log.config_source = "params" if param_texts else ""
        _add_points(path / "metrics", log)
        if len(log.step) > 1 and not any(log.step):  # MLflow's step for values logged without a step
            log.step = array("d", [math.nan]) * len(log.step)
    yield log


def _add_points(folder: Path, log: RawLog) -> None:
    """Add a record for each step, and another if a key repeats a step, as a resumed run does."""
    names, points_ = list[str](), array("d")  # key, step, value and seconds of each value
    files = _files(folder)
    size = sum(path.stat().st_size for path in files)
    if size > _LARGEST:
        raise DataError(
            f"{folder}: {size / limits.MB:,.0f} MB of metrics; isolaw reads up to "
            f"{_LARGEST // limits.MB} MB from one run. Move metrics that are not needed out of the folder"
        )
    for path in files:
        names.append("/".join(path.relative_to(folder).parts))
        with limits.opened(path) as file:
            while line := file.readline(_LONGEST_LINE):
                if not line.endswith(b"\n"):
                    log.count_damaged("torn metric lines")
                    continue
                fields = [number(text) for text in line.decode("utf-8", "replace").split()[:3]]
                match fields:
                    case [float(time), float(value), float(step)] if math.isfinite(time + step):
                        points_.extend((len(names) - 1, step, value, time / 1000))
                    case [_, *_]:
                        log.count_damaged("metric lines that are not 'time value step'")
    points = pd.DataFrame(np.reshape(points_, (-1, 4)), columns=["key", "step", "value", "seconds"])
    points["repeat"] = points.groupby(["key", "step"]).cumcount()
    points = points.sort_values(["repeat", "step"], kind="stable")
    start_time = points.drop_duplicates(["repeat", "step"])["seconds"].min()
    columns = ["repeat", "step", "seconds", "key", "value"]
    for (_, step), record in groupby(points[columns].itertuples(index=False, name=None), lambda row: row[:2]):
        values = list(record)
        log.add({names[int(key)]: value for *_, key, value in values}, step, values[0][2] - start_time)
    log.in_order = False


def _files(folder: Path) -> list[Path]:
    """Return the regular files below a folder, without pipes, since opening a pipe can block forever."""
    files: list[Path] = []
    for path in Walk(folder) if folder.is_dir() and not leads_out(folder, folder.parent) else ():
        files.append(path)
        if len(files) > _MOST_FILES:
            raise DataError(
                f"{folder}: over {_MOST_FILES:,} files, the most that isolaw reads from one run. Move the "
                "others out of the folder"
            )
    return sorted(files)


def _read_text(folder: Path, name: str | Path) -> str:
    """Return the content of a small text file in a folder, or "" if there is none."""
    path = folder / name
    return "" if leads_out(path, folder) else limits.start(path, _LARGEST_TEXT).decode("utf-8", "replace")


CONTAINER = Container("mlflow", _read, directory=_is_run)
