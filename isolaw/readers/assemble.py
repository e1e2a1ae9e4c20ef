"""Assemble logs into runs: group parts, map names, resolve facts and stitch curves, then compare the runs.

Each run gets a `LogStatus`. Runs that lack a value, contradict another log, are a copy of another run or
cannot be fitted with the others are left out. All runs have percentages as fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isolaw import commands
from isolaw.commands import Placeholder
from isolaw.errors import Wording, joined
from isolaw.metrics import is_accuracy, is_reward
from isolaw.readers import frameworks
from isolaw.readers.found_logs import FoundLog, LogStatus, grouped
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.how_to_read import Assignment, HowToRead, Rule, settings_of
from isolaw.readers.measures import runs_in_percent
from isolaw.readers.names import ASSUMED, FOR_TABLES, SPLIT
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import Resolved, glob_for, resolve, set_option
from isolaw.readers.stitch import RunCurves, stitch
from isolaw.readers.trainings import ROUNDED, split_by_training
from isolaw.runs import IDENTITY, LARGEST_EXACT, listed

# Containers that round values, the coarsest first: consoles print few digits, TensorBoard stores 32 bits.
_COARSE_CONTAINERS = ("notebook", "step-console", "stdout-dicts", "verl-console", "tensorboard")
_BASE_BATCH = 1024
_MAX_LR_RATIO = 1.02  # ratio; people write rounded values such as 7.1e-7
_MAX_EXTRA = 0.1  # share of a duplicate's steps: one of two logs may have ended before the other
_MIN_SHARED, _MIN_SHARED_PART = 2, 0.1  # values, and their share of the steps of a metric
# Two logs that disagree on one of these facts belong to different runs.
_IDENTIFYING_FACTS = (*SPLIT, "seed", "problem_set", "algorithm", "lr")
_MIN_RANGE = 0.01  # a curve with a smaller range does not identify a run


# Facts that are columns of the table, or lead to one; all others are attributes of the run.
_NOT_ATTRIBUTES = {*IDENTITY, "rollouts_per_step", "logging_steps", "n_problems", "n_samples"}


@dataclass
class _LoggedRun(FoundLog):
    """A run assembled from one or more logs, with its curves."""

    curves: RunCurves = field(default_factory=RunCurves)
    # Sources of the facts: the configurations and counts of the run's parts, and the user's settings.
    configurations: list[RawLog] = field(default_factory=list)
    assignments: dict[str, Assignment] = field(default_factory=dict)

    def set_facts(self, resolved: Resolved) -> None:
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
        attribute_texts = sorted((name, repr(value)) for name, value in self.attributes.items())
        return (*(self.facts[name].value for name in IDENTITY), *attribute_texts)

    @property
    def attributes(self) -> dict[str, Any]:
        """The run's attributes (lr, model, on_policy, …)."""
        return {name: fact.value for name, fact in self.facts.items() if name not in _NOT_ATTRIBUTES}

    def table(self) -> pd.DataFrame:
        """Return the rows of the run in the data model's table."""
        rollouts = self.facts["rollouts_per_step"].value
        tables = []
        for (eval_set, metric), curve in self.curves.of.items():
            end = self.curves.diverged.get((eval_set, metric))
            ends, nans = ([], []) if end is None else ([end], [math.nan])
            step = np.append(curve.step, np.array(ends, np.int64))
            compute = np.ceil(step * rollouts - 1e-6).astype(np.int64)  # a batch can last several steps
            columns = {"step": step, "compute": compute, "wall_s": np.append(curve.wall_s, nans)}
            value = np.append(curve.value, nans)
            tables.append(pd.DataFrame({**columns, "eval_set": eval_set, "metric": metric, "value": value}))
        fact_names = [name for name in (*IDENTITY, "n_problems", "n_samples") if name in self.facts]
        constants = {name: self.facts[name].value for name in fact_names}
        return pd.concat(tables, ignore_index=True).assign(run_id=self.run, **constants)

    def found_log(self) -> FoundLog:
        """Return the run as an entry in the list of logs, without its curves."""
        for (eval_set, metric), curve in self.curves.of.items():
            self.metrics.setdefault(eval_set, {})[metric] = curve.step.size
        self.left_out = dict(self.curves.dropped)
        if self.curves.ignored:
            self.left_out["names that are not metrics (such as timings)"] = len(self.curves.ignored)
        self.steps = None if self.curves.unnumbered else self.curves.steps
        if self.steps and (rollouts := self.facts.get("rollouts_per_step")):
            first_step, last_step = self.steps
            self.compute = math.ceil(first_step * rollouts.value), math.ceil(last_step * rollouts.value)
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(FoundLog)}
        return FoundLog(**values | {"notes": [*self.notes, *self.curves.notes]})


