"""The interference population: its derivation from answers with styles, and one step against plain NumPy."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from isolaw.simulators.draws import successes
from isolaw.simulators.interference import PRESETS, Interference, InterferenceParameters
from isolaw.simulators.model import ADVANTAGES, Update, advantages
from isolaw.simulators.problems import Population, difficulty, population

sys.path.append(str(Path(__file__).parent))

from reference import Reference

PRESET = replace(next(iter(PRESETS.values())), r=16)
EASY = difficulty("easy")


def problems(name: str = "easy", n_train: int = 24) -> Population:
    return population(difficulty(name), 1, n_train, 5, s=1.5, m=0.3, r=16)


# The derivation: answers with styles, written out for one problem and few parameters


class Answers:
    """π(answer) ∝ exp((b + ψ·θ) 1[right] + ε·θ), ε ~ N(0, S I) if wrong and N(0, ρ S I) if right."""

    def __init__(self, seed: int = 0, size: int = 4, S: float = 0.3, rho: float = 0.4) -> None:
        rng = np.random.default_rng(seed)
        self.b, self.S, self.rho = -0.4, S, rho
        self.psi, self.theta = rng.normal(size=size), rng.normal(size=size)
        self.c = (1 - rho) * S

    def variance(self, right: np.ndarray) -> np.ndarray:
        return np.where(right, self.rho, 1.0)[:, None] * self.S

    @property
    def logit(self) -> float:
        """As `interference` has it."""
        return float(self.b + self.psi @ self.theta - 0.5 * self.c * self.theta @ self.theta)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Answers of the policy: which are right, and their scores ∇ log π, shape (count, size).

        exp(ε·θ) N(0, V) is N(Vθ, V) but for its integral, which `logit` has taken up.
        """
        right = rng.random(count) < expit(self.logit)
        variance = self.variance(right)
        shape = (count, len(self.theta))
        style = variance * self.theta + np.sqrt(variance) * rng.standard_normal(shape)
        everything = right[:, None] * self.psi + style
        mean = expit(self.logit) * (self.psi + self.rho * self.S * self.theta)
        mean = mean + (1 - expit(self.logit)) * self.S * self.theta
        return right, everything - mean  # score of an exponential family: statistic minus its mean


def test_drift_costs_what_wrong_answers_gain_by_it() -> None:
    """P(right) from the weights of prior answers, without any formula for it."""
    answers = Answers()
    prior = np.random.default_rng(1).standard_normal((400_000, 4))
    gain_right = np.exp(prior @ answers.theta * np.sqrt(answers.rho * answers.S))
    gain_wrong = np.exp(prior @ answers.theta * np.sqrt(answers.S))
    right = np.exp(answers.b + answers.psi @ answers.theta) * gain_right.mean()
    error = np.hypot(gain_right.std() / gain_right.mean(), gain_wrong.std() / gain_wrong.mean()) / 632
    assert np.log(right / gain_wrong.mean()) == pytest.approx(answers.logit, abs=4 * error)
    assert error < 0.003


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_gradient_is_signal_pull_and_noise_of_styles(advantage: str) -> None:
    """Σ A ∇ log π / n over groups: its mean is h (ψ − c θ) and the rest has the variance that is stated."""
    answers, n, groups = Answers(), 5, 100_000
    right, score = answers.draw(np.random.default_rng(2), n * groups)
    right, score = right.reshape(groups, n), score.reshape(groups, n, -1)
    std = 0.37  # of a batch, for batch_std: any number here
    A_right, A_wrong = np.array(
        [advantages(ADVANTAGES.index(advantage), k, n, std) for k in right.sum(axis=1)]
    ).T
    A = np.where(right, A_right[:, None], A_wrong[:, None])
    G = np.einsum("gn,gnk->gk", A, score) / n
    k, p = right.sum(axis=1), expit(answers.logit)
    h = (k * A_right * (1 - p) - (n - k) * A_wrong * p) / n
    noise = G - h[:, None] * (answers.psi - answers.c * answers.theta)
    stated = answers.S * (answers.rho * k * A_right**2 + (n - k) * A_wrong**2) / n**2
    if advantage != "none":  # the advantages sum to zero, and so do the styles' means
        np.testing.assert_allclose(noise.mean(axis=0), 0, atol=4 * noise.std(axis=0).max() / np.sqrt(groups))
    error = (noise**2).std(axis=0) / np.sqrt(groups)
    bias = noise.mean(axis=0) ** 2
    np.testing.assert_array_less(np.abs((noise**2).mean(axis=0) - bias - stated.mean()), 5 * error + 1e-12)


