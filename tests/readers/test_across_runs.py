"""Accuracies in percent: converted and said so, never guessed between runs that differ."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.readers.across_runs import to_fractions
from isolaw.readers.stitch import MetricCurve, RunCurves, Target

EVAL: Target = ("aime24", "avg@8")


def curves(values: list[float], target: Target = EVAL) -> RunCurves:
    steps = np.arange(1, len(values) + 1)
    return RunCurves(
        {target: MetricCurve(steps, np.array(values, dtype=float), np.full(len(values), np.nan))}
    )


def value(runs: dict[str, RunCurves], run: str = "a", target: Target = EVAL) -> list[float]:
    return runs[run].of[target].value.tolist()


@pytest.mark.parametrize("metric", ["avg@8", "best@8", "pass@1", "worst@4", "maj@16", "acc", "eval_accuracy"])
def test_an_accuracy_above_one_is_in_percent(metric: str) -> None:
    target = ("validation", metric)
    runs = {"a": curves([0.5, 15.6, 46.2], target)}
    assert to_fractions(runs, {}) == []
    assert value(runs, target=target) == pytest.approx([0.005, 0.156, 0.462])
    assert runs["a"].notes == [f"{metric} on validation was in percent (up to 46.2): divided by 100"]


@pytest.mark.parametrize("metric", ["reward", "score", "response_length", "accelerate", "kl", "avg@x"])
def test_anything_else_is_left_alone(metric: str) -> None:
    runs = {"a": curves([0.5, 15.6, 46.2], ("train", metric))}
    assert to_fractions(runs, {}) == []
    assert value(runs, target=("train", metric)) == [0.5, 15.6, 46.2]


@pytest.mark.parametrize("values", [[0.0, 0.5, 1.0], [1.0000001], [0.0], [0.001]])
def test_fractions_are_left_alone(values: list[float]) -> None:
    runs = {"a": curves(values)}
    assert to_fractions(runs, {}) == []
    assert (value(runs), runs["a"].notes) == (values, [])


@pytest.mark.parametrize("values", [[-3.0, 50.0], [20.0, 250.0]])
def test_what_can_be_neither_is_said(values: list[float]) -> None:
    runs = {"a": curves(values)}
    assert to_fractions(runs, {}) == []
    assert value(runs) == values
    assert "no accuracy, left as it is" in runs["a"].notes[0]


def test_runs_that_differ_are_refused_until_it_is_said() -> None:
    def both() -> dict[str, RunCurves]:
        return {"a": curves([10, 43.1]), "b": curves([0.3, 0.9]), "c": curves([0.0, 0.0])}

    (problem,) = to_fractions(both(), {})
    for word in (
        "avg@8 on aime24",
        "in percent in a (up to 43.1)",
        "at most 0.9 in b",
        "--set b:percent=true",
    ):
        assert word in problem.replace("'", "")
    runs = both()
    assert to_fractions(runs, {"b": True}) == []
    assert value(runs, "b") == pytest.approx([0.003, 0.009])
    runs = both()
    assert to_fractions(runs, {"b": False}) == []
    assert value(runs, "b") == [0.3, 0.9]
    assert value(runs, "a") == pytest.approx([0.1, 0.431])
    runs = both()
    assert to_fractions(runs, {"a": False}) == []
    assert value(runs, "a") == [10, 43.1]
