"""Read problem pools from local data sets of the Hugging Face Hub, by the name ``hf:NAME``.

NAME is a path, or the name of a data set of which ``hf download`` put a snapshot into the Hub's cache. A path
can be a folder of Parquet and JSONL files, or one such file. isolaw downloads nothing.

The *parts* of a data set are its files without shard numbers, such as ``main/train`` for
``main/train-00000-of-00002.parquet``. If there are several parts, the user must name one.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from isolaw.backends.real.rollout.problems import KINDS, Problem, read_files
from isolaw.errors import Issue, SpecError, nearest
from isolaw.files import Walk

PREFIX = "hf:"
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]+)?$|/\d{4}$")
_SHOWN = 12


def read_pool(name: str, part: str | None = None, columns: Mapping[str, str] | None = None) -> list[Problem]:
    """Return the problems of a file, or of a part of a data set ``hf:NAME``.

    ``columns`` maps ``prompt``, ``answer`` and ``id`` to the data set's column names, with dots for nested
    fields (``answer=reward_model.ground_truth``). In a data set, rows with the same prompt and no id are
    different problems; a split uses only the first of them. Raise `SpecError` with all issues.
    """
    if not name.startswith(PREFIX):
        if part is not None:
            raise SpecError([Issue("--part", "only a data set (hf:NAME) has splits", part)])
        return read_files([Path(name)], columns)
    place = find(name.removeprefix(PREFIX), "--problems")
    parts = _parts_of(place)
    shown = ", ".join([*parts][:_SHOWN]) + (" …" if len(parts) > _SHOWN else "")
    if not parts:
        accepted = f"{' or '.join(KINDS)} files"
        raise SpecError([Issue("--problems", f"{place}: the folder has no data", accepted=accepted)])
    if part is None and len(parts) > 1:
        raise SpecError([Issue("--part", f"{name} has several splits", accepted=f"one of {shown}")])
    if part is not None and part not in parts:
        raise SpecError([Issue("--part", found=part, accepted=shown, nearest=nearest(part, parts))])
    return read_files(parts[part or next(iter(parts))], columns, repeats=True)


def find(name: str, where: str) -> Path:
    """Return the file or folder of a data set; raise `SpecError` with the cached names if it is unknown."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"  # as the Hub's own libraries find it
    home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    if (snapshots := hub / f"datasets--{name.replace('/', '--')}" / "snapshots").is_dir():
        candidates = sorted(folder for folder in snapshots.iterdir() if folder.is_dir())
        main = snapshots.parent / "refs" / "main"
        if main.is_file() and (pinned := snapshots / main.read_text().strip()).is_dir():
            return pinned
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            accepted = " or ".join(f"{PREFIX}{folder}" for folder in candidates)
            raise SpecError([Issue(where, "the cache has several revisions", name, accepted)])
    known = {p.name.removeprefix("datasets--").replace("--", "/") for p in hub.glob("datasets--*")}
    note = f"no such path, and not in the Hub's cache ({hub}); isolaw downloads nothing"
    accepted = ", ".join(sorted(known)[:_SHOWN]) if known else "a path: the cache holds no data set"
    raise SpecError([Issue(where, note, name, accepted, nearest(name, sorted(known)))])


def _parts_of(place: Path) -> dict[str, list[Path]]:
    """Return the files of each part of a data set, in the order of their names."""
    if place.is_file():
        return {place.stem: [place]}
    parts: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(Walk(place)):
        if path.suffix not in KINDS:
            continue
        parts[_SHARD.sub("", str(path.relative_to(place).with_suffix("")))].append(path)
    return dict(parts)
