"""Two recipes (models, problem sets) compared by their learning curves, as ScaleRL does.

Khatri et al., arXiv 2510.13786: reward against compute is a Hill curve,

    R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B)

whose ceiling A says which recipe ends higher, and whose C_mid and B say which gets there sooner. A
curve fitted on the first half of the compute is to predict the end of the second. Here each (B_p, n)
that both have is compared, and the mean over them; the intervals come from draws of runs
(`isolaw.fits.surface.bootstrap`), each of which repeats all fits. Where both recipes ran the same seeds, the
draws take the runs of a seed together, so that what the recipes share cancels in their difference;
otherwise they are drawn apart.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from isolaw.errors import DataError, InputError, Refused
from isolaw.fits.curves.learning_curves import enough_points, fit_curves
from isolaw.fits.document.flags import Flag
from isolaw.fits.quantity import Quantity, Status, from_draws
from isolaw.fits.selection import Configuration, Floats, configurations_of, differing, measured_points
from isolaw.fits.studies.contrast import Comparison, Contrast, Row, verdict
from isolaw.fits.surface.bootstrap import Unit, resample
from isolaw.runs import Runs, plain

DRAWS = 400
MOST_DRAWS = 10_000
_FAR = 10.0  # times the compute measured: beyond, no reward is stated
_LOGARITHMS = ("C_mid",)  # kept as such, so that their mean is geometric and their difference a ratio
_SHOWN = ("A", "B", "C_mid")
_GRAVITY: list[Status] = ["ok", "not_identified", "refused"]


class Estimate(NamedTuple):
    """A number of one recipe: on the data, then on each draw, (1 + D,); and its status."""

    draws: Floats
    status: Status


def compare(
    first: Runs,
    second: Runs,
    metric: str = "avg@4",
    *,
    eval_set: str = "validation",
    compute: float | None = None,
    names: tuple[str, str] = ("first", "second"),
    bootstrap: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare two recipes.

    Parameters
    ----------
    first, second
        the runs of one recipe each.
    metric, eval_set
        what counts as reward.
    compute
        a budget in rollouts at which to compare rewards, too.
    names
        what the recipes are called.
    bootstrap, seed
        number of draws, 0 for no intervals; and their stream.

    Raises
    ------
    DataError
        the metric is not in both, or a source holds several recipes.
    Refused
        no configuration is in both.

    >>> import isolaw
    >>> def recipe(lr):
    ...     return isolaw.sweep({"sweep": {"compute": 100_000, "seeds": 2}, "recipe": {"lr": lr},
    ...         "problems": {"n_train": 200}, "grid": {"rollouts_per_problem": [16]},
    ...         "executor": {"kind": "inline"}})
    >>> found = compare(recipe(0.002), recipe(0.02), names=("slow", "fast"), bootstrap=50)
    >>> found.facts, found.paired, found.mean.rows["C_mid"].difference.value < 1
    ({'lr': (0.002, 0.02)}, True, True)
    """
    if compute is not None and not (math.isfinite(compute) and compute >= 1):
        raise InputError(f"compute {compute!r}: accepted: a positive number of rollouts")
    if not 0 <= bootstrap <= MOST_DRAWS:
        raise InputError(f"bootstrap {bootstrap}: accepted: draws up to {MOST_DRAWS}, 0 for none")
    notes: list[str] = []
    sides = [
        _side(runs, metric, eval_set, name, notes) for runs, name in zip((first, second), names, strict=True)
    ]
    keys = _common(sides, names, notes)
    mine = [[side[key] for key in keys] for side in sides]
    paired = all(a.seeds == b.seeds and a.runs > 1 for a, b in zip(*mine, strict=True))
    # One stream for both gives a seed's runs of both recipes the same weights.
    (samples_a, unit_a), (samples_b, unit_b) = (
        resample(own, "hill", bootstrap, seed if paired else 2 * seed + i) for i, own in enumerate(mine)
    )
    pairs = []
    for a, b, sample_a, sample_b in zip(*mine, samples_a, samples_b, strict=True):
        end = min(a.measured[1], b.measured[1])
        pairs.append((_estimates(a, sample_a, end, compute), _estimates(b, sample_b, end, compute)))
    contrasts = [
        Contrast([key], {name: _row(name, a[name], b[name]) for name in a})
        for key, (a, b) in zip(keys, pairs, strict=True)
    ]
    mean, unknown = _mean(keys, pairs)
    notes += [*unknown, *_notes(mine, names, (unit_a, unit_b), paired)]
    facts = _facts(first, second)
    if "problem_set" in facts:
        notes.append(
            "they differ in problem set: a ceiling may tell of the problems as much as of the recipe"
        )
    return Comparison(
        names, facts, metric, eval_set, compute, contrasts, mean, paired, (unit_a, unit_b),
        verdict(names, mean.rows, compute), notes,
    )  # fmt: skip


def _side(
    runs: Runs, metric: str, eval_set: str, name: str, notes: list[str]
) -> dict[tuple[int, int], Configuration]:
    """One recipe's configurations."""
    points = measured_points(runs, metric, eval_set)
    runs = runs.select(points["run_id"].unique())
    if mixed := differing(runs.table()):
        raise DataError(
            f"{runs.source or name}: the runs differ in {', '.join(mixed)}; "
            "each recipe needs a source of its own"
        )
    own: list[Flag] = []
    found = configurations_of(points, runs.table(), own)
    notes += [f"{name}: {note}" for note in (*runs.notes, *(flag.text for flag in own))]
    return {(c.problems_per_batch, c.rollouts_per_problem): c for c in found}


