"""Resampling: its variances are those of the analysis of variance, and its tails are Student's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import isolaw
from isolaw.fits import pipeline
from isolaw.fits.curves.bootstrap import effects, hat, resample
from isolaw.fits.curves.learning_curves import fit_curves
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.selection import Configuration, Floats, select
from isolaw.runs import Runs

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

Make = Callable[..., Runs]
N = [8, 16, 32, 64]
OWN_SEEDS = {8: [0, 1, 2], 16: [10, 11, 12], 32: [20, 21, 22], 64: [30, 31, 32]}
GRID = np.geomspace(1e3, 1e6, 12)


def configurations(runs: Runs) -> list[Configuration]:
    return select(runs, "avg@4", "validation", "B_p").configurations


def of_rewards(rewards: Floats, seeds: list[tuple[int, ...]] | None = None) -> list[Configuration]:
    """Configurations with given rewards (N, S, P), all at the same checkpoints."""
    _, runs, size = rewards.shape
    out = []
    for i, reward in enumerate(rewards):
        names = seeds[i] if seeds is not None else tuple(range(runs))
        compute, run = np.tile(GRID[:size], len(names)), np.repeat(np.arange(len(names)), size)
        own_rewards = reward[: len(names)].ravel()
        out.append(Configuration(32, 8 * 2**i, compute, own_rewards, run, names, 256.0 * 2**i))
    return out


def anova(rewards: Floats) -> tuple[float, float]:
    """Mean squares of seeds and of what is left, of a two-way table (N, S) without replication."""
    n, s = rewards.shape
    seeds = rewards.mean(axis=0)
    left = rewards - rewards.mean(axis=1, keepdims=True) - seeds + rewards.mean()
    return n * seeds.var(ddof=1), float(np.sum(left**2)) / ((n - 1) * (s - 1))


def drawn(found: list[Floats]) -> Floats:
    """What the draws add at the first checkpoint, (D, N)."""
    return np.stack([s[1:, 0] for s in found], axis=1)


def inflation(freedom: int) -> float:
    """The variance of Student's t."""
    return freedom / (freedom - 2)


# Several runs


@pytest.mark.parametrize("weights", [[1, -1, 0, 0], [1, 1, -1, -1], [-3, -1, 1, 3]], ids=str)
@pytest.mark.parametrize("seeds", [3, 6])
def test_a_contrast_has_the_variance_and_tails_of_the_textbook(weights: list[float], seeds: int) -> None:
    """Var(Σ l_c ȳ_c) = MS_e Σ l² / S with (N − 1)(S − 1) degrees of freedom, where Σ l = 0."""
    rewards = np.random.default_rng(seeds).standard_normal((4, seeds, 3))
    draws = drawn(resample(of_rewards(rewards), "exp", 40_000, 0)[0]) @ weights
    _, left = anova(rewards[:, :, 0])
    freedom = 3 * (seeds - 1)
    error = np.sqrt(left * np.sum(np.square(weights)) / seeds)
    assert draws.var() == pytest.approx(error**2 * inflation(freedom), rel=0.04)
    assert np.quantile(draws, 0.975) == pytest.approx(error * stats.t.ppf(0.975, freedom), rel=0.03)
    assert np.mean(draws) == pytest.approx(0, abs=4 * error / 200)


@pytest.mark.parametrize("seeds", [6, 12])
def test_a_mean_has_the_variance_of_the_textbook(seeds: int) -> None:
    """Var(Σ l_c ȳ_c) = [MS_a (Σ l)² / N + MS_e (Σ l² − (Σ l)² / N)] / S, each with its own t."""
    rng = np.random.default_rng(seeds)
    rewards = rng.standard_normal((4, seeds, 3)) + 2 * rng.standard_normal((1, seeds, 3))
    found = drawn(resample(of_rewards(rewards), "exp", 40_000, 0)[0])
    between, left = anova(rewards[:, :, 0])
    own = inflation(3 * (seeds - 1)) * left
    for weights in ([1, 0, 0, 0], [0.25] * 4, [1, 1, -1, 0]):
        total = np.sum(weights) ** 2 / 4
        expected = between * inflation(seeds - 1) * total + own * (np.sum(np.square(weights)) - total)
        assert (found @ weights).var() == pytest.approx(expected / seeds, rel=0.05)


