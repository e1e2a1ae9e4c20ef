"""The sections of single problems: pass@1 over training, and the responses that runs kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter

from isolaw.evidence import number
from isolaw.report.document import Table, TableCell
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.page.chart import Chart, PageSection, line, log_axis, n_colour, rounded
from isolaw.store.sweep import SavedResponses

_BIN_NAME = re.compile(r"pass@1 in \[(\d\.\d+), (\d\.\d+)[)\]]")
_MAP_COLUMNS = 40  # height of a map
_MOST_MAPS = 3
# Most problems are near 0 or 1; half of the colors are for the rarer values in between.
_MAP_COLOURS = [[0, "var(--map0)"], [0.15, "var(--map1)"], [0.5, "var(--map2)"], [1, "var(--accent)"]]
_engineering = EngFormatter(sep="")
_MOST_RESPONSES = 300  # rows; each text has up to 2.7 kB
_RUN_EVALUATIONS = 5  # per run
# The page shows control characters (NUL, escape, …) as Unicode control pictures, except line breaks and tabs.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}


def landscape(study: FittedRuns) -> PageSection | str:
    """Return the section of the pass@1 landscape, or the reason why there is none."""
    charts = _charts(study)
    if not charts:
        return "pass@1 landscape: the runs did not record results of single problems"
    lines = []
    if not any(chart.name.startswith("landscape") for chart in charts):
        lines.append(
            "The runs did not record pass@1 of all problems. A simulated sweep records it with "
            'evaluation.metrics = [..., "histogram"]. A real sweep always records it, in its directory and '
            "not in its table."
        )
    return PageSection("landscape", "The pass@1 landscape over training", lines, charts, small=True)


def _charts(study: FittedRuns) -> list[Chart]:
    """Return maps of pass@1 over training for up to three n, and a chart of the share of problems at zero."""
    b, levels = study.densest_batch(), study.levels
    shown_n = sorted({levels[round(i * (len(levels) - 1) / (_MOST_MAPS - 1))] for i in range(_MOST_MAPS)})
    maps = {n: image for n in shown_n if (image := _problem_shares(study, b, n))}
    largest = max((float(shares.to_numpy().max()) for shares, _ in maps.values()), default=1.0)
    charts = [_pass_map(shares, origin, n, b, largest) for n, (shares, origin) in maps.items()]
    rows = study.metric_rows("zero_fraction")
    rows = rows[(rows["problems_per_batch"] == b) & (rows["compute"] > 0)]
    return [*charts, _zero_chart(rows, study, b)] if len(rows) else charts


def _problem_shares(study: FittedRuns, b: int, n: int) -> tuple[pd.DataFrame, str] | None:
    """Return the share of problems by bin of pass@1 (rows) and compute (columns), and its source."""
    points = study.selected.points
    runs = points[(points["problems_per_batch"] == b) & (points["rollouts_per_problem"] == n)]
    bins = runs[(runs["eval_set"] == study.eval_set) & runs["metric"].str.fullmatch(_BIN_NAME.pattern)]
    if len(bins):
        middle = bins["metric"].str.extract(_BIN_NAME).astype(float).mean(axis=1)
        return bins.assign(p=middle).groupby(["p", "compute"])["value"].mean().unstack(), "exact shares"
    problems = study.selected.problems
    if problems is None:
        return None
    rows = problems[(problems["eval_set"] == study.eval_set) & problems["run_id"].isin(runs["run_id"])]
    if rows.empty:
        return None
    compute = runs.drop_duplicates(["run_id", "step"]).set_index(["run_id", "step"])["compute"]
    rows = rows.join(compute, on=["run_id", "step"]).assign(p=rows["correct"] / rows["samples"])
    counts = rows.groupby(["p", "compute"]).size().unstack(fill_value=0)
    return counts / counts.sum(), f"from {int(rows['samples'].max())} samples of each problem"


def _pass_map(shares: pd.DataFrame, origin: str, n: int, b: int, largest: float) -> Chart:
    first_column = [c for c in shares.columns if c == 0]
    later = shares.columns[shares.columns > 0]
    positions = np.searchsorted(later, np.geomspace(later[0], later[-1], _MAP_COLUMNS))
    shares = shares[[*first_column, *later[np.unique(positions.clip(max=len(later) - 1))]]]
    data = [
        {
            "type": "heatmap", "x": [_engineering(float(f"{c:.2g}")) for c in shares.columns],  # e.g. 12k
            "y": rounded(shares.index), "z": [rounded(row) for row in shares.to_numpy(np.float64)],
            "colorscale": _MAP_COLOURS, "zmin": 0, "zmax": round(largest, 3),
            "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".1~%"},
            "hovertemplate": "C %{x}, pass@1 %{y:.2f}: %{z:.1%} of problems<extra></extra>",
        }
    ]  # fmt: skip
    c = {"type": "category", "title": {"text": "C, rollouts generated"}, "nticks": 5, "showgrid": False}
    layout = {"xaxis": c, "yaxis": {"title": {"text": "pass@1 of a problem"}, "showgrid": False}}
    caption = _map_caption(shares, n, b, origin)
    return Chart(f"landscape-n{n}", f"n = {n:,}", caption, data, layout, height=300)


def _zero_chart(rows: pd.DataFrame, study: FittedRuns, b: int) -> Chart:
    data = []
    for group, rows_of_n in rows.groupby("rollouts_per_problem"):
        n, mean = int(str(group)), rows_of_n.groupby("compute")["value"].mean()
        style = {"color": n_colour(study.levels, n), "width": 1.6}
        hover = f"n = {n:,}, C %{{x:.3s}}: %{{y:.1%}}<extra></extra>"
        data.append(line(mean.index, mean, style, hovertemplate=hover, meta={"n": n}))
    share = {"title": {"text": "share of problems below 0.02"}, "tickformat": ".1~%", "rangemode": "tozero"}
    layout = {"xaxis": log_axis("C, rollouts generated", rows["compute"]), "yaxis": share}
    title = "Problems that are (almost) never solved"
    return Chart("zero-pass", title, _zero_caption(rows, b), data, layout, height=320)


def _map_caption(shares: pd.DataFrame, n: int, b: int, origin: str) -> str:
    """Return the caption of a map: how the lowest and the highest bin of pass@1 changed."""
    first, last = shares.columns[0], shares.columns[-1]
    low, high = shares.iloc[0], shares.iloc[-1]
    return (
        f"Share of problems by their pass@1, for n = {n:,} and B_p = {b:,} ({origin}, all seeds together). "
        f"From C = {number(first)} to {number(last)}, the lowest bin goes from {100 * low[first]:.0f} % to "
        f"{100 * low[last]:.0f} % of problems, and the highest bin from {100 * high[first]:.0f} % to "
        f"{100 * high[last]:.0f} %."
    )


def _zero_caption(rows: pd.DataFrame, b: int) -> str:
    """Return the caption for the share at zero: the n with the smallest and largest share at the end."""
    last = rows.loc[rows.groupby("run_id")["step"].idxmax()].groupby("rollouts_per_problem")["value"].mean()
    least, most = last.idxmin(), last.idxmax()
    return (
        f"Share of problems with pass@1 below 0.02, as a mean over seeds, for B_p = {b:,}. At the end, the "
        f"share is smallest for n = {least:,} ({100 * last[least]:.1f} %) and largest for n = {most:,} "
        f"({100 * last[most]:.1f} %)."
    )


def responses(saved: Sequence[SavedResponses]) -> PageSection | None:
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
