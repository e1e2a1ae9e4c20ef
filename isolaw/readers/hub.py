"""Data sets of logs on the Hugging Face Hub: ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``.

huggingface_hub downloads them once, into its own cache, and takes them from there where there is no network.
Weights of models, which are no logs, are not downloaded.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from isolaw import commands
from isolaw.errors import DataError, NotInstalled, nearest
from isolaw.runs import listed

PREFIX = "hf://"
_FORM = "hf://datasets/OWNER/NAME[@REVISION][/PATH]"
_SOURCE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
_WEIGHTS = [f"*.{kind}" for kind in ("safetensors", "bin", "pt", "pth", "ckpt", "gguf", "distcp")]
# What a log may have next to it or above: its configuration, and how isolaw reads it.
_BESIDE = ["*.yaml", "*.yml", "*.toml", "*config*.json", "*args.json"]
_SHOWN = 8


def local(source: str | Path) -> str | Path:
    """Return where a data set of logs, or a file, folder or glob in it, is; any other source as it is.

    Raises `NotInstalled` without huggingface_hub, and `DataError` for what is neither on the Hub nor in its
    cache, or needs a login.
    """
    if not str(source).startswith(PREFIX):
        return source
    asked = _SOURCE.fullmatch(str(source))
    path = (asked["path"] or "").strip("/") if asked else ""
    if asked is None or ".." in path.split("/"):
        raise DataError(f"source: found {str(source)!r}; expected {_FORM}")
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
    except Exception as error:  # of the network, and of whichever library it is reached by
        raise DataError(f"{source}: {_reason(error, repo, revision)}") from None
    place = os.path.join(folder, path) if path else folder
    if os.path.lexists(place):
        return place
    if glob.has_magic(path) and glob.glob(path, root_dir=folder, recursive=True):
        return os.path.join(glob.escape(folder), path)
    there = _files(repo, revision)
    close = nearest(path, there)
    found = f"; found: {listed(there, _SHOWN)}" if there else ""
    hint = f" (did you mean {close!r}?)" if close else ""
    raise DataError(f"{source}: no such file or folder in the data set{found}{hint}")


def _wanted(path: str) -> list[str] | None:
    """Return patterns of what to download: all, or what the path names, and what may be next to it."""
    if not path:
        return None
    own = [form for name in (path, glob.escape(path)) for form in (name, f"{name}/*")]
    stem = PurePosixPath(path).with_suffix("")  # run1.yaml for run1.jsonl
    beside = [f"{glob.escape(str(stem))}[._]*"] if str(stem) != path and not glob.has_magic(path) else []
    return [*own, *beside, *_BESIDE]


def _reason(error: Exception, repo: str, revision: str) -> str:
    """Say why a download failed, and what to do; more specific errors come before what they are kinds of."""
    from huggingface_hub import errors

    page = f"https://huggingface.co/datasets/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return f"the data set is gated. Accept its conditions on {page}, then log in: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such data set, or a private one. Check the name; for a private one log in: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the data set has no revision {revision!r}"
    text = (str(error).splitlines() or [""])[0].strip()
    if isinstance(error, errors.LocalEntryNotFoundError):
        offline = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "the Hub does not answer"
        return f"{offline}, and its cache does not have all of it. {text}"
    return f"not downloaded: {type(error).__name__}: {text}"


def _files(repo: str, revision: str) -> list[str]:
    """Return the names of a data set's files, for a message; none without a network."""
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):
        return sorted(HfApi().list_repo_files(repo, repo_type="dataset", revision=revision))
    return []
