"""Record points: the first checkpoint of each higher bin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.curves.learning_curves import WIDTH, record_mask

curves = st.lists(st.floats(-1, 2) | st.sampled_from([0.5, 0.505, 0.51]), min_size=1, max_size=40).map(
    np.array
)
widths = st.sampled_from([0.001, WIDTH, 0.1])


def bins(reward: np.ndarray, width: float) -> list[int]:
    return [math.floor((value + 1e-9) / width) for value in reward]


@given(curves, widths)
def test_by_hand(reward: np.ndarray, width: float) -> None:
    expected, best = [], -math.inf
    for item in bins(reward, width):
        expected.append(item > best)
        best = max(best, item)
    assert record_mask(reward, width).tolist() == expected


@given(curves, widths)
def test_records_increase_in_compute_and_in_reward(reward: np.ndarray, width: float) -> None:
    compute = np.arange(reward.size) * 256
    mask = record_mask(reward, width)
    assert np.all(np.diff(compute[mask]) > 0)
    assert np.all(np.diff(bins(reward[mask], width)) > 0)
    assert np.all(np.diff(reward[mask]) > 0)


@given(curves, widths)
def test_idempotent(reward: np.ndarray, width: float) -> None:
    kept = reward[record_mask(reward, width)]
    assert record_mask(kept, width).all()


@given(curves, widths)
def test_the_first_point_is_kept_and_so_is_the_best_bin(reward: np.ndarray, width: float) -> None:
    mask = record_mask(reward, width)
    assert mask[0]
    assert max(bins(reward[mask], width)) == max(bins(reward, width))


@given(st.lists(curves.filter(lambda c: c.size >= 5).map(lambda c: c[:5]), min_size=1, max_size=4), widths)
def test_curves_are_separate(several: list[np.ndarray], width: float) -> None:
    together = record_mask(np.array(several), width)
    assert together.tolist() == [record_mask(reward, width).tolist() for reward in several]


@given(st.integers(0, 400), st.integers(1, 40))
def test_values_on_the_edge_of_a_bin_are_in_it(low: int, steps: int) -> None:
    """Accuracies that are whole multiples of the width, as counts of correct answers are."""
    reward = np.array([(low + i) * 0.005 for i in range(steps)])
    assert record_mask(reward, 0.005).all()
    assert record_mask(np.repeat(reward, 2), 0.005).sum() == steps


@pytest.mark.parametrize("reward", [[0.5, 0.5, 0.5], [0.5, 0.4, 0.3]])
def test_what_never_rises_has_one_record(reward: list[float]) -> None:
    assert record_mask(np.array(reward)).tolist() == [True, False, False]