def assemble(logs: list[RawLog], option_sets: Sequence[HowToRead] = ()) -> tuple[list[_LoggedRun], set[Rule]]:
    """Return the runs of the logs, and the rules of ``option_sets`` that apply to at least one run.

    The parts of a run must be consecutive in ``logs``. The list is emptied, so that its memory can be freed.
    Logs of the same file or directory (``group_by``) form one run; by default, logs with the same name. If
    two logs have the values of one run, the more complete log is kept. Raises `InputError` if the user sets
    an unknown framework. The last of the ``option_sets`` takes precedence.
    """
    logs_of_run = _group_by_run(list(split_by_training(logs)), option_sets)
    logs.clear()
    runs: list[_LoggedRun] = []
    used_rules: set[Rule] = set()
    for name in list(logs_of_run):
        run = _build_run(name, logs_of_run.pop(name), option_sets)  # pop, so that its logs can be freed
        used_rules |= {assignment.rule for assignment in run.assignments.values()}
        runs.append(run)
    _leave_out_copies(runs)
    percent_runs = [run for run in runs if "percent" in run.assignments]
    percent_of_run = {run.run: run.assignments["percent"].value for run in percent_runs}
    _separate_policies(_ready_runs(runs))
    for framework_runs in grouped(_ready_runs(runs), lambda run: run.framework).values():
        _to_fractions(framework_runs, percent_of_run)
    for comparable_runs in grouped(_ready_runs(runs), _comparable_key).values():
        _drop_partial_attributes(comparable_runs)
        _use_base_lrs(comparable_runs)
        _leave_out_repeats(comparable_runs)
    return runs, used_rules


def _comparable_key(run: _LoggedRun) -> tuple[str, ...]:
    """Return the framework, algorithm and problem set: runs with the same ones can be fitted together."""
    return run.framework, *(str(run.facts[name].value) for name in ("algorithm", "problem_set"))


def _ready_runs(runs: Sequence[_LoggedRun]) -> list[_LoggedRun]:
    return [run for run in runs if run.status is LogStatus.READY]


def _build_run(name: str, logs: Sequence[RawLog], option_sets: Sequence[HowToRead]) -> _LoggedRun:
    """Build the run of these parts: map names, resolve facts and stitch curves."""
    sources = list(dict.fromkeys(log.source for log in logs))
    container = ", ".join(dict.fromkeys(log.container for log in logs))
    run = _LoggedRun(name, container=container, sources=sources)
    assignments = settings_of(option_sets, name, sources)
    run.assignments = {name: assignment for name, assignment in assignments.items() if name not in FOR_TABLES}
    config = {key: value for log in logs for key, value in log.config.items()}
    keys = list(dict.fromkeys(key for log in logs for key in log.series))
    setting = run.assignments.get("framework")
    framework = frameworks.named(setting.value) if setting else frameworks.find(keys, config)
    if not keys:
        drop_reasons = "; ".join(dict.fromkeys(reason for log in logs for reason in log.dropped))
        left_out = f"; left out: {drop_reasons}" if drop_reasons else ""
        run.framework = framework.name if framework else ""
        run.leave_out(LogStatus.NO_HISTORY, f"it has no number with a name{left_out}")
    elif framework is None and not any(map(is_reward, keys)):
        run.leave_out(LogStatus.NO_HISTORY, f"it logs no reward, only {_short_list(keys)}")
    elif framework is None and (candidates := frameworks.possible(keys)):
        names = " or ".join(candidate.name for candidate in candidates)
        text = f"the framework is unknown: {_short_list(keys)} are names of {names}"
        run.leave_out(LogStatus.NEEDS, text, ["framework"])
    elif framework is None:
        run.leave_out(LogStatus.UNKNOWN_FORMAT, _unknown_framework(keys, run.container))
    else:
        run.framework = framework.name
        run.configurations = [
            RawLog(
                *(log.source, log.container, name, log.config, log.config_source),
                step=log.step,
                series={key: log.series[key] for key in log.series if framework.is_counter(key)},
            )
            for log in logs
        ]
        resolved = resolve(run.configurations, framework, run.assignments)
        fact_values: Mapping[str, Any] = {name: fact.value for name, fact in resolved.facts.items()}
        last_step = LARGEST_EXACT // fact_values.get("rollouts_per_step", 1) - 1
        ordered_logs = _most_exact_last(logs)
        run.curves = stitch(ordered_logs, framework, fact_values.get("logging_steps"), last_step)
        run.set_facts(resolved)
        if run.curves.mixed and run.status is LogStatus.READY:
            run.leave_out(LogStatus.UNKNOWN_FORMAT, run.curves.mixed)
        if run.curves.of and not any(is_reward(metric) for _, metric in run.curves.of):
            metrics = listed([f"{metric} on {eval_set}" for eval_set, metric in run.curves.of], 8)
            run.leave_out(LogStatus.UNKNOWN_FORMAT, f"it logs no reward and no accuracy, only {metrics}")
        if not run.curves.of:
            run.leave_out(
                LogStatus.UNKNOWN_FORMAT,
                f"it has no value of a known metric; its keys are {_short_list(keys)}",
            )
    return run


