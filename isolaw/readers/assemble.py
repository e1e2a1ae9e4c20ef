"""Assemble logs into runs: group parts, map names, resolve facts and stitch curves.

Each run gets a `LogStatus`. Runs that lack a value or contradict another log are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw import commands
from isolaw.commands import Placeholder
from isolaw.errors import DataError, Wording, nearest
from isolaw.metrics import is_reward
from isolaw.readers import across_runs, frameworks
from isolaw.readers.across_runs import LoggedRun
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.frameworks.base import Framework
from isolaw.readers.how_to_read import HowToRead, Rule, applying
from isolaw.readers.measures import is_supervised
from isolaw.readers.names import FOR_TABLES, SPLIT
from isolaw.readers.raw_log import RawLog
from isolaw.readers.records import is_step, trainings
from isolaw.readers.resolve import option, resolve
from isolaw.readers.stitch import stitch
from isolaw.runs import LARGEST_EXACT, SYMBOLS, listed


def assemble(logs: list[RawLog], ways: Sequence[HowToRead] = ()) -> tuple[list[LoggedRun], set[Rule]]:
    """Return the runs of the logs, and the rules of ``ways`` that apply to at least one run.

    The parts of a run must be consecutive in ``logs``. The list is emptied, so that its memory can be freed.
    Logs with the same value of ``group_by`` (file, directory, or a key of the configuration) form one run; by
    default, logs with the same name. If two logs have the values of one run, the more complete log is kept.
    Raises `InputError` if the user sets an unknown framework, and `DataError` if no log has the key
    ``group_by``. The last of the ``ways`` takes precedence.
    """
    groups, runs = _grouped(list(_trainings(logs)), ways)
    logs.clear()
    used: set[Rule] = set()
    for name in list(groups):
        run = _understood(name, groups.pop(name), ways)  # pop, so that the parts of a run can be freed
        used |= {one.rule for one in run.assignments.values()}
        runs.append(run)
    across_runs.without_copies(runs)
    percent = {run.run: run.assignments["percent"].value for run in runs if "percent" in run.assignments}
    across_runs.separate_policies(_ready(runs))
    for framework in {run.framework for run in runs if run.framework}:
        of_framework = [run for run in runs if run.framework == framework]
        across_runs.to_fractions(_ready(of_framework), percent)
    for alike in _alike(_ready(runs)):
        across_runs.one_model(alike)
        across_runs.drop_half_known(alike)
        across_runs.base_learning_rates(alike)
        across_runs.same_identity(alike)
    return runs, used


def _trainings(logs: Sequence[RawLog]) -> Iterator[RawLog]:
    """Yield the logs, with one run for each training in a file: ``run``, ``run#2`` and so on."""
    for _, group in groupby(logs, lambda log: (log.source, log.run)):
        parts = list(group)
        ends = np.cumsum([0, *(len(part.step) for part in parts)]).tolist()
        steps = np.concatenate([_steps(part) for part in parts])
        begins: list[int] = []
        if all(part.in_order for part in parts):
            places: dict[str, tuple[list[int], list[float]]] = {}
            if len(steps) and (np.diff(steps[~np.isnan(steps)]) < 0).any():
                for part, offset in zip(parts, ends, strict=False):
                    for key, series in part.series.items():
                        at, values = places.setdefault(key, ([], []))
                        at.extend(place + offset for place in series.record)
                        values.extend(series.value)
            begins = trainings(steps, places, ends[1:-1] if len(parts) > 1 else ())
        if not begins:
            yield from parts
            continue
        for part, (start, end) in zip(parts, pairwise(ends), strict=True):
            inside = [start, *(at for at in begins if start < at < end)]
            numbers = [bisect_right(begins, at) + 1 for at in inside]
            names = [f"{part.run}#{number}" if number > 1 else part.run for number in numbers]
            yield from part.pieces([at - start for at in inside], names)


