"""The provenance of a report: sources with hashes, package versions and fit options."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from isolaw.files import Walk, sha256
from isolaw.fits.document.schema import LawDocument
from isolaw.registry import __version__
from isolaw.runs import Runs

_LISTED = 12
_OF_A_SWEEP = ("sweep.json", "runs/*/points.jsonl")


def sources(read: Iterable[str | Path]) -> list[tuple[str, str, str]]:
    """Return (name, kind, SHA-256) of each file or sweep in ``read``. Many files are listed as their folder.

    The hash of a folder is the SHA-256 of the output of ``sha256sum`` for its files, sorted by name.
    """
    paths = [Path(name) for name in dict.fromkeys(map(str, read))]
    directories = [path for path in paths if path.is_dir()]
    out = []
    for path in directories:
        files = sorted(file for pattern in _OF_A_SWEEP for file in path.glob(pattern))
        files = files or sorted(Walk(path))
        out.append((str(path), f"{len(files):,} files", _of_all(files, path)))
    single = [path for path in paths if path not in directories]
    if len(single) > _LISTED:
        folder = Path(os.path.commonpath(single))
        return [*out, (str(folder), f"{len(single):,} files", _of_all(sorted(single), folder))]
    return out + [(str(path), "file", _of_file(path)) for path in single]


def _of_all(files: Iterable[Path], folder: Path) -> str:
    lines = [f"{_of_file(file)}  {file.relative_to(folder)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        return f"not readable: {error.strerror}"


def versions(plotly: str) -> str:
    """Return the versions of isolaw, Python, the numerical packages and plotly.js."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "pandas", "numba"))
    return f"isolaw {__version__}, Python {platform.python_version()}, {packages}, plotly.js {plotly}"


def seeds(runs: Runs) -> str:
    """Return the seeds of the runs as text."""
    numbers = sorted(int(seed) for seed in runs.points["seed"].unique())
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def options(document: LawDocument) -> str:
    """Return the keywords of `isolaw.fit` that give this law."""
    d, records = document, "off" if document.records is None else document.records
    keywords = {
        "metric": d.metric, "eval_set": d.eval_set, "hold": d.hold, "where": d.fixed, "method": d.method,
        "curve": d.curve, "records": records, "x": "compute" if d.x.name == "steps" else d.x.name,
        "draws": d.bootstrap.draws, "seed": d.bootstrap.seed, "robust": d.robust,
    }  # fmt: skip
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())
