"""Data sets of logs on the Hugging Face Hub: ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``.

huggingface_hub downloads a data set once, into its own cache, and reads the cache if there is no network.
isolaw does not download model weights.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from isolaw import commands
from isolaw.errors import DataError, NotInstalled, nearest, shown
from isolaw.files import Walk
from isolaw.runs import listed

PREFIX = "hf://"
_FORM = "hf://datasets/OWNER/NAME[@REVISION][/PATH]"
_SOURCE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
_WEIGHTS = [f"*.{kind}" for kind in ("safetensors", "bin", "pt", "pth", "ckpt", "gguf", "distcp")]
# Files next to a log or above it: its configuration, and how isolaw reads it.
_BESIDE = ["*.yaml", "*.yml", "*.toml", "*config*.json", "*args.json"]
_SHOWN = 8
_COPIES: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


def local(source: str | Path) -> str | Path:
    """Return the local path of a data set of logs, or of a file, folder or glob in it.

    Any other source is returned unchanged.

    Raises `NotInstalled` without huggingface_hub, and `DataError` if the data set is neither on the Hub nor
    in its cache, or requires a login.
    """
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
    except Exception as error:  # errors of the network, and of whichever library accesses it
        raise DataError(f"{source}: {_reason(error, repo, revision)}") from None
    place = os.path.join(folder, path) if path else folder
    if os.path.isdir(place) and any(path.name == "sweep.json" for path in Walk(Path(place))):
        return _copy(place)
    if os.path.lexists(place):
        return place
    if glob.has_magic(path) and glob.glob(path, root_dir=folder, recursive=True):
        return os.path.join(glob.escape(folder), path)
    there = _entries(repo, revision, path)
    close = nearest(path, there)
    listing = f"; found: {listed(there, _SHOWN)}" if there else ""
    hint = f" (did you mean {close!r}?)" if close else ""
    raise DataError(f"{source}: no such file or folder in the data set{listing}{hint}")


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


def _reason(error: Exception, repo: str, revision: str) -> str:
    """Return why a download failed, and what to do; specific errors are tested before base classes."""
    from huggingface_hub import constants, errors

    page = f"https://huggingface.co/datasets/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return f"the data set is gated. Accept its conditions on {page}, then log in: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "the data set does not exist, or it is private. Check the name; for a private data set, log in: "
            "hf auth login"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the data set has no revision {revision!r}"
    text = (str(error).splitlines() or [""])[0].strip()
    if isinstance(error, errors.LocalEntryNotFoundError):
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub does not answer"
        more = "" if constants.HF_HUB_OFFLINE and "incomplete" not in text else f". {text}"
        return f"{offline}, and the Hub's cache on this machine lacks the file{more}"
    return f"not downloaded: {type(error).__name__}: {text}"


def _entries(repo: str, revision: str, path: str) -> list[str]:
    """Return the contents of the nearest existing folder above a path, or an empty list without a network."""
    from huggingface_hub import HfApi

    files: list[str] = []
    with contextlib.suppress(Exception):
        files = HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)
    above = path
    while above and not any(name.startswith(f"{above}/") for name in files):
        above = above.rpartition("/")[0]
    head = f"{above}/" if above else ""
    return sorted({head + name[len(head) :].split("/")[0] for name in files if name.startswith(head)})
