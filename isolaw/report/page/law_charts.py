"""The charts of a law: reward by budget, n*(C), and the runs with the frontier; the section of the law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.evidence import Quantity, in_reward, interval, number
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.law import Law
from isolaw.fits.laws.equations import LAWS, logistic
from isolaw.fits.prediction import Prediction
from isolaw.fits.surface.slices import slices
from isolaw.report.document import Table, TableCell
from isolaw.report.fitted_runs import SHAPE_COLUMNS, FittedRuns
from isolaw.report.page.budgets import Budgets, best
from isolaw.report.page.chart import (
    SILENT,
    Chart,
    PageSection,
    band,
    joined,
    line,
    log_axis,
    mark,
    n_axis,
    n_colour,
    n_ends,
    rounded,
    text,
)
from isolaw.report.text import law as law_text
from isolaw.report.text.law import steps_scale
from isolaw.report.text.prediction import laws
from isolaw.runs import SYMBOL_OF

_MOST_POINTS = 30_000  # points of all runs together: with more, a page of long logs would be slow
_LEAST_RUN_POINTS = 30  # points of each run
_CURVE_POINTS = 60  # points of a fitted curve
Floats = NDArray[np.float64]
BEST = "The best n at a budget is that of the recommendation."


def section(study: FittedRuns, budgets: Budgets | None) -> PageSection | str:
    """Return the section of the law, or the reason why there is none."""
    law = study.law
    if law is None:
        return f"n*(C): {study.no_law}"
    document, charts, predictions = law.document, [], [] if budgets is None else budgets.recommended
    lines = [line for line in (law_text.verdict(document), law_text.saturation(document)) if line]
    tables: list[Table | None] = [laws(document)]
    if budgets is not None and predictions:
        charts = [n_star(law, budgets)]
        tables.insert(0, _frontier_table(predictions, document))
    title = f"The best {SYMBOL_OF[document.axis]} for a budget"
    return PageSection("law", title, lines, charts, [table for table in tables if table is not None])


def buys(study: FittedRuns, budgets: Budgets) -> Chart:
    """Return a chart of the frontier: the recommended allocation's reward, with its band, by budget.

    The chart marks today's compute; the page's script marks the slider's budget.
    """
    document = study.document
    assert document is not None
    predictions = budgets.recommended
    data = _frontier_traces(predictions, document, with_band=True)
    layout = {
        "xaxis": log_axis(law_text.axis(document), _x_values(predictions, document)),
        "yaxis": {"title": {"text": text(f"{study.metric} of the best allocation")}},
        "shapes": _today_marker(budgets, document),
    }
    ends = [predictions[0], budgets.answer] if budgets.answer.options else [predictions[0], predictions[-1]]
    texts = [f"{number(p.reward.value or 0.0)} at C = {number(p.compute)} with n = {p.n}" for p in ends]
    caption = (
        "The line is the predicted reward of the recommended allocation at each budget, dashed beyond the "
        f"runs. The band is its 95 % interval. {BEST}"
    )
    alt = f"{caption} The reward goes from {' to '.join(texts)}."
    return Chart("buys", "What the budget buys", caption, data, layout, alt, budget=True, height=340)


def _x_values(predictions: Sequence[Prediction], document: LawDocument) -> list[float]:
    return [prediction.compute / steps_scale(document) for prediction in predictions]


def _today_marker(budgets: Budgets, document: LawDocument) -> list[dict[str, Any]]:
    """Return a marker at the largest compute that three n reached, with the n recommended there."""
    today = budgets.today
    if today is None or not today.options:
        return []
    label = f"today: {best(today, document)}"
    x = today.compute / steps_scale(document)
    return [mark(x, label, "var(--muted)", top=False, on_left=True)]


def _frontier_traces(
    predictions: Sequence[Prediction], document: LawDocument, with_band: bool
) -> list[dict[str, Any]]:
    """Return the recommended allocation's reward as traces: solid over the runs, dashed beyond them."""
    symbol, end = law_text.symbol(document), max(entry.measured[1] for entry in document.grid)
    known = [p for p in predictions if p.reward.value is not None]
    data: list[dict[str, Any]] = []
    bounded = [p for p in known if p.reward.interval and None not in p.reward.interval]
    if with_band and bounded:
        ends = np.array([p.reward.interval for p in bounded], dtype=np.float64).T
        data += band(_x_values(bounded, document), *ends, **_DRAWS_ENTRY)
    count = sum(p.compute <= end * 1.01 for p in known)
    for segment, dash in ((known[:count], "solid"), (known[max(count - 1, 0) :], "dash")):
        hover = [
            f"{symbol} = {number(p.compute / steps_scale(document))}: {best(p, document)}<br>"
            f"{number(p.reward.value or 0.0)}"
            + (f" ({interval(p.reward.interval)})" if p.reward.interval else "")
            + (f"<br>expected loss {in_reward(p.loss, p.tolerance)}" if p.loss is not None else "")
            for p in segment
        ]
        style = {"color": "var(--accent)" if with_band else "var(--text)", "width": 2.5, "dash": dash}
        legend = _legend_entry("recommended", 0) if dash == "solid" else {}
        if len(segment) > 1:
            data.append(
                line(_x_values(segment, document), (p.reward.value for p in segment), style, text=hover,
                     hovertemplate="%{text}<extra></extra>", **legend)
            )  # fmt: skip
    return data


