"""Parts of a run as one: what a step is, what wins, what is told."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.readers.frameworks.base import Framework
from isolaw.readers.raw_log import RawLog
from isolaw.readers.stitch import RunCurves, stitch

REWARD = ("train", "reward")
EVAL = ("aime24", "avg@8")


def log(*records: dict[str, Any]) -> RawLog:
    """Short names: ``r`` is the training reward, ``e`` an evaluation, ``s`` the framework's step."""
    names = {"r": "toy/train/reward", "e": "toy/eval/aime24/avg@8", "s": "toy/step"}
    out = RawLog("f", "toy", "r")
    for record in records:
        out.add({names.get(k, k): v for k, v in record.items() if k != "at"}, record.get("at", math.nan))
    return out


def points(curves: RunCurves, target: tuple[str, str] = REWARD) -> dict[int, float]:
    curve = curves.of.get(target)
    if curve is None:
        return {}
    assert curve.step.dtype == np.int64
    assert (np.diff(curve.step) > 0).all()
    return dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True))


def test_one_part(toy_framework: Framework) -> None:
    part = log({"at": 0, "e": 0.1}, {"at": 1, "r": 0.2, "toy/time": 3.0}, {"at": 2, "r": 0.3, "e": 0.4})
    curves = stitch([part], toy_framework)
    assert points(curves) == {1: 0.2, 2: 0.3}
    assert points(curves, EVAL) == {0: 0.1, 2: 0.4}
    assert curves.ignored == {"toy/time"}
    assert curves.steps == (0, 2)
    assert (curves.notes, curves.dropped) == ([], {})


def test_later_wins_and_is_reported(toy_framework: Framework) -> None:
    first = log(*({"at": s, "r": 0.1 * s} for s in range(1, 6)))
    second = log(*({"at": s, "r": 0.5 + 0.1 * s} for s in range(4, 8)))
    curves = stitch([first, second], toy_framework)
    assert points(curves) == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.9, 5: 1.0, 6: 1.1, 7: 1.2})
    assert curves.notes == ["2 steps repeated with other values; isolaw kept the later values"]
    assert points(stitch([second, first], toy_framework))[4] == pytest.approx(0.4)


def test_the_same_again_is_counted_once(toy_framework: Framework) -> None:
    first = log(*({"at": s, "r": 0.1 * s, "e": 0.2} for s in range(1, 6)))
    longer = log(*({"at": s, "r": 0.1 * s, "e": 0.2} for s in range(1, 9)))
    curves = stitch([first, longer], toy_framework)
    assert len(points(curves)) == len(points(curves, EVAL)) == 8
    assert curves.notes == ["5 steps repeated with the same values; isolaw counts them once"]


def test_a_run_resumed_into_the_same_file(toy_framework: Framework) -> None:
    part = log({"at": 1, "r": 0.1}, {"at": 2, "r": 0.2}, {"at": 2, "r": 0.3}, {"at": 3, "r": 0.4})
    curves = stitch([part], toy_framework)
    assert points(curves) == {1: 0.1, 2: 0.3, 3: 0.4}
    assert curves.notes == ["1 step repeated with other values; isolaw kept the later values"]


def test_the_frameworks_step_goes_before_the_containers(toy_framework: Framework) -> None:
    part = log({"at": 100, "s": 1, "r": 0.1}, {"at": 200, "s": 2, "r": 0.2})
    assert points(stitch([part], toy_framework)) == {1: 0.1, 2: 0.2}


def test_the_container_fills_in_where_it_counts_the_same(toy_framework: Framework) -> None:
    agreeing = log({"at": 1, "s": 1, "r": 0.1}, {"at": 2, "e": 0.5}, {"at": 2, "s": 2, "r": 0.2})
    assert points(stitch([agreeing], toy_framework), EVAL) == {2: 0.5}
    calls = log({"at": 7, "s": 1, "r": 0.1}, {"at": 8, "e": 0.5}, {"at": 9, "s": 2, "r": 0.2})
    curves = stitch([calls], toy_framework)
    assert points(curves) == {1: 0.1, 2: 0.2}
    assert points(curves, EVAL) == {}
    assert curves.dropped == {"values without a step": 1}