def test_runs_that_differ_only_in_themselves_are_not_counted_twice() -> None:
    """Without seed effects, the mean variance over tables is σ²/S (times the t's), and draws are apart."""
    variances, products = [], []
    for rng in range(60):
        rewards = np.random.default_rng(rng).standard_normal((3, 8, 2))
        found = drawn(resample(of_rewards(rewards), "exp", 400, 0)[0])
        variances.append(found.var(axis=0).mean())
        products.append(np.mean([found[:, i] @ found[:, j] / 400 for i, j in ((0, 1), (0, 2), (1, 2))]))
    expected = (inflation(7) / 3 + inflation(14) * 2 / 3) / 8
    assert np.mean(variances) == pytest.approx(expected, rel=0.08)
    assert abs(np.mean(products)) < 0.15 * expected


def test_what_seeds_share_cancels_in_a_contrast() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.standard_normal((4, 3, 12))
    shared = 10 * rng.standard_normal((1, 3, 12))
    without, with_it = (drawn(resample(of_rewards(r), "exp", 50, 1)[0]) for r in (rewards, rewards + shared))
    np.testing.assert_allclose(np.diff(with_it, axis=1), np.diff(without, axis=1), atol=1e-9)
    assert with_it.std() > 2 * without.std()


def test_seeds_of_their_own_do_not_cancel() -> None:
    """Each configuration has other seeds: one-way analysis of variance, N (S − 1) degrees of freedom."""
    rewards = np.random.default_rng(2).standard_normal((4, 3, 3))
    seeds = [tuple(range(10 * i, 10 * i + 3)) for i in range(4)]
    found = drawn(resample(of_rewards(rewards, seeds), "exp", 40_000, 0)[0])
    within = rewards[:, :, 0].var(axis=1, ddof=1).mean()
    np.testing.assert_allclose(found.var(axis=0), within * inflation(8) / 3, rtol=0.05)
    assert np.abs(np.corrcoef(found.T) - np.eye(4)).max() < 0.05


def test_a_configuration_with_fewer_seeds_differs_by_theirs() -> None:
    """Two seeds of four: Var = σ_a² (1/2 − 1/4) of the contrast, though seeds are all that varies."""
    effect = np.array([-3.0, -1.0, 1.0, 3.0])
    rewards = np.broadcast_to(effect[None, :, None], (9, 4, 3))
    seeds = [(0, 1, 2, 3)] * 8 + [(0, 3)]
    found = drawn(resample(of_rewards(rewards, seeds), "exp", 20_000, 0)[0])
    equal, unequal = found[:, 1] - found[:, 0], found[:, 8] - found[:, 0]
    assert unequal.var() == pytest.approx(effect.var(ddof=1) / 4 * inflation(3), rel=0.35)
    assert equal.var() < 0.1 * unequal.var()


def test_fewer_runs_vary_more() -> None:
    """Residuals are pooled over configurations; one run has four times the variance of the mean of four."""
    rng = np.random.default_rng(3)
    rewards = rng.standard_normal((5, 4, 3))
    seeds = [tuple(range(10 * i, 10 * i + (1 if i == 2 else 4))) for i in range(5)]
    found = drawn(resample(of_rewards(rewards, seeds), "exp", 20_000, 0)[0])
    variance = found.var(axis=0)
    assert variance[2] / np.delete(variance, 2).mean() == pytest.approx(4, rel=0.1)


