"""The tabular bandit against theory: each estimator against its own expectation, and what n is worth."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
from scipy.special import gammaln, xlogy
from scipy.stats import binom

from isolaw import metrics
from isolaw.simulators import tabular
from isolaw.simulators.model import ADVANTAGES, Update, advantages
from isolaw.simulators.problems import difficulty
from isolaw.simulators.tabular import PRESETS, Tabular, TabularParameters, create

DRAWS = 100_000
# Three answers right of five, none alike.
THETA, CORRECT = np.array([-1.0, -2.0, -1.5, 0.5, 0.2]), 3


def exact_gradient(theta: np.ndarray, correct: int) -> np.ndarray:
    """∇p = π_a (r_a − p), shape (K,)."""
    pi = np.exp(theta - theta.max())
    pi /= pi.sum()
    right = np.arange(theta.size) < correct
    return pi * (right - pi[right].sum())


def factor(advantage: str, n: int, p: float) -> float:
    """f(n, p) in E ĝ = f(n, p) ∇p, for n rollouts that all enter the gradient, by enumeration of k:

    f = Σ_k Binomial(k; n, p) [k A₊ (1 − p) − (n − k) A₋ p] / (n p (1 − p)); in a batch of one problem
    ``batch_std`` is ``group_std``.
    """
    code, total = ADVANTAGES.index("group_std" if advantage == "batch_std" else advantage), 0.0
    for k in range(n + 1):
        ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        right, wrong = advantages(code, k, n, 0.0)
        total += np.exp(ways + xlogy(k, p) + xlogy(n - k, 1 - p)) * (
            k * right * (1 - p) - (n - k) * wrong * p
        )
    return float(total / (n * p * (1 - p)))


@numba.njit(cache=True)
def estimates(rng, log_pi, correct, n, trained, code, out):
    """Write independent draws of ĝ into ``out`` (draws, K), without KL and entropy terms."""
    counts = np.empty(log_pi.size, dtype=np.int64)
    for i in range(out.shape[0]):
        right = tabular.sample_group(rng, log_pi, correct, n, trained, counts)
        std = np.sqrt(right / n * (1.0 - right / n))
        tabular.gradient(log_pi, log_pi, correct, counts, right, n, code, std, 0.0, 0.0, out[i])


def policy(theta: np.ndarray) -> np.ndarray:
    return np.exp(theta) / np.exp(theta).sum()


def p_of(theta: np.ndarray) -> float:
    return float(policy(theta)[:CORRECT].sum())


def draws(advantage: str, n: int, seed: int, **changes) -> np.ndarray:
    update = Update(n, step_size=1.0, advantage=advantage, **changes)
    out, code = np.empty((DRAWS, THETA.size)), ADVANTAGES.index(advantage)
    rng = np.random.default_rng(seed)
    estimates(rng, np.log(policy(THETA)), CORRECT, n, update.trained, code, out)
    return out


def within(sample: np.ndarray, expected: np.ndarray, errors: float = 4.0) -> None:
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    np.testing.assert_array_less(np.abs(sample.mean(axis=0) - expected), errors * error + 1e-12)


def test_the_exact_gradient_is_the_slope_of_success() -> None:
    step = 1e-6
    slopes = [(p_of(THETA + step * e) - p_of(THETA - step * e)) / (2 * step) for e in np.eye(5)]
    np.testing.assert_allclose(exact_gradient(THETA, CORRECT), slopes, atol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 8, 32, 256])
@pytest.mark.parametrize("advantage", ["none", "leave_one_out"])
def test_without_a_baseline_or_with_leave_one_out_it_is_unbiased(advantage: str, n: int) -> None:
    within(draws(advantage, n, seed=n), exact_gradient(THETA, CORRECT))


@pytest.mark.parametrize("n", [2, 3, 8, 32, 256])
def test_centring_on_the_groups_mean_shrinks_it(n: int) -> None:
    within(draws("centred", n, seed=n), (1 - 1 / n) * exact_gradient(THETA, CORRECT))


@pytest.mark.parametrize("n", [2, 3, 8, 32, 256])
def test_the_groups_standard_deviation_lets_it_grow_with_n(n: int) -> None:
    p = p_of(THETA)
    k = np.arange(n + 1)
    root = np.sqrt(k / n * (1 - k / n))
    by_enumeration = float(binom.pmf(k, n, p) @ root) / (p * (1 - p))
    assert factor("group_std", n, p) == pytest.approx(by_enumeration, rel=1e-12)
    within(draws("group_std", n, seed=n), by_enumeration * exact_gradient(THETA, CORRECT))


@pytest.mark.parametrize("advantage", ADVANTAGES)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_factor_is_that_of_all_groups_there_can_be(advantage: str, n: int) -> None:
    """All 5^n groups, each with its probability; written out without the code that is tested."""
    pi, expected, rewards_of = policy(THETA), np.zeros(5), (np.arange(5) < CORRECT).astype(float)
    for answers in itertools.product(range(5), repeat=n):
        r = rewards_of[list(answers)]
        if advantage == "none":
            A = r
        elif advantage == "leave_one_out":
            A = np.array([r[j] - np.delete(r, j).mean() for j in range(n)])
        else:
            A = r - r.mean()
            if advantage != "centred":
                A = A / r.std() if r.std() > 0 else A
        gradient = sum(A[j] * (np.eye(5)[a] - pi) for j, a in enumerate(answers)) / n
        expected += np.prod(pi[list(answers)]) * gradient
    np.testing.assert_allclose(
        expected, factor(advantage, n, p_of(THETA)) * exact_gradient(THETA, CORRECT), atol=1e-14
    )


def test_the_factors_of_p_one_tenth() -> None:
    """Grows from 1 at n = 2 to 3.1 at n = 32; for many rollouts to 1/√(p(1 − p)) = 3.33."""
    assert factor("group_std", 2, 0.1) == pytest.approx(1.0)
    assert factor("group_std", 32, 0.1) == pytest.approx(3.1, abs=0.05)
    assert factor("group_std", 4096, 0.1) == pytest.approx(1 / 0.3, rel=1e-3)
    assert np.all(np.diff([factor("group_std", n, 0.1) for n in range(2, 100)]) > 0)


def test_variance_falls_as_one_over_n() -> None:
    """Var ĝ = Var(r (e_a − π)) / n without a baseline, exactly; with the leave-one-out one up to O(1/n²)."""
    pi, right = policy(THETA), np.arange(5) < CORRECT
    one = (np.eye(5) - pi) * right[:, None]
    first = pi @ one
    variance = pi @ (one - first) ** 2
    for n in (1, 4, 16, 64):
        sampled = draws("none", n, seed=n).var(axis=0)
        np.testing.assert_allclose(n * sampled, variance, rtol=0.03)
    p = p_of(THETA)
    baseline = (np.eye(5) - pi) * (right - p)[:, None]
    limit = pi @ (baseline - pi @ baseline) ** 2
    for n in (64, 256):
        np.testing.assert_allclose(n * draws("leave_one_out", n, seed=n).var(axis=0), limit, rtol=0.05)


def test_the_variance_of_grpo_falls_as_one_over_n_up_to_its_factor() -> None:
    scaled = [
        n * draws("group_std", n, seed=n).var(axis=0).sum() / factor("group_std", n, p_of(THETA)) ** 2
        for n in (128, 512, 2048)
    ]
    assert scaled == pytest.approx([scaled[-1]] * 3, rel=0.05)


@pytest.mark.parametrize(("n", "trained"), [(64, 16), (16, 1), (256, 64)])
def test_a_decoupled_baseline_is_unbiased_up_to_its_own_share(n: int, trained: int) -> None:
    """A rollout's baseline holds itself once in n, however many enter the gradient: 1 − 1/n again."""
    sample = draws("centred", n, seed=n, gradient_rollouts=trained)
    within(sample, (1 - 1 / n) * exact_gradient(THETA, CORRECT))
    ratio = sample.var(axis=0).sum() / draws("centred", trained + 1, seed=1).var(axis=0).sum()
    assert ratio == pytest.approx((trained + 1) / trained, rel=0.15) or trained == 1


