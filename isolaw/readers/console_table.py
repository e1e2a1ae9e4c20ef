"""A console of one's own as a table: lines with a counter and ``key=value`` pairs, amid other output.

::

    [exp_s042]   3/500 | loss=-1.5000 | reward=0.300 | acc=30.0%
    [step 12/500] correct=2/4 rewards=['0.80', '0.01'] loss=-0.0051 lr=1.00e-05
    Epoch:[1/2](3/9751), Reward: -2.3041, KL_ref: -0.0010, Actor Loss: 0.0000
    step 12: reward=0.25

A row for each such line that counts to the same number: ``step``, and a column for each key. A value with %
is divided by 100, and ``2/4`` is a share. Lists and texts are left out. Where only some lines have a word of
evaluation next to the counter (``[eval] step 12``), a column ``phase`` tells them from the others. B_p, n and
the reward's name are the user's to give, as for any table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pandas as pd

from isolaw.errors import DataError
from isolaw.readers.phases import eval_set_of
from isolaw.readers.text_lines import clean

_FEWEST = 3  # lines, of which a console is known
_LONGEST = 5_000  # bytes of a line
_NEAR = 20  # characters before a counter that say what it counts
_HEAD = 1 << 20  # bytes that are looked at to know one
_COUNTER = re.compile(r"(?:^|[\s\[(#])(\d{1,9}) ?/ ?(\d{1,9})(?=[\s\])|:,]|$)")
_STEP = re.compile(
    r"(?:^|[\s\[(|])(?:global[_ ])?(?:step|iter|iteration|update)[ =:#]{1,3}(\d{1,9})(?=[\s\])|:,;]|$)", re.I
)
# What else a counter may count; episodes may be steps, or rollouts.
UNITS = ("episode", "rollout", "sample", "trajectory", "prompt", "problem", "game")
_UNIT = re.compile(rf"\b({'|'.join(UNITS)})s?[\W_]{{0,4}}$", re.I)  # before a counter
_EPOCH = re.compile(r"epochs?[\W_]{0,4}$", re.I)  # before a counter
_NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?"
_WORD = r"[A-Za-z_][\w.@/-]{0,80}"
_BESIDE = re.compile(r"(?<![\w./])[A-Za-z]+(?![\w./])")  # a word that is no part of a path
# A key of several words begins behind a separator.
_PAIR = re.compile(
    rf"(?:(?<=[,|;)\]>] )({_WORD}(?: {_WORD}){{1,3}})|(?<![\w.@/-])({_WORD})) ?[=:] ?"
    rf"({_NUMBER})(?:(%)|/(\d{{1,9}}))?"
    r"(?=[\s,;|\])}]|$)"
)


def is_console(content: bytes) -> bool:
    """Return whether a text holds three steps: lines with a counter and pairs behind it.

    >>> is_console(b"1/9 | reward=0.1\\n2/9 | reward=0.2\\n3/9 | reward=0.3\\n")
    True
    >>> is_console(b"step,reward\\n1,0.1\\n2,0.2\\n3,0.3\\n")
    False
    """
    head = content[:_HEAD]
    if head.count(b"=") + head.count(b":") < _FEWEST or b"\0" in head:
        return False
    found: dict[tuple[str, int], set[float]] = {}
    for own in _lines(head):
        steps = found.setdefault((own.unit, own.total), set())
        steps.add(own.values["step"])
        if len(steps) == _FEWEST:
            return True
    return False


def read_console(path: Path, content: bytes) -> pd.DataFrame:
    """Return the rows of a console, each labelled by its line.

    Raises `DataError` where the counter does not rise: a second training in one file.
    """
    found = list(_lines(content))
    distinct = dict.fromkeys((row.unit, row.total, row.epoch, row.values["step"]) for row in found)
    counts = Counter(own[:2] for own in distinct)
    ((most, _),) = counts.most_common(1)
    (unit, total), rows = most, [own for own in found if (own.unit, own.total) == most]  # model output, too
    for before, row in pairwise(rows):
        if row.held_out and not row.epoch:  # an evaluation in the middle of an epoch
            row.epoch = before.epoch
    if any(
        row.epoch > before.epoch and row.values["step"] <= before.values["step"]
        for before, row in pairwise(rows)
    ):
        for row in rows:  # steps that start again with each epoch
            row.values["step"] += max(row.epoch - 1, 0) * total
    for before, row in pairwise(rows):
        if row.values["step"] <= rows[0].values["step"] < before.values["step"]:
            raise DataError(
                f"{path}:{row.line}: the counter starts again (at {row.values['step']:g}, after line "
                f"{before.line}): another training begins; give each a file of its own"
            )
    frame = pd.DataFrame(
        [own.values for own in rows], index=pd.Index([own.line for own in rows], name="line")
    )
    if len({own.held_out for own in rows}) == 1:  # the word is of the logger or the run
        frame = frame.drop_duplicates("step", keep="last")
    else:
        frame["phase"] = ["validation" if own.held_out else "train" for own in rows]
        frame = frame.drop_duplicates(["step", "phase"], keep="last")
    return frame.rename(columns={"step": unit})


@dataclass
class _Line:
    """A line with a counter and pairs behind it."""

    line: int
    unit: str  # what it counts: ``step``, or one of `UNITS`
    total: int  # what it counts to; 0 if it does not say
    epoch: int  # 0 without one
    values: dict[str, float]
    held_out: bool  # whether a word of evaluation is next to the counter


def _lines(content: bytes) -> Iterator[_Line]:
    for number, line in enumerate(content.replace(b"\r", b"\n").split(b"\n"), 1):
        if len(line) > _LONGEST or not (b"/" in line or b"tep" in line or b"ter" in line or b"pdate" in line):
            continue
        text = clean(line)
        counters = [own for own in _COUNTER.finditer(text) if int(own[1]) <= int(own[2])]
        epochs = [own for own in counters if _EPOCH.search(text, max(own.start(1) - _NEAR, 0), own.start(1))]
        units = {
            own: found[1].lower()
            for own in counters
            if (found := _UNIT.search(text, max(own.start(1) - _NEAR, 0), own.start(1)))
        }
        steps = [own for own in counters if own not in epochs and own not in units]
        counter = next(iter(steps or ([] if units else epochs)), None) or _STEP.search(text)
        counter = counter or next(iter(units), None)
        if counter is None:
            continue
        total = int(counter[2]) if counter.re is _COUNTER else 0
        values: dict[str, float] = {}
        pairs = list(_PAIR.finditer(text, counter.end()))
        for words, word, value, percent, whole in (own.groups() for own in pairs):
            key, scale = words or word, 100.0 if percent else float(whole or 1)
            if scale and key.lower() not in ("step", "eta"):
                again = sum(own == key or own.startswith(f"{key}#") for own in values)
                values[f"{key}#{again + 1}" if again else key] = float(value) / scale
        if values:
            epoch = int(epochs[0][1]) if epochs and steps else 0
            beside = f"{text[: counter.start()]} {text[counter.end() : pairs[0].start()]}"
            held_out = any(eval_set_of(word) == "validation" for word in _BESIDE.findall(beside))
            yield _Line(
                number,
                units.get(counter, "step"),
                total,
                epoch,
                {"step": float(counter[1]), **values},
                held_out,
            )
