"""Find options that make all runs of a folder ready, or draft a file of settings to fill in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from isolaw.commands import Placeholder, word
from isolaw.documents.reading import read_toml
from isolaw.errors import lines_of, one_line
from isolaw.metrics import is_reward
from isolaw.readers.assignments import ALIASES, ASSUMED, NAME_PATTERN, Assignment, settings_of
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.name_patterns import NamePattern, offer, offer_setting, words_that_differ
from isolaw.readers.resolve import ALGORITHMS, only, setting

_MOST_OPTIONS = 12  # with more options, a file is easier to fill in
_VALUES = {
    "percent": Placeholder("true|false"),
    "on_policy": Placeholder("true|false"),
    "problem_set": Placeholder("name"),
    "algorithm": Placeholder("name"),
}


def settling(candidates: Sequence[FoundLog], sources: Sequence[str] = ()) -> list[str] | None:
    """Return the options that would make all runs ready, as words, with placeholders for the user to fill in.

    ``sources`` are the user's sources; folders above them contain no information about a run. Returns None if
    there would be too many options; `draft` then writes a file instead.
    """
    needing = [own for own in candidates if own.status is LogStatus.NEEDS]
    usable = [own for own in candidates if own.status in (LogStatus.NEEDS, LogStatus.READY)]
    carried, runs = _carried(needing), [own.run for own in needing]
    pattern, given = offer(runs, carried, sources)
    if "seed" in given and not _tells_apart(NamePattern(pattern), needing):
        pattern, given = offer(runs, [need for need in carried if need != "seed"], sources)
    if not pattern and _needs(needing) == ["seed"]:
        pattern = offer_setting(runs)
        given = ["seed"] if pattern else []
    out = []
    names = [own.run for own in candidates]
    offered: dict[tuple[str, str], None] = {}
    for need in (need for need in _needs(needing) if need not in given):
        lacking = [own for own in needing if need in own.needs]
        if options := {offered_by for run in lacking if (offered_by := run.offered.get(need))}:
            ((flag, value), *others) = sorted(options)
            if others:  # the tables differ
                column = Placeholder("column")
                flag, value = (flag, column) if flag == "--metric" else ("--column", word(need, "=", column))
            offered[flag, value] = None
            continue
        value = _framework(lacking) if need == "framework" else _VALUES.get(need, Placeholder("number"))
        if need == "seed":
            out += _seeds([own for own in lacking if not own.final], candidates)
        elif len(lacking) == len(usable) and (len(lacking) == 1 or need != "n"):
            out.append(setting("", need, value))
        else:
            globs = [folder] if need != "n" and (folder := _folder(lacking, candidates)) else []
            out += [setting(glob, need, value) for glob in globs or [only(own.run, names) for own in lacking]]
    if len(out) + bool(pattern) > _MOST_OPTIONS:
        return None
    words = [each for own in offered for each in own]
    words += ["--name-pattern", pattern] if pattern else []
    return [*words, *(each for own in out for each in ("--set", own))]


def _framework(runs: Sequence[FoundLog]) -> str | Placeholder:
    """Return the only framework that fits all these logs and is in their names, otherwise all candidates.

    A name is no proof, so the user has to confirm the choice.
    """
    named = {name for own in runs for name in own.frameworks if name.lower() in own.run.lower()}
    in_all = [name for name in named if all(name.lower() in own.run.lower() for own in runs)]
    choice = dict.fromkeys(name for own in runs for name in own.frameworks)
    return in_all[0] if len(named) == len(in_all) == 1 else Placeholder("|".join(choice))


def _folder(runs: Sequence[FoundLog], among: Sequence[FoundLog]) -> str | None:
    """Return a glob for the folder that contains these two or more runs and no others, or None."""
    folders = {PurePath(own.run).parent for own in runs}
    glob = f"{only(str(folders.pop()))}/*"
    inside = [own for own in among if Assignment("", None, glob).matches(own.run, own.sources)]
    return glob if not folders and len(inside) == len(runs) > 1 else None


def _needs(candidates: Sequence[FoundLog]) -> list[str]:
    return list(dict.fromkeys(need for own in candidates for need in own.needs))


def _carried(candidates: Sequence[FoundLog]) -> list[str]:
    """Return the values to look for in names: values that runs need, and seeds that are only assumed."""
    assumed = all(own.facts["seed"].origin == ASSUMED for own in candidates if "seed" in own.facts)
    return list(dict.fromkeys([*_needs(candidates), *(["seed"] if assumed else [])]))


def _tells_apart(pattern: NamePattern, candidates: Sequence[FoundLog]) -> bool:
    """Return whether seeds in names separate runs with the same identity, and no log records a seed."""
    groups: dict[str, list[FoundLog]] = {}
    for own in (one for one in candidates if "seed" in one.needs):
        groups.setdefault(own.message, []).append(own)
    return all(
        len({tuple(pattern.assigned(own.run, own.sources)) for own in group}) == len(group)
        and all(own.facts["seed"].origin == ASSUMED for own in group if "seed" in own.facts)
        for group in groups.values()
    )


def _seeds(lacking: Sequence[FoundLog], among: Sequence[FoundLog]) -> list[str]:
    """Return settings for seeds. Among repetitions with the same identity, the first keeps its seed."""
    repeated: dict[str, list[FoundLog]] = {}
    for own in lacking:
        repeated.setdefault(own.message, []).append(own)
    out = []
    for group in repeated.values():
        fact = group[0].facts.get("seed")
        first = fact.value if fact else 0
        globs = dict.fromkeys(_glob(own, among) for own in group)
        words = words_that_differ([own.run for own in group])
        rewards = {frozenset(filter(is_reward, own.metrics.get("train", ()))) for own in group}
        given = fact is not None and fact.origin in ("--set", NAME_PATTERN)
        if words or len(rewards) > 1 or given:  # not repetitions, or the user has set their seed
            for glob, differing in zip(globs, words or [""] * len(globs), strict=False):
                algorithm = differing.lower() in ALGORITHMS
                out.append(
                    setting(glob, "algorithm", differing)
                    if algorithm
                    else setting(glob, Placeholder("name"), Placeholder("value"))
                )
            continue
        out += [setting(glob, "seed", first + i) for i, glob in enumerate(globs) if i]
    return list(dict.fromkeys(out))


def _glob(own: FoundLog, among: Sequence[FoundLog]) -> str:
    """Return a glob for a log's run, or for a table's file, since run names can repeat across tables."""
    if own.container != "table":
        return only(own.run, [other.run for other in among])
    files = {source for other in among for source in other.sources}
    stem = PurePath(own.sources[0]).stem
    alone = sum(PurePath(file).stem == stem for file in files) == 1
    return only(stem if alone else own.sources[0])


def draft(candidates: Sequence[FoundLog], command: str, sources: Sequence[str] = ()) -> str:
    """Return a file of settings to fill in, with a table for each run that needs some."""
    lines = [f"# What the logs lack. Remove the # and fill in each value, then: {command}"]
    for glob, own in needed(candidates, sources).items():
        lines += ["", f"[{quoted(glob)}]", *own]
    return "\n".join(lines) + "\n"


def needed(candidates: Sequence[FoundLog], sources: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return comments for each run that needs values, by its glob: the reason, and a key for each value.

    Values in the names of runs are filled in, but still as comments, since a name is no proof.
    """
    needing = [own for own in candidates if own.status is LogStatus.NEEDS]
    text, _ = offer([own.run for own in needing], _carried(needing), sources)
    pattern = NamePattern(text) if text else None
    out: dict[str, list[str]] = {}
    for own in needing:
        lines = out.setdefault(only(own.run), [])
        lines += [f"# {one_line(''.join(parts))}" for parts in lines_of(own.message)]
        carried = {a.name: a.value for a in pattern.assigned(own.run, own.sources)} if pattern else {}
        for need in dict.fromkeys([*own.needs, *(["seed"] if "seed" in carried else [])]):
            name = ALIASES.get(need, need)
            found = f"{one_line(str(carried[name]))}  # in the run's name" if name in carried else ""
            lines.append(f"# {need} = {found}".rstrip())
    return out


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def read_settings(path: str | Path) -> list[Assignment]:
    """Read a file of settings: tables ``["GLOB"]`` with ``n = 8``; values before any table apply to all runs.

    Raises `InputError` if the file is missing, is not TOML, or sets a value that cannot be set.
    """
    return settings_of(read_toml(path), path)
