"""Resampling: its unit is the run, its variance the right one, and failures are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.fits.bootstrap import resample, run_weights, seeds_are_shared, weights_of_runs
from isolaw.fits.curves import fit_curves
from isolaw.fits.records import WIDTH, record_mask
from isolaw.fits.select import Configuration, select
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
N = [8, 16, 32, 64]
OWN_SEEDS = {8: [0, 1, 2], 16: [10, 11, 12], 32: [20, 21, 22], 64: [30, 31, 32]}


def configurations(runs: Runs) -> list[Configuration]:
    return select(runs, "avg@4", "validation", "fixed-bp").configurations


def without(runs: Runs, n: int) -> Runs:
    table = runs.to_pandas()
    return Runs(table[table["rollouts_per_problem"] != n], runs.attributes)


def own_seeds(synthetic: Make, **options: Any) -> Runs:
    """Every n was run with seeds of its own."""
    return Runs.concat([synthetic([(32, n)], seeds=OWN_SEEDS[n], rng=n, **options) for n in N])


@pytest.mark.parametrize("runs", [2, 3, 5, 8])
def test_weights_have_mean_and_variance_one(runs: int) -> None:
    weights = run_weights(runs, 200_000, np.random.default_rng(0))
    assert weights.shape == (200_000, runs)
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(axis=1), runs, rtol=1e-9)
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.015)
    np.testing.assert_allclose(weights.var(axis=0), 1.0, rtol=0.03)


@pytest.mark.parametrize("runs", [2, 3, 5, 8])
def test_a_weighted_mean_varies_as_a_mean_does(runs: int) -> None:
    """Its variance over draws is s²/S, with s² the unbiased variance of the S values."""
    values = np.random.default_rng(runs).standard_normal(runs)
    weights = run_weights(runs, 200_000, np.random.default_rng(1))
    means = (weights * values).mean(axis=1)
    assert means.var() == pytest.approx(values.var(ddof=1) / runs, rel=0.03)
    assert means.mean() == pytest.approx(values.mean(), abs=0.01)


def test_one_run_has_nothing_to_weigh() -> None:
    assert np.all(run_weights(1, 50, np.random.default_rng(0)) == 1.0)


def test_a_seed_weighs_the_same_everywhere(synthetic: Make) -> None:
    shared = configurations(synthetic([(32, n) for n in N]))
    assert seeds_are_shared(shared)
    weights = weights_of_runs(shared, 40, seed=3)
    assert all(np.array_equal(weights[0], w) for w in weights)


def test_seeds_of_their_own_are_drawn_apart(synthetic: Make) -> None:
    apart = configurations(own_seeds(synthetic))
    assert not seeds_are_shared(apart)
    weights = weights_of_runs(apart, 2000, seed=3)
    for i, one in enumerate(weights):
        for other in weights[i + 1 :]:
            assert abs(np.corrcoef(one[:, 0], other[:, 0])[0, 1]) < 0.1


@pytest.mark.parametrize("shared", [True, False])
def test_draws_do_not_depend_on_what_else_was_run(synthetic: Make, shared: bool) -> None:
    """The weights, and so a curve's draws, are the same with and without n = 64."""
    runs = synthetic([(32, n) for n in N]) if shared else own_seeds(synthetic)
    with_it = isolaw.fit(runs, bootstrap=25, seed=4).draws
    without_it = isolaw.fit(without(runs, 64), bootstrap=25, seed=4).draws
    columns = [c for c in without_it.columns if "x" in c and c != "x0"]
    assert {c.split(".")[0] for c in columns} == {"32x8", "32x16", "32x32"}
    for column in columns:
        np.testing.assert_allclose(with_it[column], without_it[column], rtol=1e-6)
        assert with_it[column].nunique() > 10


def test_single_runs_do_not_depend_on_what_else_was_run(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in N], seeds=1, noise=0.01)
    with_it = isolaw.fit(runs, bootstrap=15).draws
    without_it = isolaw.fit(without(runs, 64), bootstrap=15).draws
    for n in N[:3]:
        np.testing.assert_allclose(with_it[f"32x{n}.A"], without_it[f"32x{n}.A"], rtol=1e-6)