def _group_by_run(logs: Sequence[RawLog], option_sets: Sequence[HowToRead]) -> dict[str, list[RawLog]]:
    """Return the logs by run."""
    logs_of_group: dict[tuple[str, str | None], list[RawLog]] = {}
    runs_in_file: dict[str, set[str]] = {}
    for log in logs:
        runs_in_file.setdefault(log.source, set()).add(log.run)
    for log in logs:
        groupings = [options.group_by for options in option_sets if options.covers([log.source])]
        grouping = next(filter(None, reversed(groupings)), None)
        name = log.run or log.source
        if grouping == "file":
            name = log.source if len(runs_in_file[log.source]) == 1 else f"{log.source}: {log.run}"
        elif grouping == "directory":
            name = str(Path(log.source) if Path(log.source).is_dir() else Path(log.source).parent)
        logs_of_group.setdefault((name, grouping), []).append(log)
    logs_of_run: dict[str, list[RawLog]] = {}
    for (name, grouping), run_logs in logs_of_group.items():
        logs_of_run |= {name: run_logs} if grouping else dict(_by_framework(name, run_logs))
    return logs_of_run


def _by_framework(name: str, logs: list[RawLog]) -> Iterator[tuple[str, list[RawLog]]]:
    """Yield the parts of a run by framework, since logs of two frameworks with the same name are two runs."""
    log_frameworks = [frameworks.find(list(log.series), log.config) for log in logs]
    framework_names = list(dict.fromkeys(framework.name for framework in log_frameworks if framework))
    if len(framework_names) < 2:
        yield name, logs
        return
    for framework_name in framework_names:
        other_names = {*framework_names} - {framework_name}
        pairs = zip(logs, log_frameworks, strict=True)
        members = [log for log, framework in pairs if framework is None or framework.name not in other_names]
        yield f"{name} ({framework_name})", members


def _unknown_framework(keys: Sequence[str], container: str) -> Wording:
    text = (
        f"no known framework uses its names: {_short_list(keys)}. "
        f"Known: {', '.join(framework.name for framework in frameworks.known())}. If it is one of these, add "
        + set_option("", "framework", Placeholder("name"))
    )
    if container != "jsonl":  # other containers do not contain tables
        return text
    return (
        text
        + "; if this is a table of your own, name its columns: "
        + commands.option("columns", "n", Placeholder("column"))
    )


def _short_list(keys: Sequence[str]) -> str:
    return listed([key[:60] for key in keys], 12)


# Across runs


def _most_exact_last(logs: Sequence[RawLog]) -> list[RawLog]:
    """Order the logs of one run such that the most exact log takes precedence at each step.

    If some logs have steps, containers without steps are left out, because their values would get wrong
    steps.
    """
    numbered_logs = [log for log in logs if not np.isnan(np.asarray(log.step)).all()]
    containers = {log.container for log in logs}
    if len(containers) > 1 and numbered_logs:
        containers = {log.container for log in numbered_logs}
        logs = [log for log in logs if log.container in containers]
    return sorted(logs, key=lambda log: _exactness(log.container))


