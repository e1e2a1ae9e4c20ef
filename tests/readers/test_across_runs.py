"""Accuracies in percent: converted and said so, never guessed between runs that differ."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.readers.assemble import _LoggedRun, _to_fractions
from isolaw.readers.found_logs import LogStatus
from isolaw.readers.stitch import RunCurves, Target, _MetricCurve

EVAL: Target = ("aime24", "avg@8")


def logged(target: Target = EVAL, **values: list[float]) -> list[_LoggedRun]:
    runs = []
    for name, item in values.items():
        curve = _MetricCurve(
            np.arange(1, len(item) + 1), np.array(item, dtype=float), np.full(len(item), np.nan)
        )
        runs.append(_LoggedRun(name, container="toy", sources=[name], curves=RunCurves({target: curve})))
    return runs


def value(run: _LoggedRun, target: Target = EVAL) -> list[float]:
    return run.curves.of[target].value.tolist()


@pytest.mark.parametrize("metric", ["avg@8", "best@8", "pass@1", "worst@4", "maj@16", "acc", "eval_accuracy"])
def test_an_accuracy_above_one_is_in_percent(metric: str) -> None:
    target = ("validation", metric)
    (run,) = logged(target, a=[0.5, 15.6, 46.2])
    _to_fractions([run], {})
    assert value(run, target) == pytest.approx([0.005, 0.156, 0.462])
    assert run.curves.notes == [f"{metric} on validation was in percent (up to 46.2): divided by 100"]


@pytest.mark.parametrize(
    "metric", ["reward", "score", "response_length", "accelerate", "kl", "avg@x", "rewards/accuracy_reward"]
)
def test_anything_else_is_left_alone(metric: str) -> None:
    (run,) = logged(("train", metric), a=[0.5, 15.6, 46.2])
    _to_fractions([run], {})
    assert value(run, ("train", metric)) == [0.5, 15.6, 46.2]


@pytest.mark.parametrize("values", [[0.0, 0.5, 1.0], [1.0000001], [0.0], [0.001]])
def test_fractions_are_left_alone(values: list[float]) -> None:
    (run,) = logged(a=values)
    _to_fractions([run], {})
    assert (value(run), run.curves.notes) == (values, [])


@pytest.mark.parametrize("values", [[-3.0, 50.0], [20.0, 250.0]])
def test_what_can_be_neither_is_said(values: list[float]) -> None:
    (run,) = logged(a=values)
    _to_fractions([run], {})
    assert value(run) == values
    assert "so it is not an accuracy" in run.curves.notes[0]


def test_of_runs_that_differ_the_fewer_need_to_be_told() -> None:
    def three() -> list[_LoggedRun]:
        return logged(a=[10, 43.1], b=[0.3, 0.9], c=[0.0, 0.0])

    runs = three()
    _to_fractions(runs, {})
    assert [(run.status, run.needs) for run in runs] == [
        (LogStatus.READY, []), (LogStatus.NEEDS, ["percent"]), (LogStatus.READY, []),
    ]  # fmt: skip
    for word in ("avg@8 on aime24", "in percent in a (up to 43.1)", "at most 0.9 in b"):
        assert word in runs[1].message
    assert value(runs[0]) == pytest.approx([0.1, 0.431])
    runs = logged(a=[10, 43.1], b=[0.3, 0.9], c=[0.2, 0.4])
    _to_fractions(runs, {})
    assert [run.status for run in runs] == [LogStatus.NEEDS, LogStatus.READY, LogStatus.READY]
    assert [value(run) for run in runs[1:]] == [[0.3, 0.9], [0.2, 0.4]]
    for b, expected in ((True, [0.003, 0.009]), (False, [0.3, 0.9])):
        runs = three()
        _to_fractions(runs, {"b": b})
        assert {run.status for run in runs} == {LogStatus.READY}
        assert value(runs[1]) == pytest.approx(expected)
        assert value(runs[0]) == pytest.approx([0.1, 0.431])
    runs = three()
    _to_fractions(runs, {"a": False})
    assert value(runs[0]) == [10, 43.1]
