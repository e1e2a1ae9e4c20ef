"""The section of the page about responses that the runs kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from isolaw.evidence import number
from isolaw.report.document import Table, TableCell
from isolaw.report.page.chart import PageSection
from isolaw.store.sweep import Kept

_MOST = 300  # rows; each text has up to 2.7 kB
_EVALUATIONS = 5  # per run
# The page shows control characters (NUL, escape, …) as Unicode control pictures, except line breaks and tabs.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}


def section(kept: Sequence[Kept]) -> PageSection | None:
    """Return the section of kept responses, or None if no run kept any (simulated runs never do)."""
    if not kept:
        return None
    shown = _chosen(kept)
    all_of, here = (sum(len(one.responses) for one in part) for part in (kept, shown))
    lines = [
        "The first response to each of the first problems, the same problems in every run and evaluation."
    ]
    if here < all_of:
        lines.append(
            f"The table has {here:,} of {all_of:,} kept responses; points.jsonl of each run has all."
        )
    return PageSection("responses", "Responses", lines, tables=[_table(shown)])


def _chosen(kept: Sequence[Kept], most: int = _MOST) -> list[Kept]:
    """Choose evenly spaced evaluations of all runs, with at most ``most`` responses in total.

    The choice includes the first and the last evaluation of each run, if ``most`` permits.
    """
    runs = [list(group) for _, group in groupby(kept, key=lambda one: one.spec.run_id)]
    for each in range(_EVALUATIONS, 0, -1):
        spread = [run[i] for run in runs for i in _spread(len(run), each)]
        if each == 1 or sum(len(one.responses) for one in spread) <= most:
            break
    out: list[Kept] = []
    for one in spread:
        most -= len(one.responses)
        if most < 0:
            break
        out.append(one)
    return out


def _spread(size: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced indices below ``size``.

    The last index is always included and, if there are two or more, the first index.

    >>> _spread(7, 3), _spread(7, 1), _spread(2, 5)
    ([0, 3, 6], [6], [0, 1])
    """
    return sorted(set(np.linspace(size - 1, 0, count).round().astype(int).tolist()))


def _table(shown: Sequence[Kept]) -> Table:
    """Return a table with one row per response."""
    rows = []
    for one in shown:
        spec = one.spec
        run = f"n = {spec.rollouts_per_problem:,}, B_p = {spec.problems_per_batch:,}, seed {spec.seed}"
        for response in one.responses:
            length = f"{response.tokens:,}{', cut' if response.truncated else ''}"
            rows.append(
                [
                    TableCell(run, spec.rollouts_per_problem), TableCell(number(one.compute), one.compute),
                    TableCell(_plain(response.eval_set)), TableCell(_plain(response.prompt), kind="said"),
                    TableCell(_plain(response.response), kind="said"),
                    TableCell(_plain(response.answer), kind="said"),
                    TableCell(f"{response.reward:g}", response.reward), TableCell(length, response.tokens),
                ]
            )  # fmt: skip
    columns = ["run", "C", "set", "prompt", "response", "answer", "reward", "tokens"]
    return Table("responses", "Responses at evaluations", columns, rows, long=True)


def _plain(text: str) -> str:
    return text.translate(_PICTURES)
