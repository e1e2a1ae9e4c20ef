"""`Quantity`: an estimate, its interval if it has one, and whether it may be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolaw.fits.document.codec import encoded

Status = Literal["ok", "lower_bound", "upper_bound", "not_identified", "refused"]
Interval = tuple[float | None, float | None]
LEVEL = 0.95
# Below this share of draws that give the quantity at all, there is no interval.
_SHARE_NEEDED = 0.95
_NO_WIDTH = 1e-12


@dataclass(frozen=True)
class Quantity:
    """An estimated quantity.

    >>> Quantity(64.0, (32.0, None), "lower_bound").to_dict()
    {'value': 64.0, 'interval': [32.0, None], 'status': 'lower_bound'}
    """

    value: float | None  #: the estimate, None when refused
    #: 95 % interval over draws; an end is None when the data do not bound it; None when there is no interval
    interval: Interval | None = None
    #: ``ok``; ``lower_bound`` / ``upper_bound``: the truth may lie beyond; ``not_identified``: the data do
    #: not determine it; ``refused``: not stated
    status: Status = "ok"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return dict(encoded(self))


REFUSED = Quantity(None, None, "refused")


def from_draws(
    value: float,
    draws: ArrayLike,
    status: Status = "ok",
    levels: NDArray[np.int64] | None = None,
) -> Quantity:
    """Return ``value`` with the percentile interval of its draws.

    Parameters
    ----------
    value
        the estimate on the data themselves.
    draws
        one value per draw, or none at all; NaN where a draw does not have it, ±inf where it lies beyond what
        was measured, which opens that end.
    status
        ``lower_bound`` and ``upper_bound`` leave one end open; ``not_identified`` has no interval.
    levels
        for a measured n, the grid's n, ascending: the ends are drawn n, and an end at the grid's edge is
        open, since n is a bound there.

    A bound's own end is no further out than the estimate. Draws that do not vary give no interval: one of
    no width would claim that nothing is uncertain.

    >>> from_draws(2.0, [1.0, 2.0, 3.0]).interval
    (1.05, 2.95)
    """
    if not math.isfinite(value):
        return REFUSED
    value = float(value)
    d = np.asarray(draws, dtype=np.float64)
    known = d[~np.isnan(d)]
    if not d.size or status in ("not_identified", "refused"):
        return Quantity(value, None, status)
    if known.size < _SHARE_NEEDED * d.size:
        return Quantity(value, None, "not_identified" if status == "ok" else status)
    stepwise = levels is not None or not np.all(np.isfinite(known))

    def end(share: float) -> float:
        at = float(np.quantile(known, share, method="inverted_cdf" if stepwise else "linear"))
        if levels is None or levels[0] < at < levels[-1]:
            return at
        return -math.inf if at <= levels[0] else math.inf

    low, high = end((1 - LEVEL) / 2), end((1 + LEVEL) / 2)
    closed = status
    if status == "ok" and (low == -math.inf) != (high == math.inf):
        closed = "upper_bound" if low == -math.inf else "lower_bound"
    # With one end open, all of the 5 % that may be missed lie beyond the other.
    if closed == "lower_bound":
        low, high = end(1 - LEVEL), math.inf
    elif closed == "upper_bound":
        low, high = -math.inf, end(LEVEL)
    if closed == status != "ok":
        low, high = min(low, value), max(high, value)
    if not (math.isfinite(low) or math.isfinite(high)):
        return Quantity(value, None, "not_identified")
    if high - low <= _NO_WIDTH * abs(value):
        return Quantity(value, None, status)
    return Quantity(value, (finite(low), finite(high)), status)


def estimated(values: NDArray[np.float64], status: Status = "ok") -> Quantity:
    """Return the first value, the estimate, with the interval of the others, its draws."""
    return from_draws(values[0], values[1:], status)


def finite(value: float) -> float | None:
    """Return a finite number, None of any other."""
    return float(value) if math.isfinite(value) else None
