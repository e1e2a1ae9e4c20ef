"""Which problems a step takes."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.backends.bandit import _Batches


def of(seed: int, size: int, batch: int, replacement: bool = False) -> _Batches:
    return _Batches(np.random.default_rng(seed), size, batch, replacement)


@pytest.mark.parametrize("batch", [1, 7, 8, 20])
def test_batches_are_distinct_problems_of_an_epoch(batch: int) -> None:
    size, whole = 20, 20 // batch
    steps = np.concatenate(list(of(0, size, batch).take(3 * whole)))
    assert steps.shape == (3 * whole, batch)
    for epoch in steps.reshape(3, whole * batch):
        assert len(set(epoch)) == whole * batch
        assert set(epoch) <= set(range(size))
    assert not np.array_equal(steps[:whole], steps[whole : 2 * whole])


def test_configurations_share_the_order_of_problems() -> None:
    def epochs(batch: int) -> np.ndarray:
        steps = np.concatenate(list(of(3, 24, batch).take(4 * 24 // batch)))
        return steps.reshape(4, 24)

    for batch in (2, 8, 24):
        np.testing.assert_array_equal(epochs(batch), epochs(1))
    other = np.concatenate(list(of(4, 24, 24).take(4)))
    assert not np.array_equal(other, epochs(24))


def test_batches_do_not_depend_on_how_they_are_asked_for() -> None:
    at_once = np.concatenate(list(of(0, 10, 3).take(17)))
    epochs = of(0, 10, 3)
    pieces = np.concatenate([b for steps in (1, 2, 5, 0, 9) for b in epochs.take(steps)])
    np.testing.assert_array_equal(at_once, pieces)


def test_with_replacement_every_problem_is_drawn_on_its_own() -> None:
    steps = np.concatenate(list(of(0, 10, 64, replacement=True).take(2000)))
    assert steps.shape == (2000, 64)
    assert steps.dtype == np.int64
    counts = np.bincount(steps.ravel(), minlength=10)
    assert counts.size == 10
    np.testing.assert_allclose(counts, steps.size / 10, rtol=5 / np.sqrt(steps.size / 10))
    expected = 64 / 10  # of a problem in a batch, binomially many
    held = (steps == 3).sum(axis=1)
    assert held.var() == pytest.approx(expected * 0.9, rel=0.15)


def test_batches_with_replacement_are_shared_and_do_not_depend_on_how_they_are_asked_for() -> None:
    at_once = np.concatenate(list(of(3, 7, 4, replacement=True).take(30)))
    pieces = of(3, 7, 4, replacement=True)
    np.testing.assert_array_equal(
        at_once, np.concatenate([b for steps in (1, 9, 0, 20) for b in pieces.take(steps)])
    )
    other = np.concatenate(list(of(3, 7, 8, replacement=True).take(15)))
    np.testing.assert_array_equal(at_once.ravel(), other.ravel())
