"""Watch a running sweep: its pace, the time left, and the law of the checkpoints so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isolaw import engine
from isolaw.errors import IsolawError
from isolaw.evidence import Simulated, duration, number
from isolaw.report.text.law import ends
from isolaw.report.text.sweep import sweep_state

_WINDOW_S = 120.0  # averaging window of the pace
_FIT_EVERY_S = 30.0
_SHARE = 0.1  # largest share of the time for reading and fitting


class Watch:
    """Reads a sweep's directory repeatedly, without affecting the sweep. Tests replace ``clock``."""

    def __init__(self, directory: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = Path(directory)
        self.clock = clock
        self.state: dict[str, Any] = {}
        self.law: list[str] = []
        self.pause_s = 1.0  # seconds until the next reading
        self._rollouts: deque[tuple[float, int]] = deque()
        self._fitted_at: tuple[float, int] | None = None  # (time, rollouts) of the last fit
        self._fit_took = 0.0

    def read(self) -> bool:
        """Read the directory and return whether the sweep is running; raise `StoreError` if there is none."""
        began = self.clock()
        self.state = engine.status(self.directory)
        self._rollouts.append((began, self.state["rollouts"]))
        while self._rollouts[-1][0] - self._rollouts[0][0] > _WINDOW_S:
            self._rollouts.popleft()
        self.pause_s = max(1.0, (self.clock() - began) / _SHARE)
        return bool(self.state["running"])

    @property
    def per_second(self) -> float | None:
        """Rollouts per second over the last two minutes, or None before the first new rollout."""
        (first, less), (last, more) = self._rollouts[0], self._rollouts[-1]
        return (more - less) / (last - first) if last > first and more > less else None

    @property
    def left_s(self) -> float | None:
        """Seconds left at the current pace, or None if the pace is not known."""
        pace = self.per_second
        return (self.state["rollouts_planned"] - self.state["rollouts"]) / pace if pace else None

    def fit(self, at_once: bool = False) -> None:
        """Fit the checkpoints without draws if there are new ones, at most every 30 s unless ``at_once``."""
        now, rollouts = self.clock(), self.state["rollouts"]
        if self._fitted_at is not None:
            when, before = self._fitted_at
            soon = now - when < max(_FIT_EVERY_S, self._fit_took / _SHARE)
            if rollouts == before or (soon and not at_once):
                return
        self.law = _law_so_far(self.directory)
        self._fitted_at = now, rollouts
        self._fit_took = self.clock() - now
        self.read()  # the sweep advanced during the fit

    def lines(self) -> list[str]:
        """Return the lines with progress, pace and law."""
        pace = "pace not yet known"
        if self.per_second is not None and self.left_s is not None:
            per_second = number(float(f"{self.per_second:.3g}"))
            pace = f"{per_second} rollouts per second, about {duration(self.left_s)} left"
        return Simulated.of_json(self.state).lines([*sweep_state(self.state, pace), *self.law])


def _law_so_far(directory: Path) -> list[str]:
    """Return the law of the checkpoints in a sweep's directory, or the reason why there is none yet."""
    from isolaw.fits.pipeline import fit
    from isolaw.store import SweepStore

    try:
        runs = SweepStore(directory).collect()
        document = fit(runs, draws=0).document
    except IsolawError as error:
        return [f"There is no law yet: {error}"]
    return ["The law so far, without intervals:", f"  {ends(document)}"]
