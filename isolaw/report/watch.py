"""How a running sweep gets on: its pace, the time left, and the law of what is there so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isolaw import engine
from isolaw.errors import IsolawError
from isolaw.report.text import runs as run_words
from isolaw.report.text import words

_WINDOW_S = 120.0  # the pace is that of the last two minutes
_FIT_EVERY_S = 30.0
_SHARE = 0.1  # of the time at most goes into looking and fitting


class Watch:
    """Looks at a sweep's directory again and again; the sweep itself does not notice.

    Parameters
    ----------
    directory
        of the sweep.
    clock
        seconds, for tests.
    """

    def __init__(self, directory: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = Path(directory)
        self.clock = clock
        self.state: dict[str, Any] = {}
        self.law: list[str] = []
        self._seen: deque[tuple[float, int]] = deque()
        self._fitted_at: tuple[float, int] | None = None  # when, and with how many rollouts
        self._fit_took = 0.0
        self.pause_s = 1.0  # until the next look

    def look(self) -> bool:
        """Look again; return whether the sweep is still at work.

        Raises
        ------
        StoreError
            the directory holds no sweep.
        """
        began = self.clock()
        self.state = engine.status(self.directory)
        self._seen.append((began, self.state["rollouts"]))
        while self._seen[-1][0] - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        self.pause_s = max(1.0, (self.clock() - began) / _SHARE)
        return bool(self.state["running"])

    @property
    def per_second(self) -> float | None:
        """Rollouts per second in the last two minutes; None before anything was seen to move."""
        (first, less), (last, more) = self._seen[0], self._seen[-1]
        return (more - less) / (last - first) if last > first and more > less else None

    @property
    def left_s(self) -> float | None:
        """Seconds left at this pace; None where it is not known."""
        pace = self.per_second
        return (self.state["rollouts_planned"] - self.state["rollouts"]) / pace if pace else None

    def fit(self, at_once: bool = False) -> None:
        """Fit what is there without draws, if there is more; unless ``at_once`` every 30 s at most."""
        now, rollouts = self.clock(), self.state["rollouts"]
        if self._fitted_at is not None:
            when, before = self._fitted_at
            soon = now - when < max(_FIT_EVERY_S, self._fit_took / _SHARE)
            if rollouts == before or (soon and not at_once):
                return
        self.law = law_so_far(self.directory)
        self._fitted_at = now, rollouts
        self._fit_took = self.clock() - now
        self.look()  # the sweep went on meanwhile

    def pace(self) -> str:
        """Return the pace and the time left, in words."""
        if self.per_second is None:
            return "pace not known yet"
        left = "" if self.left_s is None else f", about {run_words.duration(self.left_s)} left"
        return f"{words.number(float(f'{self.per_second:.3g}'))} rollouts per second{left}"

    def lines(self) -> list[str]:
        """Return all of it."""
        head, rollouts, *rest = run_words.sweep_state(self.state)
        if self.state["running"]:
            rollouts = f"{rollouts.removesuffix('; an engine is at work')}; {self.pace()}"
        return [head, rollouts, *rest, *self.law]


def law_so_far(directory: Path) -> list[str]:
    """Return the law of the checkpoints that are there, or why there is none yet."""
    import isolaw
    from isolaw.report.study import usual_setting
    from isolaw.store import SweepStore

    try:
        runs = SweepStore(directory).collect()
        document = isolaw.fit(runs, setting=usual_setting(runs), bootstrap=0).document
    except IsolawError as error:
        return [f"No law yet: {error}"]
    return ["So far, without intervals:", *(f"  {line}" for line in words.ends(document)[-1:])]
