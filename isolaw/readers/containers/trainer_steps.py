"""The steps of a Trainer's console, where records have no step, only ``epoch`` and a progress bar near them.

If each record follows a new state of the bar, the bar gives its step. Otherwise (the two streams were
buffered separately, or the bar is drawn rarely) the steps are multiples of ``logging_steps``. This number
comes from the arguments, or isolaw derives it: the records must fit before the bar's last state, and the
epochs must rise as in a run of the bar's length. If neither works, the records have no step.
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

import numpy as np
from numpy.typing import NDArray

from isolaw.readers.raw_log import RawLog, finite, whole
from isolaw.readers.trainings import Floats

_BAR = re.compile(r"\d{1,3}%(?:\|[^|]{0,300}\|\s{0,3}| )(\d{1,9})/(\d{1,9}) \[")
_MOST_BARS = 50
_FOUR_DIGIT_ERROR = 5e-4  # rounding error of an epoch with four digits
_TWO_DIGIT_ERROR = 5e-3  # rounding error with two digits, as transformers 4 prints it
_MIN_ROUNDINGS = 8  # roundings between two records, so that a missing record is noticeable
_MAX_DEVIATION = 0.2  # as a share of the epochs between two records
_TOLERANCE = 0.002  # relative; an incomplete last batch shifts the epochs
_MIN_PERIOD = 1e-9  # epochs between two records
_MOST_EPOCHS = 100  # number of epochs to try if the number of steps is unknown
_LAST_EPOCH = 1e6  # a larger number is not an epoch


@dataclass
class _LogEntry:
    index: int  # position in the log
    is_training: bool
    bar_length: int  # length of the bar that moved last
    epoch: str


@dataclass
class TrainerSteps:
    """Collects bars and records in the order of the console. `set_steps` then sets the steps."""

    # Progress bars by length, the most recent last: (next record, updates done).
    _bars: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _entries: list[_LogEntry] = field(default_factory=list)
    _last_epoch: float = math.nan  # epoch at the end of training

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

    def add_entry(self, index: int, is_training: bool, epoch: str) -> None:
        """Record one log entry of training or evaluation."""
        self._entries.append(_LogEntry(index, is_training, next(reversed(self._bars), 0), epoch))

    def set_end(self, epoch: str) -> None:
        """Record the epoch in the summary at the end of training."""
        self._last_epoch = finite(epoch)

    def set_steps(self, log: RawLog, config: Mapping[str, Any]) -> None:
        """Set the steps of the records if they are certain, and add a note about their origin."""
        training_entries = [entry for entry in self._entries if entry.is_training]
        if not training_entries:
            return
        steps = self._steps_by_bar(training_entries, config)
        if steps:
            total = self._usual_bar(training_entries)
            log.notes.append(f"isolaw read the steps from the progress bar (of {total})")
        else:
            has_gaps = bool(log.dropped["torn dictionaries"])
            derived = self._steps_by_interval(training_entries, config, has_gaps)
            if derived is None:
                return
            steps, note = derived
            log.notes.append(note)
        for entry, step in zip(self._entries, steps, strict=True):
            log.step[entry.index] = step

    def _usual_bar(self, training_entries: list[_LogEntry]) -> int:
        return Counter(entry.bar_length for entry in training_entries).most_common(1)[0][0]

    def _steps_by_bar(self, training_entries: list[_LogEntry], config: Mapping[str, Any]) -> list[float]:
        length = self._usual_bar(training_entries)
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
        interval = _logging_steps(config, length) or min(gaps, default=steps[0])
        if any(step % interval for step in steps[steps[0] == 1 :]):
            return []
        return [step if step >= 0 else math.nan for step in step_of_entry]

    def _steps_by_interval(
        self, training_entries: list[_LogEntry], config: Mapping[str, Any], has_gaps: bool
    ) -> tuple[list[float], str] | None:
        epochs = np.array([finite(entry.epoch) for entry in training_entries])
        has_two_digits = all(
            len(entry.epoch.partition(".")[2]) <= 2 and "e" not in entry.epoch for entry in self._entries
        )
        rounding = _TWO_DIGIT_ERROR if has_two_digits else _FOUR_DIGIT_ERROR
        if np.isnan(epochs).any() or epochs.max() > _LAST_EPOCH:
            return None
        offset = int(len(epochs) > 2 and epochs[0] < 0.55 * np.median(np.diff(epochs)))  # logging_first_step
        spacing = _intervals(epochs[offset:], rounding, has_gaps)
        if spacing is None:
            return None
        multiples, period = spacing
        interval, origin = self._interval(config, int(multiples.max()), period, rounding)
        if not interval:
            return None
        training_steps = iter([*[1.0] * offset, *(multiples * float(interval)).tolist()])
        steps: list[float] = []
        last_step, last_epoch = 0.0, "0"
        for entry in self._entries:
            if entry.is_training:
                last_step, last_epoch = next(training_steps), entry.epoch
                steps.append(last_step)
            elif (epoch := finite(entry.epoch)) == finite(last_epoch):
                steps.append(last_step)
            else:  # evaluation between two records
                is_exact = rounding * interval / period < 0.5 and epoch <= _LAST_EPOCH
                steps.append(float(round(epoch * interval / period)) if is_exact else math.nan)
        return steps, f"the log has no steps; isolaw assumes one record every {interval} steps ({origin})"

    def _interval(
        self, config: Mapping[str, Any], last: int, period: float, rounding: float
    ) -> tuple[int, str]:
        """Return the number of steps between two records and its origin, or 0 if the number is uncertain.

        ``last`` is the number of the last record, and ``period`` the epochs from one record to the next.
        """
        stated_total = whole(config.get("total_steps"), 1) or whole(config.get("max_steps"), 1)
        done_steps: dict[int, int] = {}  # length of a bar that fits → steps done
        for length, states in self._bars.items():
            if stated_total in (None, length) and last <= (done := max(done for _, done in states)) <= length:
                done_steps[length] = done
        interval = _logging_steps(config, stated_total)
        if interval:
            is_possible = not done_steps or any(interval * last <= done for done in done_steps.values())
            return (interval if is_possible else 0), "logging_steps"
        if self._last_epoch > 0:
            epochs = [self._last_epoch]
        elif whole(config.get("max_steps"), 1):
            return 0, ""  # training ends within an epoch, at an unknown step
        else:
            stated_epochs = finite(config.get("num_train_epochs"))
            epochs = [stated_epochs] if stated_epochs > 0 else list(range(1, _MOST_EPOCHS))
        tolerance = rounding / (last * period) + _TOLERANCE
        candidates: set[int] = set()
        for length, done in done_steps.items():
            for epoch_count in epochs:
                estimate = (done if self._last_epoch > 0 else length) * period / epoch_count
                least, most = max(math.ceil(estimate * (1 - tolerance)), 1), estimate * (1 + tolerance)
                if len(epochs) > 1:  # otherwise records may be missing at the end
                    least = max(least, done // (last + 1) + 1)
                candidates.update(range(least, min(math.floor(most), done // last, least + 1) + 1))
        origin = "from epoch and the progress bar"
        return (candidates.pop(), origin) if len(candidates) == 1 else (0, "")


def _logging_steps(config: Mapping[str, Any], total: int | None) -> int:
    """Return ``logging_steps`` in steps (the argument can be a share of all steps), or 0 if unknown."""
    if str(config.get("logging_strategy", "steps")).rpartition(".")[2].lower() != "steps":
        return 0
    number = finite(config.get("logging_steps"))
    if 0 < number < 1 and total:
        return math.ceil(number * total)
    return whole(config.get("logging_steps"), 1) or 0


def _intervals(epochs: Floats, rounding: float, has_gaps: bool) -> tuple[NDArray[np.int64], float] | None:
    """Return the number of completed intervals at each record and the epochs per interval, or None.

    >>> _intervals(np.array([0.1, 0.2, 0.4, 0.5]), 0.005, has_gaps=False)
    (array([1, 2, 4, 5]), 0.1)
    """
    gaps = np.diff(epochs, prepend=0.0)
    rising = gaps[gaps > 0]
    if not rising.size:
        return None
    period = float(np.median(rising))
    if period > _MIN_ROUNDINGS * rounding:
        multiples = np.cumsum(np.round(gaps / period)).astype(np.int64)
    elif has_gaps or np.any(gaps < 0):
        return None
    else:
        multiples = np.arange(1, len(epochs) + 1)
    if multiples.min() < 1:
        return None
    period = float(epochs @ multiples / (multiples @ multiples))
    is_off = np.abs(epochs - multiples * period) > 2 * rounding + _MAX_DEVIATION * period
    return None if is_off.any() or period < _MIN_PERIOD else (multiples, round(period, 12))
