"""Compute effects, their intervals over seeds, and the verdict on a finding.

The unit of resampling is the seed: with the same seed, configurations share problem sets and their order, so
all runs of a seed are one draw. An effect θ is a function of the mean over S seeds. Let θ_(s) be the effect
without seed s (the jackknife; Tukey 1958). Then

    se² = (S − 1) / S · Σ_s (θ_(s) − θ)²,    θ ± t_{S−1, .975} · se

For a plain mean this is Student's interval. An interval in doublings of n is widened by 0.1 on either side,
which is the largest bias of the smoothing (`smoothing`). `tests/benchmarks/test_replication.py` measures the
coverage: 89 to 100 % with eight seeds, for curves of five shapes and three noise levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Verdict = Literal["yes", "partly", "no", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # the weakest last
DOUBLINGS, REWARD, PROBLEMS = "doublings of n", "reward", "share of problems"
BIAS = {DOUBLINGS: 0.1, REWARD: 0.0, PROBLEMS: 0.0}
LEAST = {DOUBLINGS: 1.0, REWARD: 0.01, PROBLEMS: 0.01}
_UNMEASURED = "a run is missing, because its n is not in the grid, it has no step at C/128, or it failed"


def leave_one_out(values: Floats) -> Floats:
    """Return the mean over seeds, followed by the means without each seed: (S, …) becomes (1 + S, …).

    >>> leave_one_out(np.array([1.0, 2.0, 6.0]))
    array([3. , 4. , 3.5, 1.5])
    """
    mean = values.mean(axis=0)
    # With this form, equal seeds have exactly equal means.
    return np.concatenate([mean[None], mean + (mean - values) / (len(values) - 1)])


def interval(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the values, lower ends and upper ends of effects, each of shape (…).

    ``rows``, of shape (1 + S, …), contains the effects over all seeds, then those without each seed.
    """
    without = rows[1:]
    s = len(without)
    error = np.sqrt((s - 1) / s * np.sum((without - rows[0]) ** 2, axis=0))
    half = stats.t.ppf(0.975, s - 1) * error
    return rows[0], rows[0] - half, rows[0] + half


@dataclass(frozen=True)
class Effect:
    """An effect, positive in the direction that a finding states, with its 95 % interval over seeds."""

    label: str
    unit: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, label: str, unit: str, rows: Floats) -> Effect:
        """Build an effect from its values over all seeds and without each seed, of shape (1 + S,).

        >>> e = Effect.of("a mean", REWARD, leave_one_out(np.array([1.0, 2.0, 6.0])))
        >>> round(e.value, 2), round(e.low, 2), round(e.high, 2)
        (3.0, -3.57, 9.57)
        """
        value, low, high = (float(part) for part in interval(rows))
        return cls(label, unit, value, low - BIAS[unit], high + BIAS[unit])

    @property
    def verdict(self) -> Verdict:
        """*Yes* if the interval excludes zero and the effect is large, *partly* if it is smaller."""
        if not self.measured:
            return "not measured"
        if not self.low > 0:
            return "no"
        return "yes" if self.value >= LEAST[self.unit] else "partly"

    @property
    def measured(self) -> bool:
        """Whether all runs exist from which the effect is computed."""
        return bool(np.isfinite([self.value, self.low, self.high]).all())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data, without numbers if the effect was not measured."""
        return {
            "label": self.label,
            "unit": self.unit,
            "value": self.value if self.measured else None,
            "interval": [self.low, self.high] if self.measured else None,
            "verdict": self.verdict,
        }


def weakest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a finding that requires all of several effects.

    >>> weakest(["yes", "partly"])
    'partly'
    """
    return max(verdicts, key=VERDICTS.index)


@dataclass(frozen=True)
class Finding:
    """One finding on one problem set, which is a row of the table.

    ``key`` is the name of the finding, such as ``F1``. The finding requires all ``effects``. If it compares
    n*, ``tolerance`` is the first effect computed from the smallest n within 0.005 of the best instead of
    from n*. ``holds`` is an additional condition; if it is false, the verdict is at most *partly*.
    """

    key: str
    set: str
    statement: str
    effects: tuple[Effect, ...]
    tolerance: Effect | None = None
    holds: bool = True
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The weakest verdict among the effects and the condition."""
        return weakest([*(e.verdict for e in self.effects), "yes" if self.holds else "partly"])

    @property
    def effect(self) -> Effect:
        """The decisive effect: the smallest effect with the weakest verdict."""
        worst = weakest([e.verdict for e in self.effects])
        return min((e for e in self.effects if e.verdict == worst), key=lambda e: e.value)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-able data."""
        return {
            "finding": self.key,
            "set": self.set,
            "statement": self.statement,
            "verdict": self.verdict,
            "effect": self.effect.to_dict(),
            "effects": [e.to_dict() for e in self.effects],
            "tolerance": None if self.tolerance is None else self.tolerance.to_dict(),
            "notes": [_UNMEASURED] if self.verdict == "not measured" else list(self.notes),
        }
