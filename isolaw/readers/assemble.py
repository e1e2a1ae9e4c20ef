"""Assemble logs into runs: group parts, map names, resolve facts and stitch curves, then compare the runs.

Each run gets a `LogStatus`. Runs that lack a value, contradict another log, are a copy of another run or
cannot be fitted with the others are left out. All runs have percentages as fractions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from isolaw import commands
from isolaw.commands import Placeholder
from isolaw.errors import DataError, Wording, joined, nearest
from isolaw.metrics import is_accuracy, is_reward
from isolaw.readers import frameworks
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.how_to_read import Assignment, HowToRead, Rule, applying
from isolaw.readers.measures import in_percent, is_supervised
from isolaw.readers.names import ASSUMED, FOR_TABLES, SPLIT
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import Resolved, only, option, resolve
from isolaw.readers.stitch import RunCurves, stitch
from isolaw.readers.trainings import ROUNDED, of_logs
from isolaw.runs import IDENTITY, LARGEST_EXACT, SYMBOLS, listed

# Containers that round values, the coarsest first: consoles print few digits, TensorBoard stores 32 bits.
_COARSEST = ("notebook", "step-console", "stdout-dicts", "verl-console", "tensorboard")
_BASE_BATCH = 1024
_LR_SPREAD = 1.02  # ratio; people write rounded values such as 7.1e-7
_BEYOND = 0.1  # share of a duplicate's steps: one of two logs may have ended before the other
_LEAST_SHARED = 2  # values
_CHECKPOINT = re.compile(
    r"(?:checkpoint|global_?step|step|epoch|iter)[-_]?\d*|huggingface|hf|actor|model|latest|final|\d+"
)
_NEIGHBOURS = 8
# Two logs that disagree on one of these facts belong to different runs.
_SAID = (*SPLIT, "seed", "problem_set", "algorithm", "lr")
_LEAST_RANGE = 0.01  # a curve with a smaller range does not identify a run


# Facts that are columns of the table, or lead to one; all others are attributes of the run.
_NO_ATTRIBUTE = {*IDENTITY, "rollouts_per_step", "logging_steps", "n_problems", "n_samples"}


@dataclass
class _LoggedRun(FoundLog):
    """A run assembled from one or more logs, with its curves."""

    curves: RunCurves = field(default_factory=RunCurves)
    # Sources of the facts: the configurations and counts of the run's parts, and the user's settings.
    configurations: list[RawLog] = field(default_factory=list)
    assignments: dict[str, Assignment] = field(default_factory=dict)

    def take(self, resolved: Resolved) -> None:
        """Store the resolved facts of the run."""
        self.facts, self.notes = resolved.facts, resolved.notes
        problems, needs = list(resolved.problems), list(resolved.needs)
        if self.curves.unnumbered:
            needs.append("logging_steps")
            problems.append(
                "the log has no steps; set logging_steps, the number of update steps between two records"
            )
        if problems:
            self.leave_out(LogStatus.NEEDS, joined(". ", problems), needs)
        else:
            self.leave_out(LogStatus.READY, "")

    @property
    def identity(self) -> tuple[Any, ...]:
        """Values that identify the run: two different runs differ in at least one of them."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        return (*(self.facts[name].value for name in IDENTITY), *attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        """The run's attributes (lr, model, on_policy, …)."""
        return {name: fact.value for name, fact in self.facts.items() if name not in _NO_ATTRIBUTE}

    def table(self) -> pd.DataFrame:
        """Return the rows of the run in the data model's table."""
        batch = self.facts["rollouts_per_step"].value
        pieces = []
        for (eval_set, metric), curve in self.curves.of.items():
            end = [self.curves.diverged[at]] if (at := (eval_set, metric)) in self.curves.diverged else []
            nan = [math.nan] * len(end)
            step = np.append(curve.step, np.array(end, np.int64))
            compute = np.ceil(step * batch - 1e-6).astype(np.int64)  # a batch can last several steps
            columns = {"step": step, "compute": compute, "wall_s": np.append(curve.wall_s, nan)}
            value = np.append(curve.value, nan)
            pieces.append(pd.DataFrame({**columns, "eval_set": eval_set, "metric": metric, "value": value}))
        names = [name for name in (*IDENTITY, "n_problems", "n_samples") if name in self.facts]
        fixed = {name: self.facts[name].value for name in names}
        return pd.concat(pieces, ignore_index=True).assign(run_id=self.run, **fixed)

    def candidate(self) -> FoundLog:
        """Return the run as an entry in the list of logs, without its curves."""
        for (eval_set, metric), curve in self.curves.of.items():
            self.metrics.setdefault(eval_set, {})[metric] = curve.step.size
        self.left_out = dict(self.curves.dropped)
        if self.curves.ignored:
            self.left_out["names that are not metrics (such as timings)"] = len(self.curves.ignored)
        self.steps = None if self.curves.unnumbered else self.curves.steps
        if self.steps and (batch := self.facts.get("rollouts_per_step")):
            first, last = self.steps
            self.compute = math.ceil(first * batch.value), math.ceil(last * batch.value)
        known = {each.name: getattr(self, each.name) for each in fields(FoundLog)}
        return FoundLog(**known | {"notes": [*self.notes, *self.curves.notes]})


