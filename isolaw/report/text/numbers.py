"""Numbers, counts and intervals as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isolaw.fits.quantity import Quantity


def number(value: float | None) -> str:
    """Return a number with three digits, or all digits of a whole number below a million.

    >>> number(1e7), number(65536), number(0.68341), number(None)
    ('1e+07', '65,536', '0.683', 'unknown')
    """
    if value is None:
        return "unknown"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def signed(value: float) -> str:
    """Return three digits with a true minus sign."""
    return f"{value:.3g}".replace("-", "−")


def interval(ends: Sequence[float | None]) -> str:
    """Return a 95 % interval; an open end makes it a bound.

    >>> interval((32.0, 128.0)), interval((None, 128.0))
    ('95 % interval: 32–128', '95 % bound: at most 128')
    """
    low, high = ends
    if low is None:
        return f"95 % bound: at most {number(high)}"
    if high is None:
        return f"95 % bound: at least {number(low)}"
    dash = " to " if "e" in number(low) or low < 0 else "–"
    return f"95 % interval: {number(low)}" + ("" if low == high else f"{dash}{number(high)}")


def quantity(q: Quantity) -> str:
    """Return an estimate with its interval and status.

    >>> from isolaw.fits.quantity import Quantity
    >>> quantity(Quantity(64.0, (32.0, None), "lower_bound"))
    '64, perhaps more (95 % bound: at least 32)'
    """
    if q.value is None:
        return "not stated"
    bound = {"lower_bound": ", perhaps more", "upper_bound": ", perhaps less"}.get(q.status, "")
    text = f"{number(q.value)}{bound}"
    if q.interval is not None:
        return f"{text} ({interval(q.interval)})"
    return f"{text} (not identified)" if q.status == "not_identified" else text


def share(probability: float) -> str:
    """Return a share in percent, rounded down: only all draws are 100 %.

    >>> share(0.995), share(1.0), share(0.29)
    ('99%', '100%', '29%')
    """
    return f"{math.floor(100 * probability + 1e-9)}%"


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "run"), count(2000, "core")
    ('1 run', '2,000 cores')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time in at most two units.

    >>> duration(42), duration(600), duration(9000), duration(200_000)
    ('42 s', '10 min', '2 h 30 min', '2 d 8 h')
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def columns(rows: Sequence[Sequence[str]], align: str = "<") -> list[str]:
    """Return the lines of a table; ``align`` has < or > for each column, its last for the others.

    >>> columns([["n", "reward"], ["128", "0.5"]], align="<>")
    ['n    reward', '128     0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return [
        "  ".join(
            f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
