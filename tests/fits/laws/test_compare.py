"""Laws of n*: which one rewards prefer, and what each loses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import isolaw
from isolaw.fits.frontier.trace import TOLERANCE, Frontier, Path
from isolaw.fits.law_document import Comparison, Regret
from isolaw.fits.laws.compare import (
    LAWS,
    Fitted,
    falls,
    fit_laws,
    knots,
    nearest_level,
    preferred,
    refit,
    regret,
    rules,
    summary,
)
from isolaw.fits.selection import Configuration, select
from isolaw.fits.surface.polynomial import Ridge, Surface, fit_surface, surface_of
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

levels_of = st.lists(st.sampled_from([2**i for i in range(1, 12)]), min_size=1, max_size=8, unique=True).map(
    lambda values: np.array(sorted(values))
)


def frontier(reward: np.ndarray, levels: list[int] | None = None) -> Frontier:
    """A frontier with one reward per n and compute; −inf where it was not measured."""
    size, columns = reward.shape
    strict = reward.argmax(axis=0)
    measured = np.isfinite(reward)
    at = np.arange(columns)
    no_above = (strict < size - 1) & ~measured[np.minimum(strict + 1, size - 1), at]
    no_below = (strict > 0) & ~measured[np.maximum(strict - 1, 0), at]
    return Frontier(
        compute=np.geomspace(1e5, 1e7, columns),
        levels=np.array(levels or [8 * 2**i for i in range(size)]),
        reward=reward[None],
        strict=strict[None],
        tolerance=(reward >= reward.max(axis=0) - TOLERANCE).argmax(axis=0)[None],
        below=((strict == size - 1) | no_above)[None],
        above=((strict == 0) | no_below)[None],
        alone=(no_above | no_below)[None],
    )


@given(levels_of, st.floats(-3, 14))
def test_nearest_by_hand(levels: np.ndarray, log2_n: float) -> None:
    index = nearest_level(np.array([log2_n]), levels)[0]
    distances = [abs(np.log2(n) - log2_n) for n in levels]
    assert distances[index] == pytest.approx(min(distances), abs=1e-9)


@given(levels_of, st.floats(-3, 14), st.data())
def test_nearest_among_those_allowed(levels: np.ndarray, log2_n: float, data: st.DataObject) -> None:
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(levels), max_size=len(levels))))
    allowed[data.draw(st.integers(0, len(levels) - 1))] = True
    index = nearest_level(np.array([log2_n]), levels, allowed[:, None])[0]
    assert allowed[index]
    least = min(abs(np.log2(n) - log2_n) for n in levels[allowed])
    assert abs(np.log2(levels[index]) - log2_n) == pytest.approx(least, abs=1e-9)


# Rewards of four n at 40 budgets; the middle two take turns.
X = np.linspace(0, 1, 40)
TURNS = np.array([0.2 + 0 * X, 0.5 - 0.1 * X, 0.4 + 0.1 * X, 0.2 + 0 * X])


def test_regret_by_hand() -> None:
    out = rules(frontier(TURNS), np.where(X < 0.5, 4.0, 5.0))
    assert (out.logistic.mean_regret, out.logistic.max_regret) == pytest.approx((0.0, 0.0), abs=1e-12)
    losses = {n: (TURNS.max(axis=0) - TURNS[i]) for i, n in enumerate([8, 16, 32, 64])}
    assert losses[16].mean() == pytest.approx(losses[32].mean())
    best = 16  # of equals the smaller, whatever they are rounded to
    assert out.constant.n == best
    assert out.constant.mean_regret == pytest.approx(losses[best].mean())
    assert out.constant.max_regret == pytest.approx(losses[best].max())
    assert out.verdict == "logistic"


def test_a_law_that_is_no_better_loses() -> None:
    out = rules(frontier(TURNS), np.full(X.size, 6.0))
    assert out.logistic.mean_regret > out.constant.mean_regret
    assert out.verdict == "no law"
    assert rules(frontier(TURNS), None).verdict == "no law"
    assert rules(frontier(TURNS), None).logistic is None


def test_a_constant_within_tolerance_wins() -> None:
    nearly = 0.5 + (TURNS - 0.5) * 0.04
    out = rules(frontier(nearly), np.where(X < 0.5, 4.0, 5.0))
    assert out.constant.max_regret <= TOLERANCE
    assert out.verdict == "constant"


def test_only_what_was_measured_throughout_is_a_constant() -> None:
    nearly_best = TURNS.copy()
    nearly_best[0] = TURNS.max(axis=0) - 0.006
    law = np.where(X < 0.5, 4.0, 5.0)
    assert rules(frontier(nearly_best), law).constant.n == 8
    nearly_best[0, 30:] = -np.inf
    out = rules(frontier(nearly_best), law)
    assert out.constant.n in (16, 32)
    assert out.logistic.max_regret == pytest.approx(0.0, abs=1e-12)


def test_nothing_is_compared_where_neighbours_are_missing() -> None:
    lonely = np.full((3, 10), -np.inf)
    lonely[1] = 0.5
    assert rules(frontier(lonely), np.full(10, 4.0)).verdict == "no law"


def test_falling_is_noticed_beyond_tolerance_only() -> None:
    assert not falls(frontier(TURNS))
    down = TURNS[[0, 2, 1, 3]]
    assert falls(frontier(down))
    assert not falls(frontier(0.5 + (down - 0.5) * 0.04))
    out = rules(frontier(down), np.full(X.size, 4.5))
    assert not out.monotone
    assert out.verdict == "no law"


# Laws, compared by likelihood

Law = Callable[[np.ndarray], np.ndarray]
N = [8, 16, 32, 64, 128, 256, 512]
LOG_C = np.linspace(4.2, 6.0, 12)
SHARE = (LOG_C - 4.2) / 1.8
TRUE: dict[str, np.ndarray] = {
    "constant": np.full(12, 6.0),
    "power": 4 + 4 * SHARE,
    "linear": np.log2(16 + 464 * SHARE),
    "logistic": 4 + 3.5 * expit(8 * (LOG_C - 4.9)),
    "non-monotone": 7 - 3.5 * ((LOG_C - 5.2) / 0.9) ** 2,
}


def simulated(
    ridge: np.ndarray,
    rng: int,
    draws: int = 200,
    noise: float = 0.003,
    measured: Any = None,
    shared: bool = False,
) -> tuple[Surface, Path]:
    """A surface with that ridge, seen with noise, and draws with the same noise about what was seen.

    Shared noise is the same at every compute, as where curves have levelled off.
    """
    generator = np.random.default_rng(rng)
    truth = 0.5 - 0.01 * (np.log2(N)[:, None] - ridge) ** 2
    width = 1 if shared else truth.shape[1]
    seen = truth + noise * generator.standard_normal((len(N), width))
    values = np.concatenate([seen[None], seen + noise * generator.standard_normal((draws, len(N), width))])
    nothing, run = np.empty(0), np.empty(0, dtype=np.int64)
    places = [Configuration(32, n, nothing, nothing, run, (0,), 32.0 * n) for n in N]
    surface = fit_surface(places, values, np.ones(truth.shape, dtype=bool) if measured is None else measured)
    r = surface.ridge()
    return surface, Path(10**LOG_C, np.array(N), r.log2_n, r.reward, r.below, r.above)


@pytest.mark.parametrize("name", TRUE)
def test_the_true_law_is_preferred_and_fits(name: str) -> None:
    """χ² of the true law is about its degrees of freedom: six computes less its parameters."""
    chosen, chi2 = [], []
    for rng in range(12):
        laws = fit_laws(*simulated(TRUE[name], rng))
        chosen.append(preferred(laws))
        chi2.append(laws[name].chi2 if name in laws else np.nan)
    assert chosen.count(name) >= 10
    freedom = 6 - LAWS[name][0]
    assert np.nanmean(chi2) == pytest.approx(freedom, abs=3 * np.sqrt(2 * freedom / 12) + 0.1 * freedom)


def test_a_law_that_is_wrong_does_not_fit() -> None:
    laws = fit_laws(*simulated(TRUE["power"], 0))
    assert laws["constant"].chi2 > 50
    np.testing.assert_allclose(laws["power"](LOG_C), TRUE["power"], atol=0.5)
    assert all(law.aic == law.chi2 + 2 * LAWS[law.name][0] for law in laws.values())


@pytest.mark.parametrize("name", TRUE)
def test_noise_that_computes_share_does_not_send_a_law_elsewhere(name: str) -> None:
    """All slopes err together, so their differences are known far better than any law can meet them."""
    surface, path = simulated(TRUE[name] + 0.1 * np.sin(9 * LOG_C), 3, shared=True)
    law = fit_laws(surface, path)[name]
    np.testing.assert_allclose(law(LOG_C), path.log2_n[0], atol=0.6)
    assert law.chi2 < 30


def test_richer_laws_fit_no_worse() -> None:
    """A constant is a power law without a slope, and that a parabola without a bend."""
    for name, ridge in TRUE.items():
        laws = fit_laws(*simulated(ridge, 1))
        assert laws["power"].chi2 <= laws["constant"].chi2 + 1e-3, name
        assert laws["logistic"].chi2 <= laws["constant"].chi2 + 1e-3, name
        if "non-monotone" in laws:
            assert laws["non-monotone"].chi2 <= laws["power"].chi2 + 1e-3, name


def test_without_noise_to_judge_by_there_is_no_comparison() -> None:
    assert fit_laws(*simulated(TRUE["power"], 0, draws=20)) == {}
    measured = np.ones((7, 12), dtype=bool)
    measured[2:, 2:] = False  # a surface at two computes only
    assert fit_laws(*simulated(TRUE["power"], 0, measured=measured)) == {}


def test_laws_with_more_parameters_than_computes_are_left_out() -> None:
    measured = np.ones((7, 12), dtype=bool)
    measured[2:, 3:] = False
    surface, path = simulated(TRUE["power"], 0, measured=measured)
    assert knots(surface).tolist() == [0, 1, 2]
    assert not {"logistic"} & set(fit_laws(surface, path))


def test_the_simplest_within_two_of_the_least_aic() -> None:
    def law(name: str, aic: float) -> Fitted:
        return Fitted(name, np.zeros(LAWS[name][0]), aic - 2 * LAWS[name][0])

    three = {name: law(name, aic) for name, aic in (("constant", 12.1), ("power", 11.9), ("logistic", 10.0))}
    assert preferred(three) == "power"
    assert preferred(three | {"constant": law("constant", 11.0)}) == "constant"
    assert preferred(three | {"logistic": law("logistic", 5.0)}) == "logistic"
    assert preferred({}) is None


def test_beyond_an_end_a_law_agrees_with_a_slope_towards_it() -> None:
    """n* is at the grid's edge all along: a law above it is as right as one on it."""
    laws = fit_laws(*simulated(np.full(12, 11.0), 0))
    assert laws["constant"].chi2 == pytest.approx(0, abs=1e-9)
    assert preferred(laws) == "constant"
    assert laws["constant"](LOG_C[:1])[0] >= 9 - 1e-6


