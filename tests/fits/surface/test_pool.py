"""The pool: the surface where runs are, several models beyond, wider where they failed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.fits.flags import Code, having
from isolaw.fits.law import Law
from isolaw.fits.surface.pool import ModelPool, anchors
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]
PLACES = [(32, n) for n in LEVELS]
NOISE = {"noise": 0.004, "between": 0.004}


def larger_later(_b: int, n: int, compute: Any) -> Any:
    """A larger n begins later and ends higher."""
    ceiling = 0.5 + 0.03 * math.log2(n / 8)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.5))


def late(_b: int, n: int, compute: Any) -> Any:
    """Nothing for long, then everything: no run to a quarter of C says so."""
    return 0.3 + (0.2 + 0.02 * math.log2(n / 8)) / (
        1 + np.exp(-(np.log(np.maximum(compute, 1)) - 13.2) / 0.3)
    )


def critical(_b: int, n: int, compute: Any) -> Any:
    """What a step learns grows as √B up to B = 1,024, the largest batch of n = 32, and no further."""
    batch, ceiling = 32 * n, 0.2 + 0.55 * n / (n + 8)
    rate = 0.02 * np.minimum(1, np.sqrt(batch / 1024))
    return ceiling - (ceiling - 0.2) * np.exp(-compute / batch * rate)


@pytest.fixture(scope="module")
def law(synthetic: Make) -> Law:
    return isolaw.fit(synthetic(PLACES, larger_later, **NOISE), draws=60)


def at(n: list[float], compute: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.log2(n), np.full(len(n), 5.0), np.full(len(n), compute)


def test_where_runs_are_it_is_the_surface(law: Law) -> None:
    points = at([8, 24, 512], 3e5)
    assert law.surface is not None
    np.testing.assert_allclose(law.pool.rewards(*points)[0], law.surface.rewards(*points)[0], rtol=1e-9)


def test_it_is_the_less_sure_the_further(law: Law) -> None:
    spread = [
        [law.pool.rewards(*at([n], c))[1:].std() for c in (9e5, 3e6, 9e6)] for n in (128, 512, 1024, 2048)
    ]
    assert np.all(np.diff(spread[:2], axis=1) > 0)  # past the grid, B_crit matters less at larger C
    assert np.all(np.diff(np.array(spread)[1:], axis=0) > 0)


def test_the_weights(law: Law) -> None:
    near, far = law.pool.weights(0.0), law.pool.weights(2.3)
    assert sum(near.values()) == pytest.approx(1) == sum(far.values())
    assert far["surface"] < near["surface"]
    assert set(near) == {"surface", "exp", "hill"}


def test_a_failed_backtest_widens(law: Law, synthetic: Make) -> None:
    other = isolaw.fit(synthetic(PLACES, late, **NOISE), draws=20)
    names = [b.name for b in other.pool.backtests]
    assert names == ["C / 4", "C / 2", "n < 512"]
    assert other.pool.rho[0] > 2 * law.pool.rho[0]


def test_a_larger_n_than_measured_competes(law: Law) -> None:
    p = law.predict(9e6)
    assert p.allocation is not None
    assert p.allocation.rollouts_per_problem > 512
    assert (p.options[0].measured, p.options[0].beyond > 0) == (False, True)
    assert p.run_first[0] == 1024
    assert p.compared == (2, 2048)
    assert p.models is not None
    data = p.to_dict()
    assert (data["compared_n"], data["run_first"]) == ([2, 2048], p.run_first)
    inside = law.predict(2e5)
    assert (inside.models, inside.run_first, inside.compared) == (None, [], (8, 512))
    capped = law.predict(9e6, max_batch_rollouts=32 * 512)
    assert capped.compared == (2, 512)


@pytest.mark.parametrize("largest", [32, 64])
def test_a_critical_batch_past_the_grid_is_expected(largest: int, synthetic: Make) -> None:
    """Its place follows from the measured batches; without it, up to .087 would be lost."""
    places = [(32, n) for n in (4, 8, 16, 32, 64) if n <= largest]
    law = isolaw.fit(synthetic(places, critical, compute=200_000, **NOISE), draws=100)
    for compute in (4e5, 6e5):
        p = law.predict(compute)
        assert p.allocation is not None
        assert p.loss is not None
        n = p.allocation.rollouts_per_problem
        lost = max(critical(32, m, compute) for m in (32, 48, 64, 96, 128)) - critical(32, n, compute)
        assert lost < 0.02
        assert lost < 1.5 * p.loss + 0.005


def test_without_any_sign_of_a_critical_batch_none_is_expected(synthetic: Make) -> None:
    """If τ does not grow with n, larger batches save all of their steps, and larger n keep their promise."""

    def free(_b: int, n: int, compute: Any) -> Any:
        return 0.2 + (0.4 + 0.012 * math.log2(n)) * compute / (compute + 2e5 * (n / 8) ** -0.3)

    law = isolaw.fit(synthetic([(32, n) for n in (4, 8, 16, 32)], free, **NOISE), draws=100)
    p = law.predict(3e6)
    assert p.allocation is not None
    assert p.allocation.rollouts_per_problem >= 96


def test_with_a_fixed_batch_none_is_critical(synthetic: Make) -> None:
    runs = synthetic([(512 // n, n) for n in (8, 16, 32, 64)], larger_later, **NOISE)
    for member in isolaw.fit(runs, hold="B", draws=20).pool.members:
        assert not member.lost(np.array([2.0, 8.0]), np.array([7.0, 1.0])).any()


def test_a_larger_batch_than_measured_competes(synthetic: Make) -> None:
    """Where larger B_p are better to the grid's end, twice the largest may be better still, or not."""

    def reward(b: int, n: int, compute: Any) -> Any:
        return larger_later(b, n, compute) + 0.02 * math.log2(b / 64)

    runs = synthetic([(b, n) for b in (8, 16, 32, 64) for n in (8, 32, 128)], reward, **NOISE)
    joint = isolaw.fit(runs, hold="nothing", draws=100)
    assert [b.name for b in joint.pool.backtests if b.across] == ["B_p < 64"]
    p = joint.predict(1e6)
    assert (p.compared_batches, p.B_p) == ((4, 128), 64)
    assert [f.text for f in having(p.flags, Code.BATCH_EDGE)] == [
        "the best B_p may be larger than 64, the largest measured B_p"
    ]
    assert p.loss is not None
    assert 0.002 < p.loss < 0.01  # a quarter of the slope, and what else is not known
    u, v, c = np.full(3, 5.0), np.log2([64, 128, 128]), np.array([9e5, 9e5, 9e5])
    drawn = joint.pool.rewards(u, v, c)[1:]
    assert abs((drawn[:, 1] - drawn[:, 0]).mean()) < 0.004
    assert 0.008 < (drawn[:, 1] - drawn[:, 0]).std() < 0.03
    assert joint.predict(1e6, max_batch_rollouts=64 * 128).compared_batches == (4, 128)
    one = isolaw.fit(runs, hold="n", where={"rollouts_per_problem": 32}, draws=20).predict(1e6)
    assert (one.compared, one.run_first) == ((4, 128), [128])


