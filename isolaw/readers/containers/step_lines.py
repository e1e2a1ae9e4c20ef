"""veRL's step lines, ``step:1 - actor/grad_norm:0.3 - …``: their items, and where one goes over two lines."""

from __future__ import annotations

import re

from isolaw.readers.raw_log import number
from isolaw.readers.text_lines import LONGEST

_STEP = re.compile(r"(?<![A-Za-z_/.@-])step:\s?(\d{1,12}) -(?: |$)")
# A value with something printed right behind it: "perf/throughput:512.3Training Progress:  10%|".
_FOLLOWED = re.compile(
    r"([^:]{1,300}):\s?((?:[a-z]{1,10}\.)?[a-z]{1,10}\d{0,3}\([^():]{1,60}\)"
    r"|[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?=[A-Za-z(\[]|\s)"
)
_WORD = re.compile(r"\w{0,40}\s?")
_NUMERIC = re.compile(r"[\d.eE+-]{1,30}\)?")
_LONGEST_KEY = 300


def steps(text: str) -> list[tuple[float, str]]:
    """Return each step in a line, and the text of its items; the first may be cut before its number."""
    found = list(_STEP.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    cut = [(float(match[1]), text[match.end() : end]) for match, end in zip(found, ends, strict=False)]
    return [
        (step, items) for step, items in cut if "/" in items.partition(" - ")[0] or _WORD.fullmatch(items)
    ]


def record(items: str) -> tuple[dict[str, str], int]:
    """Return a step's values by key, and how many could not be read; no values if this is no step's line.

    >>> record("actor/lr:1e-06 - val/a - b:c/acc:np.float64(0.5) - x/y:?")
    ({'actor/lr': '1e-06', 'val/a - b:c/acc': 'np.float64(0.5)'}, 1)
    """
    values: dict[str, str] = {}
    unread = 0
    begun = ""  # of a key that has " - " in it
    for piece in items.split(" - "):
        whole = f"{begun} - {piece}" if begun else piece
        found = item(whole) or _followed(whole)
        begun = "" if found or ":" in whole or len(whole) > _LONGEST_KEY else whole
        if found:
            values[found[0]] = found[1]
        elif not begun:
            unread += 1
    unread += bool(begun)
    ours = any("/" in key for key in values) and unread <= len(values)
    return (values, unread) if ours else ({}, 0)


def item(piece: str) -> tuple[str, str] | None:
    """Return the key and the number of ``key:number``, else None; the key may hold colons.

    >>> item("val/test_score/a:b:0.5"), item("actor/loss:tensor(0.5, device='cuda:0')"), item("critic/sco")
    (('val/test_score/a:b', '0.5'), ('actor/loss', "tensor(0.5, device='cuda:0')"), None)
    """
    if len(piece) > 2 * _LONGEST_KEY:
        return None
    end = piece.rfind(":", 0, piece.find("(")) if piece.rstrip().endswith(")") else piece.rfind(":")
    key, value = piece[:end].strip(), piece[end + 1 :].strip()
    return (key, value) if end > 0 and key and number(value) is not None else None


def _followed(piece: str) -> tuple[str, str] | None:
    found = _FOLLOWED.match(piece)
    return (found[1].strip(), found[2]) if found else None


def continued(start: str, line: str) -> str | None:
    """Return a step's text with the next line, if that goes on with it; None if it is something else.

    >>> continued("actor/lr:0.1 - critic/sco", "re/mean:0.5 - critic/rewards/mean:0.4")
    'actor/lr:0.1 - critic/score/mean:0.5 - critic/rewards/mean:0.4'
    >>> continued("actor/lr:0.1 -", "critic/score/mean:0.5"), continued("actor/lr:0.1", "epoch 0, step 2")
    ('actor/lr:0.1 - critic/score/mean:0.5', None)
    """
    if not line.strip() or len(start) + len(line) > LONGEST or _STEP.search(line):
        return None
    start, line = start.rstrip(), line.rstrip()
    if not start:  # "step:1 -" was all
        first = item(line.partition(" - ")[0])
        return line if first and "/" in first[0] else None
    if start.endswith(" -"):
        start, line = start[:-2], f" - {line.lstrip()}"
    elif line.startswith("- "):
        line = f" {line}"
    seam, *rest = line.split(" - ")
    last = start[start.rfind(" - ") + 3 :] if " - " in start else start
    if not all(item(piece) for piece in rest[:-1]):
        return None
    named = [found for piece in rest if (found := item(piece)) and "/" in found[0]]
    if not seam:
        return start + line if named else None
    across = item(last + seam)
    if not across or "/" not in across[0]:
        return None
    if item(last) or _followed(last):  # only a number can be cut and look whole
        return start + line if named and _NUMERIC.fullmatch(seam) else None
    return start + line
