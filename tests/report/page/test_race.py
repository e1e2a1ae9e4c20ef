"""The page's section about a race."""

from __future__ import annotations

import json

from isolaw.design.decisions import CellVerdict, Decision, DecisionStage, Ending, Request, Standing
from isolaw.report.page import race

HISTORY = [
    Decision(DecisionStage.RUNG, (Request(32, 8, 0, 1000), Request(32, 32, 0, 1000)), 0, 2000),
    Decision(
        DecisionStage.RUNG, (Request(32, 32, 0, 8000),), 2000, 7000, 1000, (32, 32), 0.0,
        (
            Standing(32, 8, CellVerdict.WORSE, 0.3, 0.02, 0.01),
            Standing(32, 32, CellVerdict.KEPT, 0.4, 0.0, 1.0),
        ),
    ),
    Decision(DecisionStage.STOP, (), 9000, 0, 8000, (32, 32), 0.0005, ending=Ending.CERTAIN),
]  # fmt: skip


def test_every_decision_is_a_row_with_what_was_left_behind() -> None:
    table = race._decisions(HISTORY)
    assert len(table.rows) == 3
    assert [cell.text for cell in table.rows[1]][2:5] == [
        "n = 32 with B_p = 32",
        "0.0000",
        "n = 8 with B_p = 32",
    ]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_chart_has_a_point_for_each_comparison_and_takes_a_loss_of_zero() -> None:
    chart = race._loss_against_spend(HISTORY)
    assert chart is not None
    assert chart.data[0]["x"] == [2000, 9000]
    assert min(chart.data[0]["y"]) > 0
    json.dumps(chart.to_dict(), allow_nan=False)
    assert race._loss_against_spend(HISTORY[:1]) is None


def test_lines_of_a_race_that_ended_and_of_one_that_did_not() -> None:
    assert race._summary(HISTORY, "")[0].startswith("The race recommends n = 32 with B_p = 32 at C = 8,000")
    whole = "isolaw sweep --out 'my race' --set design.kind=grid"
    assert any(whole in line for line in race._summary(HISTORY, "my race"))
    assert race._summary(HISTORY[:2], "")[0] == "The race has not ended."
