"""The section of the page about a race: its decisions, and expected loss by spend."""

from __future__ import annotations

from collections.abc import Sequence

from isolaw import commands
from isolaw.design.decisions import CellVerdict, Decision, DecisionStage
from isolaw.evidence import number
from isolaw.report.document import Table, TableCell
from isolaw.report.page.chart import Chart, PageSection, line, log_axis
from isolaw.report.text import race as text

_WHOLE = ("design.kind=grid",)


def section(history: Sequence[Decision], directory: str) -> PageSection | None:
    """Return the section about a race, or None if the runs form a grid. ``directory`` is of its sweep."""
    if not history:
        return None
    chart = _loss_against_spend(history)
    charts, tables = [chart] if chart else [], [_decisions(history)]
    return PageSection("race", "How the runs were chosen", _lines(history, directory), charts, tables)


def _loss_against_spend(history: Sequence[Decision]) -> Chart | None:
    """Return a chart of the best configuration's expected loss after the runs of each decision."""
    known = [made for made in history if made.expected_loss is not None and made.spent]
    if not known:
        return None
    target = max(request.compute for made in history for request in made.runs)
    spent = [made.spent for made in known]
    loss = [max(made.expected_loss or 0.0, 1e-5) for made in known]
    hover = [f"{text.cell(made.best)} at C = {number(made.compute or 0)}" for made in known if made.best]
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
    for i, made in enumerate(history, 1):
        loss = made.expected_loss
        behind = [standing.key for standing in made.standings if standing.verdict is CellVerdict.WORSE]
        asked = sorted({request.key for request in made.runs})
        rows.append(
            [
                TableCell(f"{i}", float(i)),
                TableCell("" if made.compute is None else number(made.compute), made.compute or 0.0),
                TableCell("" if made.best is None else text.cell(made.best)),
                TableCell("" if loss is None else f"{loss:.4f}", loss or 0.0),
                TableCell(text.cells(behind) if behind else ""),
                TableCell(text.ending(made.ending) if made.ending else text.cells(asked)),
                TableCell(number(made.spent), float(made.spent)),
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


def _lines(history: Sequence[Decision], directory: str) -> list[str]:
    """Return the race's result, and how to extend runs that it stopped early."""
    left = sum(standing.verdict is CellVerdict.WORSE for made in history for standing in made.standings)
    out = (
        [text.outcome(history[-1])]
        if history[-1].stage is DecisionStage.STOP
        else ["The race has not ended."]
    )
    if history[-1].best is not None:
        out.append(
            "A race chooses among configurations that ran to this C. The law may recommend an n between "
            "these configurations, with an expected loss of its own."
        )
    if left:
        grid = f" To run the whole grid: {commands.extend_sweep(directory, _WHOLE)}" if directory else ""
        out.append(f"Runs that were left behind keep their state.{grid}")
    return out