def assemble(logs: list[RawLog], ways: Sequence[HowToRead] = ()) -> tuple[list[_LoggedRun], set[Rule]]:
    """Return the runs of the logs, and the rules of ``ways`` that apply to at least one run.

    The parts of a run must be consecutive in ``logs``. The list is emptied, so that its memory can be freed.
    Logs with the same value of ``group_by`` (file, directory, or a key of the configuration) form one run; by
    default, logs with the same name. If two logs have the values of one run, the more complete log is kept.
    Raises `InputError` if the user sets an unknown framework, and `DataError` if no log has the key
    ``group_by``. The last of the ``ways`` takes precedence.
    """
    groups, runs = _grouped(list(of_logs(logs)), ways)
    logs.clear()
    used: set[Rule] = set()
    for name in list(groups):
        run = _understood(name, groups.pop(name), ways)  # pop, so that the parts of a run can be freed
        used |= {one.rule for one in run.assignments.values()}
        runs.append(run)
    _without_copies(runs)
    percent = {run.run: run.assignments["percent"].value for run in runs if "percent" in run.assignments}
    _separate_policies(_ready(runs))
    for framework in {run.framework for run in runs if run.framework}:
        of_framework = [run for run in runs if run.framework == framework]
        _to_fractions(_ready(of_framework), percent)
    for alike in _alike(_ready(runs)):
        _one_model(alike)
        _drop_half_known(alike)
        _base_learning_rates(alike)
        _same_identity(alike)
    return runs, used


def _alike(runs: Sequence[_LoggedRun]) -> list[list[_LoggedRun]]:
    """Group runs by framework, algorithm and problem set; the runs of one group can be fitted together."""
    groups: dict[tuple[str, ...], list[_LoggedRun]] = {}
    for run in runs:
        key = run.framework, *(str(run.facts[name].value) for name in ("algorithm", "problem_set"))
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _ready(runs: Sequence[_LoggedRun]) -> list[_LoggedRun]:
    return [run for run in runs if run.status is LogStatus.READY]


def _understood(name: str, parts: Sequence[RawLog], ways: Sequence[HowToRead]) -> _LoggedRun:
    """Build the run of these parts: map names, resolve facts and stitch curves."""
    sources = list(dict.fromkeys(part.source for part in parts))
    container = ", ".join(dict.fromkeys(part.container for part in parts))
    run = _LoggedRun(name, container=container, sources=sources)
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
        ordered = _most_exact_last(parts)
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
) -> tuple[dict[str, list[RawLog]], list[_LoggedRun]]:
    """Return the logs grouped by run, and the logs that lack the key by which they are grouped."""
    groups: dict[tuple[str, str | None], list[RawLog]] = {}
    lacking: dict[str, _LoggedRun] = {}
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
                log.source, _LoggedRun(log.source, container=log.container, sources=[log.source])
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
    run: _LoggedRun, parts: Sequence[RawLog], keys: Sequence[str], possible: Sequence[Framework]
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


# Across runs


def _most_exact_last(parts: Sequence[RawLog]) -> list[RawLog]:
    """Order the logs of one run such that the most exact log takes precedence at each step.

    If some logs have steps, containers without steps are left out, because their values would get wrong
    steps.
    """
    numbered = [part for part in parts if not np.isnan(np.asarray(part.step)).all()]
    kinds = {part.container for part in parts}
    if len(kinds) > 1 and numbered:
        kinds = {part.container for part in numbered}
        parts = [part for part in parts if part.container in kinds]
    return sorted(parts, key=lambda part: _exactness(part.container))


def _exactness(container: str) -> int:
    """Return the rank of a container by the exactness of its values."""
    return _COARSEST.index(container) if container in _COARSEST else len(_COARSEST)


