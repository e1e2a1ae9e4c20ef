"""The steps of a Trainer's console: derived from what it shows, or left unknown."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.readers.containers.trainer_steps import TrainerSteps
from isolaw.readers.raw_log import RawLog

UNKNOWN = "unknown"


def steps(
    epochs: list[str],
    bars: str = "",
    config: dict[str, Any] | None = None,
    ended: str = "",
    evaluated: tuple[int, ...] = (),
) -> list[float] | str:
    """The steps of records with these epochs, all after ``bars``; those of ``evaluated`` are evaluations."""
    log, reader = RawLog("f", "stdout-dicts", "run"), TrainerSteps()
    reader.add_bars(bars)
    for i, epoch in enumerate(epochs):
        reader.add_entry(len(log.step), i not in evaluated, epoch)
        log.add({"reward": 0.5})
    if ended:
        reader.set_end(ended)
    reader.set_steps(log, config or {})
    return UNKNOWN if all(map(math.isnan, log.step)) else list(log.step)


def bar(done: int, total: int) -> str:
    return f"\r{100 * done // total:3d}%|#####     | {done}/{total} [10:00<20:00, 1.5s/it]"


def two_digits(numbers: Any) -> list[str]:
    return [str(round(number, 2)) for number in numbers]


def test_records_every_twenty_steps() -> None:
    """93 records of a console whose bar ends at 1860/1875, its epochs rounded to two digits."""
    found = steps(two_digits(20 * k / 1875 for k in range(1, 94)), bar(1860, 1875))
    assert found == [20 * k for k in range(1, 94)]


@pytest.mark.parametrize("lost", range(1, 9))
def test_records_that_were_lost_with_a_buffer(lost: int) -> None:
    """The bar is further than the records: as many records would fit with another interval."""
    found = steps(two_digits(20 * k / 1875 for k in range(1, 94 - lost)), bar(1860, 1875))
    assert found in (UNKNOWN, [20 * k for k in range(1, 94 - lost)])


def test_a_record_that_is_missing() -> None:
    found = steps(["0.1", "0.2", "0.4", "0.5"], bar(50, 100))
    assert found == [10, 20, 40, 50]


def test_resumed() -> None:
    assert steps(["0.1", "0.2", "0.3", "0.2", "0.3"], bar(35, 100)) == [10, 20, 30, 20, 30]


def test_evaluations_have_the_step_of_their_epoch() -> None:
    found = steps(["0", "0.1", "0.2", "0.2", "0.2501"], bar(25, 100), evaluated=(0, 3, 4))
    assert found == [0, 10, 20, 20, 25]


def test_the_first_step_may_be_logged() -> None:
    assert steps(["0.01", "0.1", "0.2", "0.3"], bar(32, 100)) == [1, 10, 20, 30]


def test_what_the_arguments_say() -> None:
    epochs = two_digits(k * 0.04 for k in range(1, 6))
    assert steps(epochs, "", {"logging_steps": 5}) == [5, 10, 15, 20, 25]
    assert steps(epochs, "", {"logging_steps": 0.02, "max_steps": 250}) == [5, 10, 15, 20, 25]
    assert steps(epochs, "", {"logging_steps": 5, "logging_strategy": "epoch"}) == UNKNOWN
    assert steps(epochs, bar(20, 100), {"logging_steps": 5}) == UNKNOWN  # they contradict the bar


def test_a_run_that_ended_within_an_epoch() -> None:
    """``max_steps`` ends it, so that the bar's length is no number of epochs."""
    epochs = two_digits(k * 0.05 for k in range(1, 5))
    assert steps(epochs, bar(100, 100), ended="0.2") == [25, 50, 75, 100]
    assert steps(epochs, bar(100, 100)) == UNKNOWN


def test_the_number_of_epochs() -> None:
    assert steps(["0.1", "0.2"], bar(23, 100), {"num_train_epochs": 2}) == [5, 10]


def test_what_is_not_certain_is_not_numbered() -> None:
    assert steps(["0.1", "0.2"]) == UNKNOWN
    assert steps(["0.1", "0.2"], bar(8, 100)) == UNKNOWN
    assert steps(["0.1", "0.2"], bar(20, 90), {"num_train_epochs": 2}) == UNKNOWN
    assert steps(["0.1", "x"], bar(20, 100)) == UNKNOWN
    assert steps(["0.01", "0.01", "0.02", "0.01"], bar(20, 100)) == UNKNOWN  # rounded, and resumed
    assert steps(["0.1", "0.2"], f"Map: {bar(20, 100)[1:]}") == UNKNOWN
    assert steps(["0", "0"], bar(20, 100)) == UNKNOWN
    assert steps(["0.1", "0.2"], bar(8, 100), {"num_train_epochs": 0}, ended="0") == UNKNOWN


def test_a_bar_without_its_drawing() -> None:
    """As notebooks and narrow terminals print it."""
    assert steps(["0.1", "0.2"], "\r 20% 20/100 [10:00<20:00, 1.5s/it]") == [10, 20]


@given(
    st.lists(
        st.sampled_from(["0", "0.1", "0.2", "0.3", "0.25", "1e300", "-1", "x", "nan", "1e-320"]), max_size=8
    ),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=4),
    st.sampled_from(["", "0", "0.2", "-1", "nan", "1e300"]),
    st.sets(st.integers(0, 7)),
)
def test_anything(epochs: list[str], bars: list[tuple[int, int]], ended: str, evaluated: set[int]) -> None:
    text = "".join(f"\r 1%|#| {done}/{total} [00:00<00:00, 1s/it]" for done, total in bars)
    for config in ({}, {"logging_steps": 5}, {"num_train_epochs": 1}):
        found = steps(epochs, text, config, ended, tuple(evaluated))
        assert found == UNKNOWN or all(math.isnan(step) or step >= 0 for step in found)


def test_long_bars_take_no_time() -> None:
    began = time.process_time()
    bars = "".join(bar(999_999_999 - i, 999_999_999 - i) for i in range(60))
    assert steps(["0.01", "0.02"], bars) == UNKNOWN
    assert steps(["0.01", "0.02"], bars, {"num_train_epochs": 1}) == UNKNOWN
    assert time.process_time() - began < 1


def interleaved(bars: list[int], epochs: list[str], total: int, config: dict[str, Any]) -> list[float] | str:
    """The steps of records that each follow a bar."""
    log, reader = RawLog("f", "stdout-dicts", "run"), TrainerSteps()
    for done, epoch in zip(bars, epochs, strict=True):
        reader.add_bars(bar(done, total))
        reader.add_entry(len(log.step), True, epoch)
        log.add({"reward": 0.5})
    reader.add_bars(bar(total, total))
    reader.set_steps(log, config)
    return UNKNOWN if all(map(math.isnan, log.step)) else list(log.step)


def test_a_bar_that_lags_is_not_believed() -> None:
    """With TQDM_MININTERVAL the bar is drawn now and then: records of 5, 10, 15, 20 follow 3, 8, 14, 19."""
    epochs = ["0.05", "0.1", "0.15", "0.2"]
    assert interleaved([5, 10, 15, 20], epochs, 24, {}) == [5, 10, 15, 20]
    assert interleaved([1, 10, 20, 30], ["0.01", "0.1", "0.2", "0.3"], 100, {}) == [1, 10, 20, 30]
    assert interleaved([3, 8, 14, 19], epochs, 24, {"logging_steps": 5}) == [5, 10, 15, 20]
    assert interleaved([3, 8, 14, 19], epochs, 24, {}) == UNKNOWN
