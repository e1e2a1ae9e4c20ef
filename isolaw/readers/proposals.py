"""What would make all runs of a folder ready: proposed options, and drafts of ``isolaw.toml`` to fill in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from isolaw.commands import Placeholder
from isolaw.errors import DataError, InputError, lines_of, one_line
from isolaw.metrics import is_reward
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.how_to_read import Assignment, HowToRead
from isolaw.readers.name_patterns import NamePattern, offer, words_that_differ
from isolaw.readers.names import ASSUMED
from isolaw.readers.resolve import ALGORITHMS, only
from isolaw.readers.table_columns import TableNeeds, check_complete
from isolaw.readers.table_files import load

_MOST = 12  # with more options, a file is easier to fill in
_SHOWN = 200  # columns
_VALUES = {
    "percent": Placeholder("true|false"),
    "on_policy": Placeholder("true|false"),
    "problem_set": Placeholder("name"),
    "algorithm": Placeholder("name"),
}
_NAME, _VALUE, _COLUMN, _NUMBER = map(Placeholder, ("name", "value", "column", "number"))
_Set = dict[str, dict[str, Any]]


def proposed(logs: Sequence[FoundLog], sources: Sequence[str] = (), most: float = _MOST) -> HowToRead | None:
    """Return what would make all runs ready, with placeholders for the user to fill in.

    ``sources`` are the user's sources; folders above them contain no information about a run. Returns None if
    there would be more than ``most`` options; `draft` then writes a file instead.
    """
    needing = [log for log in logs if log.status is LogStatus.NEEDS]
    usable = [log for log in logs if log.status in (LogStatus.NEEDS, LogStatus.READY)]
    carried, runs = _carried(needing), [log.run for log in needing]
    pattern, given = offer(runs, carried, sources)
    if "seed" in given and not _tells_apart(NamePattern(pattern), needing):
        pattern, given = offer(runs, [need for need in carried if need != "seed"], sources)
    names = [log.run for log in logs]
    out: _Set = {}
    offered: dict[str, Any] = {"columns": {}}
    for need in (need for need in _needs(needing) if need not in given):
        lacking = [log for log in needing if need in log.needs]
        if options := {by for log in lacking if (by := log.offered.get(need))}:
            ((key, value), *others) = sorted(options)
            if others:  # the tables differ
                key, value = ("metric" if key == "metric" else "columns"), _COLUMN
            if key == "columns":
                offered[key][need] = value
            else:
                offered[key] = value
            continue
        frameworks = dict.fromkeys(name for log in lacking for name in log.frameworks)
        value = Placeholder("|".join(frameworks)) if need == "framework" else _VALUES.get(need, _NUMBER)
        if need == "seed":
            for glob, values in _seeds([log for log in lacking if not log.final], logs).items():
                out.setdefault(glob, {}).update(values)
        elif len(lacking) == len(usable) and (len(lacking) == 1 or need != "n"):
            out.setdefault("", {})[need] = value
        else:
            folder = _folder(lacking, logs) if need != "n" else None
            for glob in [folder] if folder else [only(log.run, names) for log in lacking]:
                out.setdefault(glob, {})[need] = value
    pattern = pattern or offered.pop("name_pattern", "")
    if sum(map(len, out.values())) + bool(pattern) > most:
        return None
    return HowToRead.model_construct(set=out, name_pattern=[pattern] if pattern else [], **offered)


def _folder(logs: Sequence[FoundLog], among: Sequence[FoundLog]) -> str | None:
    """Return a glob for the folder that contains these two or more runs and no others, or None."""
    folders = {PurePath(log.run).parent for log in logs}
    glob = f"{only(str(folders.pop()))}/*"
    inside = [log for log in among if Assignment("", None, glob).matches(log.run, log.sources)]
    return glob if not folders and len(inside) == len(logs) > 1 else None


def _needs(logs: Sequence[FoundLog]) -> list[str]:
    return list(dict.fromkeys(need for log in logs for need in log.needs))


def _carried(logs: Sequence[FoundLog]) -> list[str]:
    """Return the values to look for in names: values that runs need, and seeds that are only assumed."""
    assumed = all(log.facts["seed"].origin == ASSUMED for log in logs if "seed" in log.facts)
    return list(dict.fromkeys([*_needs(logs), *(["seed"] if assumed else [])]))


def _tells_apart(pattern: NamePattern, logs: Sequence[FoundLog]) -> bool:
    """Return whether seeds in names separate runs with the same identity, and no log records a seed."""
    groups: dict[str, list[FoundLog]] = {}
    for log in (log for log in logs if "seed" in log.needs):
        groups.setdefault(log.message, []).append(log)
    return all(
        len({tuple(pattern.read(log.run, log.sources).items()) for log in group}) == len(group)
        and all(log.facts["seed"].origin == ASSUMED for log in group if "seed" in log.facts)
        for group in groups.values()
    )


def _seeds(lacking: Sequence[FoundLog], among: Sequence[FoundLog]) -> _Set:
    """Return settings for seeds. Among repetitions with the same identity, the first keeps its seed."""
    repeated: dict[str, list[FoundLog]] = {}
    for log in lacking:
        repeated.setdefault(log.message, []).append(log)
    out: _Set = {}
    for group in repeated.values():
        fact = group[0].facts.get("seed")
        first = fact.value if fact else 0
        globs = dict.fromkeys(_glob(log, among) for log in group)
        words = words_that_differ([log.run for log in group])
        rewards = {frozenset(filter(is_reward, log.metrics.get("train", ()))) for log in group}
        known = fact is not None and fact.origin != ASSUMED
        repetitions = not words and len(rewards) == 1 and not known  # else they differ in another value
        for i, (glob, differing) in enumerate(zip(globs, words or [""] * len(globs), strict=False)):
            if not repetitions:
                algorithm = differing.lower() in ALGORITHMS
                out.setdefault(glob, {}).update({"algorithm": differing} if algorithm else {_NAME: _VALUE})
            elif i:
                out.setdefault(glob, {})["seed"] = first + i
    return out


def _glob(log: FoundLog, among: Sequence[FoundLog]) -> str:
    """Return a glob for a log's run, or for a table's file, since run names can repeat across tables."""
    if log.container != "table" or sum(other.sources == log.sources for other in among) > 1:
        return only(log.run, [other.run for other in among])
    files = {source for other in among for source in other.sources}
    stem = PurePath(log.sources[0]).stem
    alone = sum(PurePath(file).stem == stem for file in files) == 1
    return only(stem if alone else log.sources[0])


# Drafts


def draft(
    sources: Sequence[str], how: HowToRead, logs: Sequence[FoundLog], command: str
) -> tuple[str, list[str]]:
    """Return the text of an ``isolaw.toml``, and the names of the values to fill in.

    It says ``how``, and what is missing as comments. ``command`` is the command to run once these values are
    filled in. Raises `DataError` if there is nothing to write: ``how`` is empty, and nothing is missing.
    """
    logs = [_as_table(log, how) for log in logs]
    given, missing = how.toml_tables(), _needs(logs)
    of_tables = [line for log in logs if log.offered for line in lines_of(log.message)]
    columns = [text for parts in of_tables if (text := "".join(parts)).startswith("  columns: ")][:1]
    proposal = proposed(logs, sources, math.inf)
    wanted = proposal.toml_tables() if proposal else {}
    if not (how.but(files=[]).tables() or wanted):
        raise DataError("--save: found no option of reading and no missing value; there is nothing to save")
    head = [
        "# How isolaw reads this. All commands find this file; options on the command line override it.",
        *(["# Fill in each missing value, remove the # before it, then run:"] if missing else []),
        *([f"#     {command}"] if missing else []),
        *(f"#{one_line(line)[:4000]}" for line in columns),
    ]
    blocks = ["\n".join(head)]
    titles = sorted({**given, **wanted}, key=lambda title: (title != "", title != "[set]"))
    for title in titles:
        lines = list(given.get(title, []))
        lines += [f"# {line.removeprefix('# ')}" for line in wanted.get(title, []) if line not in lines]
        blocks.append("\n".join([title, *lines] if title else lines))
    return "\n\n".join(blocks) + "\n", missing


def _as_table(log: FoundLog, how: HowToRead) -> FoundLog:
    """Return a log of unknown names as the table that it may be, with what it lacks."""
    if log.status is LogStatus.UNKNOWN_FORMAT and not log.facts:
        try:
            check_complete(load(log.sources[0]), how, log.sources[0])
        except TableNeeds as error:
            needs, message = list(error.needs), str(error)
            return replace(log, status=LogStatus.NEEDS, needs=needs, offered=error.needs, message=message)
        except InputError:
            pass
    return log
