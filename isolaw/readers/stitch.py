"""Stitch the parts of one run: count steps as updates made, and keep the later value of repeated steps.

A framework counts its first update as 1 or as 0. Here the step is the number of updates made, so that compute
is rollouts per step times step. If updates are counted from 0, the record of step 0 follows the first update,
unless it only contains evaluations, which then precede training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isolaw.evidence import count
from isolaw.readers.frameworks.base import Framework, Target
from isolaw.readers.raw_log import RawLog
from isolaw.readers.trainings import ROUNDED, Floats, mixing_problem, record_numbers, repeat_notes

_LARGEST_STEP = 2**40  # a larger number is not a step
MOST_POINTS = 50_000  # of one metric
_MOST_RUN_POINTS = 1_000_000  # of all metrics of a run together; its table takes 400 bytes for each
_LARGEST_VALUE = 1e100
# Metrics of a batch of rollouts. A record with one of these comes after a batch.
_BATCH_METRICS = ("reward", "entropy", "kl", "grad_norm", "response_length")


@dataclass
class _MetricCurve:
    """One metric of one run: ascending updates made, values and seconds since the start, of shape (P,)."""

    step: NDArray[np.int64]
    value: Floats
    wall_s: Floats


@dataclass
class RunCurves:
    """The curves of all metrics of one run, stitched from the parts of its log."""

    of: dict[Target, _MetricCurve] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)  # the framework's keys that isolaw does not map
    dropped: Counter[str] = field(default_factory=Counter)  # as in `RawLog`
    notes: list[str] = field(default_factory=list)
    # The problem if a metric has two values at several steps because rows of two kinds are mixed; else empty.
    mixed: str = ""
    diverged: dict[Target, int] = field(default_factory=dict)  # step of a NaN after the last finite value
    unnumbered: int = 0  # records whose step is neither in a log nor given

    @property
    def steps(self) -> tuple[int, int] | None:
        """The first and the last step at which any metric has a value."""
        spans = [(int(curve.step[0]), int(curve.step[-1])) for curve in self.of.values()]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def stitch(
    logs: Sequence[RawLog],
    framework: Framework,
    logging_steps: int | None = None,
    last_step: int = _LARGEST_STEP,
) -> RunCurves:
    """Stitch the logs of one run, the earliest first.

    For logs without steps, ``logging_steps`` is the number of updates between two records. If it is unknown,
    the steps of such logs are placeholders, and ``unnumbered`` counts them. Numbers above ``last_step`` are
    not steps.
    """
    curves = RunCurves()
    targets = _targets(logs, framework, curves)
    last_step = min(last_step, _LARGEST_STEP)
    steps, steps_before = _steps(logs, framework, targets, logging_steps, last_step, curves)
    repeated_steps, changed_steps = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    most_points = max(min(MOST_POINTS, _MOST_RUN_POINTS // max(len(targets), 1)), 1)
    thinned = 0
    # With several containers, one may round its values.
    tolerance = ROUNDED if len({log.container for log in logs}) > 1 else (1e-6, 1e-12)
    for target, keys in targets.items():
        steps_of_logs = steps_before if framework.evaluates_first and target[0] != "train" else steps
        pairs = zip(logs, steps_of_logs, strict=True)
        step, value, wall_s = np.hstack([_points(log, log_steps, keys, curves) for log, log_steps in pairs])
        if step.size:
            curve, repeated, changed = _later_wins(step.astype(np.int64), value, wall_s, tolerance)
            repeated_steps.append(repeated)
            changed_steps.append(changed)
            if curve.step.size > most_points:  # more steps add nothing to a curve and need too much memory
                indices = np.linspace(0, curve.step.size - 1, most_points).round().astype(np.int64)
                curve = _MetricCurve(curve.step[indices], curve.value[indices], curve.wall_s[indices])
                thinned += 1
            curves.of[target] = curve
    for log, updates_made, updates_before in zip(logs, steps, steps_before, strict=True):
        for key, record in log.not_finite.items():
            if (nan_target := framework.target(key)) is not None:
                comes_first = framework.evaluates_first and nan_target[0] != "train"
                nan_step = (updates_before if comes_first else updates_made)[record]
                curve_end = curves.of[nan_target].step[-1] if nan_target in curves.of else -1
                if nan_step > max(curve_end, curves.diverged.get(nan_target, -1)):
                    curves.diverged[nan_target] = int(nan_step)
    changed_count = np.unique(np.concatenate(changed_steps)).size
    repeated_count = np.unique(np.concatenate(repeated_steps)).size
    curves.notes += repeat_notes(changed_count, repeated_count - changed_count)
    if thinned:
        curves.notes.append(
            f"{count(thinned, 'metric')} had over {most_points:,} steps; isolaw kept that many, evenly spaced"
        )
    for log in logs:
        curves.notes += [note for note in log.notes if note not in curves.notes]
        curves.dropped += log.dropped  # and drops zeros
    return curves


def _targets(logs: Sequence[RawLog], framework: Framework, curves: RunCurves) -> dict[Target, list[str]]:
    """Return the framework's keys for each metric, in the order of the logs."""
    targets: dict[Target, list[str]] = {}
    for key in dict.fromkeys(key for log in logs for key in log.series):
        target = framework.target(key)
        if target is not None:
            targets.setdefault(target, []).append(key)
        elif key not in framework.step_keys:
            curves.ignored.add(key)
    return targets