def _exactness(container: str) -> int:
    """Return the rank of a container by the exactness of its values."""
    return _COARSE_CONTAINERS.index(container) if container in _COARSE_CONTAINERS else len(_COARSE_CONTAINERS)


def _to_fractions(runs: Sequence[_LoggedRun], percent_of_run: Mapping[str, bool]) -> None:
    """Convert accuracies in percent to fractions, in place. Rewards are never rescaled.

    If the unit of some runs is unclear, isolaw leaves them out, unless ``percent_of_run`` gives it.
    """
    for target in dict.fromkeys(target for run in runs for target in run.curves.of if is_accuracy(target[1])):
        run_of_id = {run.run: run for run in _ready_runs(runs) if target in run.curves.of}
        curve_of_run = {run_id: run.curves.of[target] for run_id, run in run_of_id.items()}
        name = f"{target[1]} on {target[0]}"
        values_of_run = {run_id: curve.value for run_id, curve in curve_of_run.items()}
        percent_ids, problem_of_run = runs_in_percent(target[1], values_of_run, percent_of_run)
        for run_id, text in problem_of_run.items():
            text = f"{name} {text}; set percent=true or percent=false"
            run_of_id[run_id].leave_out(LogStatus.NEEDS, text, ["percent"])
        for run_id in percent_ids:
            highest = curve_of_run[run_id].value.max()
            note = f"{name} was in percent (up to {highest:g}): divided by 100"
            run_of_id[run_id].curves.notes.append(note)
            curve_of_run[run_id].value = curve_of_run[run_id].value / 100
        for run_id, value in values_of_run.items():
            if run_id not in percent_of_run and (value.min() < 0 or value.max() > 100):
                text = (
                    f"{name} goes from {value.min():g} to {value.max():g}, so it is not an accuracy; isolaw "
                )
                run_of_id[run_id].curves.notes.append(f"{text}leaves it unchanged")


def _separate_policies(runs: Sequence[_LoggedRun]) -> None:
    """Leave out the smaller group if on-policy and off-policy runs are mixed, because no law fits both."""
    labelled = [run for run in runs if "on_policy" in run.facts]
    on_policy_runs, off_policy_runs = (
        [run for run in labelled if run.facts["on_policy"].value is on_policy] for on_policy in (True, False)
    )
    if not on_policy_runs or not off_policy_runs:
        return
    smaller_group, status, text = (
        (off_policy_runs, LogStatus.OFF_POLICY, "off-policy, while the runs in use are on-policy")
        if len(off_policy_runs) <= len(on_policy_runs)
        else (on_policy_runs, LogStatus.ON_POLICY, "on-policy, while the runs in use are off-policy")
    )
    for run in smaller_group:
        run.leave_out(status, f"{text} ({run.facts['on_policy'].origin}). If this is wrong, set on_policy")


def _drop_partial_attributes(runs: Sequence[_LoggedRun]) -> None:
    """Drop attributes that only some runs have, because they do not show whether the runs differ."""
    for name in sorted({name for run in runs for name in run.attributes}):
        if not all(name in run.facts for run in runs):
            for run in runs:
                if run.facts.pop(name, None):
                    run.notes.append(
                        f"{name} is not known for every run, so isolaw left it out; set it to keep it"
                    )


def _use_base_lrs(runs: Sequence[_LoggedRun]) -> None:
    """Replace lr by the base lr at B = 1,024 if lr follows √B, as in an isolaw sweep.

    All runs then share one recipe.
    """
    lrs = [run.facts["lr"].value if "lr" in run.facts else None for run in runs]
    if len(set(lrs)) < 2 or not all(isinstance(lr, int | float) and lr > 0 for lr in lrs):
        return
    rollouts = np.array([run.facts["rollouts_per_step"].value for run in runs], dtype=np.float64)
    base_lrs = np.array(lrs, dtype=np.float64) * np.sqrt(_BASE_BATCH / rollouts)
    if base_lrs.max() > base_lrs.min() * _MAX_LR_RATIO:
        return
    base_lr = float(f"{np.median(base_lrs):.3g}")
    for run in runs:
        run_lr = run.facts["lr"]
        run.facts["lr"] = Fact(base_lr, f"of B = {_BASE_BATCH:,}; {run_lr.value} here: {run_lr.origin}")
        run.facts["lr_scaling"] = Fact("sqrt", "lr follows √B in all runs")
        run.notes.append(f"lr follows √B in all runs: lr = {base_lr:g} is the lr at B = {_BASE_BATCH:,}")