def test_kl_is_that_of_answers_and_styles() -> None:
    """The KL from its definition, and its gradient by differences, against the two terms of a step."""
    answers, step = Answers(), 1e-5

    def kl(theta: np.ndarray) -> float:
        moved = Answers()
        moved.theta = theta
        p, p0, square = expit(moved.logit), expit(moved.b), theta @ theta
        styles = 0.5 * moved.S * (p * moved.rho + 1 - p) * square  # of N(Vθ, V) to N(0, V): θ·Vθ/2
        return float(p * np.log(p / p0) + (1 - p) * np.log((1 - p) / (1 - p0)) + styles)

    by_differences = [
        (kl(answers.theta + step * e) - kl(answers.theta - step * e)) / (2 * step) for e in np.eye(4)
    ]
    z, p = answers.logit, expit(answers.logit)
    d = 0.5 * answers.c * answers.theta @ answers.theta
    h = p * (1 - p) * (z - answers.b - d)
    pull = answers.c * (1 - p + answers.rho * p) / (1 - answers.rho)
    ours = h * (answers.psi - answers.c * answers.theta) + pull * answers.theta
    np.testing.assert_allclose(ours, by_differences, rtol=1e-7)


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_the_table_of_signal_and_noise(advantage: str) -> None:
    n, k, p, rho, std = 8, 3, 0.7, 0.3, 0.45
    mean = k / n
    signal, noise = {
        "group_std": (np.sqrt(mean * (1 - mean)), rho * (1 - mean) + mean),
        "centred": (mean * (1 - mean), mean * (1 - mean) * (rho * (1 - mean) + mean)),
        "batch_std": (mean * (1 - mean) / std, mean * (1 - mean) * (rho * (1 - mean) + mean) / std**2),
        "leave_one_out": (
            mean * (1 - mean) * n / (n - 1),
            mean * (1 - mean) * (rho * (1 - mean) + mean) * (n / (n - 1)) ** 2,
        ),
        "none": (mean * (1 - p), rho * mean),
    }[advantage]
    A_right, A_wrong = advantages(ADVANTAGES.index(advantage), k, n, std)
    assert (k * A_right * (1 - p) - (n - k) * A_wrong * p) / n == pytest.approx(signal)
    assert (rho * k * A_right**2 + (n - k) * A_wrong**2) / n == pytest.approx(noise)


# One step against plain NumPy, to rounding


class Aligned(Reference):
    """The plain step, with its rollouts drawn one problem after the other as the kernel does."""

    def step(self, i: np.ndarray, update: Update, rng: np.random.Generator) -> None:
        n, trained = update.rollouts_per_problem, update.trained
        right, right_trained = np.zeros_like(i), np.zeros_like(i)
        for j, p in enumerate(1 / (1 + np.exp(-self.logits(i)))):
            right_trained[j] = successes(rng, trained, p)
            right[j] = right_trained[j] + (successes(rng, n - trained, p) if trained < n else 0)
        self.waiting.append((i, right, right_trained))
        if len(self.waiting) > update.staleness:
            self.learn(*self.waiting.popleft(), update, rng)


CONSTANTS: dict[str, dict[str, float]] = {
    "preset": {},
    "SGD": {"q": 0.0},
    "Adam": {"q": 1.0},
    "no noise": {"sigma2": 0.0},
    "right answers as diverse as wrong ones": {"rho": 0.9},
    "no memory": {"kappa": 0.0},
    "no price of drift": {"c": 0.0},
    "much drift": {"c": 0.5},
}
RECIPES: dict[str, dict[str, Any]] = {
    **{advantage: {"advantage": advantage} for advantage in ADVANTAGES},
    "KL": {"kl": 0.5},
    "entropy": {"entropy": 0.2},
    "filter": {"zero_variance_filter": True, "kl": 0.5},
    "decoupled": {"gradient_rollouts": 2},
    "stale": {"staleness": 3, "kl": 0.2},
    "all": {
        "advantage": "batch_std",
        "kl": 0.2,
        "entropy": 0.1,
        "gradient_rollouts": 3,
        "staleness": 2,
        "zero_variance_filter": True,
    },
}


