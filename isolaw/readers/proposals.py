"""The options that would make all runs of a folder ready."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any

from isolaw.commands import Placeholder
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.how_to_read import Assignment, HowToRead
from isolaw.readers.name_patterns import suggest
from isolaw.readers.names import ASSUMED
from isolaw.readers.resolve import glob_for

_PLACEHOLDERS = {
    "percent": Placeholder("true|false"),
    "on_policy": Placeholder("true|false"),
    "problem_set": Placeholder("name"),
    "algorithm": Placeholder("name"),
    "framework": Placeholder("name"),
}
_COLUMN, _NUMBER = map(Placeholder, ("column", "number"))
_MOST_GLOBS = 12
_Settings = dict[str, dict[str, Any]]


def proposed(logs: Sequence[FoundLog], sources: Sequence[str] = ()) -> tuple[HowToRead, str]:
    """Return what would make all runs ready, with placeholders for the user to fill in.

    Of many settings it contains the first, and the text says how many it leaves out. ``sources`` are the
    user's sources; folders above them contain no information about a run.
    """
    incomplete = [log for log in logs if log.status is LogStatus.NEEDS]
    usable = [log for log in logs if log.status in (LogStatus.NEEDS, LogStatus.READY)]
    runs = [log.run for log in incomplete]
    seeds_assumed = all(log.facts["seed"].origin == ASSUMED for log in incomplete if "seed" in log.facts)
    names_to_find = {*_all_needs(incomplete)} - {"seed"} | ({"seed"} if seeds_assumed else set())
    pattern, found_names = suggest(runs, sorted(names_to_find), sources)
    settings: _Settings = {}
    proposal: dict[str, Any] = {"columns": {}}
    for need in (need for need in _all_needs(incomplete) if need not in found_names):
        lacking = [log for log in incomplete if need in log.needs and not (need == "seed" and log.final)]
        if supplies := {supply for log in lacking if (supply := log.offered.get(need))}:
            ((key, value), *others) = sorted(supplies)
            if others:  # the tables differ
                key, value = ("metric" if key == "metric" else "columns"), _COLUMN
            if key == "columns":
                proposal[key][need] = value
            else:
                proposal[key] = value
            continue
        value = _PLACEHOLDERS.get(need, _NUMBER)
        can_be_shared = len(lacking) == 1 or need not in ("n", "seed")
        if len(lacking) == len(usable) and can_be_shared:
            settings.setdefault("", {})[need] = value
        else:
            folder = _folder_glob(lacking, logs) if can_be_shared else None
            for glob in [folder] if folder else [_glob_of(log, logs) for log in lacking]:
                settings.setdefault(glob, {})[need] = value
    pattern = pattern or proposal.pop("name_pattern", "")
    left_out = ""
    if len(settings) > _MOST_GLOBS:
        left_out = (
            f"{len(settings) - _MOST_GLOBS} more runs need the same; a name pattern reads values from names"
        )
        settings = dict(islice(settings.items(), _MOST_GLOBS))
    patterns = [pattern] if pattern else []
    return HowToRead.model_construct(set=settings, name_pattern=patterns, **proposal), left_out


def _folder_glob(logs: Sequence[FoundLog], all_logs: Sequence[FoundLog]) -> str | None:
    """Return a glob for the folder that contains these two or more runs and no others, or None."""
    folders = {PurePath(log.run).parent for log in logs}
    glob = f"{glob_for(str(folders.pop()))}/*"
    matching = [log for log in all_logs if Assignment("", None, glob).matches(log.run, log.sources)]
    return glob if not folders and len(matching) == len(logs) > 1 else None


def _glob_of(log: FoundLog, all_logs: Sequence[FoundLog]) -> str:
    """Return a glob for a log's run, or for its file if files have runs of one name."""
    names = [other.run for other in all_logs]
    return glob_for(log.run, names) if names.count(log.run) == 1 else glob_for(log.sources[0])


def _all_needs(logs: Sequence[FoundLog]) -> list[str]:
    return list(dict.fromkeys(need for log in logs for need in log.needs))
