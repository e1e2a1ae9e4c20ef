"""Logs become runs: parts grouped, names understood, facts resolved, curves stitched; refusals.

All that is wrong with all runs is said at once, each with what settles it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.errors import InputError, nearest
from isolaw.readers import conflicts, frameworks
from isolaw.readers.assignments import Setting, applying
from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.percent import to_fractions
from isolaw.readers.raw import RawLog
from isolaw.readers.resolve import Resolved, only, option, resolve
from isolaw.readers.stitch import Curves, stitch

# Facts that are columns of the table, or steps on the way to them; the others are attributes of a run.
_COLUMNS = ("problems_per_batch", "rollouts_per_problem", "seed", "problem_set", "algorithm")
_NO_ATTRIBUTE = {*_COLUMNS, "rollouts_per_step", "logging_steps", "n_problems", "n_samples"}
_LARGEST = 2**53
_SHOWN = 12


@dataclass
class LoggedRun:
    """One run, as its logs tell it."""

    name: str
    sources: list[str]
    container: str
    framework: Framework
    facts: dict[str, Fact]
    curves: Curves
    notes: list[str] = field(default_factory=list)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What two different runs must differ in."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        return (*(self.facts[name].value for name in _COLUMNS), *attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        """What rides on the run (lr, model, on_policy, …)."""
        return {name: fact.value for name, fact in self.facts.items() if name not in _NO_ATTRIBUTE}

    def table(self) -> pd.DataFrame:
        """Return its rows of the data model's table."""
        batch = self.facts["rollouts_per_step"].value
        pieces = []
        for (eval_set, metric), curve in self.curves.of.items():
            columns = {"step": curve.step, "compute": curve.step * batch, "wall_s": curve.wall_s}
            pieces.append(
                pd.DataFrame({**columns, "eval_set": eval_set, "metric": metric, "value": curve.value})
            )
        fixed = {name: self.facts[name].value for name in _COLUMNS}
        fixed |= {name: self.facts[name].value for name in ("n_problems", "n_samples") if name in self.facts}
        return pd.concat(pieces, ignore_index=True).assign(run_id=self.name, **fixed)


def assemble(
    logs: Iterable[RawLog],
    settings: Sequence[Setting] = (),
    group_by: str | None = None,
    searched: Collection[str] = (),
) -> tuple[list[LoggedRun], list[str], set[Setting]]:
    """Make runs of logs.

    Parameters
    ----------
    logs
        in the order in which parts of a run follow each other.
    settings
        the user's (`isolaw.readers.assignments`).
    group_by
        what makes one run: ``file``, ``directory``, or a key of the configuration; what the log calls its
        run unless given.
    searched
        the sources that were found in a directory rather than named: of two copies of one run found
        there, one is left out.

    Returns
    -------
    runs, problems, heeded
        the problems, all of them; which settings were for any run.

    Raises
    ------
    InputError
        a framework that was set is not known.
    """
    groups, problems = _grouped(logs, group_by)
    names = list(groups)
    runs: list[LoggedRun] = []
    said: dict[str, bool] = {}
    heeded: set[Setting] = set()
    lacking: dict[int, tuple[str, ...]] = {}  # which problem → what is to be given
    for name in list(groups):
        parts = groups.pop(name)  # what a run has been made of can go
        sources = list(dict.fromkeys(part.source for part in parts))
        mine = applying(settings, name, sources)
        heeded |= set(mine.values())
        framework = _framework(parts, mine)
        if framework is None:
            problems.append(_unknown_framework(name, parts))
            continue
        title = f"{name} ({framework.name}, {parts[0].container})"
        resolved = resolve(parts, framework, mine, only(name, names) if len(names) > 1 else "")
        logging_steps = resolved.facts.get("logging_steps")
        curves = stitch(
            conflicts.most_exact_last(parts), framework, logging_steps.value if logging_steps else None
        )
        _within_reach(curves, resolved)
        if not curves.of:
            problems.append(f"{title}: no value of a metric that is known; its keys: {_listed(_keys(parts))}")
        problems += [f"{title}: {problem}" for problem in resolved.problems]
        if resolved.lacking:
            lacking[len(problems) - 1] = resolved.lacking
        if curves.of and not resolved.problems:
            container = ", ".join(dict.fromkeys(part.container for part in parts))
            runs.append(
                LoggedRun(name, sources, container, framework, resolved.facts, curves, resolved.notes)
            )
            if "percent" in mine:
                said[name] = mine["percent"].value
    if len(lacking) > 1:
        unknown = dict.fromkeys(name for names in lacking.values() for name in names)
        every = " ".join(option("", name, "<number>") for name in unknown)
        problems[max(lacking)] += f"; or, where it is the same for all, {every}"
    problems += to_fractions({run.name: run.curves for run in runs}, said)
    problems += conflicts.mixed_policies(runs)
    conflicts.drop_half_known(runs)
    conflicts.base_learning_rates(runs)
    runs = conflicts.without_found_copies(runs, searched)
    problems += conflicts.same_identity(runs)
    return runs, problems, heeded


