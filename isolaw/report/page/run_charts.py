"""Charts that need no law: the reward over (B_p, n), best@k and worst@k, and the regret of a backtest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from isolaw.report.final_rewards import common_compute, finals
from isolaw.report.page.chart import Chart, log_axis, n_axis, n_colour, rounded, text
from isolaw.report.study import Study, one_batch, spread
from isolaw.report.text import backtest as backtest_words
from isolaw.report.text import captions, words

TOLERANCE = 0.005
_SCALE = [[0, "var(--map0)"], [0.5, "var(--map1)"], [1, "var(--map2)"]]


def grid(study: Study) -> Chart:
    """Return the reward of every (B_p, n) at one compute: a map, or a line where there is one B_p."""
    rows = study.rows()
    compute = common_compute(rows)
    table = finals(rows, compute)
    title = f"{study.metric} at C = {words.number(compute)}"
    told = captions.grid(study, table, compute)
    if len(study.batches) == 1:
        data = [_by_n(table, study.levels)]
        layout = {
            "xaxis": n_axis("n, rollouts per problem", study.levels),
            "yaxis": {"title": {"text": text(title)}},
        }
        return Chart("grid", "Rewards at the same compute", told, told, data, layout, height=340)
    return _map_of_grid(table, title, told)


def _map_of_grid(table: pd.DataFrame, title: str, told: str) -> Chart:
    """The rewards as a map, those within 0.005 of the best framed."""
    table = table.assign(
        told=[_runs(runs, error) for runs, error in zip(table["runs"], table["error"], strict=True)]
    )
    by = {"index": "rollouts_per_problem", "columns": "problems_per_batch"}
    values = table.pivot(**by, values="value")
    near = table[table["value"] >= table["value"].max() - TOLERANCE]
    data = [
        {
            "type": "heatmap", "x": [f"{b:,}" for b in values.columns], "y": [f"{n:,}" for n in values.index],
            "z": [rounded(row) for row in values.to_numpy(np.float64)],
            "customdata": table.pivot(**by, values="told").fillna("").to_numpy().tolist(),
            "colorscale": _SCALE, "xgap": 2, "ygap": 2, "hoverongaps": False,
            "texttemplate": "%{z:.3f}", "textfont": {"size": 11, "color": "var(--text)"},
            "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".2f",
                         "title": {"text": text(title), "side": "right"}},
            "hovertemplate": "B_p %{x}, n %{y}: %{z:.4f}%{customdata}<extra></extra>",
        }
    ]  # fmt: skip
    frames = [
        _frame(values.columns.get_loc(b), values.index.get_loc(n))
        for b, n in zip(near["problems_per_batch"], near["rollouts_per_problem"], strict=True)
    ]
    layout = {
        "xaxis": {"type": "category", "title": {"text": "B_p, problems per batch"}, "showgrid": False},
        "yaxis": {"type": "category", "title": {"text": "n, rollouts per problem"}, "showgrid": False},
        "shapes": frames,
    }
    height = 120 + 34 * max(len(values), 5)
    return Chart("grid", "Rewards at the same compute", told, told, data, layout, height=height)


def _frame(column: Any, row: Any) -> dict[str, Any]:
    """A frame around one cell of a map."""
    ends = {"x0": column - 0.46, "x1": column + 0.46, "y0": row - 0.44, "y1": row + 0.44}
    return {"type": "rect", **ends, "line": {"color": "var(--k1)", "width": 2}}


def _runs(runs: int, error: float) -> str:
    """How many runs a mean is of, and its standard error where there are two or more."""
    return (f" ± {error:.2g} (standard error)" if np.isfinite(error) else "") + f", {words.runs(runs, runs)}"


def _by_n(table: pd.DataFrame, levels: list[int]) -> dict[str, Any]:
    own = table.sort_values("rollouts_per_problem")
    return {
        "x": own["rollouts_per_problem"].tolist(),
        "y": rounded(own["value"]),
        "error_y": {"type": "data", "array": rounded(own["error"].fillna(0)), "thickness": 1.2, "width": 3},
        "customdata": [_runs(runs, error) for runs, error in zip(own["runs"], own["error"], strict=True)],
        "mode": "lines+markers",
        "line": {"color": "var(--muted)", "width": 1},
        "marker": {"size": 9, "color": [n_colour(levels, n) for n in own["rollouts_per_problem"]]},
        "hovertemplate": "n = %{x:,}: %{y:.4f}%{customdata}<extra></extra>",
    }


def best_and_worst(study: Study) -> list[Chart]:
    """Return best@k and worst@k by n at one compute and B_p, a chart each."""
    found = spread(study)
    if found is None:
        return []
    b = one_batch(study)
    charts = []
    for name in found[1]:
        rows = study.rows(name)
        rows = rows[rows["problems_per_batch"] == b]
        compute = common_compute(rows)
        table = finals(rows, compute)
        told = captions.extreme(name, table, compute, b)
        layout = {
            "xaxis": n_axis("n, rollouts per problem", study.levels),
            "yaxis": {"title": {"text": name}},
        }
        charts.append(
            Chart(name.replace("@", "-"), name, told, told, [_by_n(table, study.levels)], layout, height=320)
        )
    return charts


def backtest(result: Mapping[str, Any]) -> Chart:
    """Return the regret of each rule by budget."""
    data = []
    for i, (rule, found) in enumerate(result["rules"].items()):
        data.append(
            {
                "x": rounded(result["budgets"]),
                "y": rounded(found["regret"]),
                "name": text(rule),
                "mode": "lines+markers",
                "showlegend": True,
                "line": {
                    "color": f"var(--k{i % 4})",
                    "width": 2.5 if rule == "isolaw" else 1.5,
                    "dash": ("solid", "dash", "dot", "dashdot")[i % 4],
                },
                "marker": {"size": 7, "symbol": ("circle", "square", "diamond", "triangle-up")[i % 4]},
                "text": backtest_words.choices(result, rule),
                "hovertemplate": text(rule) + " at C %{x:.3s}: %{text}<br>loses %{y:.4f}<extra></extra>",
            }
        )
    told = captions.backtest(result)
    layout = {
        "xaxis": log_axis("C, rollouts generated", result["budgets"]),
        "yaxis": {"title": {"text": "regret in reward"}, "rangemode": "tozero"},
        "showlegend": True,
    }
    return Chart("backtest", "Regret by budget", told, told, data, layout, height=340)
