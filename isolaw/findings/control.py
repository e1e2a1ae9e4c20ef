"""The lr control: F1 with η re-tuned for every n and C.

A larger n at lr ∝ √B lowers the noise as a smaller lr would, so that part of "n* rises" may be a learning
rate that is annealed. The same choice as in `isolaw.fits.studies.retune`, on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isolaw.findings.estimate import Floats, leave_one_out
from isolaw.findings.finding import Finding
from isolaw.findings.rules import rises


def retuned(values: Floats) -> tuple[Floats, Floats]:
    """Re-tune η for every n and C.

    Parameters
    ----------
    values
        rewards (S, N, X, L) over L values of η.

    Returns
    -------
    Rewards (S, N, X) of each seed at the η that is best on the others (on itself it would be flattered),
    and how often each η was chosen, (L,).
    """
    others = leave_one_out(values)[1:]
    # An η that any run diverged with is not used.
    usable = np.where(np.isfinite(others) & np.isfinite(values).all(axis=0), others, -np.inf)
    choice = usable.argmax(axis=3)
    chosen = np.take_along_axis(values, choice[..., None], axis=3)[..., 0]
    known = np.isfinite(usable.max(axis=3))
    share = np.bincount(choice[known], minlength=values.shape[3]) / max(int(known.sum()), 1)
    return np.where(known, chosen, np.nan), share


def control(
    name: str, levels: Sequence[int], values: Floats, tuned: Floats, factors: Sequence[float], share: Floats
) -> Finding:
    """The lr control: how much of the rise is left when η is re-tuned at each C and n (see `retuned`)."""
    found = rises(name, levels, tuned, key="F1 lr", how=", with η re-tuned at each n and C")
    rule = rises(name, levels, values).effect
    edges = ", ".join(f"{100 * share[i]:.0f} % at η × {factors[i]:g}" for i in (0, -1))
    notes = (
        f"the square-root rule rises by {rule.value:.2f} doublings; chosen at the ends of its grid: {edges}",
    )
    return replace(found, notes=(*found.notes, *notes))