@pytest.mark.parametrize("n", [1, 4, 64])
def test_pass_at_n(n: int) -> None:
    p = Tabular(p=0.2, arms=6, right_arms=2).success()
    assert metrics.expected(f"best@{n}", p) == pytest.approx(1 - 0.8**n)
    right = np.random.default_rng(n).binomial(n, p[0], size=DRAWS)
    assert np.mean(right > 0) == pytest.approx(1 - 0.8**n, abs=4 * 0.5 / np.sqrt(DRAWS))


# Training


def trained(n: int, steps: int, step_size: float, seed: int, arms: int = 2, **changes) -> Tabular:
    bandit = Tabular(p=0.3, arms=arms, right_arms=1)
    update = Update(n, step_size, advantage="leave_one_out", **changes)
    bandit.advance(np.zeros((steps, 1), dtype=np.int64), update, np.random.default_rng([n, seed]))
    return bandit


def suboptimality(n: int, steps: int, step_size: float, seeds: int = 300) -> np.ndarray:
    return np.array([1 - trained(n, steps, step_size, s).success()[0] for s in range(seeds)])


def test_suboptimality_falls_as_a_over_n_t_plus_b_over_t() -> None:
    """With the unbiased estimator t δ_t = B + A/n at all late t.

    For two answers the limit is known: 1/δ grows in jumps of its logarithm, by 2ℓ a step on average for
    every n, and E t δ_t → 1/(2ℓ) (entrance law of a self-similar process, Bertoin and Yor 2002): B is
    that and A nought. A constant step leaves n the spread alone, Var(t δ_t) ∝ 1/n.
    """
    step_size, ns, ts = 0.2, np.array([2, 4, 8, 32]), (1000, 4000)
    B = 1 / (2 * step_size)
    for t in ts:
        samples = [t * suboptimality(n, t, step_size) for n in ns]
        mean = np.array([s.mean() for s in samples])
        error = np.array([s.std(ddof=1) / np.sqrt(s.size) for s in samples])
        design = np.stack([1 / ns, np.ones_like(ns)], axis=1) / error[:, None]
        (a, b), misfit, *_ = np.linalg.lstsq(design, mean / error)
        covariance = np.linalg.inv(design.T @ design)
        assert misfit[0] < 18.4  # χ² of 2, p = 1e-4
        assert abs(a) < 4 * np.sqrt(covariance[0, 0]) + 0.05 * B
        # Coming from p = 0.3 costs log(t) steps of its own.
        assert b == pytest.approx(B, abs=4 * np.sqrt(covariance[1, 1]) + 10 / t * B * np.log(t))
        for n, s in zip(ns, samples, strict=True):
            assert s.var() / s.mean() ** 2 == pytest.approx(step_size / n, rel=0.35)


