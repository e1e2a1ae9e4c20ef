"""The three models behind one interface, and each against another: equal in distribution.

The two-sample tests compare runs over seeds at three checkpoints, by Kolmogorov-Smirnov on `measures`. Their
seeds are fixed; other tests check that they notice a difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import ks_2samp

from isolaw.simulators import interference, tabular
from isolaw.simulators.interference import Interference
from isolaw.simulators.model import ADVANTAGES, Model, Update
from isolaw.simulators.problems import Population, difficulty, population
from isolaw.simulators.tabular import initial_log_policy

sys.path.append(str(Path(__file__).parent))

import arms
from arms import Arms
from reference import Reference

MODULES = {"interference": interference, "arms": arms, "tabular": tabular}
CHECKPOINTS = (5, 20, 60)
SEEDS = 120
EASY = difficulty("easy")
PRESET = next(iter(interference.PRESETS.values()))


def small(name: str) -> Model:
    module = MODULES[name]
    preset = next(iter(module.PRESETS.values()))
    size = {} if name == "tabular" else {"r": 8}
    sizes = (1, 1) if name == "tabular" else (24, 10)
    return module.create(replace(preset, **size), EASY, 0, *sizes)


def steps(name: str, count: int) -> np.ndarray:
    if name == "tabular":
        return np.zeros((count, 1), dtype=np.int64)
    return np.random.default_rng(5).integers(24, size=(count, 6))


NIGHT = [pytest.mark.slow, pytest.mark.nightly]
RECIPES: dict[str, dict[str, Any]] = {
    **{advantage: {"advantage": advantage} for advantage in ADVANTAGES},
    "KL": {"kl": 0.5},
    "filter": {"zero_variance_filter": True, "kl": 0.5},
    "decoupled": {"gradient_rollouts": 2},
    "stale": {"staleness": 3, "kl": 0.2},
    "all": {
        "advantage": "batch_std",
        "kl": 0.2,
        "gradient_rollouts": 3,
        "staleness": 2,
        "zero_variance_filter": True,
    },
}


# The interface


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODULES)
def test_steps_in_pieces_and_after_a_restore_are_the_same_to_the_last_bit(name: str, recipe: str) -> None:
    update = Update(6, 0.1, **RECIPES[recipe])
    batches = steps(name, 30)
    whole, pieces = small(name), small(name)
    whole.advance(batches, update, np.random.default_rng(1))
    rng, start = np.random.default_rng(1), 0
    for count in (1, 0, 4, 9, 16):
        again = small(name)
        again.restore(pieces.arrays())
        again.advance(batches[start : start + count], update, rng)
        pieces, start = again, start + count
    assert whole.arrays().keys() == pieces.arrays().keys()
    for key, value in whole.arrays().items():
        np.testing.assert_array_equal(value, pieces.arrays()[key])
    for train in (False, True):
        np.testing.assert_array_equal(whole.success(train), pieces.success(train))
    assert whole.drift() == pieces.drift() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_arrays_are_copies(name: str) -> None:
    model = small(name)
    before = model.arrays()
    p = model.success(train=True)
    model.advance(steps(name, 20), Update(6, 0.1), np.random.default_rng(1))
    assert not np.array_equal(model.success(train=True), p)
    model.restore(before)
    np.testing.assert_array_equal(model.success(train=True), p)
    assert model.drift() == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_term_of_a_recipe_counts(name: str) -> None:
    def end(recipe: dict[str, Any]) -> float:
        model = small(name)
        model.advance(steps(name, 30), Update(6, 0.1, **recipe), np.random.default_rng(1))
        return float(model.success(train=True).sum())

    default = end({})
    assert end(RECIPES["group_std"]) == default
    for recipe, changes in {**RECIPES, "entropy": {"entropy": 0.3}}.items():
        # A batch of one group has one standard deviation.
        if recipe != "group_std" and (name, recipe) != ("tabular", "batch_std"):
            assert end(changes) != pytest.approx(default, rel=1e-9), recipe


@pytest.mark.parametrize("name", MODULES)
def test_a_step_without_staleness_leaves_the_queue_alone(name: str) -> None:
    model = small(name)
    model.advance(steps(name, 5), Update(6, 0.1, staleness=3), np.random.default_rng(1))
    queue = model.arrays()["queue"]
    model.advance(steps(name, 5), Update(6, 0.1), np.random.default_rng(1))
    np.testing.assert_array_equal(model.arrays()["queue"], queue)


@pytest.mark.parametrize("name", MODULES)
def test_problems_are_those_of_the_seed(name: str) -> None:
    module = MODULES[name]
    preset = next(iter(module.PRESETS.values()))
    starts = [module.create(preset, EASY, seed, *module.SIZES).success(train=True) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.any(starts[0] == starts[2])
    assert starts[0].shape == (module.SIZES[0],)
    assert np.all((starts[0] >= 0.3 - 1e-9) & (starts[0] <= 0.6 + 1e-9))


# Equal in distribution


def measures(model: Model | Reference, w: np.ndarray) -> list[float]:
    """What the comparison sees of a run: success on both sets, its spread, the length of w (its first 8)."""
    p, p_train = model.success(), model.success(train=True)
    return [p.mean(), p_train.mean(), p_train.std(), p.min(), float(w[:8] @ w[:8])]


def runs(start: Callable[[], Iterator[tuple[Model | Reference, np.ndarray]]]) -> np.ndarray:
    """BatchShape (seeds, checkpoints, measures); ``start`` makes one run, checkpoint by checkpoint."""
    return np.array([[measures(m, w) for m, w in start()] for _ in range(SEEDS)])


def least_p(a: np.ndarray, b: np.ndarray) -> float:
    """The smallest p-value over measures and checkpoints, times their number (Bonferroni)."""
    shape = a.shape[1:]
    tests = [ks_2samp(a[:, c, m], b[:, c, m]).pvalue for c in range(shape[0]) for m in range(shape[1])]
    return min(tests) * len(tests)


class Batch:
    """Random batches and rollouts, one stream for each side of a comparison."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, count: int, n_train: int, size: int = 6) -> np.ndarray:
        return np.array([self.rng.permutation(n_train)[:size] for _ in range(count)])


