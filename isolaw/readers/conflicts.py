"""Refusals that concern several runs: off-policy among on-policy, one run twice, attributes half known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isolaw.readers.frameworks.base import Fact
from isolaw.readers.raw import RawLog
from isolaw.readers.resolve import only, option
from isolaw.readers.stitch import Curves

if TYPE_CHECKING:
    from isolaw.readers.logged import LoggedRun

_SHOWN = 12
_MOST_ALIKE = 50  # runs that one is compared with; more of one identity are refused whatever they hold
# A console prints some digits, TensorBoard keeps 32 bits, the others all.
_EXACTNESS = {"printed dictionaries": 0, "veRL console": 1, "TensorBoard events": 2}
_BASE_BATCH = 1024
_ROUNDED = 1.02  # people write 7.1e-7
_BEYOND = 0.1  # of a copy's steps: one way of writing may have been cut off before another
_TELLING = 0.01  # a curve that moves less is no fingerprint


def most_exact_last(parts: Sequence[RawLog]) -> list[RawLog]:
    """One run may be told in several ways: where they tell of the same step, the most exact is to win.

    A way that numbers nothing has nothing to add to one that does, and would put its values at wrong steps.
    """
    numbered = [part for part in parts if not np.isnan(np.asarray(part.step)).all()]
    ways = {part.container for part in parts}
    if len(ways) > 1 and numbered:
        ways = {part.container for part in numbered}
        parts = [part for part in parts if part.container in ways]
    return sorted(parts, key=lambda part: _EXACTNESS.get(part.container, len(_EXACTNESS)))


def mixed_policies(runs: Sequence[LoggedRun]) -> list[str]:
    on = [run for run in runs if (fact := run.facts.get("on_policy")) and fact.value]
    off = [run for run in runs if (fact := run.facts.get("on_policy")) and not fact.value]
    if not on or not off:
        return []
    lines = "; ".join(f"{run.name} ({run.facts['on_policy'].origin})" for run in off[:_SHOWN])
    more = f" and {len(off) - _SHOWN} more" if len(off) > _SHOWN else ""
    glob = only(off[0].name, [run.name for run in runs])
    return [
        f"{len(off)} off-policy and {len(on)} on-policy runs together: off-policy are {lines}{more}. "
        f"Leave them out, or, if you know better, {option(glob, 'on_policy', 'true')}"
    ]


def drop_half_known(runs: Sequence[LoggedRun]) -> None:
    """An attribute that only some runs know cannot say whether they differ: it is left out of all."""
    for name in sorted({name for run in runs for name in run.attributes}):
        if not all(name in run.facts for run in runs):
            for run in runs:
                if run.facts.pop(name, None):
                    run.notes.append(
                        f"{name} is not known of every run and was left out; --set {name}=… keeps it"
                    )


def base_learning_rates(runs: Sequence[LoggedRun]) -> None:
    """Where lr follows √B, runs share one base lr, at B = 1,024, as in a sweep of ours: no two recipes."""
    lrs = [run.facts["lr"].value if "lr" in run.facts else None for run in runs]
    if len(set(lrs)) < 2 or not all(isinstance(lr, int | float) and lr > 0 for lr in lrs):
        return
    rollouts = np.array([run.facts["rollouts_per_step"].value for run in runs], dtype=np.float64)
    base = np.array(lrs, dtype=np.float64) * np.sqrt(_BASE_BATCH / rollouts)
    if base.max() > base.min() * _ROUNDED:
        return
    value = float(f"{np.median(base):.3g}")
    for run in runs:
        old = run.facts["lr"]
        run.facts["lr"] = Fact(value, f"of B = {_BASE_BATCH:,}; {old.value} here: {old.origin}")
        run.facts["lr_scaling"] = Fact("sqrt", "lr follows √B in all runs")
        run.notes.append(f"lr follows √B in all runs: lr = {value:g} is that of B = {_BASE_BATCH:,}")


def without_found_copies(runs: list[LoggedRun], searched: Collection[str]) -> list[LoggedRun]:
    """One run may lie in a directory twice, as a console and as event files: the fuller one is kept."""
    kept: dict[tuple[Any, ...], list[LoggedRun]] = {}
    left_out = set()
    for run in sorted(runs, key=lambda r: -_points(r)):
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
    groups: dict[tuple[Any, ...], list[LoggedRun]] = {}
    for run in runs:
        groups.setdefault(run.identity, []).append(run)
    problems = []
    for first, *others in groups.values():
        if not others:
            continue
        b, n, seed = (
            first.facts[name].value for name in ("problems_per_batch", "rollouts_per_problem", "seed")
        )
        among = [run.name for run in (first, *others)]
        names = " and ".join(among[:_SHOWN]) + (
            f" and {len(among) - _SHOWN:,} more" if len(among) > _SHOWN else ""
        )
        same = [run for run in others if _copy(first.curves, run.curves) or _copy(run.curves, first.curves)]
        said = (
            f"{names}: {len(others) + 1} runs of one configuration and seed (B_p = {b}, n = {n}, seed {seed})"
        )
        if same:
            sources = [source for run in same for source in run.sources]
            where = ", ".join(sources[:_SHOWN]) + (", …" if len(sources) > _SHOWN else "")
            said += f". Their values are identical: the same run twice? Leave out {where}"
        if len(same) < len(others):
            new = [run for run in others if run not in same]
            globs = [only(run.name, [own.name for own in runs]) for run in new[:_SHOWN]]
            add = " ".join(option(glob, "seed", seed + i) for i, glob in enumerate(globs, 1))
            add += " …" if len(new) > _SHOWN else ""
            said += f". If they are repetitions: {add}"
            said += f"; if they differ in what no log says: {option(globs[0], '<name>', '<value>')}"
            said += "; if one continues the other: --group-by directory, or a key of the configuration"
        problems.append(said)
    return problems


def _copy(a: Curves, b: Curves) -> bool:
    """Return whether ``b`` tells what ``a`` does; what goes on beyond it was resumed, and is no copy."""
    if not same_curves(a, b) or a.steps is None:
        return False
    steps = np.unique(np.concatenate([curve.step for curve in b.of.values()]))
    return bool(np.mean((steps < a.steps[0]) | (steps > a.steps[1])) <= _BEYOND)


def same_curves(a: Curves, b: Curves) -> bool:
    """Return whether two runs agree wherever both measured, and both did somewhere.

    TensorBoard keeps 32-bit numbers and consoles print few digits, so nearly equal is equal.
    """
    compared = 0
    for target in a.of.keys() & b.of.keys():
        one, other = a.of[target], b.of[target]
        _, i, j = np.intersect1d(one.step, other.step, assume_unique=True, return_indices=True)
        if not np.allclose(one.value[i], other.value[j], rtol=1e-4, atol=6e-4):
            return False
        if i.size and np.ptp(one.value[i]) > _TELLING:  # that both are 0 throughout says nothing
            compared += i.size
    return compared > 1


def _points(run: LoggedRun) -> int:
    return sum(curve.step.size for curve in run.curves.of.values())