def test_the_seed_decides(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in N], between=0.01, noise=0.01)
    first, again, other = (isolaw.fit(runs, bootstrap=30, seed=s) for s in (1, 1, 2))
    assert first.document == again.document
    pd.testing.assert_frame_equal(first.draws, again.draws)
    changed = [
        (a["A"], b["A"]) for a, b in zip(first.document["curves"], other.document["curves"], strict=True)
    ]
    assert all(a["value"] == b["value"] for a, b in changed)
    assert all(a["interval"] != b["interval"] for a, b in changed)
    assert first.document["bootstrap"]["seed"] == 1


def test_the_order_of_the_table_does_not_matter(synthetic: Make) -> None:
    table = own_seeds(synthetic, noise=0.01).to_pandas()
    shuffled = Runs(table.sample(frac=1, random_state=1))
    assert isolaw.fit(Runs(table), bootstrap=15).document == isolaw.fit(shuffled, bootstrap=15).document


def test_draws_spread_as_repeated_experiments_do(synthetic: Make) -> None:
    """With five seeds the spread of a ceiling over draws is that over independent experiments."""
    sweeps, draws = [], []
    for rng in range(60):
        runs = synthetic(
            [(32, n) for n in N[:3]], seeds=5, noise=0.004, between=0.02, checkpoints=20, rng=rng
        )
        c = configurations(runs)[2]
        reward, weights = resample(
            c, "exp", None, run_weights(5, 40, np.random.default_rng(rng)), np.random.default_rng(0)
        )
        ceiling = fit_curves(c.compute, reward, weights).A
        sweeps.append(ceiling[0])
        draws.append(ceiling[1:].var())
    assert np.sqrt(np.mean(draws)) == pytest.approx(np.std(sweeps, ddof=1), rel=0.25)


def test_resampled_runs_keep_their_checkpoints(synthetic: Make) -> None:
    c = configurations(synthetic([(32, n) for n in N], noise=0.02))[0]
    weights_of = run_weights(3, 10, np.random.default_rng(0))
    reward, weights = resample(c, "exp", WIDTH, weights_of, np.random.default_rng(0))
    assert reward.tolist() == [c.reward.tolist()]
    assert weights.shape == (11, c.reward.size)
    for run in range(3):
        own = c.run == run
        records = record_mask(c.reward[own])
        assert weights[0, own].tolist() == records.astype(float).tolist()
        for d in range(10):
            np.testing.assert_array_equal(weights[1 + d, own], records * weights_of[d, run])


def test_without_records_every_checkpoint_counts(synthetic: Make) -> None:
    c = configurations(synthetic([(32, n) for n in N]))[0]
    _, weights = resample(c, "exp", None, np.ones((4, 3)), np.random.default_rng(0))
    assert np.all(weights == 1)


def single(synthetic: Make) -> Configuration:
    return configurations(synthetic([(32, n) for n in N], seeds=1, noise=0.02, checkpoints=60))[2]


def test_a_single_run_is_redrawn_about_its_curve(synthetic: Make) -> None:
    c = single(synthetic)
    reward, weights = resample(c, "exp", None, np.ones((3000, 1)), np.random.default_rng(0))
    assert reward.shape == weights.shape == (3001, c.reward.size)
    assert reward[0].tolist() == c.reward.tolist()
    curve = fit_curves(c.compute, c.reward[None], np.ones((1, c.reward.size)))
    fitted = curve(c.compute)[0]
    np.testing.assert_allclose(reward[1:].mean(axis=0), fitted, atol=0.004)
    residuals = c.reward - fitted
    unbiased = np.sum(residuals**2) / (residuals.size - 3)
    assert reward[1:].var(axis=0).mean() == pytest.approx(unbiased, rel=0.05)


def test_blocks_keep_neighbours_together(synthetic: Make) -> None:
    """Residuals that swing slowly still do after resampling; shuffled ones would not."""
    c = single(synthetic)
    waves = c.reward.size / 30 * np.sin(np.arange(c.reward.size) / 3) * 0.01
    swinging = Configuration(32, 32, c.compute, 0.5 + waves, c.run, c.seeds)
    reward, _ = resample(swinging, "exp", None, np.ones((500, 1)), np.random.default_rng(0))
    draws = reward[1:] - reward[1:].mean(axis=0)
    together = np.mean(draws[:, 1:] * draws[:, :-1]) / np.mean(draws**2)
    assert together > 0.5


