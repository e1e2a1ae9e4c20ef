"""Define `Simulated`, the label that states whether a result comes from simulated runs, and `Quantity`.

Runs count as simulated if a simulator made them, even if they are replayed. All output carries the
`Simulated` of its runs: text and figures begin with its `words`, and JSON contains its `json`.

A `Quantity` is an estimate, with an interval if it has one, and a status that shows how reliable it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from isolaw.registry import traits

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

COLUMN = "simulated"  # column in tables that isolaw writes
_TRUE_TEXTS = {"true", "1", "1.0"}
Status = Literal["ok", "lower_bound", "upper_bound", "not_identified", "refused"]
Interval = tuple[float | None, float | None]
LEVEL = 0.95
# There is no interval if less than this share of the draws has a value.
_LEAST_SHARE = 0.95
_LEAST_WIDTH = 1e-12


class Simulated(Enum):
    """Whether a simulator made any of the runs; a mixture of simulated and real runs counts as simulated.

    >>> [each.json for each in Simulated]
    [False, True]
    """

    NO = "no"
    YES = "yes"

    def __bool__(self) -> bool:
        """Return whether a simulator made any of the runs."""
        return self is not Simulated.NO

    @classmethod
    def among(cls, marks: Iterable[object]) -> Simulated:
        """Return the label of several parts together, given the labels (or booleans) of the parts.

        >>> Simulated.among([True, False]), Simulated.among([Simulated.NO]), Simulated.among([])
        (<Simulated.YES: 'yes'>, <Simulated.NO: 'no'>, <Simulated.NO: 'no'>)
        """
        return cls.YES if any(marks) else cls.NO

    @classmethod
    def of(cls, runs: Iterable[Mapping[str, Any]]) -> Simulated:
        """Return the label of runs, given the attributes of each run."""
        return cls.among(traits(run.get("backend")).simulated for run in runs)

    @classmethod
    def of_table(cls, table: pd.DataFrame) -> Simulated:
        """Return the label of a table of runs, according to `simulated_rows`."""
        return cls.among(simulated_rows(table))

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Simulated:
        """Return the label in the key ``simulated`` of a document.

        A document without the key is not simulated.
        """
        return cls.among([document.get("simulated")])

    @property
    def json(self) -> bool:
        """The value of the key ``simulated`` in JSON."""
        return bool(self)

    @property
    def words(self) -> str:
        """The label of the runs; empty if no simulator made any of them."""
        return "simulated" if self else ""

    def first(self, text: str) -> str:
        """Return a text, preceded by the label if the runs are simulated.

        >>> Simulated.YES.first("n = 8."), Simulated.NO.first("n = 8.")
        ('Simulated runs. n = 8.', 'n = 8.')
        """
        return f"{self.words.capitalize()} runs. {text}".rstrip() if self else text

    def lines(self, lines: Iterable[str]) -> list[str]:
        """Return lines, preceded by the label if the runs are simulated. It replaces an empty first line.

        >>> Simulated.YES.lines(["", "n  reward"]), Simulated.NO.lines(["", "n  reward"])
        (['Simulated runs.', 'n  reward'], ['n  reward'])
        """
        first, *others = [*lines] or [""]
        return [line for line in [self.first(first)] if line] + others

    def title(self, text: str) -> str:
        """Return a title, preceded by the label if the runs are simulated.

        >>> Simulated.YES.title("the best n")
        'simulated runs: the best n'
        """
        return f"{self.words} runs: {text}" if self else text


def simulated_rows(table: pd.DataFrame) -> list[bool]:
    """Return whether each row of a table is simulated, from the column ``simulated`` or ``backend``."""
    from_column = [str(value).lower() in _TRUE_TEXTS for value in table[COLUMN]] if COLUMN in table else []
    from_backend = [traits(value).simulated for value in table["backend"]] if "backend" in table else []
    return [any(pair) for pair in zip(from_column or from_backend, from_backend or from_column, strict=True)]


def number(value: float | None) -> str:
    """Return a number as text with three significant digits; whole numbers below 100,000 keep all digits.

    Large numbers have a format that is accepted as a budget (`isolaw.step_cost.parse_budget`).

    >>> number(1e7), number(393_216), number(65536), number(0.68341), number(None)
    ('1e7', '3.93e5', '65,536', '0.683', 'unknown')
    """
    if value is None:
        return "unknown"
    if abs(value) >= 99_999.5:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
    if value == int(value):
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def amount(value: float) -> str:
    """Return a number of rollouts (or of another unit of a budget) as people write it.

    >>> amount(148_224), amount(2e6), amount(65_536), amount(1.2e9), amount(320)
    ('148k', '2M', '65.5k', '1.2B', '320')
    """
    if not 1000 <= abs(value) < 1e12:
        return number(value)
    rounded = float(f"{value:.3g}")
    units = ((1e9, "B"), (1e6, "M"), (1e3, "k"))
    size, letter = next(unit for unit in units if abs(rounded) >= unit[0])
    return f"{rounded / size:,.15g}{letter}"


def in_reward(value: float, tolerance: float, digits: int = 4) -> str:
    """Return a loss or a difference of rewards as text, with ``digits`` decimals if the tolerance is 0.005.

    >>> in_reward(0.00231, 0.005), in_reward(0.231, 0.5), in_reward(2.31e-5, 5e-5), in_reward(23.1, 50.0)
    ('0.0023', '0.23', '0.000023', '23')
    """
    decimals = max(digits - round(math.log10(tolerance / 0.005)), 0)
    return f"{value:.{decimals}f}"


def interval(ends: Sequence[float | None]) -> str:
    """Return a 95 % interval as text. An interval with an open end is written as a bound.

    >>> interval((32.0, 128.0)), interval((None, 128.0))
    ('95 % interval: 32–128', '95 % bound: at most 128')
    """
    low, high = ends
    if low is None:
        return f"95 % bound: at most {number(high)}"
    if high is None:
        return f"95 % bound: at least {number(low)}"
    dash = " to " if "e" in f"{number(low)}{number(high)}" or low < 0 else "–"
    return f"95 % interval: {number(low)}" + ("" if low == high else f"{dash}{number(high)}")


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


@dataclass(frozen=True)
class Quantity:
    """An estimated quantity. ``str`` returns its text for a report.

    >>> q = Quantity(64.0, (32.0, None), "lower_bound")
    >>> q.to_dict()
    {'value': 64.0, 'interval': [32.0, None], 'status': 'lower_bound'}
    >>> print(q)
    64, perhaps more (95 % bound: at least 32)
    """

    value: float | None  #: the estimate; None if refused
    #: 95 % interval over draws, or None if there is none. An end is None if the data do not bound it.
    interval: Interval | None = None
    #: ``ok``; ``lower_bound`` or ``upper_bound``: the true value can be beyond the estimate;
    #: ``not_identified``: the data do not determine the value; ``refused``: isolaw does not state it.
    status: Status = "ok"

    def __str__(self) -> str:
        if self.value is None:
            return "not stated"
        suffix = {"lower_bound": ", perhaps more", "upper_bound": ", perhaps less"}.get(self.status, "")
        text = f"{number(self.value)}{suffix}"
        if self.interval is not None:
            return f"{text} ({interval(self.interval)})"
        return f"{text} (not identified)" if self.status == "not_identified" else text

    def __float__(self) -> float:
        """Return the estimate; raise `ValueError` if isolaw does not state it."""
        if self.value is None:
            raise ValueError("the quantity has no value")
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        ends = self.interval and [*self.interval]
        return {"value": self.value, "interval": ends, "status": self.status}

    def through(self, function: Callable[[float], float]) -> Quantity:
        """Return the quantity with an increasing function applied to the estimate and to its interval."""
        ends = self.interval or (None, None)
        value, low, high = (None if number is None else function(number) for number in (self.value, *ends))
        return Quantity(value, self.interval and (low, high), self.status)

    def __truediv__(self, divisor: float) -> Quantity:
        return self.through(lambda value: value / divisor)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # called by notebooks
        printer.text(str(self))


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
        the estimate from the data.
    draws
        one value per draw, or an empty array. NaN means that a draw has no value, and ±inf that its value is
        beyond the measured range, which opens this end.
    status
        ``lower_bound`` and ``upper_bound`` leave one end open; ``not_identified`` has no interval.
    levels
        the grid's n in ascending order, if the quantity is a measured n. The ends are then drawn n, and an
        end at the grid's edge is open, since n is only a bound there.

    The closed end of a bound includes the estimate. Draws that do not vary give no interval, since an
    interval of zero width would claim certainty.

    >>> from_draws(2.0, [1.0, 2.0, 3.0]).interval
    (1.05, 2.95)
    """
    import numpy as np

    if not math.isfinite(value):
        return REFUSED
    value = float(value)
    values = np.asarray(draws, dtype=np.float64)
    valid = values[~np.isnan(values)]
    if not values.size or status in ("not_identified", "refused"):
        return Quantity(value, None, status)
    if valid.size < _LEAST_SHARE * values.size:
        return Quantity(value, None, "not_identified" if status == "ok" else status)
    if levels is not None:  # the true value of a draw at the grid's edge can be beyond it
        valid = np.where(valid <= levels[0], -np.inf, np.where(valid >= levels[-1], np.inf, valid))
    is_discrete = levels is not None or not np.all(np.isfinite(valid))
    method: Literal["inverted_cdf", "linear"] = "inverted_cdf" if is_discrete else "linear"
    low, high = np.quantile(valid, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method=method).tolist()
    open_end = status
    if status == "ok" and (low == -math.inf or high == math.inf):
        # If both ends are open, close the end that fewer draws are beyond.
        share_below, share_above = np.mean(valid == -np.inf), np.mean(valid == np.inf)
        open_end = "upper_bound" if share_below > share_above else "lower_bound"
    # With one end open, all of the remaining 5 % are beyond the other end.
    if open_end == "lower_bound":
        low, high = float(np.quantile(valid, 1 - LEVEL, method=method)), math.inf
    elif open_end == "upper_bound":
        low, high = -math.inf, float(np.quantile(valid, LEVEL, method=method))
    if open_end == status != "ok":
        low, high = min(low, value), max(high, value)
    if not (math.isfinite(low) or math.isfinite(high)):
        return Quantity(value, None, "not_identified")
    if high - low <= _LEAST_WIDTH * abs(value):
        return Quantity(value, None, status)
    return Quantity(value, (finite(low), finite(high)), status)


def estimated(values: NDArray[np.float64], status: Status = "ok") -> Quantity:
    """Return the first value with the percentile interval of the other values, which are its draws."""
    return from_draws(values[0], values[1:], status)


def finite(value: float) -> float | None:
    """Return the value if it is a finite number, and otherwise None."""
    return float(value) if math.isfinite(value) else None
