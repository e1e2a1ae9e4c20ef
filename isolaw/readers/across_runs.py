"""What needs all runs together: percentages, copies of one run, and combinations that isolaw refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isolaw.metrics import is_accuracy
from isolaw.readers.frameworks.base import Fact, Target
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import only, option
from isolaw.readers.stitch import RunCurves
from isolaw.runs import listed

if TYPE_CHECKING:
    from isolaw.readers.assemble import LoggedRun

_SHOWN = 12
_ABOVE_ONE = 1 + 1e-6
_MOST_ALIKE = 50  # runs that one is compared with; more of one identity are refused whatever they hold
# Containers that round, the coarsest first: a console prints some digits, TensorBoard keeps 32 bits.
_ROUNDED = ("stdout-dicts", "verl-console", "tensorboard")
_BASE_BATCH = 1024
_LR_SPREAD = 1.02  # people write 7.1e-7
_BEYOND = 0.1  # of a copy's steps: one of two logs may have been cut off before the other
_LEAST_RANGE = 0.01  # a curve that moves less is no fingerprint


def most_exact_last(parts: Sequence[RawLog]) -> list[RawLog]:
    """Order the logs of one run so that of one step, the most exact one wins.

    A log without steps adds nothing to one with steps, and would put its values at wrong steps.
    """
    numbered = [part for part in parts if not np.isnan(np.asarray(part.step)).all()]
    kinds = {part.container for part in parts}
    if len(kinds) > 1 and numbered:
        kinds = {part.container for part in numbered}
        parts = [part for part in parts if part.container in kinds]
    rank = {name: i for i, name in enumerate(_ROUNDED)}
    return sorted(parts, key=lambda part: rank.get(part.container, len(rank)))


def to_fractions(runs: Mapping[str, RunCurves], percent: Mapping[str, bool]) -> list[str]:
    """Divide accuracies in percent by 100, in place; return the problems. Rewards are never rescaled.

    An accuracy above 1, and at most 100, is in percent, and then all of its run's are. A run whose accuracies
    stay below 1 may be in percent too, so runs that differ are refused, unless ``percent`` says it of a run.
    """
    problems = []
    for target in dict.fromkeys(target for curves in runs.values() for target in curves.of):
        if is_accuracy(target[1]):
            problems += _convert(target, runs, percent)
    return problems


def _convert(target: Target, runs: Mapping[str, RunCurves], given: Mapping[str, bool]) -> list[str]:
    name = f"{target[1]} on {target[0]}"
    percent: list[str] = []
    fractions: list[str] = []
    highest = {run: float(own.of[target].value.max()) for run, own in runs.items() if target in own.of}
    for run, high in highest.items():
        low = runs[run].of[target].value.min()
        if run in given:
            (percent if given[run] else []).append(run)
        elif low < 0 or high > 100:
            runs[run].notes.append(f"{name} goes from {low:g} to {high:g}: no accuracy, left as it is")
        elif high > _ABOVE_ONE:
            percent.append(run)
        elif high > 0:  # all zeros are the same in both
            fractions.append(run)
    detected = [run for run in percent if run not in given]
    if detected and fractions:
        one, other = detected[0], fractions[0]
        more = f" and {len(fractions) - 1} more" if len(fractions) > 1 else ""
        return [
            f"{name} is in percent in {one} (up to {highest[one]:g}), but at most {highest[other]:g} in "
            f"{other}{more}: say which it is there, with "
            f"{option(only(other, runs), 'percent', 'true')} or =false"
        ]
    for run in percent:
        runs[run].notes.append(f"{name} was in percent (up to {highest[run]:g}): divided by 100")
        runs[run].of[target].value = runs[run].of[target].value / 100
    return []


def mixed_policies(runs: Sequence[LoggedRun]) -> list[str]:
    """Return the problem of off-policy among on-policy runs."""
    known = [run for run in runs if "on_policy" in run.facts]
    on, off = ([run for run in known if run.facts["on_policy"].value is own] for own in (True, False))
    if not on or not off:
        return []
    lines = listed([f"{run.name} ({run.facts['on_policy'].origin})" for run in off], _SHOWN, "; ")
    glob = only(off[0].name, [run.name for run in runs])
    return [
        f"{len(off)} off-policy and {len(on)} on-policy runs together: off-policy are {lines}. "
        f"Leave them out, or, if you know better, {option(glob, 'on_policy', 'true')}"
    ]


def drop_half_known(runs: Sequence[LoggedRun]) -> None:
    """Leave out attributes that only some runs have: they cannot say whether the runs differ."""
    for name in sorted({name for run in runs for name in run.attributes}):
        if not all(name in run.facts for run in runs):
            for run in runs:
                if run.facts.pop(name, None):
                    run.notes.append(
                        f"{name} is not known of every run and was left out; --set {name}=… keeps it"
                    )


def base_learning_rates(runs: Sequence[LoggedRun]) -> None:
    """Where lr follows √B, replace it by the base lr at B = 1,024, as in an isolaw sweep: one recipe."""
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
        run.notes.append(f"lr follows √B in all runs: lr = {value:g} is the one at B = {_BASE_BATCH:,}")


def without_found_copies(runs: list[LoggedRun], searched: Collection[str]) -> list[LoggedRun]:
    """Keep the fuller of two logs of one run in a directory, such as a console and event files."""
    kept: dict[tuple[Any, ...], list[LoggedRun]] = {}
    left_out = set()
    for run in sorted(runs, key=lambda run: -sum(curve.step.size for curve in run.curves.of.values())):
        alike = kept.setdefault(run.identity, [])
        if set(run.sources) <= set(searched):
            twin = next((own for own in alike[:_MOST_ALIKE] if _copy(own.curves, run.curves)), None)
            if twin:
                twin.notes.append(f"found again in {', '.join(run.sources)} ({run.container}): left out")
                left_out.add(run.name)
                continue
        alike.append(run)
    return [run for run in runs if run.name not in left_out]


def same_identity(runs: Sequence[LoggedRun]) -> list[str]:
    """Return the problems of runs that have one configuration, seed and attributes."""
    groups: dict[tuple[Any, ...], list[LoggedRun]] = {}
    for run in runs:
        groups.setdefault(run.identity, []).append(run)
    names = [run.name for run in runs]
    return [_same_run_problem(group, names) for group in groups.values() if len(group) > 1]


def _same_run_problem(group: Sequence[LoggedRun], names: Sequence[str]) -> str:
    first, *others = group
    b, n, seed = (first.facts[k].value for k in ("problems_per_batch", "rollouts_per_problem", "seed"))
    copies = [run for run in others if _copy(first.curves, run.curves) or _copy(run.curves, first.curves)]
    text = (
        f"{listed([run.name for run in group], _SHOWN, ' and ')}: {len(group)} runs of one configuration and "
        f"seed (B_p = {b}, n = {n}, seed {seed})"
    )
    if copies:
        where = listed([source for run in copies for source in run.sources], _SHOWN)
        text += f". Their values are identical: the same run twice? Leave out {where}"
    if len(copies) < len(others):
        new = [run for run in others if run not in copies]
        globs = [only(run.name, names) for run in new[:_SHOWN]]
        add = " ".join(option(glob, "seed", seed + i) for i, glob in enumerate(globs, 1))
        text += (
            f". If they are repetitions: {add}{' …' if len(new) > _SHOWN else ''}"
            f"; if they differ in what no log says: {option(globs[0], '<name>', '<value>')}"
            "; if one continues the other: --group-by directory, or a key of the configuration"
        )
    return text


def _copy(a: RunCurves, b: RunCurves) -> bool:
    """Return whether ``b`` repeats ``a``: they agree wherever both measured, and both did somewhere.

    A run that goes on beyond the other was resumed, and is no copy.
    """
    compared = 0
    for target in a.of.keys() & b.of.keys():
        one, other = a.of[target], b.of[target]
        _, i, j = np.intersect1d(one.step, other.step, assume_unique=True, return_indices=True)
        # TensorBoard keeps 32-bit numbers and consoles print few digits, so nearly equal is equal.
        if not np.allclose(one.value[i], other.value[j], rtol=1e-4, atol=6e-4):
            return False
        if i.size and np.ptp(one.value[i]) > _LEAST_RANGE:  # two runs that are 0 throughout differ anyway
            compared += i.size
    if compared < 2 or a.steps is None:
        return False
    steps = np.unique(np.concatenate([curve.step for curve in b.of.values()]))
    return bool(np.mean((steps < a.steps[0]) | (steps > a.steps[1])) <= _BEYOND)
