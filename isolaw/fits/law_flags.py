"""Derive the flags of a fitted law, which warn users about the limits of its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from isolaw.evidence import amount, in_reward
from isolaw.fits.allocations import reached_compute
from isolaw.fits.document.schema import CurveEntry, LawDocument
from isolaw.fits.flags import Code, Flag
from isolaw.fits.frontier import NStarPath
from isolaw.fits.selection import Selection
from isolaw.fits.surface.estimate import FEW
from isolaw.fits.surface.slices import equal
from isolaw.runs import SYMBOL_OF

_LEAST_RISE = 1e-6  # smallest difference that counts as a rise, in units of reward


def flags_of(
    selection: Selection, path: NStarPath, document: LawDocument, scale: float, falls: Sequence[float]
) -> tuple[Flag, ...]:
    """Return the flags of a law, most serious first. ``falls`` is how far each configuration's reward fell.

    If the reward never changed, nothing else is worth a flag. All runs are then copies of one another.
    """
    rewards = np.concatenate([c.reward for c in selection.configurations])
    if equal(rewards.max(), rewards.min(), document.unit):
        text = f"the reward never changed: {document.metric} is {rewards[0]:.3g} at all checkpoints"
        return (Flag(Code.FLAT, text), *(flag for flag in selection.flags if flag.code != Code.COPIES))
    return (
        *_interval_flags(document),
        *_n_star_flags(path, document, scale),
        *_curve_flags(document, falls),
        *_reward_flags(selection, document),
        *_fit_flags(document),
        *selection.flags,
    )


def _interval_flags(document: LawDocument) -> Iterator[Flag]:
    unit, lone_runs = document.bootstrap.unit, "; ".join(c.label for c in document.grid if c.runs == 1)
    if unit == "block":
        yield Flag(Code.ONE_SEED, "with one seed per configuration, intervals leave out how seeds differ")
    elif unit == "lack of fit":
        n = SYMBOL_OF[document.axis]
        text = (
            f"with one seed per {n}, isolaw takes the scatter of runs about a smooth function of {n} for the "
        )
        text += "variation between seeds"
        yield Flag(Code.ONE_SEED, text)
    elif all(c.runs == 2 for c in document.grid):
        n = SYMBOL_OF[document.axis]
        text = f"with two seeds per {n}, the error bars are rough"
        yield Flag(Code.TWO_SEEDS, text)
    elif lone_runs:
        text = f"one seed at {lone_runs}: isolaw assumes that seeds differ there as much as elsewhere"
        yield Flag(Code.LONE_RUNS, text)
    effective = 0.0 if document.surface is None else document.surface.effective
    if 0 < effective < FEW:
        text = f"the draws count as only {effective:.2g} independent ones, so isolaw widens the intervals"
        yield Flag(Code.LACK_OF_FIT, text)


def _n_star_flags(path: NStarPath, document: LawDocument, scale: float) -> Iterator[Flag]:
    symbol, n = "M" if document.hold == "B" else "C", SYMBOL_OF[document.axis]
    at_top = path.compute[path.at_top[0]] * scale
    if at_top.size:
        text = (
            f"above {symbol} = {amount(at_top.min())}, the largest measured {n}, {path.levels[-1]}, is the "
            f"best: {n}* may be larger"
        )
        yield Flag(Code.GRID_EDGE, text)
    uncompared = [point.x for point in document.frontier if "neighbour" in point.censored_by]
    if uncompared:
        text = f"from {symbol} = {amount(min(uncompared))} to {amount(max(uncompared))}, "
        if document.method == "paper":
            text += f"no neighboring {n} was measured"
        else:
            reach = reached_compute(document.grid) * scale
            text += f"{n}* is not known: fewer than three {n} ran past {symbol} = {amount(reach)}"
        yield Flag(Code.CENSORED, text)
    if not document.comparison.monotone:
        yield Flag(Code.NOT_MONOTONE, f"{n}* falls at larger budgets, which a monotone law cannot describe")


def _curve_flags(document: LawDocument, falls: Sequence[float]) -> Iterator[Flag]:
    undetermined: dict[bool, list[str]] = {False: [], True: []}  # keyed by whether the curve is flat
    for curve in document.curves:
        if curve.ceiling == "open":
            undetermined[_never_rises(curve, document.unit)].append(curve.label)
    if undetermined[False]:
        text = "curves still rise at the end, so the runs do not determine the ceiling A: "
        yield Flag(Code.STILL_RISING, text + "; ".join(undetermined[False]))
    if undetermined[True]:
        text = "rewards are flat or fall, which a learning curve cannot describe: "
        yield Flag(Code.FLAT_CURVES, text + "; ".join(undetermined[True]))
    count = sum(fall > document.tolerance for fall in falls)
    if 2 * count > len(falls):
        worst_level = document.grid[int(np.argmax(falls))].level(document.axis)
        fall = in_reward(max(falls), document.tolerance, 3)
        text = (
            f"rewards fall late in training, by more than {document.tolerance:g} at {count} of {len(falls)} "
            f"configurations and by {fall} at {SYMBOL_OF[document.axis]} = {worst_level}"
        )
        too_high = ", which a learning curve cannot describe: predicted rewards are too high by as much"
        yield Flag(Code.LATE_FALL, text + too_high * (document.method == "paper"))


def _reward_flags(selection: Selection, document: LawDocument) -> Iterator[Flag]:
    rewards = np.concatenate([c.reward for c in selection.configurations])
    span, tolerance = np.ptp(rewards), document.tolerance
    if span < 10 * tolerance:
        text = f"all rewards are within {span:.2g} of each other, which makes {tolerance:g} a wide tolerance"
        yield Flag(Code.NARROW_REWARDS, text)
    if document.unit != 1:
        text = (
            f"{document.metric} goes from {rewards.min():.3g} to {rewards.max():.3g}: isolaw counts rewards "
            f"within {tolerance:g} of each other as equal (within 0.005 for an accuracy in [0, 1])"
        )
        yield Flag(Code.REWARD_SCALE, text)


def _fit_flags(document: LawDocument) -> Iterator[Flag]:
    if document.bootstrap.failed:
        text = f"{document.bootstrap.failed} bootstrap draws failed: {document.bootstrap.reasons}"
        yield Flag(Code.FAILED_DRAWS, text)


def _never_rises(curve: CurveEntry, unit: float) -> bool:
    """Return whether a curve's ceiling is not noticeably above its start.

    The result is False for ``power``, which has no start or ceiling parameter.
    """
    values = [curve.parameters[name].value for name in ("R0", "A") if name in curve.parameters]
    numbers = [value for value in values if value is not None]
    return len(numbers) == 2 and numbers[1] - numbers[0] <= _LEAST_RISE * unit
