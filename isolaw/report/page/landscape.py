"""The pass@1 landscape over training: how many problems are at which pass@1, and how many at none."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.ticker import EngFormatter

from isolaw.report.page.chart import Chart, log_axis, n_colour, rounded
from isolaw.report.study import Study, one_batch
from isolaw.report.text import captions

_BIN = re.compile(r"pass@1 in \[(\d\.\d+), (\d\.\d+)[)\]]")
_COLUMNS = 40  # of a map
_PANELS = 3
# Most problems are at the ends; what is in between has half of the colours.
_SCALE = [[0, "var(--map0)"], [0.15, "var(--map1)"], [0.5, "var(--map2)"], [1, "var(--accent)"]]
_engineering = EngFormatter(sep="")


def landscape(study: Study) -> list[Chart]:
    """Return how pass@1 is spread over problems as training goes on: maps by n, and the share at zero."""
    b = one_batch(study)
    maps = {n: found for n in _shown(study.levels) if (found := _shares(study, b, n))}
    most = max((float(shares.to_numpy().max()) for shares, _ in maps.values()), default=1.0)
    charts = [_map(shares, whence, n, b, most) for n, (shares, whence) in maps.items()]
    rows = study.rows("zero_fraction")
    rows = rows[(rows["problems_per_batch"] == b) & (rows["compute"] > 0)]
    if len(rows):
        charts.append(_zero(rows, study, b))
    return charts


def _shown(levels: list[int]) -> list[int]:
    """The smallest, a middle and the largest n."""
    return sorted({levels[round(i * (len(levels) - 1) / (_PANELS - 1))] for i in range(_PANELS)})


def _shares(study: Study, b: int, n: int) -> tuple[pd.DataFrame, str] | None:
    """The share of problems in each bin of pass@1 (rows) at each compute (columns), and whose they are."""
    points = study.held.points
    own = points[(points["problems_per_batch"] == b) & (points["rollouts_per_problem"] == n)]
    bins = own[(own["eval_set"] == study.eval_set) & own["metric"].str.fullmatch(_BIN.pattern)]
    if len(bins):
        low = bins["metric"].str.extract(_BIN).astype(float).mean(axis=1)
        return bins.assign(p=low).groupby(["p", "compute"])["value"].mean().unstack(), "exact shares"
    problems = study.held.problems
    if problems is None:
        return None
    mine = problems[(problems["eval_set"] == study.eval_set) & problems["run_id"].isin(own["run_id"])]
    if mine.empty:
        return None
    compute = own.drop_duplicates(["run_id", "step"]).set_index(["run_id", "step"])["compute"]
    mine = mine.join(compute, on=["run_id", "step"]).assign(p=mine["correct"] / mine["samples"])
    counts = mine.groupby(["p", "compute"]).size().unstack(fill_value=0)
    return counts / counts.sum(), f"from {int(mine['samples'].max())} samples of each problem"


def _map(shares: pd.DataFrame, whence: str, n: int, b: int, most: float) -> Chart:
    step_0 = [c for c in shares.columns if c == 0]
    later = shares.columns[shares.columns > 0]
    at = np.unique(
        np.searchsorted(later, np.geomspace(later[0], later[-1], _COLUMNS)).clip(max=len(later) - 1)
    )
    shares = shares[[*step_0, *later[at]]]
    names = [_engineering(float(f"{c:.2g}")) for c in shares.columns]  # 12k
    told = captions.landscape(shares, n, b, whence)
    data = [
        {
            "type": "heatmap", "x": names, "y": rounded(shares.index),
            "z": [rounded(row) for row in shares.to_numpy(np.float64)],
            "colorscale": _SCALE, "zmin": 0, "zmax": round(most, 3),
            "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".0%"},
            "hovertemplate": "C %{x}, pass@1 %{y:.2f}: %{z:.1%} of problems<extra></extra>",
        }
    ]  # fmt: skip
    layout = {
        "xaxis": {
            "type": "category",
            "title": {"text": "C, rollouts generated"},
            "nticks": 5,
            "showgrid": False,
        },
        "yaxis": {"title": {"text": "pass@1 of a problem"}, "showgrid": False},
    }
    return Chart(f"landscape-n{n}", f"n = {n:,}", told, told, data, layout, height=300)


def _zero(rows: pd.DataFrame, study: Study, b: int) -> Chart:
    data = []
    for n, own in rows.groupby("rollouts_per_problem"):
        mean = own.groupby("compute")["value"].mean()
        data.append(
            {
                "x": rounded(mean.index),
                "y": rounded(mean),
                "mode": "lines",
                "line": {"color": n_colour(study.levels, int(str(n))), "width": 1.6},
                "hovertemplate": f"n = {n:,}, C %{{x:.3s}}: %{{y:.1%}}<extra></extra>",
                "meta": {"n": int(str(n))},
            }
        )
    told = captions.zero(rows, b)
    layout = {
        "xaxis": log_axis("C, rollouts generated", rows["compute"]),
        "yaxis": {
            "title": {"text": "share of problems below 0.02"},
            "tickformat": ".0%",
            "rangemode": "tozero",
        },
    }
    return Chart("zero-pass", "Problems that are (almost) never solved", told, told, data, layout, height=320)
