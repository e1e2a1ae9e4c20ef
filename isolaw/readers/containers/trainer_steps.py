"""The steps of a Trainer's console, where records have no step, only ``epoch`` and a progress bar near them.

If each record follows a new state of the bar, the bar gives its step. Otherwise (the two streams were
buffered separately, or the bar is drawn rarely) the records have no step, and `isolaw.readers.stitch` counts
them by epoch and ``logging_steps``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from isolaw.readers.raw_log import RawLog, finite, whole

_BAR = re.compile(r"\d{1,3}%(?:\|[^|]{0,300}\|\s{0,3}| )(\d{1,9})/(\d{1,9}) \[")
_MOST_BARS = 50


@dataclass
class _LogEntry:
    index: int  # position in the log
    is_training: bool
    bar_length: int  # length of the bar that moved last


@dataclass
class TrainerSteps:
    """Collects bars and records in the order of the console. `set_steps` then sets the steps."""

    # Progress bars by length, the most recent last: (next record, updates done).
    _bars: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _entries: list[_LogEntry] = field(default_factory=list)

    def add_bars(self, text: str) -> None:
        """Record the progress bars in a text; a bar with a description is not the training's bar."""
        for bar in _BAR.finditer(text):
            is_described = text[max(bar.start() - 6, 0) : bar.start()].rstrip().endswith(":")
            length = int(bar[2])
            if not is_described and (length in self._bars or len(self._bars) < _MOST_BARS):
                states = self._bars[length] = self._bars.pop(length, [])  # the latest bar comes last
                if states and states[-1][0] == len(self._entries):
                    states.pop()
                states.append((len(self._entries), int(bar[1])))

    def add_entry(self, index: int, is_training: bool) -> None:
        """Record one log entry of training or evaluation."""
        self._entries.append(_LogEntry(index, is_training, next(reversed(self._bars), 0)))

    def set_steps(self, log: RawLog, config: Mapping[str, Any]) -> None:
        """Set the steps of the records if the bar gives them, with a note."""
        training_entries = [entry for entry in self._entries if entry.is_training]
        if not training_entries:
            return
        length = Counter(entry.bar_length for entry in training_entries).most_common(1)[0][0]
        if steps := self._steps_by_bar(length, config):
            log.notes.append(f"isolaw read the steps from the progress bar (of {length})")
            for entry, step in zip(self._entries, steps, strict=True):
                log.step[entry.index] = step

    def _steps_by_bar(self, length: int, config: Mapping[str, Any]) -> list[float]:
        states = [(-1, -1), *self._bars.get(length, [])]
        indices = range(len(self._entries))
        step_of_entry = [states[bisect_right(states, (index, math.inf)) - 1][1] for index in indices]
        steps = [step for step, entry in zip(step_of_entry, self._entries, strict=True) if entry.is_training]
        # If stdout and stderr were buffered separately, several records follow one state of the bar.
        is_distinct = all(step != next_step for step, next_step in pairwise(steps))
        if length <= 0 or min(steps) < 1 or not is_distinct:
            return []
        # A bar that is drawn rarely lags behind: its steps are not multiples of one number.
        gaps = [abs(next_step - step) for step, next_step in pairwise(steps[steps[0] == 1 :])]
        interval = logging_steps(config, length) or min(gaps, default=steps[0])
        if any(step % interval for step in steps[steps[0] == 1 :]):
            return []
        return [step if step >= 0 else math.nan for step in step_of_entry]


def logging_steps(config: Mapping[str, Any], total: int | None = None) -> int:
    """Return ``logging_steps`` in steps, or 0 if it is unknown or records follow epochs.

    The argument can be a share of all steps; ``total`` is their number if the arguments do not give it.
    """
    total = whole(config.get("total_steps"), 1) or whole(config.get("max_steps"), 1) or total
    if str(config.get("logging_strategy", "steps")).rpartition(".")[2].lower() != "steps":
        return 0
    number = finite(config.get("logging_steps"))
    if 0 < number < 1 and total:
        return math.ceil(number * total)
    return whole(config.get("logging_steps"), 1) or 0
