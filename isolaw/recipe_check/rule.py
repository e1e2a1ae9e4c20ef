"""Choose the next learning rates to try, given the measurements so far.

Candidates are lr_0 2^k, with the initial lr_0 and integer k. All functions are pure: the same rewards give
the same candidates. The best constant lr of a short run is too large for a long run, because it keeps the end
of the run noisy. The search therefore extrapolates the best lr over horizons::

    log2 lr*(C) = log2 lr*(h) + s log2(C / h),   s the slope over horizons up to h, within [−1, 0]

where lr*(C) is the best lr of a run to C, and h is the longest horizon of the search. The bounds of s are
those of SGD with a constant step size, between a constant lr and lr ∝ 1 / C. If noise hides a change of the
best lr, s counts as 0. The runs to C decide in any case; s only reduces their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

START = (-2, 0, 2)
FARTHEST = 12  # largest |k|, which is a factor of 4,096
_COARSE = 2

RewardByK = Mapping[int, float]  # k → mean reward; −inf if a run failed


def best(rewards: RewardByK) -> int:
    """Return the k with the highest reward; in a tie, the k with the smallest lr.

    >>> best({-2: 0.1, 0: 0.4, 2: 0.4})
    0
    """
    return max(sorted(rewards), key=lambda k: rewards[k])


def search(at: Sequence[RewardByK]) -> list[int]:
    """Return the k that the search tries next, in ascending order; an empty list ends the search.

    ``at`` contains the rewards at ascending horizons. While the best k at the last horizon is the smallest or
    largest k tried, the range grows by a factor of 4 in lr. Then the search tries the neighbours of the best
    k at each horizon.

    >>> search([{-2: 0.1, 0: 0.2, 2: 0.3}]), search([{0: 0.1, 2: 0.3, 4: 0.2}])
    ([4], [1, 3])
    """
    tried = at[-1]
    own = best(tried)
    if own in (min(tried), max(tried)):
        wanted = {own + (_COARSE if own == max(tried) else -_COARSE)}
        if wanted <= set(range(-FARTHEST, FARTHEST + 1)):
            return sorted(wanted)
    wanted = {k + side for rewards in at for k in [best(rewards)] for side in (-1, 1)}
    return sorted(k for k in wanted - tried.keys() if abs(k) <= FARTHEST)


def bracket(middle: int, rewards: RewardByK) -> list[int]:
    """Return the k to try next: ``middle`` and its neighbours, then more until the best k has two neighbours.

    >>> bracket(3, {}), bracket(3, {2: 0.5, 3: 0.4, 4: 0.1}), bracket(3, {1: 0.4, 2: 0.5, 3: 0.4, 4: 0.1})
    ([2, 3, 4], [1], [])
    """
    if missing := sorted({middle - 1, middle, middle + 1} - rewards.keys()):
        return missing
    own = best(rewards)
    wanted = {own - 1, own + 1} - rewards.keys()
    return sorted(k for k in wanted if abs(k) <= FARTHEST + 1)


def peak(rewards: RewardByK) -> float:
    """Return the k at the vertex of the parabola through the best reward and its neighbours.

    This k is generally not an integer. If there is no such parabola, the result is the best k itself.

    >>> round(peak({0: 0.3, 1: 0.5, 2: 0.4}), 3)
    1.167
    """
    k = best(rewards)
    below, top, above = (rewards.get(k + side, -np.inf) for side in (-1, 0, 1))
    bend = below - 2 * top + above
    if not np.isfinite(bend) or bend >= 0:
        return float(k)
    return k + 0.5 * (below - above) / bend


def slope(horizons: Sequence[float], at: Sequence[RewardByK]) -> float | None:
    """Return s, the change of log2 lr* per doubling of C, within [−1, 0], or None for a single horizon.

    >>> slope([1e5, 2e5], [{0: 0.1, 1: 0.2, 2: 0.1}, {0: 0.3, 1: 0.2, 2: 0.1}])
    -1.0
    """
    if len(horizons) < 2:
        return None
    found = np.polyfit(np.log2(horizons), [peak(rewards) for rewards in at], 1)[0]
    return float(np.clip(round(found, 9), -1.0, 0.0))
