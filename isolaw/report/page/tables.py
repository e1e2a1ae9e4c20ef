"""The sortable tables of the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from isolaw.evidence import Quantity, in_reward, number, share
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.health import Health
from isolaw.fits.prediction import Prediction
from isolaw.report.document import Table, TableCell
from isolaw.report.fitted_runs import PLACE, FittedRuns, common_compute, final_rewards
from isolaw.report.text import law as law_text
from isolaw.report.text.studies import choices
from isolaw.report.text.sweep import short_ids

_WORST_FIRST = ("failed", "unhealthy", "unknown", "healthy")
_LONG = 12  # rows


def labels(run_ids: Sequence[str]) -> dict[str, str]:
    """Return a short name for each run: the common folder is removed, and hashes are abbreviated.

    >>> labels(["logs/a/n8", "logs/a/n16"])
    {'logs/a/n8': 'n8', 'logs/a/n16': 'n16'}
    """
    folders = [run_id.split("/")[:-1] for run_id in run_ids]
    common = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    start = sum(len(level[0]) + 1 for level in common) if len(run_ids) > 1 else 0
    return {run_id: short[start:] for run_id, short in short_ids(run_ids).items()}


def _number(value: float | None, digits: str = "") -> TableCell:
    if value is None:
        return TableCell("", "")
    return TableCell(format(value, digits) if digits else number(value), float(value))


def _lost(value: float | None, tolerance: float) -> TableCell:
    return TableCell("", "") if value is None else TableCell(in_reward(value, tolerance), float(value))


def _estimate(q: Quantity) -> TableCell:
    return TableCell(str(q), "" if q.value is None else q.value)


def configurations(document: LawDocument) -> Table | None:
    """Return a table of the learning curves, or None if recommendations come from the surface instead."""
    if document.method != "paper":
        return None
    ceiling = "A" in document.curves[0].parameters
    rows = []
    for g, c in zip(document.grid, document.curves, strict=True):
        facts = (g.problems_per_batch, g.rollouts_per_problem, g.runs, g.checkpoints, g.measured[1])
        fitted = [_estimate(c.parameters["A"])] if ceiling else []
        rows.append([*map(_number, facts), *fitted, _lost(c.rms, document.tolerance)])
    columns = ["B_p", "n", "runs", "checkpoints", "to C", *["ceiling A"] * ceiling, "rms of residuals"]
    return Table("configurations", f"Fitted learning curves ({document.curve})", columns, rows, long=True)


def rewards_at_one_compute(study: FittedRuns) -> Table:
    """Return the numbers behind the charts of rewards at one compute, with one row per configuration."""
    names = list(dict.fromkeys([study.metric, *study.best_and_worst()]))
    compute = common_compute(study.rows())
    tables = {name: final_rewards(study.rows(name), compute).set_index(PLACE) for name in names}
    rows = []
    for (b, n), values in tables[study.metric].iterrows():
        row = [_number(b), _number(n), _number(values["runs"])]
        for table in tables.values():
            if (b, n) not in table.index:
                row.append(TableCell("", ""))
                continue
            value, error = table.loc[(b, n), ["value", "error"]]
            row.append(
                TableCell(f"{value:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}"), float(value))
            )
        rows.append(row)
    caption = f"Rewards at C = {number(compute)}, with standard errors over runs"
    return Table("finals", caption, ["B_p", "n", "runs", *names], rows, long=True)


def frontier(shown: Sequence[Prediction], document: LawDocument) -> Table:
    """Return the recommendation at each budget of the slider, one row per budget."""
    of_b = document.axis == "problems_per_batch"
    rows = []
    for p in shown:
        a = p.options[0].allocation
        counts = (p.compute, a.rollouts_per_problem, a.problems_per_batch, a.steps)
        star = p.b_star if of_b else p.n_star
        rows.append(
            [
                *map(_number, counts), _estimate(p.reward), _lost(p.loss, p.tolerance),
                TableCell(law_text.star(star), "" if star.value is None else star.value),
            ]
        )  # fmt: skip
    columns = ["C", "n", "B_p", "M", "reward", "expected loss", "B_p*" if of_b else "n*"]
    return Table("frontier", "The recommendation at each budget", columns, rows, long=True)


def laws(document: LawDocument) -> Table | None:
    """Return the compared laws with their parameters θ and losses, or None without a comparison."""
    comparison = document.comparison
    if not comparison.laws:
        return None
    rows = []
    for name, law in comparison.laws.items():
        chosen, better = name == comparison.preferred, law.better.get("constant")
        label = TableCell(law_text.law_name(name) + " (preferred)" * chosen, kind="good" * chosen)
        texts = law_text.form_equation(name, document), law_text.parameters(name, law)
        than_constant = TableCell("", "") if better is None else TableCell(share(better), better)
        rows.append([label, *map(TableCell, texts), _lost(law.mean_loss, document.tolerance), than_constant])
    heads = ["law", "n*(C) is", "parameters (95 % interval)", "mean loss", "better than a constant, in draws"]
    return Table(
        "laws", "The laws that were compared, by their loss of reward along n*", heads, rows, long=True
    )


def health(judged: Sequence[Health], study: FittedRuns, failed: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of all runs with their health, failed runs included."""
    ends = study.runs.points.groupby("run_id")[["step", "compute"]].max()
    reward = study.rows().sort_values("step").groupby("run_id")["value"].last()
    names = labels([*(h.run_id for h in judged), *(f["run_id"] for f in failed)])
    failures = {f["run_id"]: f for f in failed}
    rows = []
    for h in judged:
        failure = failures.pop(h.run_id, None)
        status = h.status if failure is None else "failed"
        place = (h.problems_per_batch, h.rollouts_per_problem, h.seed, *(int(v) for v in ends.loc[h.run_id]))
        why = [] if failure is None else [failure["cause"]]
        rows.append(
            [
                TableCell(names[h.run_id]), *map(_number, place), _number(reward.get(h.run_id), ".3f"),
                TableCell(status, kind={"healthy": "good", "unknown": ""}.get(status, "bad")),
                TableCell("; ".join([*why, *h.reasons])),
            ]
        )  # fmt: skip
    for f in failures.values():  # failed before the first checkpoint
        place = (f["problems_per_batch"], f["rollouts_per_problem"], f["seed"], 0, 0)
        state = [TableCell("", ""), TableCell("failed", kind="bad"), TableCell(f["cause"])]
        rows.append([TableCell(names[f["run_id"]]), *map(_number, place), *state])
    rows.sort(key=lambda row: _WORST_FIRST.index(row[7].text))
    columns = ["run", "B_p", "n", "seed", "steps", "C", study.metric, "state", "why"]
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table("runs", f"Every run ({len(rows):,}), the worst first", columns, rows, long=len(rows) > _LONG)


def backtest(result: Mapping[str, Any]) -> Table:
    """Return a table of the loss in reward of each rule in a backtest."""
    rows, tolerance = [], result["tolerance"]
    for rule, losses in result["rules"].items():
        difference, error = losses["against_isolaw"].values()
        sign = "-" if difference < 0 else "+"
        against = sign + in_reward(abs(difference), tolerance)
        against += "" if error is None else f" (SE {in_reward(error, tolerance)})"
        cells = [
            TableCell(f"{in_reward(lost, tolerance)} ({chosen})".replace("n ", "n\u00a0"), lost)
            for lost, chosen in zip(losses["loss"], choices(result, rule), strict=True)
        ]
        last = TableCell("" if rule == "isolaw" else against, difference)
        rows.append([TableCell(rule), *cells, _lost(losses["mean_loss"], tolerance), last])
    budgets = [f"C = {number(c)}" for c in result["budgets"]]
    how = f" with each of {result['seeds']} seeds held out" if result["seeds"] > 1 else ""
    caption = f"Loss in reward of each rule, and its choices{how}"
    heads = ["rule", *budgets, "mean", "loses more than isolaw by"]
    return Table("loss", caption, heads, rows, long=True)
