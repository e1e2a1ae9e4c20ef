"""Numbers, counts and intervals as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isolaw.evidence import in_reward, interval, number
from isolaw.fits.laws.equations import signed

__all__ = ["columns", "count", "duration", "in_reward", "interval", "number", "share", "signed"]


def share(probability: float) -> str:
    """Return a share in percent, rounded down, so that 100 % means all draws.

    >>> share(0.995), share(1.0), share(0.29)
    ('99 %', '100 %', '29 %')
    """
    return f"{math.floor(100 * probability + 1e-9)} %"


def count(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1.

    >>> count(1, "run"), count(2000, "core")
    ('1 run', '2,000 cores')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a duration in at most two units.

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
    """Return the rows of a table as aligned lines.

    Each character of ``align`` is < or > for one column; the last one applies to all remaining columns.

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