def _to_fractions(runs: Sequence[_LoggedRun], percent: Mapping[str, bool]) -> None:
    """Convert accuracies in percent to fractions, in place. Rewards are never rescaled.

    If the unit of some runs is unclear, isolaw leaves them out, unless ``percent`` gives it.
    """
    for target in dict.fromkeys(target for run in runs for target in run.curves.of if is_accuracy(target[1])):
        having = {run.run: run for run in runs if run.status is LogStatus.READY and target in run.curves.of}
        curves = {name: run.curves.of[target] for name, run in having.items()}
        name, values = f"{target[1]} on {target[0]}", {name: curve.value for name, curve in curves.items()}
        in_percent_of, problems = in_percent(target[1], values, percent)
        for run, text in problems.items():
            text = f"{name} {text}; set percent=true or percent=false"
            having[run].leave_out(LogStatus.NEEDS, text, ["percent"])
        for run in in_percent_of:
            highest = curves[run].value.max()
            having[run].curves.notes.append(f"{name} was in percent (up to {highest:g}): divided by 100")
            curves[run].value = curves[run].value / 100
        for run, value in values.items():
            if run not in percent and (value.min() < 0 or value.max() > 100):
                text = (
                    f"{name} goes from {value.min():g} to {value.max():g}, so it is not an accuracy; isolaw "
                )
                having[run].curves.notes.append(f"{text}leaves it unchanged")


def _separate_policies(runs: Sequence[_LoggedRun]) -> None:
    """Leave out the smaller group if on-policy and off-policy runs are mixed, because no law fits both."""
    known = [run for run in runs if "on_policy" in run.facts]
    on, off = (
        [run for run in known if run.facts["on_policy"].value is on_policy] for on_policy in (True, False)
    )
    if not on or not off:
        return
    fewer, status, text = (
        (off, LogStatus.OFF_POLICY, "off-policy, while the runs in use are on-policy")
        if len(off) <= len(on)
        else (on, LogStatus.ON_POLICY, "on-policy, while the runs in use are off-policy")
    )
    for run in fewer:
        run.leave_out(status, f"{text} ({run.facts['on_policy'].origin}). If this is wrong, set on_policy")


def _one_model(runs: Sequence[_LoggedRun]) -> None:
    """Give a model one name if runs load it from folders of one name in different places, such as mounts."""
    facts = [run.facts["model"] for run in runs if "model" in run.facts]
    paths = {str(fact.value): PurePosixPath(str(fact.value)) for fact in facts}
    for name in {path.name for path in paths.values()}:
        same = [value for value, path in paths.items() if path.name == name and path.is_absolute()]
        # A checkpoint's folder, such as global_step_100, is no model's name.
        if len(same) < 2 or _CHECKPOINT.fullmatch(name):
            continue
        for run in runs:
            if "model" in run.facts and str(run.facts["model"].value) in same:
                run.facts["model"] = run.facts["model"].but(f"loaded from {run.facts['model'].value}")
                run.facts["model"] = Fact(name, run.facts["model"].origin)


def _drop_half_known(runs: Sequence[_LoggedRun]) -> None:
    """Drop attributes that only some runs have, because they do not show whether the runs differ."""
    for name in sorted({name for run in runs for name in run.attributes}):
        if not all(name in run.facts for run in runs):
            for run in runs:
                if run.facts.pop(name, None):
                    run.notes.append(
                        f"{name} is not known for every run, so isolaw left it out; set it to keep it"
                    )


def _base_learning_rates(runs: Sequence[_LoggedRun]) -> None:
    """Replace lr by the base lr at B = 1,024 if lr follows √B, as in an isolaw sweep.

    All runs then share one recipe.
    """
    lrs = [run.facts["lr"].value if "lr" in run.facts else None for run in runs]
    if len(set(lrs)) < 2 or not all(isinstance(lr, int | float) and lr > 0 for lr in lrs):
        return
    rollouts = np.array([run.facts["rollouts_per_step"].value for run in runs], dtype=np.float64)
    base = np.array(lrs, dtype=np.float64) * np.sqrt(_BASE_BATCH / rollouts)
    if base.max() > base.min() * _LR_SPREAD:
        return
    value = float(f"{np.median(base):.3g}")
    for run in runs:
        old = run.facts["lr"]
        run.facts["lr"] = Fact(value, f"of B = {_BASE_BATCH:,}; {old.value} here: {old.origin}")
        run.facts["lr_scaling"] = Fact("sqrt", "lr follows √B in all runs")
        run.notes.append(f"lr follows √B in all runs: lr = {value:g} is the lr at B = {_BASE_BATCH:,}")


def _without_copies(runs: Sequence[_LoggedRun]) -> None:
    """Keep the more complete of two logs of one run, such as a console and event files.

    Duplicates have equal values at shared steps. Facts recorded in either log apply to both.
    """
    of: dict[str, list[_LoggedRun]] = {}
    for run in runs:
        if run.framework and run.curves.of and not run.curves.unnumbered:
            of.setdefault(run.framework, []).append(run)
    for framework, members in of.items():
        logs = sorted(members, key=_worth, reverse=True)
        copies: set[int] = set()
        for kept, copy in sorted(_nearly_alike([run.curves for run in logs])):
            twin, run = logs[kept], logs[copy]
            if copies & {kept, copy} or _contradict(twin, run) or not _copy(twin.curves, run.curves):
                continue
            copies.add(copy)
            run.leave_out(LogStatus.DUPLICATE, "another log of this run has the same values")
            run.duplicate_of = twin.run
            twin.curves.notes.append(
                f"isolaw leaves out a copy of this run in {', '.join(run.sources)} ({run.container})"
            )
            twin.configurations += run.configurations
            twin.assignments = {**run.assignments, **twin.assignments}
            twin.take(resolve(twin.configurations, frameworks.named(framework), twin.assignments))


