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
from isolaw.store.sweep import Kept

_BIN = re.compile(r"pass@1 in \[(\d\.\d+), (\d\.\d+)[)\]]")
_COLUMNS = 40  # height of a map
_PANELS = 3
# Most problems are near 0 or 1; half of the colors are for the rarer values in between.
_SCALE = [[0, "var(--map0)"], [0.15, "var(--map1)"], [0.5, "var(--map2)"], [1, "var(--accent)"]]
_engineering = EngFormatter(sep="")
_MOST = 300  # rows; each text has up to 2.7 kB
_EVALUATIONS = 5  # per run
# The page shows control characters (NUL, escape, …) as Unicode control pictures, except line breaks and tabs.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}


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
    shown = sorted({levels[round(i * (len(levels) - 1) / (_PANELS - 1))] for i in range(_PANELS)})
    maps = {n: image for n in shown if (image := _shares(study, b, n))}
    most = max((float(shares.to_numpy().max()) for shares, _ in maps.values()), default=1.0)
    charts = [_map(shares, origin, n, b, most) for n, (shares, origin) in maps.items()]
    rows = study.metric_rows("zero_fraction")
    rows = rows[(rows["problems_per_batch"] == b) & (rows["compute"] > 0)]
    return [*charts, _zero(rows, study, b)] if len(rows) else charts


def _shares(study: FittedRuns, b: int, n: int) -> tuple[pd.DataFrame, str] | None:
    """Return the share of problems by bin of pass@1 (rows) and compute (columns), and its source."""
    points = study.selected.points
    point = points[(points["problems_per_batch"] == b) & (points["rollouts_per_problem"] == n)]
    bins = point[(point["eval_set"] == study.eval_set) & point["metric"].str.fullmatch(_BIN.pattern)]
    if len(bins):
        middle = bins["metric"].str.extract(_BIN).astype(float).mean(axis=1)
        return bins.assign(p=middle).groupby(["p", "compute"])["value"].mean().unstack(), "exact shares"
    problems = study.selected.problems
    if problems is None:
        return None
    mine = problems[(problems["eval_set"] == study.eval_set) & problems["run_id"].isin(point["run_id"])]
    if mine.empty:
        return None
    compute = point.drop_duplicates(["run_id", "step"]).set_index(["run_id", "step"])["compute"]
    mine = mine.join(compute, on=["run_id", "step"]).assign(p=mine["correct"] / mine["samples"])
    counts = mine.groupby(["p", "compute"]).size().unstack(fill_value=0)
    return counts / counts.sum(), f"from {int(mine['samples'].max())} samples of each problem"


def _map(shares: pd.DataFrame, origin: str, n: int, b: int, most: float) -> Chart:
    step_0 = [c for c in shares.columns if c == 0]
    later = shares.columns[shares.columns > 0]
    wanted = np.searchsorted(later, np.geomspace(later[0], later[-1], _COLUMNS))
    shares = shares[[*step_0, *later[np.unique(wanted.clip(max=len(later) - 1))]]]
    data = [
        {
            "type": "heatmap", "x": [_engineering(float(f"{c:.2g}")) for c in shares.columns],  # e.g. 12k
            "y": rounded(shares.index), "z": [rounded(row) for row in shares.to_numpy(np.float64)],
            "colorscale": _SCALE, "zmin": 0, "zmax": round(most, 3),
            "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".1~%"},
            "hovertemplate": "C %{x}, pass@1 %{y:.2f}: %{z:.1%} of problems<extra></extra>",
        }
    ]  # fmt: skip
    compute = {"type": "category", "title": {"text": "C, rollouts generated"}, "nticks": 5, "showgrid": False}
    layout = {"xaxis": compute, "yaxis": {"title": {"text": "pass@1 of a problem"}, "showgrid": False}}
    caption = _map_caption(shares, n, b, origin)
    return Chart(f"landscape-n{n}", f"n = {n:,}", caption, data, layout, height=300)


def _zero(rows: pd.DataFrame, study: FittedRuns, b: int) -> Chart:
    data = []
    for group, part in rows.groupby("rollouts_per_problem"):
        n, mean = int(str(group)), part.groupby("compute")["value"].mean()
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


def responses(kept: Sequence[Kept]) -> PageSection | None:
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
