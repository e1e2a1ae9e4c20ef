"""The two charts of a law: reward against compute with its frontier, and n*(C)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from isolaw.fits.document.schema import FrontierPoint, LawDocument
from isolaw.report.figures.series import BEYOND, closed, fitted_curve, law_line, n_stars
from isolaw.report.page.chart import Chart, joined, line, log_axis, n_axis, n_colour, rounded, text
from isolaw.report.study import PLACE, Study
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import number, quantity

_MOST_POINTS = 30_000  # of all runs together: a page of long logs would be slow
_LEAST_POINTS = 30  # of each run
_CURVE = 60
_SILENT = {"hoverinfo": "skip", "showlegend": False}


def reward(study: Study, run_ids: Sequence[str]) -> Chart:
    """Return reward against compute: every run (by its place in ``run_ids``), fitted curves, the frontier."""
    labels = {run_id: i for i, run_id in enumerate(run_ids)}
    rows = study.fitted()
    rows = rows.assign(x=study.x(rows)).query("x > 0").sort_values(["run_id", "step"])
    thinned = _thinned(rows)
    data = [_runs(own, b, n, study, labels) for (b, n), own in thinned.groupby(PLACE, sort=True)]
    document = study.document
    if study.law is not None and document is not None:
        for entry in document.grid:
            b, n = entry.problems_per_batch, entry.rollouts_per_problem
            style = {"color": n_colour(study.levels, n), "width": 1.4}
            curve = fitted_curve(study.law, entry, _CURVE)
            data.append(line(*curve, style, hoverinfo="skip", meta={"n": n, "b": b}))
        data += _frontier(document, study.levels)
    title = law_text.axis(document) if document else "C, rollouts generated"
    layout = {
        "xaxis": log_axis(title, rows["x"]),
        "yaxis": {"title": {"text": text(f"{study.metric} ({study.eval_set})")}},
    }
    return Chart(
        "reward", "Reward against compute", _reward_caption(study, len(thinned) < len(rows)), data, layout,
        _reward_alt(study), budget=document is not None, height=480,
    )  # fmt: skip


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, or a limited number of each run, evenly over log C and with the last."""
    if len(rows) <= _MOST_POINTS:
        return rows
    most = max(_MOST_POINTS // rows["run_id"].nunique(), _LEAST_POINTS)

    def some(own: pd.DataFrame) -> pd.DataFrame:
        at = np.searchsorted(own["x"], np.geomspace(own["x"].iloc[0], own["x"].iloc[-1], most))
        return own.iloc[np.unique(np.append(at.clip(max=len(own) - 1), len(own) - 1))]

    return pd.concat([some(own) for _, own in rows.groupby("run_id", sort=False)])


def _runs(rows: pd.DataFrame, b: Any, n: Any, study: Study, labels: dict[str, int]) -> dict[str, Any]:
    """All runs of one configuration as one line with gaps; each point knows its run and step."""
    pieces = [own for _, own in rows.groupby("run_id", sort=False)]
    known = [[[labels[str(own["run_id"].iloc[0])], int(step)] for step in own["step"]] for own in pieces]
    symbol = law_text.symbol(study.document) if study.document else "C"
    return {
        "x": joined([rounded(own["x"]) for own in pieces]),
        "y": joined([rounded(own["value"]) for own in pieces]),
        "customdata": joined(known),
        "mode": "lines",
        "line": {"color": n_colour(study.levels, int(n)), "width": 1},
        "opacity": min(max(15 / len(labels), 0.25), 0.6) if study.law is not None else 0.8,
        "hovertemplate": f"%{{customdata[0]}}<br>step %{{customdata[1]:,}}, {symbol} %{{x:,}}<br>"
        f"{text(study.metric)} %{{y}}<extra></extra>",
        "meta": {"n": int(n), "b": int(b), "runs": True},
    }  # fmt: skip


def _frontier(document: LawDocument, levels: list[int]) -> list[dict[str, Any]]:
    """The frontier in pieces of one n, pale where n* is only a bound."""
    symbol = law_text.symbol(document)
    out = []
    pairs = itertools.pairwise(document.frontier)
    for (n, censored), piece in itertools.groupby(pairs, key=lambda p: (p[0].n_star_strict, p[0].censored)):
        steps = list(piece)
        points = [steps[0][0], *(right for _, right in steps)]
        hover = [
            f"frontier: n = {p.n_star_strict:,}<br>{symbol} = {number(p.x)}<br>n* {quantity(p.n_star)}"
            for p in points
        ]
        out.append(
            line(
                (p.x for p in points), (p.reward.value for p in points),
                {"color": n_colour(levels, n), "width": 6}, opacity=0.45 if censored else 1, text=hover,
                hovertemplate="%{text}<extra></extra>", meta={"n": n},
            )
        )  # fmt: skip
    return out


def n_star(study: Study, until: float) -> Chart:
    """Return n*(C): the estimate with its bands, the law, the measured n, and the ends of the grid.

    Beyond the data the law continues to ``until``, unless n* is only a bound at their end.
    """
    law, document = study.law, study.document
    assert law is not None
    assert document is not None
    frontier, levels, surface = document.frontier, law.levels, document.method == "surface"
    x = np.array([p.x for p in frontier])
    data: list[dict[str, Any]] = []
    solid = {"color": "var(--accent)", "width": 2.5}
    dashed = {"color": "var(--text)", "width": 1.3, "dash": "dash"}
    if surface:
        if any(p.n_star.interval for p in frontier):
            data += _band(x, *closed([p.n_star.interval for p in frontier], levels))
            dotted = {"color": "var(--accent)", "width": 1, "dash": "dot"}
            data += [line(x, edge, dotted, **_SILENT) for edge in closed([p.band for p in frontier], levels)]
            data[-1] |= _named("95 %, at all C at once", 3)
        hover = f"{law_text.symbol(document)} %{{x:.3s}}<br>n* %{{text}}<extra></extra>"
        values = [quantity(p.n_star) for p in frontier]
        data.append(line(x, n_stars(frontier), solid, text=values, hovertemplate=hover, **_named("n*", 1)))
    fine = np.geomspace(x.min(), x.max(), 120)
    n, ends = law_line(law, fine)
    if n is not None:
        if not surface and ends is not None:
            data += _band(fine, *np.clip(ends, levels[0] / BEYOND, levels[-1] * BEYOND))
        name = f"law ({law_text.law_name(law_text.preferred(document) or '')})"
        data.append(line(fine, n, dashed if surface else solid, **_SILENT | _named(name, 4)))
        if until > x.max() and not frontier[-1].censored:
            beyond = np.geomspace(x.max(), until, 40)
            continued, _ = law_line(law, beyond)
            assert continued is not None
            data.append(line(beyond, continued, dashed, **_SILENT))
    for censored in (False, True):
        if own := [p for p in frontier if p.censored == censored]:
            data.append(_measured(own, censored, document))
    shapes = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": int(edge), "y1": int(edge),
            "line": {"color": "var(--muted)", "width": 1, "dash": "dash"},
            "label": {"text": f"{which} n measured", "textposition": "start", "yanchor": anchor,
                      "font": {"size": 11}},
        }
        for edge, which, anchor in ((levels[0], "smallest", "top"), (levels[-1], "largest", "bottom"))
    ]  # fmt: skip
    layout = {
        "xaxis": log_axis(law_text.axis(document), x),
        "yaxis": n_axis("n*, rollouts per problem", levels.tolist(), room=0.9),
        "shapes": shapes,
        "showlegend": True,
    }
    title = "The best n for a budget"
    alt = " ".join([f"{title}.", *law_text.ends(document), law_text.saturation(document)])
    return Chart("n-star", title, n_star_caption(document), data, layout, alt, budget=True, height=460)


