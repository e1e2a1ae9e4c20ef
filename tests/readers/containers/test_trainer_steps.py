"""The steps of a Trainer's console: its bar gives them, or its epochs, or they are left unknown."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.readers import frameworks
from isolaw.readers.containers.stdout_dicts import TrainerSteps, logging_steps
from isolaw.readers.raw_log import RawLog
from isolaw.readers.stitch import stitch

UNKNOWN = "unknown"


def steps(epochs: list[str], every: int, evaluated: tuple[int, ...] = ()) -> list[float] | str:
    """The steps of records with these epochs; those of ``evaluated`` are evaluations."""
    log = RawLog("f", "stdout-dicts", "run")
    for i, epoch in enumerate(epochs):
        log.add({"eval_reward" if i in evaluated else "reward": i, "epoch": epoch})
    curves = stitch([log], frameworks.named("TRL"), every)
    found = {v: s for curve in curves.of.values() for s, v in zip(curve.step, curve.value, strict=True)}
    return UNKNOWN if curves.mixed else [int(found[i]) for i in range(len(epochs)) if i in found]


def bar(done: int, total: int) -> str:
    return f"\r{100 * done // total:3d}%|#####     | {done}/{total} [10:00<20:00, 1.5s/it]"


def two_digits(numbers: Any) -> list[str]:
    return [str(round(number, 2)) for number in numbers]


@pytest.mark.parametrize(("every", "per_epoch"), [(20, 1875), (20, 200), (1, 20), (5, 93)])
def test_records_every_twenty_steps(every: int, per_epoch: int) -> None:
    """In order where two digits are too few to see a record, else by epoch."""
    found = steps(two_digits(every * k / per_epoch for k in range(1, 94)), every)
    assert found == [every * k for k in range(1, 94)]


@pytest.mark.parametrize("lost", [1, 2, 5, 30])
def test_records_that_are_missing(lost: int) -> None:
    numbers = [k for k in range(1, 94) if not 20 <= k < 20 + lost]
    assert steps(two_digits(0.0533 * k for k in numbers), 10) == [10 * k for k in numbers]
    assert steps([f"{0.0061 * k:.4g}" for k in numbers], 10) == [10 * k for k in numbers]


def test_evaluations_have_the_step_of_their_epoch() -> None:
    epochs = ["0", "0.1001", "0.2002", "0.2002", "0.2502"]
    assert steps(epochs, 10, evaluated=(0, 3, 4)) == [0, 10, 20, 20, 25]
    assert steps(["0.1", "0.2", "0.25"], 10, evaluated=(2,)) == [10, 20]  # 24, 25 or 26
    assert steps(["0.01", "0.02", "0.03"], 10, evaluated=(2,)) == [10, 20, 20]


def test_the_first_step_may_be_logged() -> None:
    assert steps(["0.01", "0.1", "0.2", "0.3"], 10) == [1, 10, 20, 30]
    assert steps(["0.0533", "0.0533", "0.1066"], 1, evaluated=(1,)) == [1, 1, 2]
    assert steps(["0.0", "0.1", "0.2"], 1) == [1, 2, 3]


def test_what_the_arguments_say() -> None:
    assert logging_steps({"logging_steps": 5}) == 5
    assert logging_steps({"logging_steps": 0.02, "max_steps": 250}) == 5
    assert logging_steps({"logging_steps": 0.02}, 250) == 5
    assert logging_steps({"logging_steps": 0.02}) == 0
    assert logging_steps({"logging_steps": 5, "logging_strategy": "epoch"}) == 0


@given(
    st.lists(
        st.sampled_from(["0", "0.1", "0.2", "0.3", "0.25", "1e300", "-1", "x", "nan", "1e-320"]), max_size=8
    ),
    st.sets(st.integers(0, 7)),
)
def test_any_epochs(epochs: list[str], evaluated: set[int]) -> None:
    for every in (1, 5):
        found = steps(epochs, every, tuple(evaluated))
        assert found == UNKNOWN or all(step >= 0 for step in found)


def interleaved(bars: list[int], epochs: list[str], total: int, config: dict[str, Any]) -> list[float] | str:
    """The steps of records that each follow a bar."""
    log, reader = RawLog("f", "stdout-dicts", "run"), TrainerSteps()
    for done, epoch in zip(bars, epochs, strict=True):
        reader.add_bars(bar(done, total))
        reader.add_entry(len(log.step), True)
        log.add({"reward": 0.5, "epoch": epoch})
    reader.add_bars(bar(total, total))
    reader.set_steps(log, config)
    return UNKNOWN if all(map(math.isnan, log.step)) else list(log.step)


def test_a_bar_that_lags_is_not_believed() -> None:
    """With TQDM_MININTERVAL the bar is drawn now and then: records of 5, 10, 15, 20 follow 3, 8, 14, 19."""
    epochs = ["0.05", "0.1", "0.15", "0.2"]
    assert interleaved([5, 10, 15, 20], epochs, 24, {}) == [5, 10, 15, 20]
    assert interleaved([1, 10, 20, 30], ["0.01", "0.1", "0.2", "0.3"], 100, {}) == [1, 10, 20, 30]
    assert interleaved([3, 8, 14, 19], epochs, 24, {"logging_steps": 5}) == UNKNOWN
    assert interleaved([3, 8, 14, 19], epochs, 24, {}) == UNKNOWN


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=4))
def test_any_bars(bars: list[tuple[int, int]]) -> None:
    log, reader = RawLog("f", "stdout-dicts", "run"), TrainerSteps()
    for done, total in bars:
        reader.add_bars(f"\r 1%|#| {done}/{total} [00:00<00:00, 1s/it]")
        reader.add_entry(len(log.step), True)
        log.add({"reward": 0.5})
    for config in ({}, {"logging_steps": 5}, {"num_train_epochs": 1}):
        reader.set_steps(log, config)
        assert all(math.isnan(step) or step >= 0 for step in log.step)


def test_long_bars_take_no_time() -> None:
    began = time.process_time()
    totals = [999_999_999 - i for i in range(60)]
    interleaved(totals, ["0.01"] * 60, 999_999_999, {})
    assert time.process_time() - began < 1