def _steps(
    logs: Sequence[RawLog],
    framework: Framework,
    targets: dict[Target, list[str]],
    logging_steps: int | None,
    last_step: int,
    curves: RunCurves,
) -> tuple[list[Floats], list[Floats]]:
    """Return for each part the updates made at its records, and the updates made before them, of shape (R,).

    Records without a step get NaN.
    """
    all_keys = [key for keys in targets.values() for key in keys]
    training_keys = [key for (eval_set, _), keys in targets.items() if eval_set == "train" for key in keys]
    batch_targets = [("train", metric) for metric in _BATCH_METRICS]
    batch_keys = [key for target in batch_targets for key in targets.get(target, [])]
    log_steps = [_logged_steps(log, framework, last_step) for log in logs]
    from_zero = any(
        np.any(steps[_has_key(log, batch_keys)] == 0) for log, steps in zip(logs, log_steps, strict=True)
    )
    first_step = 0 if from_zero else framework.first_step
    counted = 0  # records without a step
    counted_epochs, unnumbered_logs = [np.empty(0)], list[int]()  # epochs of these records, and their logs
    steps_before = [steps - first_step for steps in log_steps]
    for i, (log, steps) in enumerate(zip(logs, log_steps, strict=True)):
        is_training = _has_key(log, training_keys)
        if np.isnan(steps).all():
            is_counted = is_training if is_training.any() else _has_key(log, all_keys)
            log_steps[i] = np.asarray(counted + np.cumsum(is_counted), np.float64)
            counted += int(is_counted.sum())
            counted_epochs.append(_epochs(log)[is_counted])
            unnumbered_logs.append(i)
        else:  # step 0 precedes training
            log_steps[i] = np.where((steps == 0) & ~is_training, steps, steps + (1 - first_step))
    epochs, interval = np.concatenate(counted_epochs), logging_steps or 1
    numbers, period, rounding = record_numbers(epochs, interval)
    updates, epochs = np.append(0, np.maximum(numbers * interval, 1)), np.append(0, epochs)
    for i in unnumbered_logs:
        last_counted, log_epochs = log_steps[i].astype(np.intp), _epochs(logs[i])
        log_steps[i] = updates[last_counted]
        if period:  # an evaluation can be between two records
            is_between = ~np.isnan(log_epochs) & (log_epochs != epochs[last_counted])
            is_exact = rounding * interval / period < 0.5
            exact_steps = np.round(log_epochs * interval / period) if is_exact else np.nan
            log_steps[i] = np.where(is_between, exact_steps, log_steps[i])
    if np.isnan(numbers).any():
        curves.mixed = "it has no steps, and its epochs go back to no earlier record; the steps are unknown"
    if counted and logging_steps is None:
        curves.unnumbered = counted
    elif counted:
        every = f", one every {logging_steps} steps (logging_steps)" if logging_steps != 1 else ""
        how = "by epoch" if period else "in order"
        curves.notes.append(f"the log has no steps; isolaw numbered {count(counted, 'record')} {how}{every}")
    if first_step != framework.first_step:
        curves.notes.append("its steps count from 0, so step 0 is after the first update")
    return log_steps, steps_before


