"""Charts of the runs: reward by (B_p, n), best@k and worst@k, and the losses of a backtest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from isolaw.evidence import count, in_reward, number
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.prediction import Option, Prediction
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.slices import slices
from isolaw.report.document import Table, TableCell
from isolaw.report.fitted_runs import PLACE, FittedRuns
from isolaw.report.page.chart import (
    SILENT,
    Chart,
    band,
    line,
    log_axis,
    mark,
    n_axis,
    n_colour,
    n_ends,
    rounded,
    text,
)
from isolaw.report.text.prediction import predicted
from isolaw.report.text.studies import choices
from isolaw.store.sweep import Kept

_MOST = 300  # rows; each text has up to 2.7 kB
_EVALUATIONS = 5  # per run
# The page shows control characters (NUL, escape, …) as Unicode control pictures, except line breaks and tabs.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}


def chosen_responses(kept: Sequence[Kept], most: int = _MOST) -> list[Kept]:
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


def response_lines(kept: Sequence[Kept], shown: Sequence[Kept]) -> list[str]:
    """Describe which responses the table shows, and how many it leaves out."""
    all_of, here = (sum(len(one.responses) for one in part) for part in (kept, shown))
    text = "The first response to each of the first problems, the same problems in every run and evaluation."
    if here == all_of:
        return [text]
    return [text, f"The table has {here:,} of {all_of:,} kept responses; points.jsonl of each run has all."]


def response_table(shown: Sequence[Kept]) -> Table:
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


_SCALE = [[0, "var(--map0)"], [0.5, "var(--map1)"], [1, "var(--map2)"]]
_NEAR_END = 0.8  # rewards before this share of the largest compute do not count as final
_DASHES, _SYMBOLS = ("solid", "dash", "dot", "dashdot"), ("circle", "square", "diamond", "triangle-up")


def grid(study: FittedRuns) -> Chart:
    """Return the reward of every (B_p, n) at one compute, as a map, or as a line if B_p is constant.

    The best configuration is the recommended one (`Law.predict`); without a law, it is the configuration with
    the highest mean.
    """
    compute, table = study.finals()
    prediction = _recommended(study, compute)
    title = f"{study.metric} at C = {number(compute)}"
    caption = _grid_caption(study, table, compute, prediction)
    if len(study.batches) > 1:
        near = None if prediction is None else {_place(o) for o in prediction.options}
        return _map_of_grid(table, title, caption, near)
    chart = _by_n("grid", "Rewards at the same compute", title, caption, table, study.levels, height=340)
    if prediction is not None and study.law is not None and study.law.surface is not None:
        chart.data[0]["mode"] = "markers"  # the fitted curve joins the points
        chart.data[:0] = _fitted(study.law.surface, compute)
        n = prediction.options[0].allocation.rollouts_per_problem
        right = bool(n > np.median(study.levels))
        label = f"recommended: n = {n:,}"
        chart.layout["shapes"] = [mark(n, label, "var(--text)", top=True, right=right, dash="dot")]
        chart.layout["xaxis"]["range"] = np.log10(n_ends([*study.levels, n])).tolist()
    return chart


def _place(option: Option) -> tuple[int, int]:
    return option.allocation.problems_per_batch, option.allocation.rollouts_per_problem


def _recommended(study: FittedRuns, compute: float) -> Prediction | None:
    """Return the recommendation at ``compute``, or None if there is none or the law has another unit."""
    if study.law is None or study.law.document.x.name not in ("compute", "steps"):
        return None
    prediction = predicted(study.law, compute)
    return prediction if prediction is not None and prediction.options else None


def _fitted(surface: Surface, compute: float) -> list[dict[str, Any]]:
    """Return the fitted reward of every n at one compute, with its 95 % band, as traces."""
    cut = slices(surface, np.array([compute]))
    n, reward = np.exp2(cut.log2_n), cut.reward[:, 0]
    out = [] if len(reward) < 2 else band(n, *np.quantile(reward[1:], [0.025, 0.975], axis=0))
    return [*out, line(n, reward[0], {"color": "var(--accent)", "width": 2}, **SILENT)]


def _map_of_grid(
    table: pd.DataFrame, title: str, caption: str, near: Collection[tuple[int, int]] | None
) -> Chart:
    """Return a map of rewards with frames around the (B_p, n) in ``near``.

    If ``near`` is None, the frames mark rewards within the tolerance of the highest.
    """
    by = {"index": "rollouts_per_problem", "columns": "problems_per_batch"}
    values = table.pivot(**by, values="value")
    hover = table.assign(hover=_runs(table)).pivot(**by, values="hover").fillna("")
    data = [
        {
            "type": "heatmap", "x": [f"{b:,}" for b in values.columns], "y": [f"{n:,}" for n in values.index],
            "z": [rounded(row) for row in values.to_numpy(np.float64)],
            "customdata": hover.to_numpy().tolist(),
            "colorscale": _SCALE, "xgap": 2, "ygap": 2, "hoverongaps": False,
            "texttemplate": "%{z:.3f}", "textfont": {"size": 11, "color": "var(--text)"},
            "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".2f",
                         "title": {"text": text(title), "side": "right"}},
            "hovertemplate": "B_p %{x}, n %{y}: %{z:.4f}%{customdata}<extra></extra>",
        }
    ]  # fmt: skip
    framed = values.to_numpy(np.float64) >= table["value"].max() - TOLERANCE
    if near is not None:
        framed = np.array([[(b, n) in near for b in values.columns] for n in values.index])
    frames = [
        {
            "type": "rect", "x0": column - 0.46, "x1": column + 0.46, "y0": row - 0.44, "y1": row + 0.44,
            "line": {"color": "var(--k1)", "width": 2},
        }
        for row, column in np.argwhere(framed).tolist()
    ]  # fmt: skip
    layout = {
        "xaxis": {"type": "category", "title": {"text": "B_p, problems per batch"}, "showgrid": False},
        "yaxis": {"type": "category", "title": {"text": "n, rollouts per problem"}, "showgrid": False},
        "shapes": frames,
    }
    height = 120 + 34 * max(len(values), 5)
    return Chart("grid", "Rewards at the same compute", caption, data, layout, height=height)


def _runs(table: pd.DataFrame) -> list[str]:
    """Return the hover text of each mean: its standard error, if known, and the number of runs."""
    return [
        (f" ± {error:.2g} (standard error)" if np.isfinite(error) else "") + f", {count(runs, 'run')}"
        for runs, error in zip(table["runs"], table["error"], strict=True)
    ]


def _by_n(
    name: str, title: str, y: str, caption: str, table: pd.DataFrame, levels: list[int], height: int
) -> Chart:
    """Return a chart of rewards against n with standard errors."""
    n = table["rollouts_per_problem"].tolist()
    data = line(
        n, table["value"], {"color": "var(--muted)", "width": 1}, mode="lines+markers",
        error_y={"type": "data", "array": rounded(table["error"].fillna(0)), "color": "var(--muted)",
                 "thickness": 1.2, "width": 3},
        customdata=_runs(table), marker={"size": 9, "color": [n_colour(levels, level) for level in n]},
        hovertemplate="n = %{x:,}: %{y:.4f}%{customdata}<extra></extra>",
    )  # fmt: skip
    layout = {"xaxis": n_axis("n, rollouts per problem", levels), "yaxis": {"title": {"text": text(y)}}}
    return Chart(name, title, caption, [data], layout, height=height)


def best_and_worst(study: FittedRuns) -> list[Chart]:
    """Return a chart of best@k and one of worst@k, by n, at one compute and B_p."""
    b = study.one_batch()
    charts = []
    for name in study.best_and_worst():
        compute, table = study.finals(name, b)
        caption = _extreme_caption(name, table, compute, b)
        charts.append(_by_n(name.replace("@", "-"), name, name, caption, table, study.levels, height=320))
    return charts


def backtest(result: Mapping[str, Any]) -> Chart:
    """Return a chart of the loss in reward of each rule, by budget."""
    data = []
    for i, (rule, losses) in enumerate(result["rules"].items()):
        width = 2.5 if rule == "isolaw" else 1.5
        style = {"color": f"var(--k{i % 4})", "width": width, "dash": _DASHES[i % 4]}
        hover = text(rule) + " at C %{x:.3s}: %{text}<br>loses %{y:.4f}<extra></extra>"
        data.append(line(
            result["budgets"], losses["loss"], style, name=text(rule), showlegend=True, hovertemplate=hover,
            marker={"size": 7, "symbol": _SYMBOLS[i % 4]}, text=choices(result, rule), mode="lines+markers",
        ))  # fmt: skip
    layout = {
        "xaxis": log_axis("C, rollouts generated", result["budgets"]),
        "yaxis": {"title": {"text": "loss in reward"}, "rangemode": "tozero"},
        "showlegend": True,
    }
    return Chart("backtest", "Loss by budget", _backtest_caption(result), data, layout, height=340)


def _grid_caption(study: FittedRuns, table: pd.DataFrame, compute: float, best: Prediction | None) -> str:
    """Return the caption of `grid`: the best configuration at one compute, and what the chart leaves out."""
    missing = study.rows().groupby(PLACE).ngroups - len(table)
    end = study.rows()["compute"].max()
    several = len(study.batches) > 1
    least, most = (int(v) for v in (table["runs"].min(), table["runs"].max()))
    counts = count(most, "run") if least == most else f"{least:,} to {most:,} runs"
    text = (
        f"{study.metric} at C = {number(compute)}, the largest compute that all configurations reached "
        f"(means of the checkpoints from 0.8 C to 1.1 C, {counts} each)."
    )
    if best is not None:
        a, lost = best.options[0].allocation, best.options[0].expected_loss
        place = f"B_p = {a.problems_per_batch:,}, n = {a.rollouts_per_problem:,}"
        text += f" Recommended here: {place}, with an expected loss of {in_reward(lost, best.tolerance)}."
        if several:
            near_by = f"{best.tolerance:g}"
            text += f" Frames are measured configurations with an expected loss of at most {near_by}."
        elif study.law is not None and study.law.surface is not None:
            text += " The line and its 95 % band are the fit, which also uses the runs at other budgets."
    elif study.law is None:
        top = table.loc[table["value"].idxmax()]
        near = table[table["value"] >= top["value"] - TOLERANCE]
        place = f"B_p = {top['problems_per_batch']:,.0f}, n = {top['rollouts_per_problem']:,.0f}"
        text += (
            f" The highest mean is {top['value']:.3f}, of {place}; {len(near)} of {len(table)} are within "
            f"{TOLERANCE} of it{', framed' if several else ''}."
        )
    if compute < _NEAR_END * end:
        text += f" Some runs end there; others continue to C = {number(end)}, where another n may be best."
    if not several and table["error"].notna().any():
        text += " Bars are standard errors over runs."
    if missing:
        text += f" The chart leaves out {missing} that ended before this compute or began after it."
    return text


def _extreme_caption(metric: str, table: pd.DataFrame, compute: float, b: int) -> str:
    """Return the caption of a best@k or worst@k chart, with the best n."""
    kind, _, k = metric.partition("@")
    means = "at least one of" if kind == "best" else "all of"
    best = table.loc[table["value"].idxmax()]
    near = sorted(table.loc[table["value"] >= best["value"] - TOLERANCE, "rollouts_per_problem"])
    text = (
        f"Share of problems for which {means} {k} samples are correct, at C = {number(compute)} and "
        f"B_p = {b:,}. The share is highest at n = {best['rollouts_per_problem']:,.0f} ({best['value']:.3f})"
    )
    if len(near) > 1:
        text += f"; within {TOLERANCE} of it are n = {', '.join(f'{n:,}' for n in near)}"
    return f"{text}."


def _backtest_caption(result: Mapping[str, Any]) -> str:
    """Return the caption of the backtest: the method of the evaluation, and the mean loss of each rule."""
    judged = f"on {result['seeds']} seeds, each held out in turn"
    if result["held_out"] != "seed":
        judged = "by later checkpoints of the same runs, since there is only one seed"
    means = {rule: losses["mean_loss"] for rule, losses in result["rules"].items()}
    listed = ", ".join(f"{rule} {in_reward(value, result['tolerance'])}" for rule, value in means.items())
    best = min(means, key=lambda rule: means[rule])
    return (
        f"Each rule used only checkpoints up to C = {number(result['fit_below'])} and chose allocations for "
        f"larger budgets, which isolaw judged {judged}. The mean losses are: {listed}. The rule {best!r} "
        "loses least. All losses are too large by the same amount, since the best reward is a maximum over "
        "noisy values."
    )