def ridge(log2_n: np.ndarray) -> Ridge:
    nowhere = np.zeros((1, log2_n.size), dtype=bool)
    return Ridge(log2_n[None], np.zeros((1, log2_n.size)), np.zeros((1, log2_n.size)), nowhere, nowhere)


@pytest.mark.parametrize(("name", "degree"), [("constant", 0), ("power", 1), ("non-monotone", 2)])
def test_refitted_by_least_squares(name: str, degree: int) -> None:
    """On the ridge of others; against numpy's polynomials. Where it is not known it does not count."""
    found = 6 + np.random.default_rng(0).standard_normal(12)
    found[[0, 5]] = np.nan
    known = ~np.isnan(found)
    near = Fitted(name, np.array([6.0, 0.0, 0.0][: degree + 1]), 0.0)
    expected = np.polyval(np.polyfit(LOG_C[known], found[known], degree), LOG_C)
    np.testing.assert_allclose(refit(name, 10**LOG_C, ridge(found), near), expected, atol=1e-3)


def test_regret_is_what_the_surface_falls_by() -> None:
    surface, _ = simulated(TRUE["power"], 0, noise=0.0, draws=1)
    law = TRUE["power"] + np.linspace(-1, 1, 12)
    np.testing.assert_allclose(regret(surface, law), 0.01 * np.linspace(-1, 1, 12) ** 2, atol=1e-6)
    beyond = regret(surface, np.full(12, 30.0))  # within what was measured
    np.testing.assert_allclose(beyond, 0.01 * (9 - TRUE["power"]) ** 2, atol=1e-6)
    assert np.all(regret(surface, TRUE["power"]) < 1e-6)