def _nearly_alike(logs: Sequence[RunCurves]) -> set[tuple[int, int]]:
    """Return pairs of logs (the earlier first) that nearly agree at no less than a tenth of a metric's steps.

    A full comparison of all pairs would take minutes for a thousand logs.
    """
    out: set[tuple[int, int]] = set()
    for target in {target for log in logs for target in log.of}:
        curves = [(i, log.of[target]) for i, log in enumerate(logs) if target in log.of]
        if len(curves) < 2:
            continue
        size = np.zeros(len(logs))
        size[[i for i, _ in curves]] = [curve.step.size for _, curve in curves]
        owner = np.concatenate([np.full(curve.step.size, i) for i, curve in curves])
        step = np.concatenate([curve.step for _, curve in curves])
        value = np.concatenate([curve.value for _, curve in curves])
        order = np.lexsort((value, step))
        owner, step, value = owner[order], step[order], value[order]
        pairs = []
        for shift in range(1, _NEIGHBOURS + 1):  # neighbours in the order of values
            near = (step[shift:] == step[:-shift]) & np.isclose(value[shift:], value[:-shift], *ROUNDED)
            a, b = owner[shift:][near], owner[:-shift][near]
            pairs.append(np.minimum(a, b) * len(logs) + np.maximum(a, b))
        pair, times = np.unique(np.concatenate(pairs), return_counts=True)
        first, second = np.divmod(pair, len(logs))
        enough = times >= np.maximum(_LEAST_SHARED, np.minimum(size[first], size[second]) / 10)
        out |= set(zip(first[enough].tolist(), second[enough].tolist(), strict=True))
    return out


def _worth(run: _LoggedRun) -> tuple[int, int, bool]:
    """Return a rank for choosing between logs: by completeness, then by exactness, then by known facts."""
    size = sum(curve.step.size for curve in run.curves.of.values())
    return size, _exactness(run.container), run.status is LogStatus.READY


def _contradict(a: _LoggedRun, b: _LoggedRun) -> bool:
    """Return whether two logs record different facts about their runs."""
    return any(
        name in a.facts and name in b.facts
        and a.facts[name].value != b.facts[name].value
        and ASSUMED not in (a.facts[name].origin, b.facts[name].origin)
        for name in _SAID
    )  # fmt: skip


def _same_identity(runs: Sequence[_LoggedRun]) -> None:
    """Leave out runs that share configuration, seed and attributes."""
    groups: dict[tuple[Any, ...], list[_LoggedRun]] = {}
    for run in runs:
        groups.setdefault(run.identity, []).append(run)
    for group in groups.values():
        for run in group if len(group) > 1 else ():
            text = one_identity(group[0].facts, [run.run for run in group])
            text += ". If one continues the other: "
            way = commands.argument("group_by", "directory")
            run.leave_out(LogStatus.NEEDS, text + way + ", or a key of the configuration", ["seed"])


def one_identity(facts: Mapping[str, Fact], names: Sequence[str]) -> Wording:
    """Return the message about runs that cannot be distinguished."""
    b, n, seed = (facts[k].value for k in ("problems_per_batch", "rollouts_per_problem", "seed"))
    return (
        f"{len(names)} runs of one configuration and seed (B_p = {b}, n = {n}, seed {seed}). If the runs are "
        "repetitions, set their seeds. If they differ in a value that no log records, set that value: "
        + option(only(names[-1], names), Placeholder("name"), Placeholder("value"))
    )


def _copy(a: RunCurves, b: RunCurves) -> bool:
    """Return whether run ``b`` is a duplicate of ``a``: the values are equal at all steps that both have.

    A run that continues beyond the other was resumed, and is not a duplicate.
    """
    compared = 0
    for target in a.of.keys() & b.of.keys():
        one, other = a.of[target], b.of[target]
        _, i, j = np.intersect1d(one.step, other.step, assume_unique=True, return_indices=True)
        if not np.allclose(one.value[i], other.value[j], *ROUNDED):
            return False
        if i.size and np.ptp(one.value[i]) > _LEAST_RANGE:  # constants do not identify a run
            compared += i.size
    if compared < _LEAST_SHARED or a.steps is None:
        return False
    steps = np.unique(np.concatenate([curve.step for curve in b.of.values()]))
    return bool(np.mean((steps < a.steps[0]) | (steps > a.steps[1])) <= _BEYOND)
