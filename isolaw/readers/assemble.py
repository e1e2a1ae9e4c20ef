"""Logs become runs: parts grouped, names understood, facts resolved, curves stitched.

The problems of all runs are reported at once, each with what settles it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.errors import nearest
from isolaw.readers import across_runs, frameworks
from isolaw.readers.assignments import Assignment, applying
from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import only, option, resolve
from isolaw.readers.stitch import RunCurves, stitch
from isolaw.runs import IDENTITY, LARGEST_EXACT, listed

# Facts that are columns of the table, or steps on the way to them; the others are attributes of a run.
_NO_ATTRIBUTE = {*IDENTITY, "rollouts_per_step", "logging_steps", "n_problems", "n_samples"}


@dataclass
class LoggedRun:
    """One run read from logs."""

    name: str
    sources: list[str]
    container: str
    framework: Framework
    facts: dict[str, Fact]
    curves: RunCurves
    notes: list[str] = field(default_factory=list)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What two different runs must differ in."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        return (*(self.facts[name].value for name in IDENTITY), *attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        """The run's attributes (lr, model, on_policy, …)."""
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
        names = [name for name in (*IDENTITY, "n_problems", "n_samples") if name in self.facts]
        fixed = {name: self.facts[name].value for name in names}
        return pd.concat(pieces, ignore_index=True).assign(run_id=self.name, **fixed)


def assemble(
    logs: list[RawLog],
    assignments: Sequence[Assignment] = (),
    group_by: str | None = None,
    searched: Collection[str] = (),
) -> tuple[list[LoggedRun], list[str], set[Assignment]]:
    """Return the runs of logs, all their problems, and the assignments that hold for any run.

    The parts of a run follow each other in ``logs``, which is emptied, so that their memory can be freed.
    Logs of one ``group_by`` (file, directory, a key of the configuration) are one run; by default those of
    one name. Of two copies of a run, one from ``searched`` (sources that the user did not name) is left out.
    Raises `InputError` if the user sets an unknown framework.
    """
    groups, problems = _grouped(logs, group_by)
    logs.clear()
    names = list(groups)
    runs: list[LoggedRun] = []
    percent: dict[str, bool] = {}
    used: set[Assignment] = set()
    lacking: dict[int, list[str]] = {}  # index of a problem → the names that it asks for
    for name in names:
        parts = groups.pop(name)  # the parts of a finished run can be freed
        sources = list(dict.fromkeys(part.source for part in parts))
        own = applying(assignments, name, sources)
        used |= set(own.values())
        config = {key: value for part in parts for key, value in part.config.items()}
        given = own.get("framework")
        framework = frameworks.named(given.value) if given else frameworks.find(_keys(parts), config)
        if framework is None:
            problems.append(_unknown_framework(name, parts))
            continue
        title = f"{name} ({framework.name}, {parts[0].container})"
        glob = only(name, names) if len(names) > 1 else ""
        resolved = resolve(parts, framework, own, glob)
        counts = {name: fact.value for name, fact in resolved.facts.items()}
        last_step = LARGEST_EXACT // counts.get("rollouts_per_step", 1) - 1
        curves = stitch(
            across_runs.most_exact_last(parts), framework, counts.get("logging_steps"), last_step
        )
        if not curves.of:
            problems.append(f"{title}: no value of a known metric; its keys: {_listed(_keys(parts))}")
        if curves.of and curves.unnumbered:
            resolved.lacking.append("logging_steps")
            resolved.problems.append(
                f"the log has no steps: add {option(glob, 'logging_steps', '<number>')}, "
                f"the update steps between two of its {curves.unnumbered:,} records"
            )
        problems += [f"{title}: {problem}" for problem in resolved.problems]
        if resolved.lacking:
            lacking[len(problems) - 1] = resolved.lacking
        if curves.of and not resolved.problems:
            container = ", ".join(dict.fromkeys(part.container for part in parts))
            runs.append(
                LoggedRun(name, sources, container, framework, resolved.facts, curves, resolved.notes)
            )
            if "percent" in own:
                percent[name] = own["percent"].value
    if len(lacking) > 1:
        unknown = dict.fromkeys(name for names in lacking.values() for name in names)
        add = " ".join(option("", name, "<number>") for name in unknown)
        problems[max(lacking)] += f"; or, where it is the same for all, {add}"
    problems += across_runs.to_fractions({run.name: run.curves for run in runs}, percent)
    problems += across_runs.mixed_policies(runs)
    across_runs.drop_half_known(runs)
    across_runs.base_learning_rates(runs)
    runs = across_runs.without_found_copies(runs, searched)
    problems += across_runs.same_identity(runs)
    return runs, problems, used


def _grouped(logs: Sequence[RawLog], by: str | None) -> tuple[dict[str, list[RawLog]], list[str]]:
    groups: dict[str, list[RawLog]] = {}
    problems = []
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
            found = "its configuration has no such key" if log.config else "it has no configuration"
            close = nearest(by, log.config)
            problems.append(
                f"{log.source}: --group-by {by}: {found}{f'; did you mean {close!r}?' if close else ''}; "
                "expected file, directory or a key of the configuration"
            )
            continue
        groups.setdefault(name, []).append(log)
    return groups, problems


def _keys(parts: Sequence[RawLog]) -> list[str]:
    return list(dict.fromkeys(key for part in parts for key in part.series))


def _unknown_framework(name: str, parts: Sequence[RawLog]) -> str:
    keys = _keys(parts)
    if not keys:
        reasons = "; ".join(dict.fromkeys(reason for part in parts for reason in part.dropped))
        left_out = f"; left out: {reasons}" if reasons else ""
        return f"{parts[0].source} ({parts[0].container}): it has no number with a name{left_out}"
    return (
        f"{name} ({parts[0].container}): no known framework uses its names: {_listed(keys)}. "
        f"Known: {', '.join(own.name for own in frameworks.known())}. If it is one of these, add "
        f"{option('', 'framework', '<name>')}; if it is a table of your own, draft a mapping with "
        f"isolaw read --write-mapping mapping.toml {parts[0].source}"
    )


def _listed(keys: Sequence[str]) -> str:
    return listed([key[:60] for key in keys], 12)
