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
_SOURCE_FORM = "hf://datasets/OWNER/NAME[@REVISION][/PATH]"
_SOURCE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
_WEIGHT_FILES = [f"*.{kind}" for kind in ("safetensors", "bin", "pt", "pth", "ckpt", "gguf", "distcp")]
# Files next to a log or above it: its configuration, and how isolaw reads it.
_CONFIG_FILES = ["*.yaml", "*.yml", "*.toml", "*config*.json", "*args.json"]
_COPY_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


def local(source: str | Path) -> str | Path:
    """Return the local path of a data set of logs, or of a file, folder or glob in it, or of a W&B project.

    Any other source is returned unchanged.

    Raises `NotInstalled` without huggingface_hub, and `DataError` if the data set is neither on the Hub nor
    in its cache, or requires a login.
    """
    if str(source).startswith(wandb_project.PREFIX):
        return wandb_project.fetch_tables(str(source))
    if not str(source).startswith(PREFIX):
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