def _logged_steps(log: RawLog, framework: Framework, last_step: int) -> Floats:
    """Return the steps that the log itself gives, of shape (R,), with NaN for missing or invalid steps."""
    container_steps = _valid_steps(np.asarray(log.step, dtype=np.float64), last_step)
    if log.of_tracker and not framework.counted_by_trackers:
        container_steps = np.full(container_steps.size, np.nan)
    key_steps: Floats = np.full(container_steps.size, np.nan)
    for key in framework.step_keys:
        if key in log.series:
            record = np.asarray(log.series[key].record)
            is_missing = np.isnan(key_steps[record])
            value = np.asarray(log.series[key].value)
            key_steps[record[is_missing]] = _valid_steps(value[is_missing], last_step)
    if np.isnan(key_steps).all():
        return container_steps
    # The container may count something else (W&B counts calls to log), so it fills gaps only if both agree.
    has_both = ~np.isnan(key_steps) & ~np.isnan(container_steps)
    if has_both.any() and np.array_equal(key_steps[has_both], container_steps[has_both]):
        return np.where(np.isnan(key_steps), container_steps, key_steps)
    return key_steps


def _epochs(log: RawLog) -> Floats:
    """Return the epoch of each record, of shape (R,)."""
    epochs: Floats = np.full(len(log.step), np.nan)
    if series := log.series.get("epoch"):
        epochs[np.asarray(series.record)] = series.value
    return epochs


def _valid_steps(steps: Floats, last_step: int) -> Floats:
    rounded = np.round(steps)
    with np.errstate(invalid="ignore"):
        is_valid = (np.abs(steps - rounded) <= 1e-6) & (rounded >= 0) & (rounded <= last_step)
    return np.where(is_valid, rounded, np.nan)


def _has_key(log: RawLog, keys: list[str]) -> NDArray[np.bool_]:
    """Return which records have one of these keys, as a mask of shape (R,)."""
    has_key = np.zeros(len(log.step), dtype=bool)
    for key in log.series.keys() & keys:
        has_key[np.asarray(log.series[key].record)] = True
    return has_key


def _points(log: RawLog, steps: Floats, keys: list[str], curves: RunCurves) -> Floats:
    """Return the steps, values and seconds of a metric in one part, in log order, of shape (3, P)."""
    points = np.empty((3, 0))
    clock = np.asarray(log.wall_s, dtype=np.float64)
    used_key = ""
    for key in (key for key in keys if key in log.series):
        records, key_values = (
            np.asarray(column) for column in (log.series[key].record, log.series[key].value)
        )
        key_steps = steps[records]
        is_numbered, is_valid = ~np.isnan(key_steps), np.abs(key_values) <= _LARGEST_VALUE
        curves.dropped["values without a step"] += int((~is_numbered).sum())
        curves.dropped[f"values beyond {_LARGEST_VALUE:g}"] += int((is_numbered & ~is_valid).sum())
        # If a metric has an old and a new name, the first one is used.
        is_known = np.isin(key_steps, points[0])
        if used_key and is_known.any():
            curves.notes.append(f"{used_key} and {key} are one metric; isolaw uses the first")
        keep = is_numbered & is_valid & ~is_known
        curves.mixed = curves.mixed or mixing_problem(key, key_steps[keep], key_values[keep])
        points = np.hstack([points, [key_steps[keep], key_values[keep], clock[records][keep]]])
        used_key = used_key or key
    return points


def _later_wins(
    step: NDArray[np.int64], value: Floats, wall_s: Floats, tolerance: tuple[float, float]
) -> tuple[_MetricCurve, NDArray[np.int64], NDArray[np.int64]]:
    """Return the last value of each step, the repeated steps, and repeated steps with different values."""
    order = np.argsort(step, kind="stable")
    step, value, wall_s = step[order], value[order], wall_s[order]
    is_last = np.append(step[1:] != step[:-1], True)
    last_values = value[is_last][np.cumsum(is_last) - is_last]  # for each value, the last one at its step
    is_changed = ~np.isclose(value, last_values, *tolerance)
    curve = _MetricCurve(step[is_last], value[is_last], wall_s[is_last])
    return curve, np.unique(step[~is_last]), np.unique(step[~is_last & is_changed])
