"""What pictures show."""

from __future__ import annotations

import numpy as np

from isolaw.replication.measurements import _band, _within


def test_curves_are_freed_of_what_a_seed_shares() -> None:
    rng = np.random.default_rng(0)
    seed = rng.standard_normal((8, 1, 1))
    values = seed + np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(np.diff(_within(values, (1, 2))[:, 0], axis=1), 1)
    assert np.ptp(_within(values, (1, 2)), axis=0).max() < 1e-12
    np.testing.assert_allclose(_within(values, (1, 2))[0], values.mean(axis=0))


def test_what_was_not_run_leaves_the_others_alone() -> None:
    values = np.arange(5.0)[:, None, None] + np.zeros((5, 2, 3))
    values[:, 1, 2] = np.nan  # a batch above the cap
    rows = _within(values, (1, 2))
    assert np.isnan(rows[:, 1, 2]).all()
    assert np.isfinite(rows).sum() == rows.size - len(rows)
    np.testing.assert_allclose(rows[np.isfinite(rows)], 2.0)
    assert _band(rows[:, 1])["value"] == [2.0, 2.0, None]
