"""What each chart shows, in plain words and with its numbers: under the chart, or read aloud for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from isolaw.fits.document.schema import LawDocument
from isolaw.report.study import Study
from isolaw.report.text import words

TOLERANCE = 0.005
_NEAR_END = 0.8  # of the largest compute: rewards at less are no final ones


def reward(study: Study, thinned: bool) -> str:
    """Say how to read reward against compute."""
    lines = ["Thin lines are runs, the larger n the stronger their colour."]
    if study.law is not None:
        lines += [
            "Lines of medium width are the fitted learning curves, each over what was measured; the broad "
            "one is the frontier, in the colour of the n that is best there, pale where n* is only a bound."
            + (" It follows the surface, not the curves." if study.law.document.method == "surface" else "")
        ]
    if thinned:
        lines.append("Of long runs not every checkpoint is drawn; all are fitted.")
    return " ".join(lines)


def reward_alt(study: Study) -> str:
    """Say what reward against compute shows."""
    rows = study.fitted()
    text = (
        f"{study.metric} on {study.eval_set} against compute, {rows['run_id'].nunique()} runs, from "
        f"{rows['value'].min():.3f} to {rows['value'].max():.3f}."
    )
    if study.document is None:
        return text
    ends = study.document.frontier[0], study.document.frontier[-1]
    symbol = words.symbol(study.document)
    at = [f"{p.reward.value:.3f} at {symbol} = {words.number(p.x)} with n = {p.n_star_strict}" for p in ends]
    return f"{text} The frontier goes from {at[0]} to {at[1]}."


def n_star(document: LawDocument) -> str:
    """Say how to read n*(C)."""
    if document.method == "surface":
        first = (
            "The line is n*, where the fitted reward is highest, between measured n, too; the band is where "
            "95 % of draws have it at each compute, and the dotted lines hold 95 % of draws at all computes "
            "at once."
        )
        if law := words.preferred(document):
            first += f" The dashed line is the law, {words.form(law, document)}"
            first += "." if document.frontier[-1].censored else "; beyond the data it stands alone."
    else:
        first = "The line is the law, the band where 95 % of draws have it at each compute."
    highest = "with the highest " + ("fitted reward" if document.method == "surface" else "curve")
    if not document.bootstrap.draws:
        first = "The line is n*. Nothing was drawn, so nothing has a band."
    return (
        f"{first} Dots are the measured n {highest}, hollow where n* is only a bound: beyond "
        "the horizontal lines nothing was measured. Near the best n reward is flat; what an n loses says "
        "more than the n itself."
    )


def n_star_alt(document: LawDocument) -> str:
    """Say what n*(C) shows."""
    return "The best n for a budget. " + " ".join([*words.ends(document), words.saturation(document)])


def grid(study: Study, table: pd.DataFrame, compute: float) -> str:
    """Say which configurations are best at one compute."""
    best = table.loc[table["value"].idxmax()]
    near = table[table["value"] >= best["value"] - TOLERANCE]
    missing = study.rows().groupby(["problems_per_batch", "rollouts_per_problem"]).ngroups - len(table)
    end = study.rows()["compute"].max()
    several = len(study.batches) > 1
    place = f"B_p = {best['problems_per_batch']:,.0f}, n = {best['rollouts_per_problem']:,.0f}"
    counts = words.runs(int(table["runs"].min()), int(table["runs"].max()))
    text = (
        f"{study.metric} of the runs at C = {words.number(compute)}, the largest that all of them reached "
        f"(mean of the checkpoints from 0.8 C to 1.1 C, {counts} each; no fit, so not n*). Highest here: "
        f"{place} with {best['value']:.3f}; {len(near)} of {len(table)} are within 0.005 of it"
        f"{', framed' if several else ''}."
    )
    if compute < _NEAR_END * end:
        text += (
            f" Some runs end there; others go on to C = {words.number(end)}, where another n may be the best."
        )
    if not several and table["error"].notna().any():
        text += " Bars are standard errors over runs."
    if missing:
        text += f" Left out: {missing} that ended before, or began only later."
    return text


def extreme(metric: str, table: pd.DataFrame, compute: float, b: int) -> str:
    """Say which n is best by best@k or worst@k."""
    kind, _, k = metric.partition("@")
    means = "at least one of" if kind == "best" else "all of"
    best = table.loc[table["value"].idxmax()]
    near = sorted(table.loc[table["value"] >= best["value"] - TOLERANCE, "rollouts_per_problem"])
    text = (
        f"Share of problems of which {means} {k} samples are correct, at C = {words.number(compute)} and "
        f"B_p = {b:,}. Highest at n = {best['rollouts_per_problem']:,.0f} ({best['value']:.3f})"
    )
    if len(near) > 1:
        text += f"; within 0.005 of it: n = {', '.join(f'{n:,}' for n in near)}"
    return f"{text}."


def landscape(shares: pd.DataFrame, n: int, b: int, whence: str) -> str:
    """Say how pass@1 moved over the problems."""
    first, last = shares.columns[0], shares.columns[-1]
    low, high = shares.index[0], shares.index[-1]
    return (
        f"Share of problems by their pass@1, n = {n:,}, B_p = {b:,} ({whence}, all seeds together). From C = "
        f"{words.number(first)} to {words.number(last)} the lowest bin goes from "
        f"{shares.loc[low, first]:.0%} to {shares.loc[low, last]:.0%} of problems, the highest from "
        f"{shares.loc[high, first]:.0%} to {shares.loc[high, last]:.0%}."
    )


def zero(rows: pd.DataFrame, b: int) -> str:
    """Say how many problems stay at zero."""
    last = rows.loc[rows.groupby("run_id")["step"].idxmax()].groupby("rollouts_per_problem")["value"].mean()
    least, most = ((n, last[n]) for n in (last.idxmin(), last.idxmax()))
    return (
        f"Share of problems with pass@1 below 0.02, mean over seeds, B_p = {b:,}. At the end it is smallest "
        f"for n = {least[0]:,} ({least[1]:.1%}) and largest for n = {most[0]:,} ({most[1]:.1%})."
    )


def backtest(result: Mapping[str, Any]) -> str:
    """Say what the backtest did."""
    seeds = result["seeds"]
    judged = (
        f"judged on {seeds} seeds, each left out of the fit in turn"
        if result["held_out"] == "seed"
        else "judged, as there is one seed, by the same runs' later checkpoints"
    )
    means = {rule: found["mean_regret"] for rule, found in result["rules"].items()}
    best = min(means, key=lambda rule: means[rule])
    told = ", ".join(f"{rule} {np.round(value, 4):.4f}" for rule, value in means.items())
    return (
        f"Each rule saw only checkpoints up to C = {words.number(result['fit_below'])} and chose for larger "
        f"budgets; {judged}. Mean regret: {told}. Least: {best}. All are too large by the same amount, since "
        "the best that they are compared with is itself a noisy maximum."
    )