def test_updates_counted_from_0(toy_framework: Framework) -> None:
    """Step 0 is after the first update, but for the validation that came before it."""
    part = log({"at": 0, "e": 0.1}, {"at": 0, "r": 0.2, "e": 0.15}, {"at": 1, "r": 0.3}, {"at": 4, "e": 0.5})
    curves = stitch([part], toy_framework)
    assert points(curves) == {1: 0.2, 2: 0.3}
    assert points(curves, EVAL) == {0: 0.1, 1: 0.15, 5: 0.5}
    assert curves.notes == ["its steps count from 0, so step 0 is after the first update"]
    from_zero = dataclasses.replace(toy_framework, first_step=0)
    told = stitch([log({"at": 3, "r": 0.2})], from_zero)
    assert (points(told), told.notes) == ({4: 0.2}, [])


def test_validation_before_training_is_no_sign_of_counting_from_0(toy_framework: Framework) -> None:
    part = log({"at": 0, "e": 0.1, "toy/train/tokens": 0}, {"at": 1, "r": 0.2})
    assert points(stitch([part], toy_framework)) == {1: 0.2}


def test_records_without_steps_are_numbered(toy_framework: Framework) -> None:
    part = log({"e": 0.0}, {"r": 0.1}, {"r": 0.2}, {"e": 0.5}, {"toy/time": 1}, {"r": 0.3})
    curves = stitch([part], toy_framework, logging_steps=1)
    assert points(curves) == {1: 0.1, 2: 0.2, 3: 0.3}
    assert points(curves, EVAL) == {0: 0.0, 2: 0.5}
    assert curves.notes == ["the log has no steps; isolaw numbered 3 records in order"]
    assert (curves.unnumbered, stitch([part], toy_framework).unnumbered) == (0, 3)
    every = stitch([part], toy_framework, logging_steps=5)
    assert points(every) == {5: 0.1, 10: 0.2, 15: 0.3}
    assert every.notes == [
        "the log has no steps; isolaw numbered 3 records in order, one every 5 steps (logging_steps)"
    ]
    only_evaluations = stitch([log({"e": 0.1}, {"e": 0.2})], toy_framework)
    assert points(only_evaluations, EVAL) == {1: 0.1, 2: 0.2}


