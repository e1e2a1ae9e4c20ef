"""What stands on the page, section by section; what the data cannot show is named, not drawn empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isolaw.fits.health import health
from isolaw.report.figures.series import steps_scale
from isolaw.report.page import landscape, law_charts, provenance, run_charts, tables
from isolaw.report.page.budgets import Budgets, instead, shown, unbroken
from isolaw.report.page.chart import Chart, palette, text
from isolaw.report.page.tables import Table
from isolaw.report.study import Study, spread
from isolaw.report.text import answer as answer_words
from isolaw.report.text import backtest as backtest_words
from isolaw.report.text import runs as run_words
from isolaw.report.text import words
from isolaw.report.text.advice import Advice, advice


@dataclass(frozen=True)
class Facts:
    """What the page is made from, beside the study itself.

    Attributes
    ----------
    budgets
        predictions at the slider's stops; None without a law.
    backtest
        what a backtest found, or why there is none.
    failed
        runs of sweeps that failed, as `isolaw.engine.status` has them.
    sources
        name, kind and hash of what was read (`isolaw.report.page.provenance`).
    command
        what repeats the report.
    notes
        what was assumed in reading.
    title
        what the page is about: the sources as they were named.
    sweep
        the sweep's directory, where the source is one: what to run next becomes a command.
    """

    budgets: Budgets | None
    backtest: Mapping[str, Any] | str
    failed: Sequence[Mapping[str, Any]] = ()
    sources: Sequence[tuple[str, str, str]] = ()
    command: str = ""
    notes: Sequence[str] = ()
    title: str = ""
    sweep: str = ""


@dataclass
class Section:
    """A part of the page: some words, charts and tables."""

    name: str
    title: str
    lines: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    small: bool = False  # charts stand side by side where there is room


def content(study: Study, facts: Facts, plotly: str) -> dict[str, Any]:
    """Return everything that the template shows, and the script draws."""
    sections, left_out = _sections(study, facts)
    predictions = [] if facts.budgets is None else facts.budgets.predictions
    run_ids = sorted(study.runs.points["run_id"].unique())
    first = None if facts.budgets is None else facts.budgets.answer
    return {
        "title": facts.title or study.runs.source,
        "study": study,
        "document": study.document,
        "answer": first and unbroken(answer_words.answer(first)),
        "loss": first and study.document and answer_words.loss(first, study.document),
        "instead": "" if facts.budgets is None else instead(facts.budgets, facts.budgets.answer),
        "refused": study.refused,
        "law": words.law_name((words.preferred(study.document) if study.document else None) or ""),
        "facts": _facts(study),
        "warnings": [*map(words.flag, study.document.flags)] if study.document else list(facts.notes),
        "budgets": [shown(p, study.law, facts.budgets) for p in predictions]
        if study.law and facts.budgets
        else [],
        "first": 0 if facts.budgets is None else facts.budgets.first,
        "drawn": {"n": _values(study, "rollouts_per_problem"), "b": _values(study, "problems_per_batch")},
        "sections": sections,
        "left_out": left_out,
        "advice": _advice(study, facts),
        "how": _how(study, facts, plotly),
        "palette": palette(len(study.levels)),
        "charts": [chart.to_dict() for section in sections for chart in section.charts],
        "runs": _names(study, run_ids),
    }


def _sections(study: Study, facts: Facts) -> tuple[list[Section], list[str]]:
    numbers = {run_id: i for i, run_id in enumerate(sorted(study.runs.points["run_id"].unique()))}
    makers: list[Callable[[], Section | str]] = [
        lambda: _reward(study, numbers),
        lambda: _law(study, facts),
        lambda: Section(
            "grid", "Rewards at the same compute", [], [run_charts.grid(study)], [tables.final_rewards(study)]
        ),
        lambda: _spread(study),
        lambda: _landscape(study),
        lambda: _health(study, facts),
        lambda: _backtest(facts),
        lambda: _laws(study),
    ]
    made = [make() for make in makers]
    return [m for m in made if isinstance(m, Section)], [m for m in made if isinstance(m, str)]


def _reward(study: Study, numbers: dict[str, int]) -> Section:
    own = [tables.configurations(study)] if study.document else []
    return Section("reward", "Reward against compute", charts=[law_charts.reward(study, numbers)], tables=own)


def _law(study: Study, facts: Facts) -> Section | str:
    if study.document is None:
        return f"n*(C): {study.refused}"
    d = study.document
    own, name = words.equation(d), words.preferred(d)
    law = f"The law: {own} ({words.form(name, d)})." if own and name else ""
    lines = [line for line in (*words.ends(d), law, *words.crossovers(d), words.saturation(d)) if line]
    recommended = [] if facts.budgets is None else [p for p in facts.budgets.predictions if p.options]
    budget = recommended[-1].compute / steps_scale(d) if recommended else 0
    tables_ = [tables.parameters(d), tables.frontier(d)]
    return Section("law", "The best n for a budget", lines, [law_charts.n_star(study, budget)], tables_)


def _spread(study: Study) -> Section | str:
    charts = run_charts.best_and_worst(study)
    if not charts:
        return "best@k against worst@k: the runs did not record both (a sweep does with evaluation.metrics)"
    k = spread(study)
    assert k is not None
    lines = [
        f"Which n is best depends on what is wanted of {k[0]} samples: one correct answer among them "
        f"(best@{k[0]}, coverage), or {k[0]} (worst@{k[0]}, reliability)."
    ]
    return Section("spread", f"best@{k[0]} against worst@{k[0]}", lines, charts, small=True)


def _landscape(study: Study) -> Section | str:
    charts = landscape.landscape(study)
    if not charts:
        return "pass@1 landscape: no results of single problems were recorded"
    lines = []
    if not any(chart.name.startswith("landscape") for chart in charts):
        lines.append(
            "How pass@1 is spread over all problems was not recorded: a simulated sweep does with "
            'evaluation.metrics = [..., "histogram"], a real one always (in its directory, not in its table).'
        )
    return Section("landscape", "The pass@1 landscape over training", lines, charts, small=True)


def _health(study: Study, facts: Facts) -> Section:
    judged = health(study.runs, study.metric, study.eval_set)
    table = tables.health(judged, study, facts.failed)
    return Section(
        "health",
        "Health of the runs",
        run_words.health(judged, len(facts.failed), study.document),
        tables=[table],
    )


def _backtest(facts: Facts) -> Section | str:
    if isinstance(facts.backtest, str):
        return f"Backtest: {facts.backtest}"
    lines = backtest_words.backtest_verdict(facts.backtest)
    return Section(
        "backtest", "Backtest: would small runs have told?", lines, [run_charts.backtest(facts.backtest)],
        [tables.backtest(facts.backtest)],
    )  # fmt: skip


def _laws(study: Study) -> Section | str:
    if study.document is None:
        return "Law comparison: there is no law"
    verdict, table = words.verdict(study.document), tables.laws(study.document)
    if not verdict and table is None:
        return "Law comparison: the method surface compares laws where B_p or B is held"
    if table is None:
        why = "the method surface compares laws, where B_p or B is held"
        return Section("laws", "Which law", [verdict, f"More was not compared: {why}."])
    return Section("laws", "Which law", [verdict], tables=[table])


def _values(study: Study, column: str) -> list[int]:
    """The n, or the B_p, of the runs whose rewards are drawn."""
    return sorted(int(value) for value in study.fitted()[column].unique())


def _facts(study: Study) -> list[tuple[str, str]]:
    points = study.rows()
    runs = points["run_id"].nunique()
    return [
        ("reward", f"{study.metric} on {study.eval_set}"),
        ("runs", f"{runs:,}"),
        ("seeds", f"{points['seed'].nunique():,}"),
        ("n", _listed(study.levels)),
        ("B_p", _listed(study.batches)),
        ("largest C", words.number(int(points["compute"].max()))),
    ]


def _listed(values: Sequence[int]) -> str:
    if len(values) > 4:
        return f"{values[0]:,} … {values[-1]:,} ({len(values)})"
    return ", ".join(f"{v:,}" for v in values)


def _advice(study: Study, facts: Facts) -> list[tuple[Advice, str]]:
    if study.document is None:
        return [(Advice("Add what the fit asks for.", study.refused), "")]
    first = None if facts.budgets is None else facts.budgets.answer
    return [(own, own.command(facts.sweep)) for own in advice(study.document, first)]


def _how(study: Study, facts: Facts, plotly: str) -> list[tuple[str, list[str]]]:
    """Name and lines of each fact that is needed to repeat the page."""
    how = [("command", [facts.command])] if facts.command else []
    how.append(("data", [f"{name} ({what}, SHA-256 {digest})" for name, what, digest in facts.sources]))
    if facts.notes:
        how.append(("as read", list(facts.notes)))
    if study.document is not None:
        how += [("fit", [provenance.options(study.document)]), ("intervals", words.intervals(study.document))]
    how.append(("seeds of the runs", [provenance.seeds(study.runs)]))
    how.append(("versions", [provenance.versions(plotly)]))
    return how


def _names(study: Study, run_ids: Sequence[str]) -> list[str]:
    """What a hover says of each run."""
    facts = study.runs.points.drop_duplicates("run_id").set_index("run_id")
    names = tables.labels(run_ids)
    out = []
    for run_id in run_ids:
        b, n, seed = (facts.at[run_id, key] for key in ("problems_per_batch", "rollouts_per_problem", "seed"))
        out.append(f"{text(names[run_id])}<br>n = {n:,}, B_p = {b:,}, seed {seed}")
    return out