def _leave_out_copies(runs: Sequence[_LoggedRun]) -> None:
    """Keep the more complete of two logs of one run, such as a console and event files.

    Duplicates have equal values at shared steps. Facts recorded in either log apply to both.
    """
    numbered = [run for run in runs if run.framework and run.curves.of and not run.curves.unnumbered]
    for framework, framework_runs in grouped(numbered, lambda run: run.framework).items():
        ranked_runs = sorted(framework_runs, key=_completeness, reverse=True)
        for original, run in combinations(ranked_runs, 2):
            is_left_out = LogStatus.DUPLICATE in (original.status, run.status)
            if is_left_out or _contradict(original, run) or not _is_copy(original.curves, run.curves):
                continue
            run.leave_out(LogStatus.DUPLICATE, "another log of this run has the same values")
            run.duplicate_of = original.run
            original.curves.notes.append(
                f"isolaw leaves out a copy of this run in {', '.join(run.sources)} ({run.container})"
            )
            original.configurations += run.configurations
            original.assignments = {**run.assignments, **original.assignments}
            resolved = resolve(original.configurations, frameworks.named(framework), original.assignments)
            original.set_facts(resolved)


def _completeness(run: _LoggedRun) -> tuple[int, int, bool]:
    """Return a rank for choosing between logs: by completeness, then by exactness, then by known facts."""
    value_count = sum(curve.step.size for curve in run.curves.of.values())
    return value_count, _exactness(run.container), run.status is LogStatus.READY


def _contradict(run: _LoggedRun, other_run: _LoggedRun) -> bool:
    """Return whether two logs record different facts about their runs."""
    return any(
        name in run.facts and name in other_run.facts
        and run.facts[name].value != other_run.facts[name].value
        and ASSUMED not in (run.facts[name].origin, other_run.facts[name].origin)
        for name in _IDENTIFYING_FACTS
    )  # fmt: skip


def _leave_out_repeats(runs: Sequence[_LoggedRun]) -> None:
    """Leave out runs that share configuration, seed and attributes."""
    for group in grouped(runs, lambda run: run.identity).values():
        for run in group if len(group) > 1 else ():
            text = indistinct_runs(group[0].facts, [run.run for run in group])
            text += ". If one continues the other: "
            run.leave_out(LogStatus.NEEDS, text + commands.argument("group_by", "directory"), ["seed"])


def indistinct_runs(facts: Mapping[str, Fact], runs: Sequence[str]) -> Wording:
    """Return the message about runs that cannot be distinguished."""
    b, n, seed = (facts[name].value for name in ("problems_per_batch", "rollouts_per_problem", "seed"))
    return (
        f"{len(runs)} runs of one configuration and seed (B_p = {b}, n = {n}, seed {seed}). If the runs are "
        "repetitions, set their seeds. If they differ in a value that no log records, set that value: "
        + set_option(glob_for(runs[-1], runs), Placeholder("name"), Placeholder("value"))
    )


def _is_copy(original: RunCurves, copy: RunCurves) -> bool:
    """Return whether ``copy`` is a duplicate of ``original``, with equal values at all steps that both have.

    A run that continues beyond the other was resumed, and is not a duplicate.
    """
    compared_values, shares_enough = 0, False
    for target in original.of.keys() & copy.of.keys():
        curve, copied_curve = original.of[target], copy.of[target]
        _, i, j = np.intersect1d(curve.step, copied_curve.step, assume_unique=True, return_indices=True)
        value, copied_value = curve.value[i], copied_curve.value[j]
        relative, absolute = ROUNDED
        if (np.abs(value - copied_value) > absolute + relative * np.abs(copied_value)).any():
            return False  # nearly always: all pairs of logs are compared
        fewest_steps = min(curve.step.size, copied_curve.step.size)
        shares_enough |= i.size >= max(_MIN_SHARED, _MIN_SHARED_PART * fewest_steps)
        if i.size and np.ptp(value) > _MIN_RANGE:  # constants do not identify a run
            compared_values += i.size
    if compared_values < _MIN_SHARED or not shares_enough or original.steps is None:
        return False
    steps = np.unique(np.concatenate([curve.step for curve in copy.of.values()]))
    return bool(np.mean((steps < original.steps[0]) | (steps > original.steps[1])) <= _MAX_EXTRA)
