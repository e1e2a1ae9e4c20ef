"""Logs elsewhere: data sets of the Hugging Face Hub, ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``, and W&B.

huggingface_hub downloads a data set once, into its own cache, and reads the cache if there is no network.
isolaw does not download model weights.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from isolaw import commands
from isolaw.errors import DataError, NotInstalled, shown
from isolaw.files import Walk
from isolaw.readers import wandb_project

PREFIX = "hf://"
ELSEWHERE = (PREFIX, wandb_project.PREFIX)  # sources that are not on this machine
_FORM = "hf://datasets/OWNER/NAME[@REVISION][/PATH]"
_SOURCE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
_WEIGHTS = [f"*.{kind}" for kind in ("safetensors", "bin", "pt", "pth", "ckpt", "gguf", "distcp")]
# Files next to a log or above it: its configuration, and how isolaw reads it.
_BESIDE = ["*.yaml", "*.yml", "*.toml", "*config*.json", "*args.json"]
_COPIES: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


def local(source: str | Path) -> str | Path:
    """Return the local path of a data set of logs, or of a file, folder or glob in it, or of a W&B project.

    Any other source is returned unchanged.

    Raises `NotInstalled` without huggingface_hub, and `DataError` if the data set is neither on the Hub nor
    in its cache, or requires a login.
    """
    if str(source).startswith(wandb_project.PREFIX):
        return wandb_project.fetched(str(source))
    if not str(source).startswith(PREFIX):
        return source
    asked = _SOURCE.fullmatch(str(source))
    path = (asked["path"] or "").strip("/") if asked else ""
    if asked is None or ".." in path.split("/"):
        raise DataError(f"source: found {shown(str(source))}; expected {_FORM}")
    repo, revision = asked["repo"], unquote(asked["revision"] or "main")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        needed = f"huggingface_hub is not installed: {commands.install('isolaw[hub]')}"
        raise NotInstalled(f"{source}: {needed}") from None
    try:
        folder = snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            allow_patterns=_wanted(path),
            ignore_patterns=_WEIGHTS,
        )
    except Exception as error:  # of the network, or of the Hub, whose messages say what to do
        text = " ".join(str(error).split())[:500]
        raise DataError(f"{source}: not downloaded: {type(error).__name__}: {text}") from None
    place = os.path.join(folder, path) if path else folder
    if os.path.isdir(place) and any(path.name == "sweep.json" for path in Walk(Path(place))):
        return _copy(place)
    if os.path.lexists(place):
        return place
    if glob.has_magic(path) and glob.glob(path, root_dir=folder, recursive=True):
        return os.path.join(glob.escape(folder), path)
    raise DataError(f"{source}: no such file or folder in the data set")


def _copy(place: str) -> str:
    """Return a copy for this process, since the cache consists of links, which isolaw does not follow."""
    copies = tempfile.TemporaryDirectory(prefix="isolaw-")
    _COPIES.append(copies)
    return shutil.copytree(place, os.path.join(copies.name, os.path.basename(place)))


def _wanted(path: str) -> list[str] | None:
    """Return patterns for the files to download (the named files and their neighbours); None means all."""
    if not path:
        return None
    forms = [form for name in (path, glob.escape(path)) for form in (name, f"{name}/*")]
    stem = PurePosixPath(path).with_suffix("")  # such as run1.yaml for run1.jsonl
    beside = [f"{glob.escape(str(stem))}[._]*"] if str(stem) != path and not glob.has_magic(path) else []
    return [*forms, *beside, *_BESIDE]
