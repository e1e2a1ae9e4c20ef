"""A console of one's own as a table: lines with a counter and ``key=value`` pairs, amid other output.

::

    [exp_s042]   3/500 | loss=-1.5000 | reward=0.300 | acc=30.0%
    [step 12/500] correct=2/4 rewards=['0.80', '0.01'] loss=-0.0051 lr=1.00e-05

A row for each such line that counts to the same number: ``step``, and a column for each key. A value with %
is divided by 100, and ``2/4`` is a share. Lists and texts are left out. B_p, n and the reward's name are the
user's to give, as for any table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pandas as pd

from isolaw.errors import DataError
from isolaw.readers.text_lines import clean

_FEWEST = 3  # lines, of which a console is known
_LONGEST = 5_000  # bytes of a line
_HEAD = 1 << 20  # bytes that are looked at to know one
_COUNTER = re.compile(r"(?:^|[\s\[(#])(\d{1,9}) ?/ ?(\d{1,9})(?=[\s\])|:,]|$)")
_NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?"
_PAIR = re.compile(rf"([A-Za-z_][\w.@/-]{{0,80}}) ?[=:] ?({_NUMBER})(?:(%)|/(\d{{1,9}}))?(?=[\s,;|\])}}]|$)")


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
    found: dict[int, set[float]] = {}
    for total, _, values in _lines(head):
        found.setdefault(total, set()).add(values["step"])
        if len(found[total]) == _FEWEST:
            return True
    return False


def read_console(path: Path, content: bytes) -> pd.DataFrame:
    """Return the rows of a console, each labelled by its line.

    Raises `DataError` where the counter does not rise: a second training in one file.
    """
    found = list(_lines(content))
    counts = Counter(total for total, _ in {(total, row["step"]) for total, _, row in found})
    ((total, _),) = counts.most_common(1)
    rows = [(line, row) for own, line, row in found if own == total]  # model output has fractions, too
    for (before, _), (line, row) in pairwise(rows):
        if row["step"] <= rows[0][1]["step"]:
            raise DataError(
                f"{path}:{line}: the counter starts again (at {row['step']:g}, after line {before}): another "
                "training begins; give each a file of its own"
            )
    frame = pd.DataFrame([row for _, row in rows], index=pd.Index([line for line, _ in rows], name="line"))
    return frame.drop_duplicates("step", keep="last")


def _lines(content: bytes) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield each line with a counter and pairs behind it: what it counts to, its number and its values."""
    for number, line in enumerate(content.replace(b"\r", b"\n").split(b"\n"), 1):
        if b"/" not in line or len(line) > _LONGEST:
            continue
        text = clean(line)
        if not (counter := _COUNTER.search(text)) or int(counter[1]) > int(counter[2]):
            continue
        values = {}
        for key, value, percent, whole in _PAIR.findall(text, counter.end()):
            scale = 100.0 if percent else float(whole or 1)
            if scale and key.lower() not in ("step", "eta"):
                values[key] = float(value) / scale
        if values:
            yield int(counter[2]), number, {"step": float(counter[1]), **values}