def test_one_answer_alone_more_steps_beat_more_rollouts() -> None:
    """At equal compute n t and a constant step, F5 (a)."""
    rewards = [trained(n, 40_000 // n, 0.1, seed=0, arms=8).success()[0] for n in (2, 8, 32, 128)]
    assert rewards == sorted(rewards, reverse=True)


def test_many_rollouts_follow_the_exact_gradient() -> None:
    bandit = trained(100_000, 50, 2.0, seed=0, arms=5)
    theta = Tabular(0.3, 5, 1).theta
    for _ in range(50):
        theta = theta + 2.0 * exact_gradient(theta, 1)
    np.testing.assert_allclose(bandit.theta, theta, atol=0.02)


def test_kl_and_entropy_are_the_slopes_of_their_terms() -> None:
    """No reward at all (n right of n): a step is that of −β KL + γ H, here by finite differences."""
    bandit = Tabular(p=1 - 1e-12, arms=4, right_arms=3)
    bandit.theta[:] = [1.0, 0.3, -0.4, -60.0]
    theta, pi0 = bandit.theta.copy(), np.exp(bandit.log_pi0)

    def value(t: np.ndarray, kl: float, entropy: float) -> float:
        pi = np.exp(t) / np.exp(t).sum()
        return float(-kl * pi @ np.log(pi / pi0) - entropy * pi @ np.log(pi))

    for kl, entropy in ((0.7, 0.0), (0.0, 0.4), (0.7, 0.4)):
        bandit.theta[:] = theta
        update = Update(4, 1e-3, kl=kl, entropy=entropy)
        bandit.advance(np.zeros((1, 1), dtype=np.int64), update, np.random.default_rng(0))
        slopes = [
            (value(theta + 1e-6 * e, kl, entropy) - value(theta - 1e-6 * e, kl, entropy)) / 2e-6
            for e in np.eye(4)
        ]
        np.testing.assert_allclose((bandit.theta - theta) / 1e-3, slopes, atol=1e-6)


def test_the_filter_leaves_out_what_would_be_the_terms_alone() -> None:
    bandit = Tabular(p=1 - 1e-12, arms=4, right_arms=3)
    before = bandit.theta.copy()
    update = Update(4, 1.0, kl=0.5, entropy=0.5, zero_variance_filter=True)
    bandit.advance(np.zeros((5, 1), dtype=np.int64), update, np.random.default_rng(0))
    np.testing.assert_array_equal(bandit.theta, before)


def test_a_stale_step_learns_from_rollouts_of_k_steps_ago() -> None:
    steps = np.zeros((3, 1), dtype=np.int64)
    bandit, fresh = Tabular(0.3, 4, 1), Tabular(0.3, 4, 1)
    bandit.advance(steps, Update(8, 0.5, staleness=3), np.random.default_rng(0))
    np.testing.assert_array_equal(bandit.theta, fresh.theta)  # the queue has only been filled
    bandit.advance(steps[:1], Update(8, 0.5, staleness=3), np.random.default_rng(1))
    fresh.advance(steps[:1], Update(8, 0.5), np.random.default_rng(0))
    np.testing.assert_array_equal(bandit.theta, fresh.theta)


# The problem


def test_p_is_the_given_one_or_drawn_from_the_set() -> None:
    one = TabularParameters(arms=4, correct=2, lr_easy=1, lr_hard=1, p=0.25)
    assert create(one, difficulty("easy"), 0, 1, 1).success() == pytest.approx(0.25)
    drawn = {float(create(PRESETS["T"], difficulty("easy"), s, 1, 1).success()[0]) for s in range(5)}
    assert len(drawn) == 5
    assert all(0.3 <= p <= 0.6 for p in drawn)