@pytest.mark.parametrize(
    ("epochs", "second", "steps"),
    [
        ("0.1 0.2 0.3 0.4", "0.3 0.4 0.5", [1, 2, 3, 4, 5]),
        ("0.1 0.2 0.3", "0.3 0.4", [1, 2, 3, 4]),
        ("0.1 0.2 0.4 0.5", "0.7", [1, 2, 4, 5, 7]),
        ("0.011 0.021 0.032 0.043", "0.032 0.043 0.053", [1, 2, 3, 4, 5]),
        ("0.01 0.02 0.03 0.04", "0.03 0.04 0.05", None),  # two digits could hide a record
        ("0.01 0.01 0.02 0.03 0.04", "0.04 0.05 0.05", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("1 1 2 2", "3 3", [1, 2, 3, 4, 5, 6]),  # whole epochs
        ("0 0 1 1 1", "2", [1, 2, 3, 4, 5, 6]),
        ("0 1 2", "3 4", [1, 2, 3, 4, 5]),
        ("0.1 0.2 0.3", "0.15 0.25", None),
    ],
)
def test_epochs_that_go_back_number_the_records_of_a_resumed_run(
    toy_framework: Framework, epochs: str, second: str, steps: list[int] | None
) -> None:
    numbers = [[float(epoch) for epoch in part.split()] for part in (epochs, second)]
    parts = [log(*({"epoch": epoch, "r": i + epoch} for epoch in part)) for i, part in enumerate(numbers)]
    curves = stitch(parts, toy_framework, logging_steps=1)
    if steps is None:
        assert "its epochs go back to no earlier record" in curves.mixed
    else:
        assert list(points(curves)) == steps
        assert list(points(curves).values())[-len(numbers[1]) :] == [1 + epoch for epoch in numbers[1]]


def test_numbering_goes_on_in_the_next_part(toy_framework: Framework) -> None:
    parts = [log({"r": 0.1}, {"r": 0.2}), log({"r": 0.3})]
    assert points(stitch(parts, toy_framework)) == {1: 0.1, 2: 0.2, 3: 0.3}


@pytest.mark.parametrize("step", [-1, 1.5, 1e300, math.inf, -math.inf])
def test_what_is_no_step(toy_framework: Framework, step: float) -> None:
    curves = stitch([log({"at": step, "r": 0.9}, {"at": 1, "r": 0.1})], toy_framework)
    assert points(curves) == {1: 0.1}
    assert curves.dropped == {"values without a step": 1}


def test_two_names_of_one_metric(toy_framework: Framework) -> None:
    """A log that was begun with an old version and ended with a new one."""
    old_and_new = {"old": REWARD, "new": REWARD}
    framework = dataclasses.replace(toy_framework, metric=old_and_new.get)
    renamed = log({"at": 1, "old": 0.1}, {"at": 2, "new": 0.2})
    curves = stitch([renamed], framework)
    assert (points(curves), curves.notes) == ({1: 0.1, 2: 0.2}, [])
    both = stitch([log({"at": 1, "old": 0.1, "new": 0.9})], framework)
    assert points(both) == {1: 0.1}
    assert both.notes == ["old and new are one metric; isolaw uses the first"]


def test_values_beyond_reason(toy_framework: Framework) -> None:
    curves = stitch([log({"at": 1, "r": 1e300}, {"at": 2, "r": 0.5})], toy_framework)
    assert points(curves) == {2: 0.5}
    assert curves.dropped == {"values beyond 1e+100": 1}


def test_wall_clock_and_what_the_container_said(toy_framework: Framework) -> None:
    part = RawLog("f", "toy", "r", notes=["sampled"], dropped={"torn last line": 1})
    part.add({"toy/train/reward": 0.1}, 1, 10.0)
    part.add({"toy/train/reward": 0.2}, 2, 30.0)
    other = dataclasses.replace(part, source="g")
    curves = stitch([part, other], toy_framework)
    assert curves.of[REWARD].wall_s.tolist() == [10.0, 30.0]
    assert curves.notes.count("sampled") == 1
    assert curves.dropped == {"torn last line": 2}


def test_nothing(toy_framework: Framework) -> None:
    curves = stitch([log({"at": 1, "lr": 0.1})], toy_framework)
    assert (curves.of, curves.steps) == ({}, None)


RECORD = st.fixed_dictionaries(
    {"at": st.integers(1, 8)}, optional={"r": st.floats(-5, 5), "e": st.floats(0, 1)}
)


@given(st.lists(st.lists(RECORD, max_size=12), min_size=1, max_size=3))
def test_it_is_what_a_dictionary_would_do(parts: list[list[dict[str, Any]]]) -> None:
    from isolaw.readers.frameworks.base import Framework

    targets = {"toy/train/reward": REWARD, "toy/eval/aime24/avg@8": EVAL}
    framework = Framework("Toy", targets.get)
    curves = stitch([log(*records) for records in parts], framework)
    for name, target in (("r", REWARD), ("e", EVAL)):
        expected: dict[int, float] = {}
        for record in (record for records in parts for record in records if name in record):
            expected[record["at"]] = record[name]
        assert points(curves, target) == expected


def test_a_curve_beyond_all_use_is_thinned_and_said(
    toy_framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isolaw.readers.stitch.MOST_POINTS", 11)
    part = log(*({"at": s, "r": s / 10, **({"e": 0.5} if s % 10 == 0 else {})} for s in range(1, 102)))
    curves = stitch([part], toy_framework)
    assert list(points(curves)) == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 101]
    assert len(points(curves, EVAL)) == 10
    assert curves.notes == ["1 metric had over 11 steps; isolaw kept that many, evenly spaced"]
