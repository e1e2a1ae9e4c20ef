"""`Quantity`: an estimate, its interval if it has one, and whether it may be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Status = Literal["ok", "lower_bound", "upper_bound", "not_identified", "refused"]
Interval = tuple[float | None, float | None]
LEVEL = 0.95
# Below this share of draws that give the quantity at all, there is no interval.
_SHARE_NEEDED = 0.95
_NO_WIDTH = 1e-12


@dataclass(frozen=True)
class Quantity:
    """An estimated quantity.

    Attributes
    ----------
    value
        the estimate, None when refused.
    interval
        95 % interval over bootstrap draws; an end is None when the data do not bound it; None when
        there is no interval.
    status
        ``ok``; ``lower_bound`` / ``upper_bound``: the truth may lie beyond; ``not_identified``: the
        data do not determine it; ``refused``: not stated.

    >>> Quantity(64.0, (32.0, None), "lower_bound").to_dict()
    {'value': 64.0, 'interval': [32.0, None], 'status': 'lower_bound'}
    """

    value: float | None
    interval: Interval | None = None
    status: Status = "ok"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data without NaN."""
        interval = None if self.interval is None else [_finite(v) for v in self.interval]
        return {"value": _finite(self.value), "interval": interval, "status": self.status}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Quantity:
        """Invert `to_dict`."""
        interval = data["interval"]
        return cls(data["value"], tuple(interval) if interval is not None else None, data["status"])


REFUSED = Quantity(None, None, "refused")


def from_draws(
    value: float,
    draws: ArrayLike | None,
    status: Status = "ok",
    levels: NDArray[np.int64] | None = None,
) -> Quantity:
    """Return ``value`` with the percentile interval of its draws.

    Parameters
    ----------
    value
        the estimate on the data themselves.
    draws
        one value per bootstrap draw; NaN where the draw does not have it, ±inf where it lies beyond
        what was measured (which opens that end); None: no bootstrap.
    status
        ``lower_bound`` and ``upper_bound`` leave one end open; ``not_identified`` has no interval.
    levels
        for a measured n, the grid's n, ascending: the ends are n that were drawn, and an end at the
        grid's edge is open, since there n is a bound.

    A bound's own end is no further out than the estimate. Draws that do not vary give no interval: one of
    no width would claim that nothing is uncertain.

    >>> from_draws(2.0, [1.0, 2.0, 3.0]).interval
    (1.05, 2.95)
    """
    if not math.isfinite(value):
        return REFUSED
    value = float(value)
    d = np.asarray(draws if draws is not None else [], dtype=np.float64)
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
    return Quantity(value, (_finite(low), _finite(high)), status)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