def reward(study: FittedRuns, run_ids: Sequence[str], budgets: Budgets | None = None) -> Chart:
    """Return a chart of reward against compute: runs, fitted rewards and the frontier.

    Each point contains the index of its run in ``run_ids``.
    """
    indices = {run_id: i for i, run_id in enumerate(run_ids)}
    rows = study.fitted_rows()
    rows = rows.assign(x=study.x_values(rows)).query("x > 0").sort_values(["run_id", "step"])
    thinned = _thin_out(rows)
    groups = thinned.groupby(SHAPE_COLUMNS, sort=True)
    data = [_run_trace(group, b, n, study, indices) for (b, n), group in groups]
    document = study.document
    if study.law is not None and document is not None:
        for entry, curve in zip(document.grid, _fitted_curves(study.law), strict=True):
            b, n = entry.problems_per_batch, entry.rollouts_per_problem
            style = {"color": n_colour(study.levels, n), "width": 1.4}
            data.append(line(*curve, style, hoverinfo="skip", meta={"n": n, "b": b}))
        if budgets is not None:
            data += _frontier_traces(budgets.recommended, document, with_band=False)
    title = law_text.axis(document) if document else "C, rollouts generated"
    layout = {
        "xaxis": log_axis(title, rows["x"]),
        "yaxis": {"title": {"text": text(f"{study.metric} ({study.eval_set})")}},
    }
    return Chart(
        "reward", "The runs", _reward_caption(study, len(thinned) < len(rows)), data, layout,
        _reward_alt(study), budget=document is not None, height=420,
    )  # fmt: skip