def test_a_summary_counts_what_is_known() -> None:
    assert summary(np.array([0.1, np.nan, 0.3])) == Regret(pytest.approx(0.2), 0.3)
    assert summary(np.full(3, np.nan)) is None


# In a fit


def rising(_b: int, n: int, compute: Any) -> Any:
    ceiling = 0.5 + 0.03 * np.log2(n / 8)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))


def level(_b: int, n: int, compute: Any) -> Any:
    """n = 64 is best throughout."""
    ceiling = 0.6 - 0.01 * np.log2(n / 64) ** 2
    return ceiling - (ceiling - 0.3) * np.exp(-compute / 5e4)


def compared(runs: Runs) -> Comparison:
    return isolaw.fit(runs, curve="exp", bootstrap=100).document.comparison


def test_held_out_regret_tells_laws_apart(synthetic: Callable[..., Runs]) -> None:
    pairs = [(32, n) for n in N]
    up = compared(synthetic(pairs, rising, noise=0.004))
    held = {name: law.held_out_regret for name, law in up.laws.items()}
    assert held["logistic"] < 0.002
    assert held["constant"] > 10 * held["logistic"]
    assert up.verdict == up.preferred != "constant"
    flat = compared(synthetic(pairs, level, noise=0.004))
    assert flat.verdict == "constant"
    assert flat.laws["constant"].held_out_regret < 0.003
    assert flat.laws["constant"].max_regret <= TOLERANCE
    assert flat.constant.n == 64