def test_the_effects_add_up() -> None:
    """y_cs − ȳ_c = a_s + e_cs, with a and e orthogonal."""
    rewards = np.random.default_rng(5).standard_normal((4, 3, 12))
    found = effects(of_rewards(rewards), "exp")
    assert (found.unit, found.freedom) == ("run", (2, 6))
    a = found.shared[0]
    own = np.array([e for _, e in found.of_runs]).reshape(4, 3, 12)
    np.testing.assert_allclose(rewards - rewards.mean(axis=1, keepdims=True), a + own, atol=1e-12)
    np.testing.assert_allclose(a.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(own.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(own.sum(axis=1), 0, atol=1e-12)


def test_row_zero_is_the_data(synthetic: Make) -> None:
    for seeds in (1, 3):
        mine = configurations(synthetic([(32, n) for n in N], seeds=seeds))
        found, _ = resample(mine, "exp", 4, 0)
        assert all(np.all(s[0] == 0) for s in found)
        assert all(s.shape == (5, c.checkpoints.size) for c, s in zip(mine, found, strict=True))


def test_no_draws() -> None:
    for runs in (1, 3):
        found, _ = resample(of_rewards(np.random.default_rng(0).uniform(size=(4, runs, 12))), "exp", 0, 0)
        assert all(s.shape == (1, 12) for s in found)


# Runs that were not evaluated alike


def own_checkpoints(synthetic: Make, **options: Any) -> Runs:
    """Seeds that were evaluated at other steps than each other."""
    return Runs.concat(
        [
            synthetic(
                [(32, n) for n in N], seeds=[s], start=lambda b, n, s=s: b * n * (1 + s), checkpoints=24 + s,
                compute=1e6 - 4e4 * s, **options, rng=s,
            )
            for s in range(3)
        ]
    )  # fmt: skip


def test_runs_need_not_share_checkpoints(synthetic: Make) -> None:
    """What matters is how far runs lie apart, not whether they were looked at together."""
    together = synthetic([(32, n) for n in N], between=0.02, noise=1e-4)
    apart = own_checkpoints(synthetic, between=0.02, noise=1e-4)
    spread = []
    for runs in (together, apart):
        table = runs.to_pandas().groupby(["rollouts_per_problem", "seed"])["value"].last().unstack()
        _, left = anova(table.to_numpy())
        found, _ = resample(configurations(runs), "exp", 4000, 0)
        middle = found[0].shape[1] // 2
        contrast = found[1][1:, middle] - found[0][1:, middle]
        spread.append(contrast.var() / (left * 2 / 3 * inflation(6)))
    assert spread == pytest.approx([1, 1], rel=0.15)


def test_where_one_run_is_left_it_varies_as_one(synthetic: Make) -> None:
    """Two of three runs end at a fifth of the budget."""
    table = synthetic([(32, n) for n in N], between=0.02, noise=1e-4).to_pandas()
    c = configurations(Runs(table[(table["seed"] == 0) | (table["compute"] <= 2e5)]))
    found, _ = resample(c, "exp", 4000, 0)
    early, late = (np.var(found[1][1:, i] - found[0][1:, i]) for i in (c[0].checkpoints.size // 3, -1))
    assert late / early == pytest.approx(3, rel=0.25)


def test_runs_of_one_seed_twice_are_not_one(synthetic: Make) -> None:
    """A log without seeds: all runs are called 0, and differ all the same."""
    table = synthetic([(32, n) for n in N], between=0.02, noise=1e-3).to_pandas()
    runs = Runs(table.assign(seed=0))
    found = effects(configurations(runs), "exp")
    assert (found.unit, found.freedom) == ("run", (0, 8))
    law = isolaw.fit(runs, draws=30)
    assert all(p.reward.interval is not None for p in law.document.frontier)


# One run for each configuration


LEVELS = [8, 16, 32, 64, 128, 256, 512]


def scattered(rng: int = 0) -> list[Configuration]:
    """Seven exact exponentials whose heights scatter about a line in log n."""
    height = 0.02 * np.arange(7) + 0.01 * np.random.default_rng(rng).standard_normal(7)
    rewards = 0.5 + height[:, None] - 0.3 * np.exp(-GRID / 1e5)
    return of_rewards(rewards[:, None, :])


def test_one_run_each_varies_as_the_surface_does_not_fit() -> None:
    """σ² is the residual mean square of the regression on the surface's terms."""
    c = scattered()
    found = effects(c, "exp")
    projection, freedom = hat(c)
    assert (found.unit, found.freedom) == ("lack of fit", (0, freedom))
    assert freedom == 3
    means = np.array([configuration.mean for configuration in c])
    left = means - projection @ means
    np.testing.assert_allclose([e for _, e in found.of_runs], left, atol=1e-6)
    draws = drawn(resample(c, "exp", 40_000, 0)[0])
    error = np.sqrt(np.sum(left[:, 0] ** 2) / freedom)
    for i in range(7):
        assert np.quantile(draws[:, i], 0.975) == pytest.approx(error * stats.t.ppf(0.975, 3), rel=0.05)


def test_with_too_few_n_residuals_are_drawn_in_blocks() -> None:
    _, unit = resample(scattered()[:5], "exp", 3, 0)
    assert unit == "block"


def single(synthetic: Make) -> Configuration:
    return configurations(synthetic([(32, n) for n in N], seeds=1, noise=0.02, checkpoints=60))[2]


def test_a_single_run_is_redrawn_about_itself(synthetic: Make) -> None:
    """As its residuals about the fitted curve vary: the interval of what was measured holds it."""
    c = single(synthetic)
    (sample,), unit = resample([c], "exp", 3000, 0)
    assert unit == "block"
    reward = c.mean + sample
    curve = fit_curves(c.compute, c.reward[None], np.ones((1, c.reward.size)))
    fitted = curve(c.compute)[0]
    np.testing.assert_allclose(reward[1:].mean(axis=0), c.mean, atol=0.004)
    residuals = c.reward - fitted
    unbiased = np.sum(residuals**2) / (residuals.size - 3)
    assert reward[1:].var(axis=0).mean() == pytest.approx(unbiased, rel=0.05)


def test_blocks_keep_neighbours_together(synthetic: Make) -> None:
    """Residuals that swing slowly still do after resampling; shuffled ones would not."""
    c = single(synthetic)
    waves = c.reward.size / 30 * np.sin(np.arange(c.reward.size) / 3) * 0.01
    swinging = Configuration(32, 32, c.compute, 0.5 + waves, c.run, c.seeds, c.step_cost)
    (sample,), _ = resample([swinging], "exp", 500, 0)
    draws = sample[1:] - sample[1:].mean(axis=0)
    together = np.mean(draws[:, 1:] * draws[:, :-1]) / np.mean(draws**2)
    assert together > 0.5


def test_blocks_do_not_depend_on_what_else_was_run(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in N], seeds=1, noise=0.01)
    table = runs.to_pandas()
    without = Runs(table[table["rollouts_per_problem"] != 64])
    with_it, without_it = (isolaw.fit(r, method="paper", draws=15).draws.table() for r in (runs, without))
    for n in N[:3]:
        np.testing.assert_allclose(with_it[f"32x{n}.A"], without_it[f"32x{n}.A"], rtol=1e-6)
        assert with_it[f"32x{n}.A"].nunique() > 10


# In a fit


def own_seeds(synthetic: Make, **options: Any) -> Runs:
    """Every n was run with seeds of its own."""
    return Runs.concat([synthetic([(32, n)], seeds=OWN_SEEDS[n], rng=n, **options) for n in N])


def test_the_seed_decides(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in N], between=0.01, noise=0.01)
    first, again, other = (isolaw.fit(runs, method="paper", draws=30, seed=s) for s in (1, 1, 2))
    assert first.document == again.document
    pd.testing.assert_frame_equal(first.draws.table(), again.draws.table())
    changed = [
        (a.parameters["R0"], b.parameters["R0"])
        for a, b in zip(first.document.curves, other.document.curves, strict=True)
    ]
    assert all(a.value == b.value for a, b in changed)
    assert all(a.interval != b.interval for a, b in changed)
    assert first.document.bootstrap.seed == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_the_order_of_the_table_does_not_matter(synthetic: Make) -> None:
    table = own_seeds(synthetic, noise=0.01).to_pandas()
    shuffled = Runs(table.sample(frac=1, random_state=1))
    assert isolaw.fit(Runs(table), draws=15).document == isolaw.fit(shuffled, draws=15).document


def test_draws_spread_as_repeated_experiments_do() -> None:
    """With five seeds the spread of a ceiling over draws is that over independent experiments."""
    experiments, draws = [], []
    seeds = [tuple(range(5 * i, 5 * i + 5)) for i in range(3)]
    for i in range(100):
        rng = np.random.default_rng(i)
        runs = 0.6 + 0.02 * rng.standard_normal((3, 5, 1)) + 0.004 * rng.standard_normal((3, 5, 12))
        c = of_rewards(runs - 0.3 * np.exp(-GRID / 1e5), seeds)
        sample = resample(c, "exp", 40, i)[0][2]
        ceiling = fit_curves(c[2].checkpoints, c[2].mean + sample, c[2].runs_at[None]).A
        experiments.append(ceiling[0])
        draws.append(ceiling[1:].var())
    expected = np.std(experiments, ddof=1) * np.sqrt(inflation(12))
    assert np.sqrt(np.mean(draws)) == pytest.approx(expected, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["surface", "paper"])
def test_the_unit_is_named(synthetic: Make, method: Any) -> None:
    """A surface is there whatever the number of n, and tells lone runs by how they scatter about it."""
    several = isolaw.fit(synthetic([(32, n) for n in N]), method=method, draws=5).document
    assert several.bootstrap.unit == "run"
    assert not flags_with(several.flags, Code.ONE_SEED, Code.TWO_SEEDS, Code.LONE_RUNS)
    few, smooth = (
        isolaw.fit(synthetic([(32, n) for n in value], seeds=1), method=method, draws=5).document
        for value in (N, LEVELS)
    )
    assert smooth.bootstrap.unit == "lack of fit"
    assert smooth.flags[0].code == few.flags[0].code == Code.ONE_SEED
    assert "smooth function of n" in smooth.flags[0].text
    if method == "paper":
        assert few.bootstrap.unit == "block"
        assert few.flags[0].text == "with one seed per configuration, intervals leave out how seeds differ"
    else:
        assert few.bootstrap.unit == "lack of fit"


def test_which_configurations_have_one_seed(synthetic: Make) -> None:
    table = synthetic([(32, n) for n in N]).to_pandas()
    some = Runs(table[(table["rollouts_per_problem"] != 16) | (table["seed"] == 0)])
    document = isolaw.fit(some, draws=5).document
    (flag,) = flags_with(document.flags, Code.ONE_SEED, Code.LONE_RUNS)
    assert flag.code == Code.LONE_RUNS
    assert "n = 16" in flag.text
    assert "n = 8" not in flag.text


def failing(some: int) -> Callable[..., Any]:
    """The draws, of which the first ``some`` make all curves fall, which leaves no record points."""

    def draw(c: list[Configuration], family: str, draws: int, seed: int) -> Any:
        found, unit = resample(c, family, draws, seed)
        for configuration, sample in zip(c, found, strict=True):
            sample[1 : 1 + some] = -2 * configuration.mean
        return found, unit

    return draw


@pytest.mark.parametrize("some", [2, 10, 60])
def test_failed_draws_are_counted_with_their_reason(
    synthetic: Make, monkeypatch: pytest.MonkeyPatch, some: int
) -> None:
    monkeypatch.setattr(pipeline, "resample", failing(some))
    runs = synthetic([(32, n) for n in N], noise=0.003, seeds=2)
    law = isolaw.fit(runs, method="paper", draws=60)
    record = law.document.bootstrap
    assert record.failed == some
    assert record.reasons == {"a curve with fewer than 3 points": some}
    assert record.draws == 60
    (failed,) = flags_with(law.document.flags, Code.FAILED_DRAWS)
    assert failed.text.startswith(f"{some} bootstrap draws failed")
    json.dumps(law.to_dict(), allow_nan=False)
    json.dumps(law.predict(5e5).to_dict(), allow_nan=False)
    if some == 2:
        assert len(law.draws) == 59
        assert law.document.frontier[0].reward.interval is not None
        return
    # More than one in twenty: those that are left are no fair sample.
    assert len(law.draws) == 1
    assert all(
        c.parameters[name].interval is None for c in law.document.curves for name in ("R0", "A", "tau")
    )
    assert all(p.reward.interval is None for p in law.document.frontier)
    assert all(c.interval is None for c in law.document.crossovers)
    assert law.predict(5e5).reward.interval is None
    assert flags_with(law.document.flags, Code.NO_INTERVALS)


def test_none_fails_where_all_is_well(synthetic: Make) -> None:
    for method in ("surface", "paper"):
        record = isolaw.fit(synthetic([(32, n) for n in N]), method=method, draws=20).document.bootstrap
        assert (record.failed, record.reasons) == (0, {})


@pytest.mark.parametrize("method", ["surface", "paper"])
def test_no_draws_no_intervals(synthetic: Make, method: Any) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in N]), method=method, draws=0)
    document = law.document
    assert len(law.draws) == 1
    assert all(q.interval is None for q in document.params.values())
    assert all(q.interval is None for p in document.frontier for q in (p.n_star, p.reward))
    assert all(c.interval is None for c in document.crossovers)
    prediction = law.predict(5e5)
    assert prediction.reward.interval is None
    assert all(o.probability is None for o in prediction.options)
    assert flags_with(prediction.flags, Code.NO_DRAWS)


def test_which_row_belongs_to_which_checkpoint(synthetic: Make) -> None:
    c = configurations(own_checkpoints(synthetic))[0]
    assert c.checkpoints[c.index].tolist() == c.compute.tolist()