def _steps(log: RawLog) -> NDArray[np.float64]:
    """Return the steps of a log's records, by the container or by a key that counts steps."""
    steps = np.array(log.step, dtype=np.float64)
    keys = [key for key in log.series if is_step(key)] if np.isnan(steps).all() else []
    for key in keys[:1]:
        steps[np.asarray(log.series[key].record)] = log.series[key].value
    return steps


def _alike(runs: Sequence[LoggedRun]) -> list[list[LoggedRun]]:
    """Group runs by framework, algorithm and problem set; the runs of one group can be fitted together."""
    groups: dict[tuple[str, ...], list[LoggedRun]] = {}
    for run in runs:
        key = run.framework, *(str(run.facts[name].value) for name in ("algorithm", "problem_set"))
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _ready(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    return [run for run in runs if run.status is LogStatus.READY]


def _understood(name: str, parts: Sequence[RawLog], ways: Sequence[HowToRead]) -> LoggedRun:
    """Build the run of these parts: map names, resolve facts and stitch curves."""
    sources = list(dict.fromkeys(part.source for part in parts))
    container = ", ".join(dict.fromkeys(part.container for part in parts))
    run = LoggedRun(name, container=container, sources=sources)
    applied = applying(ways, name, sources)
    run.assignments = {name: one for name, one in applied.items() if name not in FOR_TABLES}
    config = {key: value for part in parts for key, value in part.config.items()}
    keys = list(dict.fromkeys(key for part in parts for key in part.series))
    given = run.assignments.get("framework")
    framework = frameworks.named(given.value) if given else frameworks.find(keys, config)
    if not keys:
        dropped = "; ".join(dict.fromkeys(reason for part in parts for reason in part.dropped))
        left_out = f"; left out: {dropped}" if dropped else ""
        run.framework = framework.name if framework else ""
        run.leave_out(LogStatus.NO_HISTORY, f"it has no number with a name{left_out}")
    elif framework is None and is_supervised(keys):
        run.leave_out(LogStatus.SUPERVISED, "it logs losses and no reward, so training is supervised")
    elif framework is None and (possible := frameworks.possible(keys)):
        run.frameworks = [candidate.name for candidate in possible]
        run.leave_out(LogStatus.NEEDS, *_which_framework(run, parts, keys, possible))
    elif framework is None:
        run.leave_out(LogStatus.UNKNOWN_FORMAT, _unknown_framework(keys, parts[0].source, run.container))
    else:
        run.framework = framework.name
        run.configurations = [
            RawLog(
                *(part.source, part.container, name, part.config, part.config_source),
                step=part.step,
                series={key: part.series[key] for key in part.series if framework.is_counter(key)},
            )
            for part in parts
        ]
        resolved = resolve(run.configurations, framework, run.assignments)
        counts: Mapping[str, Any] = {name: fact.value for name, fact in resolved.facts.items()}
        last_step = LARGEST_EXACT // counts.get("rollouts_per_step", 1) - 1
        ordered = across_runs.most_exact_last(parts)
        run.curves = stitch(ordered, framework, counts.get("logging_steps"), last_step)
        run.take(resolved)
        if run.curves.mixed and run.status is LogStatus.READY:
            run.leave_out(LogStatus.UNKNOWN_FORMAT, run.curves.mixed)
        if run.curves.of and not any(is_reward(metric) for _, metric in run.curves.of):
            metrics = listed([f"{metric} on {where}" for where, metric in run.curves.of], 8)
            run.leave_out(LogStatus.UNKNOWN_FORMAT, f"it logs no reward and no accuracy, only {metrics}")
        if not run.curves.of:
            run.leave_out(
                LogStatus.UNKNOWN_FORMAT, f"it has no value of a known metric; its keys are {_listed(keys)}"
            )
    return run


def _grouped(
    logs: Sequence[RawLog], ways: Sequence[HowToRead]
) -> tuple[dict[str, list[RawLog]], list[LoggedRun]]:
    """Return the logs grouped by run, and the logs that lack the key by which they are grouped."""
    groups: dict[tuple[str, str | None], list[RawLog]] = {}
    lacking: dict[str, LoggedRun] = {}
    in_file: dict[str, set[str]] = {}
    for log in logs:
        in_file.setdefault(log.source, set()).add(log.run)
    for log in logs:
        keys = [way.group_by for way in ways if way.group_by and way.covers([log.source])]
        by = keys[-1] if keys else None
        if by is None:
            name = log.run or log.source
        elif by == "file":
            name = log.source if len(in_file[log.source]) == 1 else f"{log.source}: {log.run}"
        elif by == "directory":
            name = str(Path(log.source) if Path(log.source).is_dir() else Path(log.source).parent)
        elif by in log.config:
            name = str(log.config[by])
        else:
            reason = "its configuration has no such key" if log.config else "it has no configuration"
            close = nearest(by, log.config)
            run = lacking.setdefault(
                log.source, LoggedRun(log.source, container=log.container, sources=[log.source])
            )
            run.leave_out(
                LogStatus.NEEDS,
                commands.argument("group_by", by)
                + f": {reason}{f'; did you mean {close!r}?' if close else ''}; "
                "expected file, directory or a key of the configuration",
                [by],
            )
            continue
        groups.setdefault((name, by), []).append(log)
    if lacking and not groups:
        run = next(iter(lacking.values()))
        raise DataError(f"{run.run}: " + run.message)
    named: dict[str, list[RawLog]] = {}
    for (name, by), parts in groups.items():
        named |= {name: parts} if by else dict(_by_framework(name, parts))
    return named, list(lacking.values())


def _by_framework(name: str, parts: list[RawLog]) -> Iterator[tuple[str, list[RawLog]]]:
    """Yield the parts of a run by framework, since logs of two frameworks with the same name are two runs."""
    recognised = [frameworks.find(list(part.series), part.config) for part in parts]
    names = list(dict.fromkeys(match.name for match in recognised if match))
    if len(names) < 2:
        yield name, parts
        return
    for framework in names:
        members = [
            part for part, its in zip(parts, recognised, strict=True) if its is None or its.name == framework
        ]
        yield f"{name} ({framework})", members


def _which_framework(
    run: LoggedRun, parts: Sequence[RawLog], keys: Sequence[str], possible: Sequence[Framework]
) -> tuple[str, list[str]]:
    """Return the message about names that several frameworks use, and the values that the user must set."""
    text = f"the framework is unknown: {_listed(keys)} are names of {' or '.join(run.frameworks)}"
    needs = ["framework"]
    if sum(name in run.assignments for name in SPLIT) < 2 and not any(part.config for part in parts):
        unknown = [symbol for symbol in ("n", "B_p") if SYMBOLS[symbol] not in run.assignments]
        needs += unknown
        text += f". {' and '.join(unknown)} unknown"
    by_calls = [
        candidate.name
        for candidate in possible
        if not candidate.counted_by_trackers and not {*candidate.step_keys} & {*keys}
    ]
    if by_calls and all(part.of_tracker for part in parts) and "logging_steps" not in run.assignments:
        needs.append("logging_steps")
        text += (
            f". For {by_calls[0]}, the step in W&B counts records: set logging_steps, the number of updates "
            "between two records"
        )
    return text, needs


def _unknown_framework(keys: Sequence[str], source: str, container: str) -> Wording:
    text = (
        f"no known framework uses its names: {_listed(keys)}. "
        f"Known: {', '.join(framework.name for framework in frameworks.known())}. If it is one of these, add "
        + option("", "framework", Placeholder("name"))
    )
    if container != "jsonl":  # other containers do not contain tables
        return text
    draft = commands.draft_reading([commands.path(source)])
    return text + f"; if this is a table of your own, draft its columns: {draft}"


def _listed(keys: Sequence[str]) -> str:
    return listed([key[:60] for key in keys], 12)
