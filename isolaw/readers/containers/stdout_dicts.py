"""Consoles that print metrics as Python dictionaries, among other output.

::

    {'loss': '0.0012', 'reward': '0.25', 'epoch': '0.01'}          transformers' Trainer: TRL; no step
    rollout 12: {'rollout/raw_reward': 0.25}                       slime
    Global step 12: {'rollout/reward_mean': 0.25}                  OpenRLHF
    Step 12:                                                       SkyRL, over several lines
    {'reward/avg_raw_reward': '0.2500',

The Trainer prints no step, only ``epoch`` and a progress bar near its records. If each record follows a new
state of the bar, the bar gives its step (`TrainerSteps`). Otherwise (the two streams were buffered
separately, or the bar is drawn rarely) `isolaw.readers.stitch` counts the records by epoch and
``logging_steps``. Printed arguments become the configuration. A console can contain several training runs in
sequence; a new one starts where the epochs start again.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from isolaw.errors import DataError, NoHistory
from isolaw.readers import limits, raw_log
from isolaw.readers.configs import find_config
from isolaw.readers.containers.printed_config import PrintedArguments, Settings
from isolaw.readers.literals import parse_dictionary
from isolaw.readers.trainings import training_starts

_SEARCHED = 1 << 22  # bytes; much output can precede the first metrics
_COUNTER = re.compile(r"'(epoch|num_tokens)': '?(\d{1,15}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)")
_METRIC_KEY = re.compile(rb"'(?:epoch|grad_norm)': ")
_LONGEST_DICTIONARY = 1 << 16  # characters of a dictionary that spans several lines
_MOST_ENDS = 20
_STEP_BEFORE = re.compile(
    r"\b(?:global[_ ]step|step|rollout|eval|perf|passrate|multi_turn) (\d{1,9})(?:, eval_metrics)?: ?$", re.I
)
_STEP_WITH_METRICS = re.compile(
    rb"(?:[sS]tep|rollout|eval|perf|passrate) \d{1,9}(?:, eval_metrics)?: ?(?:\r?\n[^\n]{0,150})?\{'"
)
_BAR = re.compile(r"\d{1,3}%(?:\|[^|]{0,300}\|\s{0,3}| )(\d{1,9})/(\d{1,9}) \[")
_MOST_BARS = 50


def _is_console(path: Path, head: bytes) -> bool:
    """Return whether a text file contains metrics as Python dictionaries in its first 4 MB."""
    if _holds_metrics(head):
        return True
    if len(head) < raw_log.HEAD or b"\0\0\0\0" in head or not raw_log.is_text(head):
        return False
    return _holds_metrics(limits.start(path, _SEARCHED))


def _holds_metrics(text: bytes) -> bool:
    if _STEP_WITH_METRICS.search(text):
        return True
    for key in islice(_METRIC_KEY.finditer(text), 200):
        line = text[max(key.start() - 4_000, 0) : key.start()].rpartition(b"\n")[2]
        # A callback that prints some of the metrics leaves out the epoch; the gradient norm is the Trainer's.
        has_metrics = (b"loss': " in line, b"'reward': " in line)
        if b"{'" in line and (any if key[0] == b"'epoch': " else all)(has_metrics):
            return True
    return False


def _read(path: Path) -> Iterator[raw_log.RawLog]:
    """Read a console; raise `DataError` if it cannot be read or has no metrics."""
    readers = [_Reader(raw_log.RawLog(str(path), "stdout-dicts", str(path)))]
    lines_since: list[tuple[str, str]] = []  # lines after the end of a run, which belong to it or to the next
    for _, line in raw_log.lines(path, readers[0].log, at_returns=True):
        reader = readers[-1]
        if not (reader.must_read_next or _may_matter(line) or line.rstrip().endswith(b"(")):
            continue
        worker, text = raw_log.unprefixed(raw_log.clean(line))
        counters = _counters(text)
        if counters and reader.starts_again(counters):
            reader = _Reader(reader.log.new_log(f"{path}#{len(readers) + 1}"))
            reader.starts_again(counters)
            readers.append(reader)
        elif reader.has_ended and "'epoch': " not in text:
            lines_since.append((worker, text))
            continue
        for worker_and_text in (*lines_since, (worker, text)):
            reader.add(*worker_and_text)
        lines_since = []
    for worker_and_text in lines_since:
        readers[-1].add(*worker_and_text)
    with_steps = [reader for reader in readers if reader.log.step]  # the last log may be truncated
    for reader in with_steps or readers[:1]:
        yield from _logs_of_reader(reader, path)


def _counters(text: str) -> dict[str, float]:
    """Return the counters in a line with a training step, by name; empty for any other line."""
    if "{'" not in text or not ("'reward': " in text or "{'loss': " in text):
        return {}
    return {name: float(value) for name, value in _COUNTER.findall(text)}


def _logs_of_reader(reader: _Reader, path: Path) -> Iterator[raw_log.RawLog]:
    """Yield the log of a training run, with its steps and its configuration, in parts where that changes."""
    log = reader.log
    reader.close()
    config, source = find_config(path)
    reader.steps.set_steps(log, config | reader.arguments.config)
    if not log.step and reader.has_ended:
        raise NoHistory(
            f"{path}: no step was logged, only the summary at the end of training. Lower logging_steps, "
            "the number of updates between two records, in later runs"
        )
    if not log.step:
        raise DataError(
            f"{path}: found no metrics printed as Python dictionaries; expected {{'loss': 0.1, …, 'epoch': "
            f"0.5}}, or 'step 12: {{…}}'"
        )
    # A single printed argument is the model's name, so the file is then the better source.
    reader.settings.configs[-1] = printed = reader.arguments.config
    reader.settings.configs = [_in_steps(values, config | values) for values in reader.settings.configs]
    config = _in_steps(config, config | printed)
    best_source = path.name if len(printed) > 1 or not source else source
    yield from reader.settings.parts(config, source, best_source)


def _in_steps(config: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its ``logging_steps`` in steps, or without it if that is unknown."""
    if "logging_steps" not in config:
        return config
    others = {key: value for key, value in config.items() if key != "logging_steps"}
    return others | ({"logging_steps": interval} if (interval := logging_steps(arguments)) else {})