def _thin_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Thin long logs to a limited number of rows per run, evenly spaced in log C, last row included."""
    if len(rows) <= _MOST_POINTS:
        return rows
    limit = max(_MOST_POINTS // rows["run_id"].nunique(), _LEAST_RUN_POINTS)

    def thinned(curve: pd.DataFrame) -> pd.DataFrame:
        positions = np.searchsorted(curve["x"], np.geomspace(curve["x"].iloc[0], curve["x"].iloc[-1], limit))
        return curve.iloc[np.unique(np.append(positions.clip(max=len(curve) - 1), len(curve) - 1))]

    return pd.concat([thinned(run) for _, run in rows.groupby("run_id", sort=False)])


def _run_trace(
    rows: pd.DataFrame, b: Any, n: Any, study: FittedRuns, indices: dict[str, int]
) -> dict[str, Any]:
    """Return all runs of a configuration as one line with gaps. Each point contains its run and step."""
    runs = [run for _, run in rows.groupby("run_id", sort=False)]
    indices_and_steps = [
        [[indices[str(run["run_id"].iloc[0])], int(step)] for step in run["step"]] for run in runs
    ]
    symbol = law_text.symbol(study.document) if study.document else "C"
    return {
        "x": joined([rounded(run["x"]) for run in runs]),
        "y": joined([rounded(run["value"]) for run in runs]),
        "customdata": joined(indices_and_steps),
        "mode": "lines",
        "line": {"color": n_colour(study.levels, int(n)), "width": 1},
        "opacity": min(max(15 / len(indices), 0.25), 0.6) if study.law is not None else 0.8,
        "hovertemplate": f"%{{customdata[0]}}<br>step %{{customdata[1]:,}}, {symbol} %{{x:,}}<br>"
        f"{text(study.metric)} %{{y}}<extra></extra>",
        "meta": {"n": int(n), "b": int(b), "runs": True},
    }  # fmt: skip


def n_star(law: Law, budgets: Budgets) -> Chart:
    """Return a chart of n*(C) with its band at the slider's budgets, the law, and the ends of the grid."""
    document = law.document
    levels, is_over_b = law.levels, document.axis == "problems_per_batch"
    stars = [(p, p.b_star if is_over_b else p.n_star) for p in budgets.recommended]
    stars = [(p, q) for p, q in stars if q.value is not None and q.status != "not_identified"]
    x_shown = _x_values([p for p, _ in stars], document)
    ends = n_ends([*levels.tolist(), *(q.value or 1.0 for _, q in stars)])
    x_star, n, low, high = _star_line(x_shown, [q for _, q in stars], ends)
    data: list[dict[str, Any]] = []
    if np.isfinite(low).any():
        data += band(x_star, low, high, **_DRAWS_ENTRY)
    symbol, name = law_text.symbol(document), "B_p*" if is_over_b else "n*"
    hover = [
        f"{symbol} = {number(p.compute / steps_scale(document))}: {best(p, document)}<br>"
        f"{name}: {law_text.star(q)}"
        for p, q in stars
    ]
    solid = {"color": "var(--accent)", "width": 2.5}
    hover_keys = {"text": hover, "hovertemplate": "%{text}<extra></extra>"}
    data.append(line(x_star, n, solid, **hover_keys, **_legend_entry(name, 1)))
    x_law = np.geomspace(*document.x.range, 60)
    law_n = _law_line(document, x_law)
    if law_n is not None:
        dashed = {"color": "var(--text)", "width": 1.3, "dash": "dash"}
        label = f"law ({law_text.law_name(law_text.preferred(document) or '')})"
        on_axis = (law_n >= ends[0]) & (law_n <= ends[1])
        data.append(line(x_law[on_axis], law_n[on_axis], dashed, **SILENT | _legend_entry(label, 4)))
    shapes = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": int(edge), "y1": int(edge),
            "line": {"color": "var(--muted)", "width": 1, "dash": "dash"},
            "label": {"text": f"{which} measured", "textposition": "start", "yanchor": anchor,
                      "font": {"size": 11}},
        }
        for edge, which, anchor in ((levels[0], "smallest", "top"), (levels[-1], "largest", "bottom"))
    ]  # fmt: skip
    axis = n_axis(f"{name}, {_AXIS_LABELS[document.axis]}", levels.tolist())
    layout = {
        "xaxis": log_axis(law_text.axis(document), _x_values(budgets.recommended, document)),
        "yaxis": axis | {"range": [float(end) for end in np.log10(ends)]},
        "shapes": [*shapes, *_today_marker(budgets, document)],
        "showlegend": True,
    }
    title = f"The best {SYMBOL_OF[document.axis]} for a budget"
    alt = " ".join([f"{title}.", law_text.ends(document), law_text.saturation(document)])
    return Chart("n-star", title, _n_star_caption(document), data, layout, alt, budget=True, height=420)


_AXIS_LABELS = {"rollouts_per_problem": "rollouts per problem", "problems_per_batch": "problems per batch"}


def _legend_entry(name: str, rank: int) -> dict[str, Any]:
    """Return the trace keys that set the name and the rank of a legend entry."""
    return {"name": name, "showlegend": True, "legendrank": rank}


_DRAWS_ENTRY = _legend_entry("95 % of draws", 2)  # the legend entry of a band


def _fitted_curves(law: Law) -> list[tuple[Floats, Floats]]:
    """Return (x, fitted reward) of every configuration in the grid, over its measured range.

    If the law has a surface, the rewards come from the surface, like the recommendations, so that no curve
    exceeds the frontier. With ``method="paper"`` they come from the learning curves.
    """
    document, scale = law.document, steps_scale(law.document)
    low, high = (end * scale for end in document.x.range)
    x = np.geomspace(low, high, _CURVE_POINTS)
    reward = None
    if law.surface is not None:
        cut = slices(law.surface, x)
        reward = cut.reward[0][:, cut.place]  # (X, N)
    curves = []
    for index, entry in enumerate(document.grid):
        start = max(entry.measured[0], entry.step_cost)
        if reward is None:
            compute = np.geomspace(start, entry.measured[1], _CURVE_POINTS)
            fitted = law.curves(entry.problems_per_batch, entry.rollouts_per_problem)(compute)[0]
        else:
            inside = (x >= start) & (x <= entry.measured[1] * (1 + 1e-9))
            compute, fitted = x[inside], reward[inside, index]
        curves.append((compute / scale, fitted))
    return curves


