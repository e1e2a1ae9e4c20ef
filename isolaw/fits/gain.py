"""Compute the gain of a larger budget: the reward of its best allocation minus the reward of today's best.

Today's compute is C0, the largest compute at which at least three n have a checkpoint, so that the runs show
the best n. Let a be the recommended allocation at C, and a0 the recommended allocation at C0. Each draw d of
the surface (`isolaw.fits.surface.estimate`) contains both rewards, so

    gain_d = r_d(a, C) − r_d(a0, C0)

Terms that both rewards share, such as the level of all rewards, cancel in this difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isolaw.errors import InputError
from isolaw.evidence import Quantity, estimated
from isolaw.fits.allocations import reached_compute, times_beyond
from isolaw.fits.document.codec import encoded
from isolaw.fits.law import Law
from isolaw.fits.prediction import Prediction

_LARGER = 1.1  # smallest multiple of today's compute with a gain, since runs of one C end up to a step apart


@dataclass(frozen=True)
class Gain:
    """The gain in reward of a prediction's budget over today's compute."""

    today: Prediction  #: prediction at today's compute, the largest compute that three n reached
    reward: Quantity  #: increase of the reward at the larger budget

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        names = ("compute", "rollouts_per_problem", "problems_per_batch", "steps", "reward")
        document = self.today.to_dict()
        today = {name: document[name] for name in names}
        return {"today": today, "reward": encoded(self.reward)}


def gain(law: Law, prediction: Prediction, **limits: Any) -> Gain | None:
    """Return the gain of the budget, or None if it is not beyond today's compute or cannot be compared.

    ``limits`` are the keyword arguments of `Law.predict`. A law of the method ``paper`` has no gain, since
    its draws do not contain two budgets jointly. A budget in hours has none if the law is in tokens.
    """
    document, best = law.document, prediction.allocation
    if law.surface is None or best is None:
        return None
    if prediction.asked and document.x.name not in ("compute", "steps"):
        return None
    budget = float(best.compute if prediction.asked else prediction.compute)
    reach = reached_compute(document.grid)
    if times_beyond(budget, document.grid) < _LARGER:
        return None
    try:
        today = law.predict(reach, **limits)
    except InputError:  # today's compute does not pay for a step within the cap
        return None
    best_today = today.allocation
    if best_today is None:
        return None
    log2_shapes = np.log2([(a.rollouts_per_problem, a.problems_per_batch) for a in (best, best_today)])
    reward = law.surface.drawn().rewards(log2_shapes[:, 0], log2_shapes[:, 1], np.array([budget, reach]))
    return Gain(today, estimated(reward[:, 0] - reward[:, 1]))