def _may_matter(line: bytes) -> bool:
    """Return whether a line may be relevant. Called for every line, so it has to be fast."""
    return (
        b"{'" in line or b"%|" in line or b"it/s" in line or b"s/it" in line or b"tep " in line
        or b"-----" in line or b" steps = " in line or b"atch size" in line or b"model_name_or_path=" in line
    )  # fmt: skip


class _Reader:
    def __init__(self, log: raw_log.RawLog) -> None:
        self.log = log
        self.arguments = PrintedArguments()
        self.settings = Settings(log)
        self._lines: list[str] = []  # the lines of an unfinished dictionary
        self._size = self._brace_ends = 0  # their characters, and how many lines end in a brace
        self._worker, self._step = "", math.nan  # worker and step of the current dictionary
        self._announced = "", math.nan  # worker and step announced on a line of its own
        self.steps = TrainerSteps()
        self.has_ended = False  # whether the final summary was printed
        self._values_of_counter: dict[str, list[float]] = {}  # a counter → its values in training steps

    @property
    def must_read_next(self) -> bool:
        """True if the next line can continue the current dictionary."""
        return bool(self._lines) or self.arguments.is_collecting or not math.isnan(self._announced[1])

    def starts_again(self, counters: dict[str, float]) -> bool:
        """Return whether a step with these counters starts another training run, or restarts the same one.

        The counters of a run that continues from a checkpoint also continue.
        """
        is_restart = False
        for name, value in counters.items():
            values = self._values_of_counter.setdefault(name, [])
            if values and value < values[-1] and not is_restart:
                indices = range(len(values) + 1)
                is_restart = bool(training_starts([*values, value], {name: (indices, indices)}))
            values.append(value)
        return is_restart

    def add(self, worker: str, text: str) -> None:
        if self._lines:
            if worker != self._worker:
                return
            if text.startswith((" '", ' "')):
                self._continue_dictionary(text)
                return
            self._drop_dictionary()
        start = text.find("{'")
        if start >= 0:
            self._begin_dictionary(worker, text, start)
            return
        if "%" in text:
            self.steps.add_bars(text)
        step = _STEP_BEFORE.search(text[-60:])
        if step:
            self._announced = worker, float(step[1])
        elif worker == self._announced[0]:
            self._announced = "", math.nan
        self.arguments.add(text)

    def close(self) -> None:
        if self._lines:
            self._drop_dictionary()

    def _begin_dictionary(self, worker: str, text: str, start: int) -> None:
        before = text[:start]
        self.steps.add_bars(before)
        self._worker, self._step = worker, math.nan
        step = _STEP_BEFORE.search(before[-60:])
        if step:
            self._step = float(step[1])
        elif worker == self._announced[0]:
            self._step = math.nan if before.strip() else self._announced[1]
            self._announced = "", math.nan
        self._lines, self._size, self._brace_ends = [text[start:]], 0, 0
        self._read_dictionary(self._lines[0])

    def _continue_dictionary(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text)
        has_brace = text.rstrip().endswith("}")
        self._brace_ends += has_brace  # the brace may end a nested dictionary; the attempts are limited
        if self._brace_ends > _MOST_ENDS or (self._size > _LONGEST_DICTIONARY and not has_brace):
            self._drop_dictionary()
        elif has_brace:
            self._read_dictionary("\n".join(self._lines))

    def _read_dictionary(self, text: str) -> None:
        """Read a dictionary if it is complete and contains metrics."""
        values, end = parse_dictionary(text)
        if values is None and end >= len(text) and len(text) <= _LONGEST_DICTIONARY:
            return  # the dictionary may continue on the next line
        if values is None:
            self._drop_dictionary()
            return
        step = raw_log.swift_step(values) if math.isnan(self._step) else self._step
        self._lines = []
        is_training = "loss" in values or "reward" in values
        if math.isnan(step):
            has_metrics = {"loss", "reward", "grad_norm"} <= values.keys() or (
                "epoch" in values and (is_training or any(key.startswith("eval_") for key in values))
            )
        else:
            has_metrics = any(raw_log.number(value) is not None for value in values.values())
        if "train_runtime" in values:  # the final summary
            self.has_ended = True
            return
        if not has_metrics:
            return
        if math.isnan(step):
            self.steps.add_entry(len(self.log.step), is_training)
            self.has_ended = self.has_ended and not is_training
        self.settings.set_config(self.arguments.config)
        self.log.add(values, step)

    def _drop_dictionary(self) -> None:
        """Drop a truncated dictionary, and count it if it contained metrics."""
        text = self._lines[0]
        if not math.isnan(self._step) or "'loss': " in text or "'reward': " in text or "'eval_" in text:
            self.log.dropped["torn dictionaries"] += 1
        self._lines = []


CONTAINER = raw_log.Container("stdout-dicts", _read, file=_is_console)


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

    def set_steps(self, log: raw_log.RawLog, config: Mapping[str, Any]) -> None:
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
    total = raw_log.whole(config.get("total_steps"), 1) or raw_log.whole(config.get("max_steps"), 1) or total
    if str(config.get("logging_strategy", "steps")).rpartition(".")[2].lower() != "steps":
        return 0
    number = raw_log.finite(config.get("logging_steps"))
    if 0 < number < 1 and total:
        return math.ceil(number * total)
    return raw_log.whole(config.get("logging_steps"), 1) or 0
