"""The section of the responses that runs kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from isolaw.report.document import Table, TableCell
from isolaw.report.page.chart import PageSection
from isolaw.store.sweep import SavedResponses

_MOST_RESPONSES = 300  # rows; each text has up to 2.7 kB
_RUN_EVALUATIONS = 5  # per run
# The page shows control characters (NUL, escape, …) as Unicode control pictures, except line breaks and tabs.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}


def section(saved: Sequence[SavedResponses]) -> PageSection | None:
    """Return the section of kept responses, or None if no run kept any (simulated runs never do)."""
    if not saved:
        return None
    chosen = _choose(saved)
    total, count = (sum(len(one.responses) for one in group) for group in (saved, chosen))
    lines = [
        "The first response to each of the first problems, the same problems in every run and evaluation."
    ]
    if count < total:
        lines.append(
            f"The table has {count:,} of {total:,} kept responses; points.jsonl of each run has all."
        )
    return PageSection("responses", "Responses", lines, tables=[_table(chosen)])


def _choose(saved: Sequence[SavedResponses], limit: int = _MOST_RESPONSES) -> list[SavedResponses]:
    """Choose evenly spaced evaluations of all runs, with at most ``limit`` responses in total.

    The choice includes the first and the last evaluation of each run, if ``limit`` permits.
    """
    runs = [list(group) for _, group in groupby(saved, key=lambda evaluation: evaluation.spec.run_id)]
    for count in range(_RUN_EVALUATIONS, 0, -1):
        chosen = [run[i] for run in runs for i in _spread_indices(len(run), count)]
        if count == 1 or sum(len(evaluation.responses) for evaluation in chosen) <= limit:
            break
    within_limit: list[SavedResponses] = []
    for evaluation in chosen:
        limit -= len(evaluation.responses)
        if limit < 0:
            break
        within_limit.append(evaluation)
    return within_limit


def _spread_indices(size: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced indices below ``size``.

    The last index is always included and, if there are two or more, the first index.

    >>> _spread_indices(7, 3), _spread_indices(7, 1), _spread_indices(2, 5)
    ([0, 3, 6], [6], [0, 1])
    """
    return sorted(set(np.linspace(size - 1, 0, count).round().astype(int).tolist()))


def _table(chosen: Sequence[SavedResponses]) -> Table:
    """Return a table with one row per response."""
    rows = []
    for saved in chosen:
        spec = saved.spec
        run = f"n = {spec.rollouts_per_problem:,}, B_p = {spec.problems_per_batch:,}, seed {spec.seed}"
        for response in saved.responses:
            length = f"{response.tokens:,}{', cut' if response.truncated else ''}"
            rows.append(
                [
                    TableCell(run, spec.rollouts_per_problem), TableCell.number(saved.compute),
                    TableCell(_visible(response.eval_set)), TableCell(_visible(response.prompt), kind="said"),
                    TableCell(_visible(response.response), kind="said"),
                    TableCell(_visible(response.answer), kind="said"),
                    TableCell(f"{response.reward:g}", response.reward), TableCell(length, response.tokens),
                ]
            )  # fmt: skip
    columns = ["run", "C", "set", "prompt", "response", "answer", "reward", "tokens"]
    return Table("responses", "Responses at evaluations", columns, rows, long=True)


def _visible(text: str) -> str:
    return text.translate(_CONTROL_PICTURES)
