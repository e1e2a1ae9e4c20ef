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

_BAR = re.compile(r"\d{1,3}%(?:\|[^|]{0,300}\|\s{0,3}| )(\d{1,9})/(\d{1,9}) \[")
_MOST_BARS = 50
_EXACT = 5e-4  # rounding error of an epoch with four digits
_ROUNDED = 5e-3  # rounding error with two digits, as transformers 4 prints it
_FINE = 8  # roundings between two records, so that a missing record is noticeable
_OFF = 0.2  # as a share of the epochs between two records
_TOLERANCE = 0.002  # relative; an incomplete last batch shifts the epochs
_LEAST_PERIOD = 1e-9  # epochs between two records
_MOST_EPOCHS = 100  # number of epochs to try if the number of steps is unknown
_LAST_EPOCH = 1e6  # a larger number is not an epoch
Floats = NDArray[np.float64]


@dataclass
class _Record:
    index: int  # position in the log
    training: bool
    bar: int  # length of the bar that moved last
    epoch: str


@dataclass
class TrainerSteps:
    """Collects bars and records in the order of the console. `number` then sets the steps."""

    # Progress bars by length, the most recent last: (next record, updates done).
    _bars: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _seen: list[_Record] = field(default_factory=list)
    _ended: float = math.nan  # epoch at the end of training

    def bars(self, text: str) -> None:
        """Record the progress bars in a text; a bar with a description is not the training's bar."""
        for bar in _BAR.finditer(text):
            described = text[max(bar.start() - 6, 0) : bar.start()].rstrip().endswith(":")
            total = int(bar[2])
            if not described and (total in self._bars or len(self._bars) < _MOST_BARS):
                states = self._bars[total] = self._bars.pop(total, [])  # the most recent bar comes last
                if states and states[-1][0] == len(self._seen):
                    states.pop()
                states.append((len(self._seen), int(bar[1])))

    def record(self, index: int, training: bool, epoch: str) -> None:
        """Record one log entry of training or evaluation."""
        self._seen.append(_Record(index, training, next(reversed(self._bars), 0), epoch))

    def end(self, epoch: str) -> None:
        """Record the epoch in the summary at the end of training."""
        self._ended = finite(epoch)

    def number(self, log: RawLog, config: Mapping[str, Any]) -> None:
        """Set the steps of the records if they are certain, and add a note about their origin."""
        trained = [record for record in self._seen if record.training]
        if not trained:
            return
        steps = self._by_bar(trained, config)
        if steps:
            total = self._usual(trained)
            log.notes.append(f"isolaw read the steps from the progress bar (of {total})")
        else:
            numbered = self._by_interval(trained, config, torn=bool(log.dropped["torn dictionaries"]))
            if numbered is None:
                return
            steps, note = numbered
            log.notes.append(note)
        for record, step in zip(self._seen, steps, strict=True):
            log.step[record.index] = step

    def _usual(self, trained: list[_Record]) -> int:
        return Counter(record.bar for record in trained).most_common(1)[0][0]

    def _by_bar(self, trained: list[_Record], config: Mapping[str, Any]) -> list[float]:
        total = self._usual(trained)
        bar = [(-1, -1), *self._bars.get(total, [])]
        at = [bar[bisect_right(bar, (i, math.inf)) - 1][1] for i in range(len(self._seen))]
        steps = [step for step, record in zip(at, self._seen, strict=True) if record.training]
        # If stdout and stderr were buffered separately, several records follow one state of the bar.
        apart = all(one != other for one, other in pairwise(steps))
        if total <= 0 or min(steps) < 1 or not apart:
            return []
        # A bar that is drawn rarely lags behind: its steps are not multiples of one number.
        gaps = [abs(other - one) for one, other in pairwise(steps[steps[0] == 1 :])]
        interval = _logging_steps(config, total) or min(gaps, default=steps[0])
        if any(step % interval for step in steps[steps[0] == 1 :]):
            return []
        return [step if step >= 0 else math.nan for step in at]

    def _by_interval(
        self, trained: list[_Record], config: Mapping[str, Any], torn: bool
    ) -> tuple[list[float], str] | None:
        epochs = np.array([finite(record.epoch) for record in trained])
        two_digits = all(
            len(record.epoch.partition(".")[2]) <= 2 and "e" not in record.epoch for record in self._seen
        )
        rounding = _ROUNDED if two_digits else _EXACT
        if np.isnan(epochs).any() or epochs.max() > _LAST_EPOCH:
            return None
        first = int(len(epochs) > 2 and epochs[0] < 0.55 * np.median(np.diff(epochs)))  # logging_first_step
        spacing = _multiples(epochs[first:], rounding, torn)
        if spacing is None:
            return None
        multiples, period = spacing
        interval, origin = self._interval(config, int(multiples.max()), period, rounding)
        if not interval:
            return None
        trained_steps = iter([*[1.0] * first, *(multiples * float(interval)).tolist()])
        steps: list[float] = []
        last, last_epoch = 0.0, "0"
        for record in self._seen:
            if record.training:
                last, last_epoch = next(trained_steps), record.epoch
                steps.append(last)
            elif (epoch := finite(record.epoch)) == finite(last_epoch):
                steps.append(last)
            else:  # evaluation between two records
                exact = rounding * interval / period < 0.5 and epoch <= _LAST_EPOCH
                steps.append(float(round(epoch * interval / period)) if exact else math.nan)
        return steps, f"the log has no steps; isolaw assumes one record every {interval} steps ({origin})"

    def _interval(
        self, config: Mapping[str, Any], last: int, period: float, rounding: float
    ) -> tuple[int, str]:
        """Return the number of steps between two records and its origin, or 0 if the number is uncertain.

        ``last`` is the number of the last record, and ``period`` the epochs from one record to the next.
        """
        given = whole(config.get("total_steps"), 1) or whole(config.get("max_steps"), 1)
        bars = {total: max(done for _, done in bar) for total, bar in self._bars.items()}
        bars = {
            total: done for total, done in bars.items() if given in (None, total) and last <= done <= total
        }
        interval = _logging_steps(config, given)
        if interval:
            sound = not bars or any(interval * last <= done for done in bars.values())
            return (interval if sound else 0), "logging_steps"
        if self._ended > 0:
            epochs = [self._ended]
        elif whole(config.get("max_steps"), 1):
            return 0, ""  # training ends within an epoch, at an unknown step
        else:
            named = finite(config.get("num_train_epochs"))
            epochs = [named] if named > 0 else list(range(1, _MOST_EPOCHS))
        tolerance = rounding / (last * period) + _TOLERANCE
        candidates: set[int] = set()
        for total, done in bars.items():
            for all_epochs in epochs:
                exact = (done if self._ended > 0 else total) * period / all_epochs
                least, most = max(math.ceil(exact * (1 - tolerance)), 1), math.floor(exact * (1 + tolerance))
                if len(epochs) > 1:  # otherwise records may be missing at the end
                    least = max(least, done // (last + 1) + 1)
                candidates.update(range(least, min(most, done // last, least + 1) + 1))
        origin = "from epoch and the progress bar"
        return (candidates.pop(), origin) if len(candidates) == 1 else (0, "")


def _logging_steps(config: Mapping[str, Any], total: int | None) -> int:
    """Return ``logging_steps`` in steps (the argument can be a share of all steps), or 0 if unknown."""
    if str(config.get("logging_strategy", "steps")).rpartition(".")[2].lower() != "steps":
        return 0
    share = finite(config.get("logging_steps"))
    if 0 < share < 1 and total:
        return math.ceil(share * total)
    return whole(config.get("logging_steps"), 1) or 0


def _multiples(epochs: Floats, rounding: float, torn: bool) -> tuple[NDArray[np.int64], float] | None:
    """Return the number of completed intervals at each record and the epochs per interval, or None.

    >>> _multiples(np.array([0.1, 0.2, 0.4, 0.5]), 0.005, torn=False)
    (array([1, 2, 4, 5]), 0.1)
    """
    gaps = np.diff(epochs, prepend=0.0)
    rising = gaps[gaps > 0]
    if not rising.size:
        return None
    period = float(np.median(rising))
    if period > _FINE * rounding:
        multiples = np.cumsum(np.round(gaps / period)).astype(np.int64)
    elif torn or np.any(gaps < 0):
        return None
    else:
        multiples = np.arange(1, len(epochs) + 1)
    if multiples.min() < 1:
        return None
    period = float(epochs @ multiples / (multiples @ multiples))
    off = np.abs(epochs - multiples * period) > 2 * rounding + _OFF * period
    return None if off.any() or period < _LEAST_PERIOD else (multiples, round(period, 12))
