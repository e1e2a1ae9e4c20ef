"""The section of the page about a race: its decisions, and expected loss by spend."""

from __future__ import annotations

from collections.abc import Sequence

from isolaw import commands
from isolaw.design.decisions import CellVerdict, Decision, DecisionStage
from isolaw.evidence import number
from isolaw.report.document import Table, TableCell
from isolaw.report.page.chart import Chart, PageSection, line, log_axis
from isolaw.report.text import race as text

_GRID = ("design.kind=grid",)


def section(history: Sequence[Decision], directory: str) -> PageSection | None:
    """Return the section about a race, or None if the runs form a grid. ``directory`` is of its sweep."""
    if not history:
        return None
    chart = _loss_against_spend(history)
    charts, tables = [chart] if chart else [], [_decisions(history)]
    return PageSection("race", "How the runs were chosen", _summary(history, directory), charts, tables)


def _loss_against_spend(history: Sequence[Decision]) -> Chart | None:
    """Return a chart of the best configuration's expected loss after the runs of each decision."""
    compared = [d for d in history if d.expected_loss is not None and d.spent]
    if not compared:
        return None
    target = max(request.compute for d in history for request in d.runs)
    spent = [d.spent for d in compared]
    loss = [max(d.expected_loss or 0.0, 1e-5) for d in compared]
    hover = [f"{text.cell(d.best)} at C = {number(d.compute or 0)}" for d in compared if d.best]
    trace = line(
        spent, loss, {"color": "var(--accent)"}, mode="lines+markers", name="expected loss", text=hover,
        hovertemplate="%{text}<br>%{x:.3s} rollouts: %{y:.4f}<extra></extra>",
    )  # fmt: skip
    return Chart(
        "race-loss",
        "Expected loss of the best configuration",
        f"Before C = {number(target)} isolaw compares configurations at smaller C, where others may be best, "
        "so the loss may rise again.",
        [trace],
        {
            "xaxis": {"title": {"text": "rollouts spent"}, "rangemode": "tozero"},
            "yaxis": log_axis("expected loss of reward", loss),
            "showlegend": False,
        },
        height=300,
    )


def _decisions(history: Sequence[Decision]) -> Table:
    """Return a table of the race's decisions, one row each."""
    rows = []
    for index, decision in enumerate(history, 1):
        loss = decision.expected_loss
        worse = [standing.key for standing in decision.standings if standing.verdict is CellVerdict.WORSE]
        requested = sorted({request.key for request in decision.runs})
        rows.append(
            [
                TableCell(f"{index}", float(index)),
                TableCell(number(decision.compute) if decision.compute else "", decision.compute or 0.0),
                TableCell("" if decision.best is None else text.cell(decision.best)),
                TableCell("" if loss is None else f"{loss:.4f}", loss or 0.0),
                TableCell(text.cells(worse) if worse else ""),
                TableCell(text.ending(decision.ending) if decision.ending else text.cells(requested)),
                TableCell(number(decision.spent), float(decision.spent)),
            ]
        )
    columns = [
        "decision",
        "compared at C",
        "best",
        "expected loss",
        "left behind",
        "starts or continues",
        "rollouts before",
    ]
    return Table("decisions", "Decisions of the race", columns, rows)


def _summary(history: Sequence[Decision], directory: str) -> list[str]:
    """Return the race's result, and how to extend runs that it stopped early."""
    worse = sum(standing.verdict is CellVerdict.WORSE for d in history for standing in d.standings)
    lines = (
        [text.outcome(history[-1])]
        if history[-1].stage is DecisionStage.STOP
        else ["The race has not ended."]
    )
    if history[-1].best is not None:
        lines.append(
            "A race chooses among configurations that ran to this C. The law may recommend an n between "
            "these configurations, with an expected loss of its own."
        )
    if worse:
        grid = f" To run the whole grid: {commands.extend_sweep(directory, _GRID)}" if directory else ""
        lines.append(f"Runs that were left behind keep their state.{grid}")
    return lines