def _grouped(logs: Iterable[RawLog], by: str | None) -> tuple[dict[str, list[RawLog]], list[str]]:
    groups: dict[str, list[RawLog]] = {}
    problems = []
    logs = list(logs)
    in_file: dict[str, set[str]] = {}
    for log in logs:
        in_file.setdefault(log.source, set()).add(log.run)
    for log in logs:
        if by is None:
            name = log.run or log.source
        elif by == "file":
            name = log.source if len(in_file[log.source]) == 1 else f"{log.source}: {log.run}"
        elif by == "directory":
            name = str(Path(log.source) if Path(log.source).is_dir() else Path(log.source).parent)
        elif by in log.config:
            name = str(log.config[by])
        else:
            close = nearest(by, log.config)
            problems.append(
                f"{log.source}: --group-by {by}: "
                + (
                    "no configuration was found beside it"
                    if not log.config
                    else "its configuration has no such key"
                )
                + (f"; did you mean {close!r}?" if close else "")
                + "; accepted: file, directory, a key of the configuration"
            )
            continue
        groups.setdefault(name, []).append(log)
    return groups, problems


def _framework(parts: Sequence[RawLog], mine: Mapping[str, Setting]) -> Framework | None:
    if "framework" in mine:
        framework = frameworks.named(mine["framework"].value)
        if framework is None:
            names = ", ".join(own.name for own in frameworks.known())
            raise InputError(f"{mine['framework']}: no such framework; accepted: {names}")
        return framework
    config: dict[str, Any] = {}
    for part in parts:
        config |= part.config
    return frameworks.find(_keys(parts), config)


def _keys(parts: Sequence[RawLog]) -> list[str]:
    return list(dict.fromkeys(key for part in parts for key in part.series))


def _unknown_framework(name: str, parts: Sequence[RawLog]) -> str:
    keys = _keys(parts)
    if not keys:
        lost = "; ".join(dict.fromkeys(reason for part in parts for reason in part.dropped))
        return f"{parts[0].source} ({parts[0].container}): nothing in it is a number with a name" + (
            f"; left out: {lost}" if lost else ""
        )
    return (
        f"{name} ({parts[0].container}): its names are of no framework that is known: {_listed(keys)}. "
        f"Known: {', '.join(own.name for own in frameworks.known())}. If it is one of these, add "
        f"{option('', 'framework', '<name>')}; if it is a table of your own, draft a mapping with "
        f"isolaw read --write-mapping mapping.toml {parts[0].source}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _within_reach(curves: Curves, resolved: Resolved) -> None:
    """Leave out steps whose compute no number holds exactly."""
    batch = resolved.facts.get("rollouts_per_step")
    for target, curve in list(curves.of.items()):
        good = curve.step <= (_LARGEST // batch.value if batch else _LARGEST)
        if not good.all():
            curves.drop("steps beyond any that can be", int((~good).sum()))
            curve.step, curve.value, curve.wall_s = curve.step[good], curve.value[good], curve.wall_s[good]
            if not good.any():
                del curves.of[target]
