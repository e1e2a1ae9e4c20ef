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

from isolaw.readers.frameworks.base import Framework, Target
from isolaw.readers.raw_log import RawLog
from isolaw.readers.trainings import ROUNDED, count, mixing_problem, repeat_notes

Floats = NDArray[np.float64]

_LAST_STEP = 2**40  # a larger number is not a step
MOST_POINTS = 50_000  # of one metric
_MOST_IN_ALL = 1_000_000  # of all metrics of a run together; its table takes 400 bytes for each
_HUGE = 1e100
# Metrics of a batch of rollouts. A record with one of these comes after a batch.
_OF_A_BATCH = ("reward", "entropy", "kl", "grad_norm", "response_length")


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
        ends = [(int(c.step[0]), int(c.step[-1])) for c in self.of.values()]
        return (min(a for a, _ in ends), max(b for _, b in ends)) if ends else None


def stitch(
    parts: Sequence[RawLog],
    framework: Framework,
    logging_steps: int | None = None,
    last_step: int = _LAST_STEP,
) -> RunCurves:
    """Stitch the logs of one run, the earliest first.

    For logs without steps, ``logging_steps`` is the number of updates between two records. If it is unknown,
    the steps of such logs are placeholders, and ``unnumbered`` counts them. Numbers above ``last_step`` are
    not steps.
    """
    out = RunCurves()
    targets = _targets(parts, framework, out)
    steps, before = _steps(parts, framework, targets, logging_steps, min(last_step, _LAST_STEP), out)
    again, other = [np.empty(0, np.int64)], [np.empty(0, np.int64)]  # repeated steps; steps with other values
    most = max(min(MOST_POINTS, _MOST_IN_ALL // max(len(targets), 1)), 1)
    thinned = 0
    # With several containers, one may round its values.
    tolerance = ROUNDED if len({part.container for part in parts}) > 1 else (1e-6, 1e-12)
    for target, keys in targets.items():
        own_steps = before if framework.evaluates_first and target[0] != "train" else steps
        pieces = [_points(part, own_step, keys, out) for part, own_step in zip(parts, own_steps, strict=True)]
        step, value, wall_s = np.hstack(pieces)
        if step.size:
            curve, repeated, differing = _later_wins(step.astype(np.int64), value, wall_s, tolerance)
            again.append(repeated)
            other.append(differing)
            if curve.step.size > most:  # more steps add nothing to a curve and would use too much memory
                kept = np.linspace(0, curve.step.size - 1, most).round().astype(np.int64)
                curve = _MetricCurve(curve.step[kept], curve.value[kept], curve.wall_s[kept])
                thinned += 1
            out.of[target] = curve
    for part, updates, at_evaluation in zip(parts, steps, before, strict=True):
        for key, record in part.not_finite.items():
            if (place := framework.target(key)) is not None:
                first = framework.evaluates_first and place[0] != "train"
                at = (at_evaluation if first else updates)[record]
                last = out.of[place].step[-1] if place in out.of else -1
                if at > max(last, out.diverged.get(place, -1)):
                    out.diverged[place] = int(at)
    differing_steps = np.unique(np.concatenate(other)).size
    out.notes += repeat_notes(differing_steps, np.unique(np.concatenate(again)).size - differing_steps)
    if thinned:
        out.notes.append(
            f"{count(thinned, 'metric')} had over {most:,} steps; isolaw kept that many, evenly spaced"
        )
    for part in parts:
        out.notes += [note for note in part.notes if note not in out.notes]
        out.dropped += part.dropped  # and drops zeros
    return out


def _targets(parts: Sequence[RawLog], framework: Framework, out: RunCurves) -> dict[Target, list[str]]:
    """Return the framework's keys for each metric, in the order of the logs."""
    targets: dict[Target, list[str]] = {}
    for key in dict.fromkeys(key for part in parts for key in part.series):
        target = framework.target(key)
        if target is not None:
            targets.setdefault(target, []).append(key)
        elif key not in framework.step_keys:
            out.ignored.add(key)
    return targets


def _steps(
    parts: Sequence[RawLog],
    framework: Framework,
    targets: dict[Target, list[str]],
    logging_steps: int | None,
    last_step: int,
    out: RunCurves,
) -> tuple[list[Floats], list[Floats]]:
    """Return for each part the updates made at its records, and the updates made before them, of shape (R,).

    Records without a step get NaN.
    """
    all_keys = [key for keys in targets.values() for key in keys]
    trained = [key for (eval_set, _), keys in targets.items() if eval_set == "train" for key in keys]
    batch = [key for (e, m), keys in targets.items() if e == "train" and m in _OF_A_BATCH for key in keys]
    logged = [_logged(part, framework, last_step) for part in parts]
    from_zero = any(
        np.any(steps[_holding(part, batch)] == 0) for part, steps in zip(parts, logged, strict=True)
    )
    first = 0 if from_zero else framework.first_step
    numbered = 0
    before = [steps - first for steps in logged]
    for i, (part, steps) in enumerate(zip(parts, logged, strict=True)):
        training = _holding(part, trained)
        if np.isnan(steps).all():
            counted = training if training.any() else _holding(part, all_keys)
            logged[i] = np.asarray((numbered + np.cumsum(counted)) * (logging_steps or 1), np.float64)
            numbered += int(counted.sum())
        else:
            logged[i] = np.where((steps == 0) & ~training, steps, steps + (1 - first))  # 0 precedes training
    if numbered and logging_steps is None:
        out.unnumbered = numbered
    elif numbered:
        every = f", one every {logging_steps} steps (logging_steps)" if logging_steps != 1 else ""
        out.notes.append(f"the log has no steps; isolaw numbered {count(numbered, 'record')} in order{every}")
    if first != framework.first_step:
        out.notes.append("its steps count from 0, so step 0 is after the first update")
    return logged, before


def _logged(part: RawLog, framework: Framework, last_step: int) -> Floats:
    """Return the steps that the log itself gives, of shape (R,), with NaN for missing or invalid steps."""
    numbered = _checked(np.asarray(part.step, dtype=np.float64), last_step)
    if part.of_tracker and not framework.counted_by_trackers:
        numbered = np.full(numbered.size, np.nan)
    keyed: Floats = np.full(numbered.size, np.nan)
    for key in framework.step_keys:
        if key in part.series:
            record = np.asarray(part.series[key].record)
            missing = np.isnan(keyed[record])
            keyed[record[missing]] = _checked(np.asarray(part.series[key].value)[missing], last_step)
    if np.isnan(keyed).all():
        return numbered
    # The container may count something else (W&B counts calls to log), so it fills gaps only if both agree.
    both = ~np.isnan(keyed) & ~np.isnan(numbered)
    if both.any() and np.array_equal(keyed[both], numbered[both]):
        return np.where(np.isnan(keyed), numbered, keyed)
    return keyed


def _checked(step: Floats, last_step: int) -> Floats:
    whole = np.round(step)
    with np.errstate(invalid="ignore"):
        good = (np.abs(step - whole) <= 1e-6) & (whole >= 0) & (whole <= last_step)
    return np.where(good, whole, np.nan)


def _holding(part: RawLog, keys: list[str]) -> NDArray[np.bool_]:
    """Return which records have one of these keys, as a mask of shape (R,)."""
    out = np.zeros(len(part.step), dtype=bool)
    for key in part.series.keys() & keys:
        out[np.asarray(part.series[key].record)] = True
    return out


def _points(part: RawLog, steps: Floats, keys: list[str], out: RunCurves) -> Floats:
    """Return the steps, values and seconds of a metric in one part, in log order, of shape (3, P)."""
    points = np.empty((3, 0))
    clock = np.asarray(part.wall_s, dtype=np.float64)
    used = ""
    for key in (key for key in keys if key in part.series):
        record, own_value = (
            np.asarray(column) for column in (part.series[key].record, part.series[key].value)
        )
        own_step = steps[record]
        numbered, sound = ~np.isnan(own_step), np.abs(own_value) <= _HUGE
        out.dropped["values without a step"] += int((~numbered).sum())
        out.dropped[f"values beyond {_HUGE:g}"] += int((numbered & ~sound).sum())
        # If a metric has an old and a new name, the first one is used.
        known = np.isin(own_step, points[0])
        if used and known.any():
            out.notes.append(f"{used} and {key} are one metric; isolaw uses the first")
        keep = numbered & sound & ~known
        out.mixed = out.mixed or mixing_problem(key, own_step[keep], own_value[keep])
        points = np.hstack([points, [own_step[keep], own_value[keep], clock[record][keep]]])
        used = used or key
    return points


def _later_wins(
    step: NDArray[np.int64], value: Floats, wall_s: Floats, tolerance: tuple[float, float]
) -> tuple[_MetricCurve, NDArray[np.int64], NDArray[np.int64]]:
    """Return the last value of each step, the repeated steps, and repeated steps with different values."""
    order = np.argsort(step, kind="stable")
    step, value, wall_s = step[order], value[order], wall_s[order]
    last = np.append(step[1:] != step[:-1], True)
    kept = value[last][np.cumsum(last) - last]  # for each value, the value that is kept at its step
    differs = ~np.isclose(value, kept, *tolerance)
    curve = _MetricCurve(step[last], value[last], wall_s[last])
    return curve, np.unique(step[~last]), np.unique(step[~last & differs])
