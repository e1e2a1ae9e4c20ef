"""Accuracies in percent become fractions, said so; rewards are never rescaled.

An accuracy above 1, and at most 100, is in percent, and then all of its run's are. Whether a run whose
accuracies stay below 1 is in percent too cannot be seen in it, so runs that differ are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from isolaw.metrics import is_accuracy
from isolaw.readers.resolve import only, option
from isolaw.readers.stitch import Curves, Target

_ABOVE_ONE = 1 + 1e-6


def to_fractions(runs: Mapping[str, Curves], said: Mapping[str, bool]) -> list[str]:
    """Divide by 100 what is in percent, in place; return the problems.

    Parameters
    ----------
    runs
        the curves of each run, by its name.
    said
        what the user set: whether a run's accuracies are in percent.
    """
    problems = []
    targets = dict.fromkeys(target for curves in runs.values() for target in curves.of)
    for target in targets:
        if is_accuracy(target[1]):
            problems += _convert(target, runs, said)
    return problems


def _convert(target: Target, runs: Mapping[str, Curves], said: Mapping[str, bool]) -> list[str]:
    name = f"{target[1]} on {target[0]}"
    percent: list[str] = []
    fractions: list[str] = []
    for run, curves in runs.items():
        if target not in curves.of:
            continue
        value = curves.of[target].value
        high = float(value.max())
        if run in said:
            (percent if said[run] else []).append(run)
        elif value.min() < 0 or high > 100:
            curves.notes.append(f"{name} goes from {value.min():g} to {high:g}: no accuracy, left as it is")
        elif high > _ABOVE_ONE:
            percent.append(run)
        elif high > 0:  # all zeros are the same in both
            fractions.append(run)
    seen = [run for run in percent if run not in said]
    if seen and fractions:
        one, other = seen[0], fractions[0]
        high, low = (float(runs[run].of[target].value.max()) for run in (one, other))
        return [
            f"{name} is in percent in {one} (up to {high:g}), but at most {low:g} in {other}"
            + (f" and {len(fractions) - 1} more" if len(fractions) > 1 else "")
            + f": say which it is there, with {option(only(other, runs), 'percent', 'true')} or =false"
        ]
    for run in percent:
        curves = runs[run]
        curve = curves.of[target]
        curves.notes.append(f"{name} was in percent (up to {curve.value.max():g}): divided by 100")
        curve.value = curve.value / 100
    return []