def test_records_are_chosen_anew_in_each_draw(synthetic: Make) -> None:
    c = single(synthetic)
    reward, weights = resample(c, "exp", WIDTH, np.ones((20, 1)), np.random.default_rng(0))
    for row in range(21):
        assert weights[row].tolist() == record_mask(reward[row]).astype(float).tolist()
    assert len({tuple(w) for w in weights}) > 10


def test_the_unit_is_named(synthetic: Make) -> None:
    shared = isolaw.fit(synthetic([(32, n) for n in N]), bootstrap=5).document
    assert shared["bootstrap"]["unit"] == "run (a seed's runs together, over all configurations)"
    apart = isolaw.fit(own_seeds(synthetic), bootstrap=5).document
    assert apart["bootstrap"]["unit"] == "run (within its configuration)"
    lone = isolaw.fit(synthetic([(32, n) for n in N], seeds=1), bootstrap=5).document
    assert lone["bootstrap"]["unit"].startswith("block of residuals")
    assert (
        lone["warnings"][0] == "one seed per configuration: intervals leave out the variation between seeds"
    )
    assert not any("one seed" in w for w in shared["warnings"] + apart["warnings"])


def test_which_configurations_have_one_seed(synthetic: Make) -> None:
    table = synthetic([(32, n) for n in N]).to_pandas()
    some = Runs(table[(table["rollouts_per_problem"] != 16) | (table["seed"] == 0)])
    document = isolaw.fit(some, bootstrap=5).document
    (warning,) = [w for w in document["warnings"] if "one seed" in w]
    assert "n = 16" in warning
    assert "n = 8" not in warning


def half_flat(synthetic: Make, flat: dict[int, int]) -> Runs:
    """Two seeds; of each n in ``flat`` the run with that seed never leaves its first bin."""
    table = synthetic([(32, n) for n in N], seeds=2).to_pandas()
    for n, seed in flat.items():
        rows = (table["rollouts_per_problem"] == n) & (table["seed"] == seed)
        table.loc[rows, "value"] = 0.3
    return Runs(table)


def test_failed_draws_are_counted_with_their_reason(synthetic: Make) -> None:
    law = isolaw.fit(half_flat(synthetic, {16: 1}), bootstrap=60)
    record = law.document["bootstrap"]
    assert 15 <= record["failed"] <= 45  # the draws with all weight on the flat run
    assert record["reasons"] == {"a curve with fewer than 3 points": record["failed"]}
    assert record["draws"] == 60
    assert any(f"{record['failed']} bootstrap draws failed" in w for w in law.document["warnings"])
    json.dumps(law.document, allow_nan=False)


def test_what_is_left_of_failed_draws_makes_no_interval(synthetic: Make) -> None:
    """Two seeds, half the draws failed: the others are all the same run, which says nothing of spread."""
    law = isolaw.fit(half_flat(synthetic, {16: 1}), bootstrap=60)
    assert all(c[name]["interval"] is None for c in law.document["curves"] for name in ("R0", "A", "tau"))
    assert all(p["reward"]["interval"] is None for p in law.document["frontier"])
    assert law.predict(5e5).reward.interval is None
    assert any("no intervals: too many draws failed" in w for w in law.document["warnings"])


def test_none_fails_where_all_is_well(synthetic: Make) -> None:
    record = isolaw.fit(synthetic([(32, n) for n in N]), bootstrap=20).document["bootstrap"]
    assert (record["failed"], record["reasons"]) == (0, {})


def test_when_every_draw_fails_there_are_no_intervals(synthetic: Make) -> None:
    law = isolaw.fit(half_flat(synthetic, {16: 1, 32: 0}), bootstrap=20)
    assert law.document["bootstrap"]["failed"] == 20
    assert all(p["reward"]["interval"] is None for p in law.document["frontier"])
    assert all(c["A"]["interval"] is None for c in law.document["curves"])
    assert all(c["interval"] is None for c in law.document["crossovers"])
    json.dumps(law.predict(5e5).to_dict(), allow_nan=False)


def test_no_draws_no_intervals(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in N]), bootstrap=0)
    document = law.document
    assert len(law.draws) == 1
    assert all(q["interval"] is None for q in document["params"].values())
    assert all(p[k]["interval"] is None for p in document["frontier"] for k in ("n_star", "reward"))
    assert all(c["interval"] is None for c in document["crossovers"])
    prediction = law.predict(5e5)
    assert prediction.reward.interval is None
    assert all(a.probability is None for a in prediction.near_optimal)
