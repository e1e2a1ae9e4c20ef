"""The captions of the page's charts: how to read a chart, and its main numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from isolaw.fits.document.schema import LawDocument
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.report.study import PLACE, Study
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import number, runs

_NEAR_END = 0.8  # rewards before this share of the largest compute are not final


def reward(study: Study, thinned: bool) -> str:
    """Return how to read reward against compute."""
    lines = ["Thin lines are runs, in stronger colours for larger n."]
    if study.law is not None:
        lines += [
            "Medium lines are the fitted learning curves over their measured range. The broad line is the "
            "frontier, in the colour of the best n, pale where n* is only a bound."
        ]
        lines += ["It follows the surface, not the curves."] if study.law.document.method == "surface" else []
    if thinned:
        lines.append("Long runs show some of their checkpoints; the fit uses all.")
    return " ".join(lines)


def reward_alt(study: Study) -> str:
    """Return the main numbers of reward against compute."""
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


def n_star(document: LawDocument) -> str:
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


def n_star_alt(document: LawDocument) -> str:
    """Return the main numbers of n*(C)."""
    return "The best n for a budget. " + " ".join([*law_text.ends(document), law_text.saturation(document)])


def grid(study: Study, table: pd.DataFrame, compute: float) -> str:
    """Return which configurations are best at one compute."""
    best = table.loc[table["value"].idxmax()]
    near = table[table["value"] >= best["value"] - TOLERANCE]
    missing = study.rows().groupby(PLACE).ngroups - len(table)
    end = study.rows()["compute"].max()
    several = len(study.batches) > 1
    place = f"B_p = {best['problems_per_batch']:,.0f}, n = {best['rollouts_per_problem']:,.0f}"
    counts = runs(int(table["runs"].min()), int(table["runs"].max()))
    text = (
        f"{study.metric} at C = {number(compute)}, the largest compute that all configurations reached (mean "
        f"of the checkpoints from 0.8 C to 1.1 C, {counts} each; without a fit, so not n*). The best is "
        f"{place} with {best['value']:.3f}; {len(near)} of {len(table)} are within {TOLERANCE} of it"
        f"{', framed' if several else ''}."
    )
    if compute < _NEAR_END * end:
        text += f" Some runs end there; others continue to C = {number(end)}, where another n may be best."
    if not several and table["error"].notna().any():
        text += " Bars are standard errors over runs."
    if missing:
        text += f" Left out: {missing} that ended before this compute or began after it."
    return text


def extreme(metric: str, table: pd.DataFrame, compute: float, b: int) -> str:
    """Return which n is best by best@k or worst@k."""
    kind, _, k = metric.partition("@")
    means = "at least one of" if kind == "best" else "all of"
    best = table.loc[table["value"].idxmax()]
    near = sorted(table.loc[table["value"] >= best["value"] - TOLERANCE, "rollouts_per_problem"])
    text = (
        f"Share of problems of which {means} {k} samples are correct, at C = {number(compute)} and "
        f"B_p = {b:,}. Highest at n = {best['rollouts_per_problem']:,.0f} ({best['value']:.3f})"
    )
    if len(near) > 1:
        text += f"; within {TOLERANCE} of it: n = {', '.join(f'{n:,}' for n in near)}"
    return f"{text}."


def landscape(shares: pd.DataFrame, n: int, b: int, origin: str) -> str:
    """Return how pass@1 moved over the problems."""
    first, last = shares.columns[0], shares.columns[-1]
    low, high = shares.iloc[0], shares.iloc[-1]
    return (
        f"Share of problems by their pass@1, n = {n:,}, B_p = {b:,} ({origin}, all seeds together). From "
        f"C = {number(first)} to {number(last)} the lowest bin goes from {low[first]:.0%} to {low[last]:.0%} "
        f"of problems, the highest from {high[first]:.0%} to {high[last]:.0%}."
    )


def zero(rows: pd.DataFrame, b: int) -> str:
    """Return how many problems stay at zero."""
    last = rows.loc[rows.groupby("run_id")["step"].idxmax()].groupby("rollouts_per_problem")["value"].mean()
    least, most = last.idxmin(), last.idxmax()
    return (
        f"Share of problems with pass@1 below 0.02, mean over seeds, B_p = {b:,}. At the end it is smallest "
        f"for n = {least:,} ({last[least]:.1%}) and largest for n = {most:,} ({last[most]:.1%})."
    )


def backtest(result: Mapping[str, Any]) -> str:
    """Return how the backtest works, and its regrets."""
    judged = f"on {result['seeds']} seeds, each held out in turn"
    if result["held_out"] != "seed":
        judged = "by later checkpoints of the same runs, since there is one seed"
    means = {rule: found["mean_regret"] for rule, found in result["rules"].items()}
    listed = ", ".join(f"{rule} {value:.4f}" for rule, value in means.items())
    best = min(means, key=lambda rule: means[rule])
    return (
        f"Each rule used only checkpoints up to C = {number(result['fit_below'])} and chose allocations of "
        f"larger budgets, judged {judged}. Mean regret: {listed}. Least: {best}. "
        "All regrets are too large by the same amount: the best reward is itself a noisy maximum."
    )