def agrees(
    parameters: InterferenceParameters, recipe: dict[str, Any], name: str, repeats: bool = False
) -> None:
    update = Update(6, 0.3, **recipe)
    order = np.random.default_rng(3)
    batches = (
        order.integers(24, size=(8, 8))
        if repeats
        else np.array([order.permutation(24)[:8] for _ in range(8)])
    )
    ours, theirs = Interference(problems(name), parameters), Aligned(problems(name), parameters)
    streams = np.random.default_rng(7), np.random.default_rng(7)
    for t, batch in enumerate(batches):
        ours.advance(batches[t : t + 1], update, streams[0])
        theirs.step(batch, update, streams[1])
        expected = {
            "w": theirs.w,
            "private": theirs.a,
            "W": theirs.W,
            "v": theirs.ema,
            "updates": theirs.updates,
        }
        found = [ours.w, ours.private, *ours.scalars[:3]]
        for (what, value), mine in zip(expected.items(), found, strict=True):
            np.testing.assert_allclose(mine, value, rtol=1e-9, atol=1e-12, err_msg=f"{what} at {t}")
        for train in (False, True):
            np.testing.assert_allclose(ours.success(train), theirs.success(train), rtol=1e-9)
        assert ours.drift() == pytest.approx(theirs.w @ theirs.w + theirs.a @ theirs.a + theirs.W, rel=1e-9)
    assert streams[0].bit_generator.state == streams[1].bit_generator.state
    assert np.any(ours.w != 0)


@pytest.mark.parametrize("name", ["easy", "hard"])
@pytest.mark.parametrize("constants", CONSTANTS)
def test_steps_agree_with_the_equations(constants: str, name: str) -> None:
    agrees(replace(PRESET, **CONSTANTS[constants]), {"kl": 0.3}, name)


@pytest.mark.parametrize("repeats", [False, True], ids=["distinct", "repeats"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_agree_with_the_equations(recipe: str, repeats: bool) -> None:
    agrees(PRESET, RECIPES[recipe], "easy", repeats)


# What a step does and does not do


def trained(
    count: int, problem_set: Population | None = None, step_size: float = 0.3, **recipe: Any
) -> Interference:
    model, order = Interference(problem_set or problems(), PRESET), np.random.default_rng(1)
    batches = np.array([order.permutation(24)[:8] for _ in range(count)])
    model.advance(batches, Update(8, step_size, **recipe), np.random.default_rng(0))
    return model


@pytest.mark.parametrize("z", [-800.0, 800.0])
def test_without_any_signal_nothing_moves(z: float) -> None:
    assert trained(20, replace(problems(), b=np.full(24, z))).drift() == 0


def test_a_filtered_batch_without_signal_is_no_update() -> None:
    model = trained(20, replace(problems(), b=np.full(24, -800.0)), zero_variance_filter=True, kl=0.5)
    assert model.drift() == 0
    assert model.scalars[2] == 0


def test_only_problems_in_the_batch_are_memorised() -> None:
    model = Interference(problems(), PRESET)
    model.advance(np.array([[2, 5, 7]]), Update(32, 0.3), np.random.default_rng(0))
    assert np.flatnonzero(model.private).tolist() == [2, 5, 7]


def test_kl_pulls_back() -> None:
    free, held = (trained(200, kl=kl) for kl in (0.0, 2.0))
    assert held.drift() < 0.8 * free.drift()
    assert (
        abs(logit(held.success(True)) - problems().b).mean()
        < 0.8 * abs(logit(free.success(True)) - problems().b).mean()
    )


def test_entropy_keeps_success_from_the_ends() -> None:
    sure, unsure = (trained(300, entropy=entropy) for entropy in (0.0, 1.0))
    spread = [abs(logit(m.success(True))).mean() for m in (sure, unsure)]
    assert spread[1] < 0.9 * spread[0]


def test_a_scale_that_shrinks_away_is_put_back() -> None:
    """Drawn back strongly for many steps, a's common scale leaves what a float can hold."""
    problem_set = problems()
    constants = replace(PRESET, c=0.4, q=0.0)
    model, plain = Interference(problem_set, constants), Aligned(problem_set, constants)
    batches = np.array([np.random.default_rng(t).permutation(24)[:8] for t in range(700)])
    streams = np.random.default_rng(0), np.random.default_rng(0)
    update = Update(8, 0.9, kl=2.0)
    smallest = 1.0
    for t, batch in enumerate(batches):
        model.advance(batches[t : t + 1], update, streams[0])
        plain.step(batch, update, streams[1])
        smallest = min(smallest, abs(model.scalars[3]))
    assert smallest < 1e-90
    np.testing.assert_allclose(model.private, plain.a, rtol=1e-6, atol=1e-12)
    assert abs(model.scalars[3]) > 10 * smallest


def test_success_of_the_initial_state_is_the_initial_success() -> None:
    model = Interference(problems("hard"), PRESET)
    np.testing.assert_allclose(model.success(), expit(problems("hard").b_val))
    np.testing.assert_allclose(model.success(train=True), expit(problems("hard").b))