def compiled(make: Callable[[], Any], update: Update, seed: int) -> np.ndarray:
    batch = Batch(seed)

    def one() -> Iterator[tuple[Model, np.ndarray]]:
        model, done = make(), 0
        for checkpoint in CHECKPOINTS:
            model.advance(batch(checkpoint - done, 24), update, batch.rng)
            done = checkpoint
            yield model, model.arrays()["w"]

    return runs(one)


def plain(make: Callable[[], Reference], update: Update, seed: int) -> np.ndarray:
    batch = Batch(seed)

    def one() -> Iterator[tuple[Reference, np.ndarray]]:
        model, done = make(), 0
        for checkpoint in CHECKPOINTS:
            for row in batch(checkpoint - done, 24):
                model.step(row, update, batch.rng)
            done = checkpoint
            yield model, model.w

    return runs(one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["all", *(pytest.param(name, marks=NIGHT) for name in ("group_std", "stale"))]
)
def test_interference_against_plain_numpy(recipe: str) -> None:
    problems = population(EASY, 0, 24, 10, s=1.5, m=0.3, r=8)
    update = Update(6, 0.05, **RECIPES[recipe])
    ours = compiled(lambda: Interference(problems, replace(PRESET, r=8)), update, seed=1)
    theirs = plain(lambda: Reference(problems, replace(PRESET, r=8)), update, seed=2)
    assert least_p(ours, theirs) > 0.01


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("change", [{"sigma2": 1.5 * PRESET.sigma2}, {"c": 0.3}, {"kappa": 0.0}], ids=str)
def test_the_comparison_would_notice(change: dict[str, float]) -> None:
    problems = population(EASY, 0, 24, 10, s=1.5, m=0.3, r=8)
    update = Update(6, 0.05)
    ours = compiled(lambda: Interference(problems, replace(PRESET, r=8, **change)), update, seed=1)
    theirs = plain(lambda: Reference(problems, replace(PRESET, r=8)), update, seed=2)
    assert least_p(ours, theirs) < 1e-3


BARE = replace(PRESET, q=1.0, sigma2=0.0, rho=0.0, kappa=0.0, c=0.0, r=8)


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=NIGHT * (name not in ("all", "decoupled"))) for name in RECIPES]
)
def test_with_two_answers_and_no_style_arms_are_interference(recipe: str) -> None:
    """Both are then a Bernoulli logit with shared features, for every recipe."""
    update = Update(6, 0.05, **RECIPES[recipe])
    problems = population(EASY, 0, 24, 10, s=1.5, m=0.3, r=8)
    ours = compiled(lambda: Interference(problems, BARE), update, seed=1)
    two = replace(arms.PRESETS["L"], sigma2=0.0, s=1.5, m=0.3, r=8, arms=2)
    answers = arms.draw(two, EASY, 0, 24, 10)
    theirs = compiled(lambda: Arms(answers, correct=1, q=1.0), update, seed=2)
    assert least_p(ours, theirs) > 0.01


@pytest.mark.slow
@pytest.mark.nightly
def test_with_many_answers_their_styles_are_the_noise_and_the_price_of_drift() -> None:
    """K → ∞: arms whose styles are N(0, S) among wrong and N(0, ρ S) among right ones, in the 8 shared and
    200 other directions, move like the population that knows of them only S, ρ and W. Two answers do not,
    and a population without a price of drift does not.
    """
    S, rho, r, others, update = 0.05, 0.25, 8, 200, Update(6, 0.15)
    constants = replace(BARE, sigma2=S * (r + others), rho=rho, c=(1 - rho) * S)
    problems = population(EASY, 0, 24, 10, s=1.5, m=0.3, r=r)
    ours = compiled(lambda: Interference(problems, constants), update, seed=1)

    def answers(count: int) -> np.ndarray:
        rng = np.random.default_rng(0)
        is_right = (np.arange(count) < count // 2)[:, None]

        def features(phi: np.ndarray) -> np.ndarray:
            style = np.sqrt(np.where(is_right, rho, 1.0) * S)
            out = style * rng.standard_normal((len(phi), count, r + others))
            out[:, :, :r] += is_right * phi[:, None, :]
            return np.asarray(out)

        drawn = Population(
            initial_log_policy(expit(problems.b), count, count // 2),
            features(problems.phi),
            initial_log_policy(expit(problems.b_val), count, count // 2),
            features(problems.phi_val),
        )
        return compiled(lambda: Arms(drawn, correct=count // 2, q=1.0), update, seed=2)

    many = answers(512)
    assert least_p(ours, many) > 0.01
    assert least_p(ours, answers(2)) < 1e-6
    free = compiled(lambda: Interference(problems, replace(constants, c=0.0)), update, seed=1)
    assert least_p(free, many) < 1e-6