def _law_line(document: LawDocument, x: Floats) -> Floats | None:
    """Return n of the preferred law at each ``x``; None without a preferred law."""
    name, argument = law_text.preferred(document), np.log10(x) if document.x.log10 else x
    if document.method == "paper":
        parameters = [document.params[parameter].value for parameter in LAWS["logistic"].parameters]
        values = np.array(parameters, np.float64)  # NaN for None
        log2_n = logistic(argument, *values) if np.isfinite(values).all() else None
    else:
        law = document.comparison.laws.get(name or "")
        log2_n = LAWS[name].log2_n(argument, np.array([law.theta]))[0] if name and law else None
    return None if log2_n is None else np.asarray(np.exp2(np.clip(log2_n, -20, 60)))


def _star_line(x: Sequence[float], quantities: Sequence[Quantity], ends: tuple[float, float]) -> Floats:
    """Return x, n* and the two ends of its 95 % interval at each x where n* is known.

    The array has shape (4, X). An unbounded interval ends at the limit of the axis, given by ``ends``; a
    missing interval is NaN. Since n* comes from a grid of n, it changes in small steps.

    >>> result = [Quantity(8.0, (None, 16.0)), Quantity(64.0, (32.0, 128.0))]
    >>> _star_line([1e5, 1e6], result, (4.0, 256.0)).round()
    array([[1.00e+05, 1.00e+06],
           [8.00e+00, 6.40e+01],
           [4.00e+00, 3.20e+01],
           [1.60e+01, 1.28e+02]])
    """
    rows = []
    for at, q in zip(x, quantities, strict=True):
        if q.value is None or q.status in ("refused", "not_identified"):
            continue
        low, high = (np.nan, np.nan) if q.interval is None else q.interval
        rows.append((at, q.value, ends[0] if low is None else low, ends[1] if high is None else high))
    if not rows:
        return np.empty((4, 0))
    at, *star_and_ends = np.array(rows, dtype=np.float64).T
    return np.array([at, *np.clip(star_and_ends, *ends)])


def _reward_caption(study: FittedRuns, thinned: bool) -> str:
    """Return the caption of the chart of reward against compute, which explains how to read it."""
    lines = ["Thin lines are runs, in stronger colours for larger n."]
    if study.document is not None:
        surface = study.document.method == "surface"
        fitted = "rewards of the fit" if surface else "fitted learning curves"
        lines.append(f"Medium lines are the {fitted} at each measured configuration.")
        lines.append("The heavy line is the frontier of the first chart, dashed beyond the runs.")
    if thinned:
        lines.append("For long runs, the chart shows only some checkpoints; the fit uses all of them.")
    return " ".join(lines)


def _reward_alt(study: FittedRuns) -> str:
    """Return the text alternative of the chart of reward against compute: its range of rewards."""
    rows = study.fitted_rows()
    return (
        f"{study.metric} on {study.eval_set} against compute, {rows['run_id'].nunique()} runs, from "
        f"{rows['value'].min():.3f} to {rows['value'].max():.3f}."
    )


def _n_star_caption(document: LawDocument) -> str:
    """Return the caption of the chart of n*(C), which explains how to read it."""
    n = SYMBOL_OF[document.axis]
    lines = [
        f"The line is {n}*, where the fitted reward is highest among all {n}. The band is its 95 % "
        "interval, which ends at the axis where the interval is open."
    ]
    if not document.bootstrap.draws:
        lines = [f"The line is {n}*, where the fitted reward is highest. Without draws, there is no band."]
    lines.append(f"The recommended {n} is the round or measured {n} next to the line that loses least.")
    if document.method == "surface" and (law := law_text.preferred(document)):
        lines.append(f"The dashed line is the law, {law_text.form(law, document)}, within the runs.")
    lines.append(f"Near {n}* the reward is flat, so a loss in reward matters more than the {n} itself.")
    return " ".join(lines)


def _frontier_table(predictions: Sequence[Prediction], document: LawDocument) -> Table:
    """Return the recommendation at each budget of the slider, one row per budget."""
    is_over_b = document.axis == "problems_per_batch"
    rows = []
    for prediction in predictions:
        split = prediction.options[0].allocation
        sizes = (split.rollouts_per_problem, split.problems_per_batch, split.steps)
        star = prediction.b_star if is_over_b else prediction.n_star
        rows.append(
            [
                TableCell.number(prediction.compute), *map(TableCell.number, sizes),
                TableCell.of(prediction.reward), TableCell.lost(prediction.loss, prediction.tolerance),
                TableCell.of(star, law_text.star(star)),
            ]
        )  # fmt: skip
    columns = ["C", "n", "B_p", "M", "reward", "expected loss", "B_p*" if is_over_b else "n*"]
    return Table("frontier", "The recommendation at each budget", columns, rows, long=True)