def test_it_is_the_same_from_a_file(law: Law, tmp_path: Path) -> None:
    law.save(tmp_path / "law.json")
    loaded = Law.load(tmp_path / "law.json")
    points = at([4, 64, 2048], 4e6)
    np.testing.assert_allclose(loaded.pool.rewards(*points), law.pool.rewards(*points), atol=1e-6)
    (tmp_path / law.document.bootstrap.file).unlink()  # type: ignore[operator]
    alone = Law.load(tmp_path / "law.json").predict(4e6)
    assert alone.allocation is not None
    assert alone.options[0].probability is None


def test_of_the_paper_there_is_no_pool(synthetic: Make) -> None:
    law = isolaw.fit(synthetic(PLACES, larger_later, **NOISE), method="paper", draws=20)
    assert law.predict(3e6).models is None
    with pytest.raises(AttributeError, match="surface"):
        _ = law.pool


def test_anchors_are_the_nearest_runs() -> None:
    places = np.array([[3.0, 5.0], [5.0, 5.0], [7.0, 5.0]])
    ends = np.log([1e5, 2e5, 4e5])
    u, v, t = anchors(
        places, ends, np.array([1.0, 5.0, 9.0, 7.0]), np.full(4, 5.0), np.log([1e6, 1e6, 1e6, 1e5])
    )
    np.testing.assert_allclose(u, [3, 5, 7, 7])
    np.testing.assert_allclose(v, 5)
    np.testing.assert_allclose(np.exp(t), [1e5, 2e5, 4e5, 1e5], rtol=0.02)


def test_a_part_of_the_observations_is_as_if_nothing_else_was_run(law: Law) -> None:
    assert law.surface is not None
    o = law.surface.process.observations
    whole = o.only(np.ones(o.t.size, dtype=bool))
    np.testing.assert_allclose(whole.learnt, o.learnt)
    np.testing.assert_array_equal(whole.counts, o.counts)
    early = o.only(o.t < o.t.mean())
    assert early.t.max() < o.t.mean()
    assert early.combined.shape == (early.t.size, o.run_place.size)
    np.testing.assert_allclose(early.combined, o.combined[o.t < o.t.mean()])
    assert early.learnt[1, early.trend.size - 1] == pytest.approx(1)
    few = ModelPool(isolaw.fit(_short(law), draws=0).surface)  # type: ignore[arg-type]
    assert few.rewards(*at([8, 4096], 1e7)).shape == (1, 2)


def _short(law: Law) -> Any:
    """Six checkpoints of three n: too little for any backtest."""
    import pandas as pd

    rows = [
        {"run_id": f"n{n}", "n": n, "B_p": 32, "seed": 0, "step": s, "avg@4": 0.3 + 1e-6 * s * n}
        for n in (8, 32, 128)
        for s in np.array([1, 2, 3, 4, 5, 6]) * (128 // n)
    ]
    return isolaw.read(pd.DataFrame(rows), metric="avg@4")
