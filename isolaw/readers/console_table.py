"""Custom trainer consoles as tables: lines with a counter and ``key=value`` pairs, among other output.

::

    [exp_s042]   3/500 | loss=-1.5000 | reward=0.300 | acc=30.0%
    [step 12/500] correct=2/4 rewards=['0.80', '0.01'] loss=-0.0051 lr=1.00e-05
    Epoch:[1/2](3/9751), Reward: -2.3041, KL_ref: -0.0010, Actor Loss: 0.0000
    step 12: reward=0.25

Each line that counts to the same total becomes a row, with ``step`` and a column for each key. So does the
line of an evaluation with a step but no total. Values with % are divided by 100, and ``2/4`` is a share. A
list of rewards becomes its mean and its length. If only some lines have a word for evaluation next to the
counter (``[eval] step 12``), a column ``phase`` marks them. A key that follows such a word in the middle of a
line (``reward=0.3 | eval: reward=0.5``) gets the word as a prefix. As for any table, the user provides B_p
and n, and the name of the reward.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from isolaw.errors import DataError
from isolaw.metrics import is_reward
from isolaw.readers.measures import HELD_OUT, eval_set_of, is_measured_by_trainer, words_of
from isolaw.readers.names import UNITS
from isolaw.readers.raw_log import clean
from isolaw.readers.records import mark_written_nan, summary_of_list
from isolaw.readers.trainings import mixing_problem, name_trainings

_MIN_STEPS = 3  # lines required to recognise a console
_LONGEST_LINE = 5_000  # bytes of a line
_RELEVANT = re.compile(rb"/|tep|er|pdate|[Vv]al|est")  # in every line that is read
_NEAR = 20  # characters before a counter that can name what it counts
_SEARCHED_BYTES = 1 << 20  # bytes to search when recognising a console
_COUNT = r"(\d{1,3}(?:[,_]\d{3}){1,2}|\d{1,9})"
_COUNTER = re.compile(rf"(?:^|[\s\[(#]){_COUNT} ?/ ?{_COUNT}(?=[\s\])|:]|,(?!\d)|$)")
_STEP = re.compile(
    rf"(?:^|[\s\[(|])(?:global[_ ])?(?:step|iter|iteration|update)[ =:#]{{1,12}}{_COUNT}"
    rf"(?: ?/ {{0,8}}{_COUNT})?(?=[\s\])|:;]|,(?!\d)|$)",
    re.I,
)
_UNIT = re.compile(rf"\b({'|'.join(UNITS)})s?[\W_]{{0,4}}$", re.I)  # before a counter
_EPOCH = re.compile(r"\bepochs?[\W_]{0,4}(\d{1,9})(?: ?/ ?\d{1,9})?(?![\w.])", re.I)
_NUMBER_PATTERN = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?|[-+]?(?i:nan|inf)"
_PHRASE = re.compile(r"([A-Za-z][A-Za-z_ ]{3,60}?) ?[:=] {0,3}\d")  # before a number, without a counter
_KEY_PATTERN = r"[A-Za-z_][\w.@/-]{0,80}"
_SINGLE_WORD = re.compile(r"(?<![\w./])[A-Za-z]+(?![\w./])")  # a word that is not part of a path
_LIST_OF_NUMBERS = re.compile(rf"(?<![\w.@/-])({_KEY_PATTERN}) ?[=:] ?\[([^\[\]]{{1,4000}})\]")
# A key of several words must follow a separator.
_KEY_VALUE = re.compile(
    rf"(?:(?<=[,|;)\]>] )({_KEY_PATTERN}(?: {_KEY_PATTERN}){{1,3}})|(?<![\w.@/-])({_KEY_PATTERN}))"
    rf" ?[=:] {{0,12}}({_NUMBER_PATTERN})([,_]\d[\d.,_]{{0,40}})?(?:(%)|/(\d{{1,9}}))?"
    r"(?=[\s;|\])}]|,(?!\d)|$)"
)


def is_console(content: bytes) -> bool:
    """Return whether a text contains three steps: lines with a counter followed by pairs.

    >>> is_console(b"1/9 | reward=0.1\\n2/9 | reward=0.2\\n3/9 | reward=0.3\\n")
    True
    >>> is_console(b"step,reward\\n1,0.1\\n2,0.2\\n3,0.3\\n")
    False
    """
    head = content[:_SEARCHED_BYTES]
    if head.count(b"=") + head.count(b":") < _MIN_STEPS or b"\0" in head:
        return False
    steps_of_counter: dict[tuple[str, int], set[float]] = {}
    for line in _step_lines(head):
        steps = steps_of_counter.setdefault((line.unit, line.total), set())
        steps.add(line.values["step"])
        if len(steps) == _MIN_STEPS:
            return True
    return False


def read_console(path: Path, content: bytes) -> pd.DataFrame:
    """Return the rows of a console, with line numbers as index.

    Raises `DataError` if the lines are from several processes.
    """
    left_out: list[int] = []  # numbers of the lines of evaluations that are not rows
    lines = list(_step_lines(content, left_out))
    distinct_steps = dict.fromkeys((row.unit, row.total, row.epoch, row.values["step"]) for row in lines)
    step_counts = Counter(key[:2] for key in distinct_steps)
    keys_of_counter: dict[tuple[str, int], set[str]] = {}
    for row in lines:
        keys_of_counter.setdefault((row.unit, row.total), set()).update(row.values)
    training = {key for key, names in keys_of_counter.items() if any(map(is_measured_by_trainer, names))}
    counter = max(step_counts, key=lambda key: (key in training, step_counts[key]))
    (unit, total), rows = counter, [line for line in lines if (line.unit, line.total) == counter]
    line_numbers = [row.line_number for row in rows]
    steps = [0.0, *(row.values["step"] for row in rows), math.inf]
    others = [line for line in lines if line.is_evaluation and (line.unit, line.total) != counter]
    for line in [line for line in others if any(map(is_reward, line.values))]:
        i = bisect(line_numbers, line.line_number)
        is_in_order = steps[i] <= line.values["step"] <= max(steps[i : i + 2])  # model output is not
        if (line.unit, line.total) == (unit, 0) and is_in_order:
            rows.append(line)
        else:
            left_out.append(line.line_number)
    rows.sort(key=lambda row: row.line_number)
    for previous, row in pairwise(rows):
        if row.is_evaluation and row.epoch < 0:  # an evaluation in the middle of an epoch
            row.epoch = previous.epoch
    if any(
        row.epoch > previous.epoch >= 0 and row.values["step"] <= previous.values["step"]
        for previous, row in pairwise(rows)
    ):
        epoch_steps, first_epoch = total or _steps_per_epoch(rows, path), min(1, *(row.epoch for row in rows))
        for row in rows:  # the steps start again with each epoch
            row.values["step"] += max(row.epoch - first_epoch, 0) * epoch_steps
    frame = pd.DataFrame(
        [row.values for row in rows], pd.Index([row.line_number for row in rows], name="line")
    )
    unread = {name: (text, row.line_number) for row in reversed(rows) for name, text in row.unread.items()}
    for name, (text, line_number) in unread.items():
        if is_reward(name):
            raise DataError(
                f"{path}: line {line_number}: {name} is {text!r}; expected a number such as 0.025 or 1234"
            )
    frame.attrs["notes"] = [
        f"{path.name}: isolaw left out values of {name} such as {text!r} in line {line_number}"
        for name, (text, line_number) in unread.items()
    ]
    if left_out:
        lines_left_out = f"{len(left_out):,} lines of evaluations that have no {unit} or count otherwise"
        frame.attrs["notes"] += [
            f"{path.name}: isolaw left out {lines_left_out}, such as line {min(left_out)}"
        ]
    keys = ["step"]
    frame["bar"] = [row.is_progress_bar for row in rows]
    if len({row.is_evaluation for row in rows}) > 1:  # else the word is the logger's or the run's name
        frame["phase"] = ["validation" if row.is_evaluation else "train" for row in rows]
        keys.append("phase")
    frame = name_trainings(frame, "step", str(path.with_suffix("")))
    keys += ["run"] if "trainings" in frame.attrs else []
    text_rows = frame[~frame["bar"]]
    frame = frame.drop(columns="bar")
    curves = [rows for _, rows in text_rows.groupby(keys[1:])] if keys[1:] else [text_rows]
    for curve in curves:
        for column in frame.columns.drop(keys):
            points = curve[["step", column]].dropna().to_numpy(np.float64)
            if problem := mixing_problem(column, points[:, 0], points[:, 1]):
                raise DataError(f"{path}: {problem}")
    # Several lines can belong to one step, and progress bars are redrawn repeatedly.
    table = frame.reset_index().groupby(keys, sort=False, as_index=False).last().set_index("line")
    is_nan = table == math.inf
    table = table.mask(is_nan)
    table.attrs = frame.attrs
    mark_written_nan(table, {name: set(table.index[is_nan[name]]) for name in table if is_nan[name].any()})
    return table.rename(columns={"step": unit})


@dataclass
class _StepLine:
    """A console line with a step counter and the (name, value) pairs after it."""

    line_number: int
    unit: str  # what the counter counts: ``step``, or one of `UNITS`
    total: int  # the total that the counter counts to; 0 if not given
    epoch: int  # -1 if not given
    values: dict[str, float]  # infinite if NaN or infinity is written
    unread: dict[str, str]  # the texts of numbers with a comma or an underscore
    is_progress_bar: bool  # whether it is a progress bar
    is_evaluation: bool  # whether a word for evaluation is next to the counter


def _count(text: str) -> int:
    return int(text.replace(",", "_"))


def _steps_per_epoch(rows: list[_StepLine], path: Path) -> int:
    """Return the number of steps per epoch if the log prints every step; otherwise raise `DataError`."""
    steps_of_epoch: dict[int, list[float]] = {}
    for row in rows:
        steps_of_epoch.setdefault(row.epoch, []).append(row.values["step"])
    finished = [sorted(set(steps)) for _, steps in sorted(steps_of_epoch.items())[:-1]]
    complete = [steps for steps in finished if steps[-1] - steps[0] == len(steps) - 1 and steps[0] in (0, 1)]
    sizes = set(map(len, complete))
    if len(sizes) != 1 or any(len(steps) not in sizes or steps[0] > 1 for steps in finished):
        raise DataError(
            f"{path}: steps start again with each epoch, and no line gives the number of steps per epoch; "
            "expected every step, or a counter such as 'step 3/400'"
        )
    return sizes.pop()


def _step_lines(content: bytes, without_step: list[int] | None = None) -> Iterator[_StepLine]:
    """Yield the steps; ``without_step`` receives the numbers of lines of evaluations without a step."""
    for line_number, line in enumerate(content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), 1):
        if len(line) > _LONGEST_LINE or not _RELEVANT.search(line):
            continue
        text = clean(line)
        counters = [ratio for ratio in _COUNTER.finditer(text) if _count(ratio[1]) <= _count(ratio[2])]
        epoch_match = _EPOCH.search(text)
        epochs = [ratio for ratio in counters if epoch_match and ratio.start(1) == epoch_match.start(1)]
        unit_of = {
            ratio: match[1].lower()
            for ratio in counters
            if (match := _UNIT.search(text, max(ratio.start(1) - _NEAR, 0), ratio.start(1)))
        }
        steps = [ratio for ratio in counters if ratio not in epochs and ratio not in unit_of]
        counter, fraction = _STEP.search(text), next(iter(steps), None)
        # A fraction is a counter if no word for steps goes before it and before the first pair.
        if counter is None or (fraction and _KEY_VALUE.search(text, fraction.end(), counter.start())):
            counter = fraction or counter
        counter = counter or next(iter(unit_of or epochs), None)
        if counter is None:
            phrases = _PHRASE.findall(text)
            is_evaluation = any(is_reward(phrase) and words_of(phrase) & HELD_OUT for phrase in phrases)
            if is_evaluation and without_step is not None:
                without_step.append(line_number)
            continue
        values: dict[str, float] = {}
        unread: dict[str, str] = {}
        pairs = list(_KEY_VALUE.finditer(text, counter.end()))
        phases = _phases_of_pairs(text, counter, pairs)
        mixed = "validation" in phases and len(set(phases)) > 1
        for pair, phase in zip(pairs, phases, strict=True):
            phrase, word, value, separated, percent, denominator = pair.groups()
            key, scale = phrase or word, 100.0 if percent else float(denominator or 1)
            if separated:  # 0,025 and 1,234 can be decimals or thousands
                unread[key] = value + separated
            elif scale and key.lower() not in ("step", "eta"):
                key = f"val_{key}" if mixed and phase == "validation" else key
                repeats = sum(other_key.split("#")[0] == key for other_key in values) if key in values else 0
                values[f"{key}#{repeats + 1}" if repeats else key] = float(value) / scale
        for name, items in _LIST_OF_NUMBERS.findall(text, counter.end()):
            if is_reward(name):
                values |= summary_of_list(name, [item.strip(" '\"") for item in items.split(",")])
        if values or unread:
            yield _StepLine(
                line_number,
                unit_of.get(counter, "step"),
                _count(counter[2] or "0"),
                int(epoch_match[1]) if epoch_match and counter not in epochs else -1,
                {"step": float(_count(counter[1]))}
                | {name: value if math.isfinite(value) else math.inf for name, value in values.items()},
                unread,
                "it/s" in text or "s/it" in text,
                "validation" in phases and not mixed,
            )


def _phases_of_pairs(text: str, counter: re.Match[str], pairs: list[re.Match[str]]) -> list[str]:
    """Return the phase of each pair (training or evaluation) from the words before it; "" if unknown."""
    phases: list[str] = []
    start, words = counter.end(), _SINGLE_WORD.findall(text[: counter.start()])
    for pair in pairs:
        words += _SINGLE_WORD.findall(text[start : pair.start()])
        known = list(filter(None, map(eval_set_of, words)))
        phase = "validation" if not phases and "validation" in known else known[-1] if known else ""
        phases.append(phase or (phases[-1] if phases else ""))
        start, words = pair.end(), []
    return phases