@pytest.mark.parametrize("method", ["surface", "paper"])
@pytest.mark.parametrize("last", [[0], [0, 1], [0, 1, 2]], ids=len)
def test_fewer_than_three_seeds_of_any_configuration_prefer_no_law(
    synthetic: Callable[..., Runs], method: Any, last: list[int]
) -> None:
    parts = [synthetic([(32, n) for n in N[:-1]], rising, noise=0.004).to_pandas()]
    parts.append(synthetic([(32, N[-1])], rising, noise=0.004, seeds=last).to_pandas())
    document = isolaw.fit(Runs(pd.concat(parts)), method=method, curve="exp", bootstrap=100).document
    found = document.comparison
    assert found.seeds == len(last)
    assert found.refused == (None if len(last) == 3 else "few_seeds")
    assert (found.verdict is None) == (found.refused is not None)
    if method == "surface":
        assert (found.preferred is None) == (found.refused is not None)
        assert all(math.isfinite(law.aic) for law in found.laws.values())
    if found.refused:
        assert document.params["saturation"].status != "ok"


def test_held_out_regret_by_hand(synthetic: Callable[..., Runs]) -> None:
    """A constant is the mean of the others' ridge; its loss is that on the surface of the one left out."""
    runs = synthetic([(32, n) for n in N], rising, noise=0.01, between=0.01)
    law = isolaw.fit(runs, curve="exp", bootstrap=100)
    compute = np.array([p.x for p in law.document.frontier])
    table = runs.to_pandas()
    losses = []
    for seed in range(3):
        others, one = (
            surface_of(
                select(Runs(table[part]), "avg@4", "validation", "fixed-bp").configurations, "exp", compute
            )
            for part in (table["seed"] != seed, table["seed"] == seed)
        )
        constant = np.full(compute.size, np.nanmean(others.ridge().log2_n[0]))
        losses.append(np.nanmean(regret(one, constant)))
    found = law.document.comparison.laws["constant"].held_out_regret
    assert found == pytest.approx(np.mean(losses), rel=1e-3)


@pytest.mark.parametrize(
    "seeds",
    [{8: [0], 64: [0], 512: [0]}, {8: [0, 1], 64: [0, 1], 512: [0, 2]}, {8: [0, 1], 64: [2, 3], 512: [4, 5]}],
    ids=["one", "not all", "none shared"],
)
def test_without_shared_seeds_none_is_held_out(
    synthetic: Callable[..., Runs], seeds: dict[int, list[int]]
) -> None:
    runs = Runs.concat([synthetic([(32, n)], rising, seeds=own, noise=0.01) for n, own in seeds.items()])
    laws = compared(runs).laws
    assert laws
    assert all(law.held_out_regret is None for law in laws.values())


def test_a_seed_that_failed_at_once_is_not_held_out(synthetic: Callable[..., Runs]) -> None:
    """One run has its first evaluation only: alone it is no curve."""
    table = synthetic([(32, n) for n in N], rising, noise=0.004).to_pandas()
    died = (table["rollouts_per_problem"] == 64) & (table["seed"] == 1) & (table["step"] > 0)
    assert all(law.held_out_regret is None for law in compared(Runs(table[~died])).laws.values())
