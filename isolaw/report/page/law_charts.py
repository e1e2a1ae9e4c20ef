"""The two charts of a law: reward against compute with its frontier, and n*(C)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from isolaw.fits.document.schema import FrontierPoint, LawDocument
from isolaw.report.figures.series import closed, fitted_curve, law_line, n_stars
from isolaw.report.page.chart import Chart, joined, log_axis, n_axis, n_colour, rounded, text
from isolaw.report.study import Study
from isolaw.report.text import captions, words

_MOST_POINTS = 30_000  # drawn of all runs together, or else a page of long logs would be slow
_LEAST_POINTS = 30  # of each run
_CURVE = 60
_PLACE = ["problems_per_batch", "rollouts_per_problem"]


def reward(study: Study, labels: dict[str, int]) -> Chart:
    """Return reward against compute: every run, the fitted curves, the frontier.

    ``labels`` numbers the runs, for the hover text.
    """
    rows = study.fitted()
    rows = rows.assign(x=study.x(rows)).query("x > 0").sort_values(["run_id", "step"])
    thinned = _thinned(rows)
    data = [_runs(own, b, n, study, labels) for (b, n), own in thinned.groupby(_PLACE, sort=True)]
    document = study.document
    if study.law is not None and document is not None:
        for entry in document.grid:
            x, y = fitted_curve(study.law, entry, _CURVE)
            b, n = entry.problems_per_batch, entry.rollouts_per_problem
            data.append(
                {
                    "x": rounded(x),
                    "y": rounded(y),
                    "mode": "lines",
                    "hoverinfo": "skip",
                    "line": {"color": n_colour(study.levels, n), "width": 1.4},
                    "meta": {"n": n, "b": b},
                }
            )
        data += _frontier(document, study.levels)
    title = words.axis(document) if document else "C, rollouts generated"
    return Chart(
        "reward",
        "Reward against compute",
        captions.reward(study, len(thinned) < len(rows)),
        captions.reward_alt(study),
        data,
        {
            "xaxis": log_axis(title, rows["x"]),
            "yaxis": {"title": {"text": text(f"{study.metric} ({study.eval_set})")}},
        },
        budget=document is not None,
        height=480,
    )


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, or of each run only so many, evenly over log C with the last among them."""
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
    symbol = words.symbol(study.document) if study.document else "C"
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
    symbol = words.symbol(document)
    out = []
    pairs = itertools.pairwise(document.frontier)
    for (n, censored), piece in itertools.groupby(
        pairs, key=lambda pair: (pair[0].n_star_strict, pair[0].censored)
    ):
        steps = list(piece)
        points = [steps[0][0], *(right for _, right in steps)]
        out.append(
            {
                "x": rounded(p.x for p in points),
                "y": rounded(p.reward.value for p in points),
                "mode": "lines",
                "line": {"color": n_colour(levels, n), "width": 6},
                "opacity": 0.45 if censored else 1,
                "text": [
                    f"frontier: n = {p.n_star_strict:,}<br>{symbol} = {words.number(p.x)}"
                    f"<br>n* {words.quantity(p.n_star)}"
                    for p in points
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "meta": {"n": n},
            }
        )
    return out


def n_star(study: Study, until: float) -> Chart:
    """Return n*(C): the estimate with its bands, the law, what was measured, and where the grid ends.

    Beyond what was measured the law goes on to ``until``, unless n* is only a bound where that ends.
    """
    law, document = study.law, study.document
    assert law is not None
    assert document is not None
    frontier, levels = document.frontier, law.levels
    surface = document.method == "surface"
    x = np.array([p.x for p in frontier])
    data: list[dict[str, Any]] = []
    line = {"color": "var(--accent)", "width": 2.5}
    if surface:
        if any(p.n_star.interval for p in frontier):
            data += _band(x, *closed([p.n_star.interval for p in frontier], levels))
            for edge in closed([p.band for p in frontier], levels):
                data.append(_line(x, edge, {"color": "var(--accent)", "width": 1, "dash": "dot"}))
            data[-1] |= {"name": "95 %, at all C at once", "showlegend": True, "legendrank": 3}
        data.append(
            _line(x, n_stars(frontier), line)
            | {
                "name": "n*",
                "showlegend": True,
                "legendrank": 1,
                "text": [words.quantity(p.n_star) for p in frontier],
                "hovertemplate": f"{words.symbol(document)} %{{x:.3s}}<br>n* %{{text}}<extra></extra>",
                "hoverinfo": "all",
            }
        )
    fine = np.geomspace(x.min(), x.max(), 120)
    n, ends = law_line(law, fine)
    if n is not None:
        if not surface and ends is not None:
            data += _band(fine, *np.clip(ends, levels[0] / 4, levels[-1] * 4))
        dashed = {"color": "var(--text)", "width": 1.3, "dash": "dash"}
        data.append(
            _line(fine, n, dashed if surface else line)
            | {
                "name": f"law ({words.law_name(words.preferred(document) or '')})",
                "showlegend": True,
                "legendrank": 4,
            }
        )
        if until > x.max() and not frontier[-1].censored:
            beyond = np.geomspace(x.max(), until, 40)
            data.append(_line(beyond, law_line(law, beyond)[0], dashed))
    for censored in (False, True):
        own = [p for p in frontier if p.censored == censored]
        if own:
            data.append(_measured(own, censored, document))
    shapes = [
        {
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": int(edge), "y1": int(edge),
            "line": {"color": "var(--muted)", "width": 1, "dash": "dash"},
            "label": {"text": told, "textposition": "start", "yanchor": anchor, "font": {"size": 11}},
        }
        for edge, told, anchor in (
            (levels[0], "smallest n measured", "top"), (levels[-1], "largest n measured", "bottom"),
        )
    ]  # fmt: skip
    return Chart(
        "n-star",
        "The best n for a budget",
        captions.n_star(document),
        captions.n_star_alt(document),
        data,
        {
            "xaxis": log_axis(words.axis(document), x),
            "yaxis": n_axis("n*, rollouts per problem", levels.tolist(), room=0.9),
            "shapes": shapes,
            "showlegend": True,
        },
        budget=True,
        height=460,
    )


def _line(x: Any, y: Any, line: dict[str, Any]) -> dict[str, Any]:
    return {
        "x": rounded(x), "y": rounded(y), "mode": "lines", "line": line, "hoverinfo": "skip",
        "showlegend": False,
    }  # fmt: skip


def _band(x: Any, low: Any, high: Any) -> list[dict[str, Any]]:
    nothing = {"width": 0, "color": "rgba(0,0,0,0)"}
    upper = _line(x, high, nothing) | {"fill": "tonexty", "fillcolor": "var(--band)"}
    return [
        _line(x, low, nothing),
        upper | {"name": "95 % of draws, at each C", "showlegend": True, "legendrank": 2},
    ]


def _measured(points: Sequence[FrontierPoint], censored: bool, document: LawDocument) -> dict[str, Any]:
    marker: dict[str, Any] = {"size": 6, "color": "var(--accent)"}
    if censored:
        marker = {"size": 6, "color": "var(--paper)", "line": {"color": "var(--accent)", "width": 1.2}}
    return {
        "x": rounded(p.x for p in points),
        "y": [p.n_star_strict for p in points],
        "customdata": [
            "".join(f"<br>only a bound: {why}" for why in words.bound_by(p, document)) for p in points
        ],
        "mode": "markers",
        "marker": marker,
        "name": "measured n, highest" + (" (n* only a bound)" if censored else ""),
        "showlegend": True,
        "legendrank": 5,
        "hovertemplate": f"{words.symbol(document)} %{{x:.3s}}<br>highest reward: n = %{{y}}"
        "%{customdata}<extra></extra>",
    }
