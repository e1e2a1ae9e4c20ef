"""Problem sets: drawn from their seed alone, shared by all configurations."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.errors import SpecError
from isolaw.simulators.problems import ORDER, Population, difficulty, population

RANGES = {"easy": (0.3, 0.6), "hard": (5e-4, 0.063), "extremely-hard": (1e-4, 0.0061)}

SETS = (*RANGES, "0.5 easy + 0.5 hard", "0.25 easy + 0.75 hard")


def draw(name: str = "easy", seed: int = 0, n_train: int = 400, n_validation: int = 300) -> Population:
    population.cache_clear()
    return population(difficulty(name), seed, n_train, n_validation, s=1.5, m=0.3, r=32)


def arrays(problems: Population) -> list[np.ndarray]:
    return [problems.b, problems.phi, problems.b_val, problems.phi_val]


@pytest.mark.parametrize("name", RANGES)
def test_initial_success_is_within_the_sets_range(name: str) -> None:
    low, high = RANGES[name]
    for b in (draw(name).b, draw(name).b_val):
        p = 1 / (1 + np.exp(-b))
        assert p.min() >= low * (1 - 1e-9)
        assert p.max() <= high * (1 + 1e-9)
        assert np.ptp(p) > 0.5 * (high - low)


def test_the_same_seed_draws_the_same_problems() -> None:
    for a, b in zip(arrays(draw()), arrays(draw()), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("other", [{"seed": 1}, {"name": "hard"}])
def test_seeds_and_sets_share_nothing(other: dict) -> None:
    for a, b in zip(arrays(draw()), arrays(draw(**other)), strict=True):
        assert not np.any(a == b)


def test_training_and_validation_problems_are_different() -> None:
    problems = draw(n_train=300)
    assert not np.intersect1d(problems.b, problems.b_val).size
    assert not np.any(problems.phi == problems.phi_val)


def test_a_smaller_training_set_is_a_prefix_before_the_same_validation_set() -> None:
    small, large = draw(n_train=50), draw()
    np.testing.assert_array_equal(small.b, large.b[:50])
    np.testing.assert_array_equal(small.phi, large.phi[:50])
    np.testing.assert_array_equal(small.phi_val, large.phi_val)
    np.testing.assert_array_equal(small.b_val, large.b_val)


def test_features_have_the_stated_mean_and_variance() -> None:
    phi = draw(n_train=20_000).phi
    k = np.arange(1, 33)
    variance = 1.5**2 * (1 / k) / np.sum(1 / k)
    assert np.all(np.abs(phi.mean(axis=0) - 0.3 / k) < 5 * np.sqrt(variance / 20_000))
    np.testing.assert_allclose(phi.var(axis=0), variance, rtol=5 * np.sqrt(2 / 20_000))


def test_orders_differ_between_seeds_and_sets() -> None:
    orders = {
        tuple(difficulty(name).stream(seed, ORDER).permutation(50))
        for seed in (0, 1)
        for name in ("easy", "hard")
    }
    assert len(orders) == 4


def test_sets_of_other_components_have_streams_of_their_own() -> None:
    sets = ["easy", "hard", "beta(2,5)", "beta(2,6)", "0.5 easy + 0.5 hard", "0.5 hard + 0.5 easy"]
    orders = {tuple(difficulty(text).stream(0, ORDER).permutation(50)) for text in sets}
    assert len(orders) == len(sets)


# Difficulty


def p_of(text: str, size: int = 20_000) -> np.ndarray:
    return difficulty(text).sample(np.random.default_rng(0), size)


def test_extremely_hard_problems_are_not_solved_in_128_samples() -> None:
    """As a rule: the paper's set is what 128 samples never solved."""
    p = p_of("extremely-hard")
    assert 0.8 < np.mean((1 - p) ** 128) < 1
    assert np.median(p) < 1 / 128


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_mixture_has_its_parts_in_their_shares(share: float) -> None:
    p = p_of(f"{share} easy + {1 - share} hard")
    assert np.mean(p > 0.2) == pytest.approx(share, abs=4 * 0.5 / np.sqrt(p.size))
    easy, hard = p[p > 0.2], p[p < 0.2]
    for part, name in ((easy, "easy"), (hard, "hard")):
        if part.size:
            reference = p_of(name)
            error = reference.std() / np.sqrt(part.size)
            assert part.mean() == pytest.approx(reference.mean(), abs=5 * error)


def test_mixtures_may_hold_beta_distributions() -> None:
    p = p_of("0.5 beta(50,2) + 0.5 extremely-hard")
    assert np.mean(p > 0.7) == pytest.approx(0.5, abs=0.02)
    assert np.mean(p < 0.01) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("text", [*SETS, "beta(2,3)"])
def test_more_problems_begin_with_the_same_ones(text: str) -> None:
    few, many = (p_of(text, size) for size in (10, 1000))
    np.testing.assert_array_equal(few, many[:10])


@pytest.mark.parametrize(
    ("text", "easy"),
    [("easy", True), ("hard", False), ("0.5 easy + 0.5 hard", False), ("0.7 easy + 0.3 hard", True)],
)
def test_which_recipe_suits(text: str, easy: bool) -> None:
    assert difficulty(text).easy is easy
    assert (p_of(text).mean() >= 0.3) == easy


@pytest.mark.parametrize("text", ["0.5 easy+0.5 hard", " 0.5 easy  +  0.5 hard ", "5e-1 easy + .5 hard"])
def test_ways_to_write_a_mixture(text: str) -> None:
    assert difficulty(text) == difficulty("0.5 easy + 0.5 hard")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("esay", ["no such problem set", "'easy'"]),
        ("easy + hard", ["shares that sum to 1"]),
        ("0.5 easy", ["shares that sum to 1"]),
        ("2 easy", ["shares that sum to 1"]),
        ("-0.5 easy + 1.5 hard", ["'-0.5 easy'"]),
        ("1.2.3 easy", ["no such problem set", "'1.2.3 easy'"]),
        ("0.5 easy + 0.5 hrad", ["'hrad'", "'hard'"]),
        ("", ["''", "easy, hard"]),
        ("0.5 aaaa + 0.5 bbbb", ["2 issues", "'aaaa'", "'bbbb'"]),
    ],
)
def test_what_is_no_problem_set(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        difficulty(text)
    for word in words:
        assert word in str(error.value)


def test_a_beta_distribution_is_a_set_and_a_part_of_one() -> None:
    found = difficulty("beta(3, 4)")
    assert found == difficulty("beta(3.0,4)")
    assert found.easy
    assert difficulty("beta(3,7)").easy  # a mean of 0.3
    assert not difficulty("beta(1,9)").easy
    p = found.sample(np.random.default_rng(0), 20_000)
    assert p.mean() == pytest.approx(3 / 7, abs=0.005)
    assert p.var() == pytest.approx(12 / (49 * 8), rel=0.03)
    both = difficulty("0.5 beta(3,4) + 0.5 hard")
    assert both.weights == (0.5, 0.5)
    assert ((difficulty("beta(0.01,0.01)").sample(np.random.default_rng(0), 1000) % 1) > 0).all()
    for wrong in ("beta(1,-2)", "beta(0,1)", "beta(1)", "beta(a,b)", "beta(1,inf)"):
        with pytest.raises(SpecError, match="no such problem set"):
            difficulty(wrong)