def _common(
    sides: list[dict[tuple[int, int], Configuration]], names: tuple[str, str], notes: list[str]
) -> list[tuple[int, int]]:
    keys = sorted(set(sides[0]) & set(sides[1]))
    alone = [sorted(set(side) - set(keys)) for side in sides]
    said = [f"{name} alone has {_listed(own)}" for name, own in zip(names, alone, strict=True) if own]
    if not keys:
        raise Refused(
            f"no (B_p, n) is in both recipes with 5 checkpoints ({'; '.join(said + notes)}). "
            "Run one configuration with both"
        )
    notes += [f"not compared: {text}" for text in said]
    return keys


def _listed(keys: list[tuple[int, int]]) -> str:
    return ", ".join(f"(B_p = {b}, n = {n})" for b, n in keys)


def _estimates(c: Configuration, sample: Floats, end: float, budget: float | None) -> dict[str, Estimate]:
    """All numbers of one recipe at one configuration."""
    at, reward = c.checkpoints, c.mean + sample
    whole = fit_curves(at, reward, c.runs_at[None], "hill")
    status: Status = "not_identified" if whole.open_ended[0] else "ok"
    values = whole.parameters()
    out = {
        name: Estimate(np.log(values[name]) if name in _LOGARITHMS else values[name], status)
        for name in _SHOWN
    }
    nothing = Estimate(np.full(len(reward), np.nan), "refused")
    out |= {"end": nothing, "predicted": nothing, "error": nothing}
    if np.any(at <= end):
        last = at[at <= end][-1]
        out["end"] = Estimate(reward[:, at == last][:, 0], "ok")
        half = at <= last / 2
        if enough_points(half.astype(np.float64)):
            early = fit_curves(at[half], reward[:, half], c.runs_at[None, half], "hill")
            out["predicted"] = Estimate(early(last)[:, 0], "ok")
            out["error"] = Estimate(early(last)[:, 0] - out["end"].draws, "ok")
    if budget is not None:
        known = budget <= _FAR * at[-1] and (budget <= at[-1] or status == "ok") and budget >= at[0]
        out["reward"] = Estimate(whole(budget)[:, 0], "ok" if known else "not_identified")
    return out


def _row(name: str, first: Estimate, second: Estimate) -> Row:
    both = max((first.status, second.status), key=_GRAVITY.index)
    each = (first, second, Estimate(second.draws - first.draws, both))
    found = [from_draws(float(e.draws[0]), e.draws[1:], e.status) for e in each]
    return Row(*(_exp(q) for q in found) if name in _LOGARITHMS else found)


def _exp(q: Quantity) -> Quantity:
    """Of a logarithm, the number."""
    value, *ends = (None if v is None else math.exp(v) for v in (q.value, *(q.interval or ())))
    return Quantity(value, (ends[0], ends[1]) if ends else None, q.status)


def _mean(
    keys: list[tuple[int, int]], pairs: list[tuple[dict[str, Estimate], dict[str, Estimate]]]
) -> tuple[Contrast, list[str]]:
    """The mean over configurations of each number, where it is known of both; and where it is not."""
    rows, unknown = {}, []
    for name in pairs[0][0]:
        known = [a[name].status == b[name].status == "ok" for a, b in pairs]
        if name == "A" and not all(known):
            unknown = [key for key, is_known in zip(keys, known, strict=True) if not is_known]
        used = [pair for pair, is_known in zip(pairs, known, strict=True) if is_known or not any(known)]
        means = []
        for side in range(2):
            each = [pair[side][name] for pair in used]
            status = max((e.status for e in each), key=_GRAVITY.index)
            means.append(Estimate(np.mean([e.draws for e in each], axis=0), status))
        rows[name] = _row(name, *means)
    rising = f"the ceiling is not determined at {_listed(unknown)}"
    return Contrast(keys, rows), [rising] if unknown else []


def _notes(
    sides: list[list[Configuration]], names: tuple[str, str], units: tuple[Unit, Unit], paired: bool
) -> list[str]:
    """What the intervals hold, and what they leave out."""
    out = []
    for side, name, unit in zip(sides, names, units, strict=True):
        if unit == "block":
            out.append(f"{name}: one seed, so its intervals leave out the variation between runs")
        elif unit == "lack of fit":
            out.append(
                f"{name}: one seed, so runs are taken to vary as they scatter about a smooth function of n"
            )
        elif single := [c.label for c in side if c.runs == 1]:
            out.append(f"{name}: one seed, taken to vary as the others do, at {'; '.join(single)}")
    seeds = [{s for c in side for s in c.seeds} for side in sides]
    if not paired and "block" not in units and seeds[0] & seeds[1]:
        out.append("the seeds are not the same everywhere, so the runs are not paired")
    return out


def _facts(first: Runs, second: Runs) -> dict[str, tuple[Any, Any]]:
    """In what the recipes differ."""
    tables = [
        runs.table().drop(columns=["problems_per_batch", "rollouts_per_problem", "seed"])
        for runs in (first, second)
    ]
    out = {}
    for name in dict.fromkeys([*tables[0].columns, *tables[1].columns]):
        a, b = (plain(t[name].iloc[0]) if name in t.columns else None for t in tables)
        if a != b:
            out[str(name)] = (a, b)
    return out
