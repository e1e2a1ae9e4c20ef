"""The sections of the runs: rewards at one compute, health, and the backtest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from isolaw.evidence import count, in_reward, number
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.health import Health, health
from isolaw.fits.prediction import Prediction
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.slices import slices
from isolaw.report.document import Table, TableCell
from isolaw.report.fitted_runs import SHAPE_COLUMNS, FittedRuns
from isolaw.report.page.chart import (
    SILENT,
    Chart,
    PageSection,
    band,
    line,
    mark,
    n_axis,
    n_colour,
    n_ends,
    rounded,
    text,
)
from isolaw.report.text import sweep as sweep_text
from isolaw.report.text.prediction import predicted
from isolaw.report.text.studies import choices

_GRID_TITLE = "Rewards at the same compute"
_WORST_FIRST = ("failed", "unhealthy", "unknown", "healthy")
_LONG = 12  # rows
_MAP_COLOURS = [[0, "var(--map0)"], [0.5, "var(--map1)"], [1, "var(--map2)"]]
_FINAL_SHARE = 0.8  # rewards before this share of the largest compute do not count as final


def at_one_compute(study: FittedRuns) -> PageSection:
    """Return the section of the rewards of all configurations at one compute."""
    return PageSection("grid", _GRID_TITLE, charts=[grid(study)], tables=[_rewards_table(study)])


def health_section(study: FittedRuns, failed: Sequence[Mapping[str, Any]]) -> PageSection:
    """Return the section of the health of the runs, and of ``failed`` ones (`isolaw.engine.status`)."""
    run_healths = health(study.runs, study.metric, study.eval_set)
    lines = sweep_text.health(run_healths, len(failed), study.document)
    table = _health_table(run_healths, study, failed)
    return PageSection("health", "Health of the runs", lines, tables=[table])


def backtest(result: Mapping[str, Any] | str) -> PageSection | str:
    """Return the section of a backtest, or the reason why there is none."""
    if isinstance(result, str):
        return f"Backtest: {result}"
    judges = f"on {result['seeds']} seeds, each held out in turn"
    if result["held_out"] != "seed":
        judges = "by later checkpoints of the same runs, since there is only one seed"
    text_line = (
        f"Each rule used only checkpoints up to C = {number(result['fit_below'])} and chose allocations for "
        f"larger budgets, which isolaw judged {judges}. All losses are too large by the same amount, since "
        "the best reward is a maximum over noisy values."
    )
    title = "Backtest: would small runs have predicted the best allocation?"
    return PageSection("backtest", title, [text_line], tables=[_backtest_table(result)])


def grid(study: FittedRuns) -> Chart:
    """Return the reward of every (B_p, n) at one compute, as a map, or as a line if B_p is constant.

    The best configuration is the recommended one (`Law.predict`); without a law, it is the configuration with
    the highest mean.
    """
    compute, table = study.rewards_at_one_compute()
    prediction = _recommendation(study, compute)
    title = f"{study.metric} at C = {number(compute)}"
    caption = _grid_caption(study, table, compute, prediction)
    if len(study.batches) > 1:
        allocations = [] if prediction is None else [option.allocation for option in prediction.options]
        recommended = {(a.problems_per_batch, a.rollouts_per_problem) for a in allocations}
        return _map_of_grid(table, title, caption, recommended)
    chart = _by_n(title, caption, table, study.levels)
    if prediction is not None and study.law is not None and study.law.surface is not None:
        chart.data[0]["mode"] = "markers"  # the fitted curve joins the points
        chart.data[:0] = _fitted_traces(study.law.surface, compute)
        n = prediction.options[0].allocation.rollouts_per_problem
        on_left = bool(n > np.median(study.levels))
        label = f"recommended: n = {n:,}"
        chart.layout["shapes"] = [mark(n, label, "var(--text)", top=True, on_left=on_left, dash="dot")]
        chart.layout["xaxis"]["range"] = np.log10(n_ends([*study.levels, n])).tolist()
    return chart


def _recommendation(study: FittedRuns, compute: float) -> Prediction | None:
    """Return the recommendation at ``compute``, or None if there is none or the law has another unit."""
    if study.law is None or study.law.document.x.name not in ("compute", "steps"):
        return None
    prediction = predicted(study.law, compute)
    return prediction if prediction is not None and prediction.options else None


def _fitted_traces(surface: Surface, compute: float) -> list[dict[str, Any]]:
    """Return the fitted reward of every n at one compute, with its 95 % band, as traces."""
    cut = slices(surface, np.array([compute]))
    n, reward = np.exp2(cut.log2_n), cut.reward[:, 0]
    interval = [] if len(reward) < 2 else band(n, *np.quantile(reward[1:], [0.025, 0.975], axis=0))
    return [*interval, line(n, reward[0], {"color": "var(--accent)", "width": 2}, **SILENT)]


def _map_of_grid(
    table: pd.DataFrame, title: str, caption: str, recommended: Collection[tuple[int, int]]
) -> Chart:
    """Return a map of rewards with frames around the (B_p, n) in ``recommended``.

    If ``recommended`` is empty, the frames mark rewards within the tolerance of the highest.
    """
    axes = {"index": "rollouts_per_problem", "columns": "problems_per_batch"}
    means = table.pivot(**axes, values="value")
    hover = table.assign(hover=_hover_texts(table)).pivot(**axes, values="hover").fillna("")
    data = [
        {
            "type": "heatmap", "x": [f"{b:,}" for b in means.columns], "y": [f"{n:,}" for n in means.index],
            "z": [rounded(row) for row in means.to_numpy(np.float64)],
            "customdata": hover.to_numpy().tolist(),
            "colorscale": _MAP_COLOURS, "xgap": 2, "ygap": 2, "hoverongaps": False,
            "texttemplate": "%{z:.3f}", "textfont": {"size": 11, "color": "var(--text)"},
            "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".2f",
                         "title": {"text": text(title), "side": "right"}},
            "hovertemplate": "B_p %{x}, n %{y}: %{z:.4f}%{customdata}<extra></extra>",
        }
    ]  # fmt: skip
    is_framed = means.to_numpy(np.float64) >= table["value"].max() - TOLERANCE
    if recommended:
        is_framed = np.array([[(b, n) in recommended for b in means.columns] for n in means.index])
    frames = [
        {
            "type": "rect", "x0": column - 0.46, "x1": column + 0.46, "y0": row - 0.44, "y1": row + 0.44,
            "line": {"color": "var(--mean)", "width": 2},
        }
        for row, column in np.argwhere(is_framed).tolist()
    ]  # fmt: skip
    layout = {
        "xaxis": {"type": "category", "title": {"text": "B_p, problems per batch"}, "showgrid": False},
        "yaxis": {"type": "category", "title": {"text": "n, rollouts per problem"}, "showgrid": False},
        "shapes": frames,
    }
    height = 120 + 34 * max(len(means), 5)
    return Chart("grid", _GRID_TITLE, caption, data, layout, height=height)


def _hover_texts(table: pd.DataFrame) -> list[str]:
    """Return the hover text of each mean: its standard error, if known, and the number of runs."""
    return [
        (f" ± {error:.2g} (standard error)" if np.isfinite(error) else "") + f", {count(runs, 'run')}"
        for runs, error in zip(table["runs"], table["error"], strict=True)
    ]


def _by_n(title: str, caption: str, table: pd.DataFrame, levels: list[int]) -> Chart:
    """Return a chart of rewards against n with standard errors."""
    n = table["rollouts_per_problem"].tolist()
    data = line(
        n, table["value"], {"color": "var(--muted)", "width": 1}, mode="lines+markers",
        error_y={"type": "data", "array": rounded(table["error"].fillna(0)), "color": "var(--muted)",
                 "thickness": 1.2, "width": 3},
        customdata=_hover_texts(table), marker={"size": 9, "color": [n_colour(levels, level) for level in n]},
        hovertemplate="n = %{x:,}: %{y:.4f}%{customdata}<extra></extra>",
    )  # fmt: skip
    layout = {"xaxis": n_axis("n, rollouts per problem", levels), "yaxis": {"title": {"text": text(title)}}}
    return Chart("grid", _GRID_TITLE, caption, [data], layout, height=340)


def _grid_caption(study: FittedRuns, table: pd.DataFrame, compute: float, best: Prediction | None) -> str:
    """Return the caption of `grid`: the best configuration at one compute, and what the chart leaves out."""
    missing_count = study.metric_rows().groupby(SHAPE_COLUMNS).ngroups - len(table)
    end = study.metric_rows()["compute"].max()
    has_map = len(study.batches) > 1
    fewest, most = (int(v) for v in (table["runs"].min(), table["runs"].max()))
    counts = count(most, "run") if fewest == most else f"{fewest:,} to {most:,} runs"
    caption = (
        f"{study.metric} at C = {number(compute)}, the largest compute that all configurations reached "
        f"(means of the checkpoints from 0.8 C to 1.1 C, {counts} each)."
    )
    if best is not None:
        allocation, loss = best.options[0].allocation, best.options[0].expected_loss
        shape = f"B_p = {allocation.problems_per_batch:,}, n = {allocation.rollouts_per_problem:,}"
        caption += f" Recommended here: {shape}, with an expected loss of {in_reward(loss, best.tolerance)}."
        if has_map:
            near_by = f"{best.tolerance:g}"
            caption += f" Frames are measured configurations with an expected loss of at most {near_by}."
        elif study.law is not None and study.law.surface is not None:
            caption += " The line and its 95 % band are the fit, which also uses the runs at other budgets."
    elif study.law is None:
        top = table.loc[table["value"].idxmax()]
        near = table[table["value"] >= top["value"] - TOLERANCE]
        shape = f"B_p = {top['problems_per_batch']:,.0f}, n = {top['rollouts_per_problem']:,.0f}"
        caption += (
            f" The highest mean is {top['value']:.3f}, of {shape}; {len(near)} of {len(table)} are within "
            f"{TOLERANCE} of it{', framed' if has_map else ''}."
        )
    if compute < _FINAL_SHARE * end:
        caption += f" Some runs end there; others continue to C = {number(end)}, where another n may be best."
    if not has_map and table["error"].notna().any():
        caption += " Bars are standard errors over runs."
    if missing_count:
        caption += f" The chart leaves out {missing_count} that ended before this compute or began after it."
    return caption


def labels(run_ids: Sequence[str]) -> dict[str, str]:
    """Return a short name for each run: the common folder is removed, and hashes are abbreviated.

    >>> labels(["logs/a/n8", "logs/a/n16"])
    {'logs/a/n8': 'n8', 'logs/a/n16': 'n16'}
    """
    folders = [run_id.split("/")[:-1] for run_id in run_ids]
    shared_folders = itertools.takewhile(lambda folder: len(set(folder)) == 1, zip(*folders, strict=False))
    start = sum(len(folder[0]) + 1 for folder in shared_folders) if len(run_ids) > 1 else 0
    return {run_id: short[start:] for run_id, short in sweep_text.short_ids(run_ids).items()}


def _rewards_table(study: FittedRuns) -> Table:
    """Return the numbers behind the chart of rewards at one compute, with one row per configuration."""
    compute, table = study.rewards_at_one_compute()
    rows = []
    for b, n, runs, value, error in table.itertuples(index=False):
        reward = f"{value:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}")
        rows.append([*map(TableCell.number, (b, n, runs)), TableCell(reward, float(value))])
    caption = f"Rewards at C = {number(compute)}, with standard errors over runs"
    return Table("finals", caption, ["B_p", "n", "runs", study.metric], rows, long=True)


def _health_table(judged: Sequence[Health], study: FittedRuns, failed: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of all runs with their health, failed runs included."""
    ends = study.runs.points.groupby("run_id")[["step", "compute"]].max()
    last_rewards = study.metric_rows().sort_values("step").groupby("run_id")["value"].last()
    names = labels([*(h.run_id for h in judged), *(failure["run_id"] for failure in failed)])
    failure_of_run = {failure["run_id"]: failure for failure in failed}
    rows = []
    for h in judged:
        failure = failure_of_run.pop(h.run_id, None)
        status = h.status if failure is None else "failed"
        facts = (h.problems_per_batch, h.rollouts_per_problem, h.seed, *(int(v) for v in ends.loc[h.run_id]))
        causes = [] if failure is None else [failure["cause"]]
        rows.append(
            [
                TableCell(names[h.run_id]), *map(TableCell.number, facts),
                TableCell.number(last_rewards.get(h.run_id), ".3f"),
                TableCell(status, kind={"healthy": "good", "unknown": ""}.get(status, "bad")),
                TableCell("; ".join([*causes, *h.reasons])),
            ]
        )  # fmt: skip
    for failure in failure_of_run.values():  # failed before the first checkpoint
        facts = (failure["problems_per_batch"], failure["rollouts_per_problem"], failure["seed"], 0, 0)
        cells = [TableCell("", ""), TableCell("failed", kind="bad"), TableCell(failure["cause"])]
        rows.append([TableCell(names[failure["run_id"]]), *map(TableCell.number, facts), *cells])
    rows.sort(key=lambda row: _WORST_FIRST.index(row[7].text))
    columns = ["run", "B_p", "n", "seed", "steps", "C", study.metric, "state", "why"]
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table("runs", f"Every run ({len(rows):,}), the worst first", columns, rows, long=len(rows) > _LONG)


def _backtest_table(result: Mapping[str, Any]) -> Table:
    """Return a table of the loss in reward of each rule in a backtest."""
    rows, tolerance = [], result["tolerance"]
    for rule, losses in result["rules"].items():
        difference, error = losses["against_isolaw"].values()
        sign = "-" if difference < 0 else "+"
        difference_text = sign + in_reward(abs(difference), tolerance)
        difference_text += "" if error is None else f" (SE {in_reward(error, tolerance)})"
        cells = [
            TableCell(f"{in_reward(loss, tolerance)} ({chosen})".replace("n ", "n\u00a0"), loss)
            for loss, chosen in zip(losses["loss"], choices(result, rule), strict=True)
        ]
        last = TableCell("" if rule == "isolaw" else difference_text, difference)
        rows.append([TableCell(rule), *cells, TableCell.lost(losses["mean_loss"], tolerance), last])
    budgets = [f"C = {number(budget)}" for budget in result["budgets"]]
    columns = ["rule", *budgets, "mean", "loses more than isolaw by"]
    return Table("loss", "Loss in reward of each rule, and its choices", columns, rows, long=True)
