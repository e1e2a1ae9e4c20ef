"""The laws side by side: what each takes for parameters, and what it loses, also on held-out seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.frontier import trace as frontiers
from isolaw.fits.frontier.trace import Path
from isolaw.fits.law_document import Comparison, LawEntry
from isolaw.fits.laws.along import along
from isolaw.fits.laws.compare import LAWS, LEAST_KNOTS, Fitted, knots, preferred, refit, regret, summary
from isolaw.fits.quantity import LEVEL
from isolaw.fits.selection import LEAST_CHECKPOINTS, Configuration, Selection
from isolaw.fits.surface.polynomial import Surface, surface_of

LEAST_SEEDS = 3  # of each configuration, to prefer one law to another


def held_out_regret(
    selection: Selection, family: str, laws: Mapping[str, Fitted], compute: NDArray[np.float64]
) -> dict[str, float] | None:
    """Each law's regret on the surface of one seed, when fitted on the others; the mean over seeds.

    The laws keep their form; their parameters are those of least squares on the others' ridge, since one or
    two seeds have no covariance. None unless all configurations share at least two seeds, and each seed, and
    all but it, has the checkpoints of a curve and three n together.
    """
    configurations = selection.configurations
    seeds = configurations[0].seeds
    if len(set(seeds)) < 2 or any(c.seeds != seeds for c in configurations):
        return None
    losses: dict[str, list[float]] = {name: [] for name in laws}
    for held in range(len(seeds)):
        parts = [[_only(c, held, keep) for c in configurations] for keep in (False, True)]
        if any(c.checkpoints.size < LEAST_CHECKPOINTS for part in parts for c in part):
            return None
        training, judging = (surface_of(part, family, compute) for part in parts)
        if knots(training).size < LEAST_KNOTS or not judging.defined.any():
            return None
        ridge = training.ridge()
        for name in laws:
            log2_n = refit(name, compute, ridge, laws[name])
            found = summary(regret(judging, log2_n))
            if found is not None:
                losses[name].append(found.mean_regret)
    return {name: float(np.mean(values)) for name, values in losses.items() if values}


def _only(c: Configuration, held: int, keep: bool) -> Configuration:
    """The configuration with the held-out run alone, or without it."""
    chosen = (c.run == held) == keep
    run = np.unique(c.run[chosen], return_inverse=True)[1]
    seeds = tuple(s for i, s in enumerate(c.seeds) if (i == held) == keep)
    return replace(c, compute=c.compute[chosen], reward=c.reward[chosen], run=run, seeds=seeds)


def side_by_side(
    comparison: Comparison,
    surface: Surface,
    path: Path,
    laws: Mapping[str, Fitted],
    held_out: Mapping[str, float] | None,
) -> Comparison:
    """Return the comparison with the laws side by side: parameters along n*, likelihood, what each loses."""
    x = np.log10(path.compute)
    out: dict[str, LawEntry] = {}
    for name, law in laws.items():
        theta = along(name, surface, path)
        ends = np.quantile(theta[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0) if len(theta) > 1 else None
        lost = summary(regret(surface, LAWS[name][1](x, theta[0])))
        assert lost is not None  # laws are fitted only to a surface that is defined somewhere
        out[name] = LawEntry(
            lost.mean_regret,
            lost.max_regret,
            theta=tuple(theta[0].tolist()),
            interval=None if ends is None else tuple((low, high) for low, high in ends.T.tolist()),
            chi2=law.chi2,
            aic=law.aic,
            held_out_regret=None if held_out is None else held_out.get(name),
        )
    best = preferred(dict(laws))
    flat = out["constant"].max_regret <= frontiers.TOLERANCE
    return replace(comparison, laws=out, preferred=best, verdict="constant" if flat else best)


def enough(comparison: Comparison, configurations: Sequence[Configuration]) -> Comparison:
    """Return the comparison with the fewest seeds, and why these cannot carry a preference among laws.

    Two runs of a configuration differ once: a draw repeats that difference, so that the likelihoods of laws
    follow from which two seeds were run, and the law of least AIC changes with them.
    """
    seeds = min(c.runs for c in configurations)
    return replace(comparison, refused="few_seeds" if seeds < LEAST_SEEDS else None, seeds=seeds)


def stated(comparison: Comparison) -> Comparison:
    """Return the comparison with its preferences, or with None in their place where they are refused."""
    return comparison if comparison.refused is None else replace(comparison, preferred=None, verdict=None)