def _named(name: str, rank: int) -> dict[str, Any]:
    """The keys that put a trace into the legend."""
    return {"name": name, "showlegend": True, "legendrank": rank}


def _band(x: Any, low: Any, high: Any) -> list[dict[str, Any]]:
    edge = {"width": 0, "color": "rgba(0,0,0,0)"}
    fill = {"fill": "tonexty", "fillcolor": "var(--band)"}
    upper = line(x, high, edge, **_SILENT | fill | _named("95 % of draws, at each C", 2))
    return [line(x, low, edge, **_SILENT), upper]


def _measured(points: Sequence[FrontierPoint], censored: bool, document: LawDocument) -> dict[str, Any]:
    marker: dict[str, Any] = {"size": 6, "color": "var(--accent)"}
    if censored:
        marker = {"size": 6, "color": "var(--paper)", "line": {"color": "var(--accent)", "width": 1.2}}
    bounds = ("".join(f"<br>only a bound: {why}" for why in law_text.bound_by(p, document)) for p in points)
    return {
        "x": rounded(p.x for p in points), "y": [p.n_star_strict for p in points], "customdata": list(bounds),
        "mode": "markers", "marker": marker,
        **_named("measured n, highest" + (" (n* only a bound)" if censored else ""), 5),
        "hovertemplate": f"{law_text.symbol(document)} %{{x:.3s}}<br>highest reward: n = %{{y}}"
        "%{customdata}<extra></extra>",
    }  # fmt: skip


def _reward_caption(study: Study, thinned: bool) -> str:
    """How to read reward against compute."""
    lines = ["Thin lines are runs, in stronger colours for larger n."]
    if study.document is not None:
        lines.append(
            "Medium lines are the fitted learning curves over their measured range. The broad line is the "
            "frontier, in the colour of the best n, pale where n* is only a bound."
        )
        lines += ["It follows the surface, not the curves."] if study.document.method == "surface" else []
    if thinned:
        lines.append("Long runs show some of their checkpoints; the fit uses all.")
    return " ".join(lines)


def _reward_alt(study: Study) -> str:
    """The main numbers of reward against compute."""
    rows = study.fitted()
    text = (
        f"{study.metric} on {study.eval_set} against compute, {rows['run_id'].nunique()} runs, from "
        f"{rows['value'].min():.3f} to {rows['value'].max():.3f}."
    )
    if study.document is None:
        return text
    ends = study.document.frontier[0], study.document.frontier[-1]
    symbol = law_text.symbol(study.document)
    at = [f"{p.reward.value:.3f} at {symbol} = {number(p.x)} with n = {p.n_star_strict}" for p in ends]
    return f"{text} The frontier goes from {at[0]} to {at[1]}."


def n_star_caption(document: LawDocument) -> str:
    """Return how to read n*(C)."""
    surface = document.method == "surface"
    first = "The line is the law, the band its 95 % interval at each compute."
    if surface:
        first = (
            "The line is n*, the n of the highest fitted reward, also between measured n. The band is its "
            "95 % interval at each compute; the dotted lines hold 95 % of draws at all computes at once."
        )
        if law := law_text.preferred(document):
            first += f" The dashed line is the law, {law_text.form(law, document)}"
            first += "." if document.frontier[-1].censored else "; beyond the data only the law continues."
    if not document.bootstrap.draws:
        first = "The line is n*. Without draws there is no band."
    return (
        f"{first} Dots are the measured n with the highest {'fitted reward' if surface else 'curve'}, hollow "
        "where n* is only a bound. No n was measured beyond the horizontal lines. Near the best n reward is "
        "flat: the loss of an n matters more than the n itself."
    )
