"""The tables of the page; all of them sort."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isolaw.fits.document.schema import LawDocument
from isolaw.fits.health import Health
from isolaw.fits.quantity import Quantity
from isolaw.report.final_rewards import PLACE, common_compute, finals
from isolaw.report.study import Study, spread
from isolaw.report.text import backtest as backtest_words
from isolaw.report.text import words

_HASH = 64  # digits of a run's id that is a hash
_SHORT = 10


@dataclass(frozen=True)
class Cell:
    """One cell: its text, what it sorts by (the text unless given), and its kind (``good``, ``bad``)."""

    text: str
    by: float | str | None = None
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table; it is closed at first where it is ``long``."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    long: bool = False


def labels(run_ids: Sequence[str]) -> dict[str, str]:
    """Return short names of runs: without the folder that all are in; a hash is cut.

    >>> labels(["logs/a/n8", "logs/a/n16"])
    {'logs/a/n8': 'n8', 'logs/a/n16': 'n16'}
    >>> labels(["0123456789abcdef" * 4])
    {'0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef': '0123456789'}
    """
    folders = [run_id.split("/")[:-1] for run_id in run_ids]
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    start = sum(len(level[0]) + 1 for level in shared) if len(run_ids) > 1 else 0
    out = {}
    for run_id in run_ids:
        is_hash = len(run_id) == _HASH and set(run_id) <= set("0123456789abcdef")
        out[run_id] = run_id[:_SHORT] if is_hash else run_id[start:]
    return out


def _number(value: float | None, digits: str = "") -> Cell:
    if value is None:
        return Cell("", "")
    return Cell(format(value, digits) if digits else words.number(value), float(value))


def _estimate(q: Quantity) -> Cell:
    return Cell(words.quantity(q), "" if q.value is None else q.value)


def configurations(study: Study) -> Table:
    """Return what was fitted: a row for each configuration."""
    document = study.document
    assert document is not None
    ceiling = "A" in document.curves[0].parameters
    rows = []
    for g, c in zip(document.grid, document.curves, strict=True):
        row = [_number(g.problems_per_batch), _number(g.rollouts_per_problem), _number(g.runs)]
        row += [_number(g.checkpoints), _number(g.measured[1])]
        row += [_estimate(c.parameters["A"])] if ceiling else []
        row += [_number(c.rms, ".4f")]
        rows.append(row)
    columns = ["B_p", "n", "runs", "checkpoints", f"to {words.symbol(document)}"]
    columns += [*(["ceiling A"] if ceiling else []), "rms of residuals"]
    if document.x.name == "steps":
        columns[4] = "to C"
    caption = f"Fitted learning curves ({document.curve})"
    return Table("configurations", caption, columns, rows, long=True)


def final_rewards(study: Study) -> Table:
    """Return what the charts of rewards at one compute show: a row for each configuration."""
    found = spread(study)
    names = [study.metric, *(name for name in (found[1] if found else ()) if name != study.metric)]
    compute = common_compute(study.rows())
    by_name = {name: finals(study.rows(name), compute).set_index(PLACE) for name in names}
    rows = []
    for (b, n), own in by_name[study.metric].iterrows():
        row = [_number(b), _number(n), _number(own["runs"])]
        for table in by_name.values():
            value, error = (
                table.loc[(b, n), ["value", "error"]] if (b, n) in table.index else (None, math.nan)
            )
            shown = "" if value is None else f"{value:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}")
            row.append(Cell(shown, "" if value is None else float(value)))
        rows.append(row)
    caption = f"Rewards at C = {words.number(compute)}, with standard errors over runs"
    return Table("finals", caption, ["B_p", "n", "runs", *names], rows, long=True)


def frontier(document: LawDocument) -> Table:
    """Return n*(C), a row for each point of the frontier."""
    rows = [
        [
            _number(p.x),
            _estimate(p.n_star),
            _number(p.n_star_strict),
            _estimate(p.reward),
            Cell(", ".join(words.bound_by(p, document))),
        ]
        for p in document.frontier
    ]
    columns = [
        words.symbol(document),
        "n*",
        "measured n, highest",
        "reward",
        "only a bound by",
    ]
    return Table("frontier", "n* by budget", columns, rows, long=True)


def parameters(document: LawDocument) -> Table:
    """Return the parameters of the logistic law; closed where the draws do not prefer it."""
    at = "log10 C0" if document.x.log10 else "M0"
    names = {"b": "b", "L": "L", "k": "k", "x0": at, "saturation": "n at saturation"}
    rows = [
        [Cell(names[name]), Cell(_stated(q)), Cell(q.status.replace("_", " "))]
        for name, q in document.params.items()
    ]
    x = "log10 C" if document.x.log10 else "M"
    law = words.preferred(document)
    other = law != "logistic"
    title = "The logistic, which the draws do not prefer" if law else "The logistic"
    title = title if other else "The law"
    caption = f"{title}: log2 n* = b + L / (1 + exp(−k ({x} − {at})))"
    return Table("parameters", caption, ["parameter", "estimate", "status"], rows, long=other)


def _stated(q: Quantity) -> str:
    """What is known of a parameter: where it is but a bound, its value is that of one fit among many."""
    if q.status == "ok" or (q.status != "refused" and q.interval is None):
        return words.quantity(q) if q.status == "ok" else "not known"
    return words.interval(q.interval) if q.interval else "not stated"


def laws(document: LawDocument) -> Table | None:
    """Return the laws that were compared, with θ and what they lose; None where none were."""
    comparison = document.comparison
    if not comparison.laws:
        return None
    rows = []
    for name, law in comparison.laws.items():
        chosen = name == comparison.preferred
        better = law.better.get("constant")
        rows.append(
            [
                Cell(
                    words.law_name(name) + (" (preferred)" if chosen else ""), kind="good" if chosen else ""
                ),
                Cell(words.form_equation(name, document)),
                Cell(words.parameters(name, law)),
                _number(law.mean_regret, ".4f"),
                Cell("", "") if better is None else Cell(words.share(better), better),
            ]
        )
    columns = [
        "law",
        "n*(C) is",
        "parameters (95 % of draws)",
        "mean loss",
        "better than a constant, in draws",
    ]
    return Table("laws", "Laws, by the reward that they lose along n*", columns, rows)


def health(judged: Sequence[Health], study: Study, failed: Sequence[Mapping[str, Any]]) -> Table:
    """Return every run with its state, and those that failed."""
    ends = study.runs.points.groupby("run_id")[["step", "compute"]].max()
    reward = study.rows().sort_values("step").groupby("run_id")["value"].last()
    names = labels([*(h.run_id for h in judged), *(f["run_id"] for f in failed)])
    causes = {f["run_id"]: f["cause"] for f in failed}
    rows = []
    for h in judged:
        step, compute = (int(v) for v in ends.loc[h.run_id])
        cause = causes.pop(h.run_id, "")
        status = "failed" if cause else h.status
        rows.append(
            [
                Cell(names[h.run_id]),
                _number(h.problems_per_batch),
                _number(h.rollouts_per_problem),
                _number(h.seed),
                _number(step),
                _number(compute),
                _number(reward.get(h.run_id), ".3f"),
                Cell(status, kind={"healthy": "good", "unknown": ""}.get(status, "bad")),
                Cell("; ".join([*([cause] if cause else []), *h.reasons])),
            ]
        )
    for f in failed:
        if f["run_id"] in causes:
            place = [_number(f[key]) for key in ("problems_per_batch", "rollouts_per_problem", "seed")]
            nothing = [_number(0), _number(0), Cell("", "")]
            rows.append(
                [Cell(names[f["run_id"]]), *place, *nothing, Cell("failed", kind="bad"), Cell(f["cause"])]
            )
    order = {"failed": 0, "unhealthy": 1, "unknown": 2, "healthy": 3}
    rows.sort(key=lambda row: order[row[7].text])
    columns = ["run", "B_p", "n", "seed", "steps", "C", study.metric, "state", "why"]
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table("runs", f"Every run ({len(rows):,}), the worst first", columns, rows, long=len(rows) > 12)


def backtest(result: Mapping[str, Any]) -> Table:
    """Return the regret of each rule."""
    rows = []
    for rule, found in result["rules"].items():
        difference, error = found["against_isolaw"].values()
        against = (
            "" if rule == "isolaw" else f"{difference:+.4f}" + ("" if error is None else f" (SE {error:.4f})")
        )
        cells = [
            Cell(f"{lost:.4f} ({chosen})".replace("n ", "n\u00a0"), lost)
            for lost, chosen in zip(found["regret"], backtest_words.choices(result, rule), strict=True)
        ]
        rows.append([Cell(rule), *cells, _number(found["mean_regret"], ".4f"), Cell(against, difference)])
    columns = [
        "rule",
        *(f"C = {words.number(c)}" for c in result["budgets"]),
        "mean",
        "loses more than isolaw by",
    ]
    how = f" with each of {result['seeds']} seeds left out" if result["seeds"] > 1 else ""
    caption = f"Regret in reward of each rule, and what it chose{how}"
    return Table("regret", caption, columns, rows)
