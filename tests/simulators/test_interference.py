"""One step of the interference population, against its equations written out in plain NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isolaw.simulators.interference import PARAMETER_NAMES, PRESETS, Parameters, State, advance, success
from isolaw.simulators.problems import ProblemSet, difficulty, population

PRESET = PRESETS["I"]


class Slow:
    """The equations of the reduced Bernoulli-logit population, one line each."""

    def __init__(self, problems: ProblemSet, p: Parameters, n: int, step_size: float, kl: float) -> None:
        self.problems, self.p, self.n, self.step_size, self.kl = problems, p, n, step_size, kl
        D, r = problems.phi.shape
        k = np.arange(1, r + 1)
        self.c = p.c / k
        self.spec = np.sqrt((1 / k) / np.sum(1 / k))
        self.w, self.u, self.W = np.zeros(r), np.zeros(D), 0.0
        self.ema, self.updates = 0.0, 0

    def logit(self, i: int) -> float:
        drift = 0.5 * np.sum(self.c * self.w**2) + 0.5 * self.p.c_perp * self.W
        return float(self.problems.b[i] + self.w @ self.problems.phi[i] + self.u[i] - drift)

    def step(self, batch: np.ndarray, rng: np.random.Generator) -> None:
        p, n, B_p = self.p, self.n, len(batch)
        h, F = [], 0
        for i in batch:
            z = self.logit(i)
            success = 1 / (1 + np.exp(-z))
            p_hat = rng.binomial(n, success) / n
            F += 0 < p_hat < 1
            h.append(
                np.sqrt(p_hat * (1 - p_hat)) - self.kl * success * (1 - success) * (z - self.problems.b[i])
            )
        noise = np.array([rng.standard_normal() for _ in self.w])
        G = sum(h_i * (self.problems.phi[i] - self.c * self.w) for h_i, i in zip(h, batch, strict=True))
        G = G + np.sqrt(p.f_in * p.sigma2 * F / n) * self.spec * noise
        norm2 = (np.sum(G**2) + (1 - p.f_in) * p.sigma2 * F / n) / B_p**2
        self.updates += 1
        self.ema = 0.98 * self.ema + 0.02 * norm2
        v = self.ema / (1 - 0.98**self.updates)
        rate = self.step_size * v ** (-p.q / 2)
        self.w = self.w + rate * G / B_p
        for h_i, i in zip(h, batch, strict=True):
            self.u[i] += p.kappa * rate * h_i / B_p
        self.W = (1 - rate * p.c_perp * sum(h) / B_p) ** 2 * self.W
        self.W += rate**2 * (1 - p.f_in) * p.sigma2 * F / (n * B_p**2)


CASES = {
    "preset": PRESET,
    "SGD": replace(PRESET, q=0.0),
    "Adam": replace(PRESET, q=1.0),
    "no noise": replace(PRESET, sigma2=0.0),
    "all noise inside": replace(PRESET, f_in=1.0),
    "no memory": replace(PRESET, kappa=0.0, c=0.0, c_perp=0.0),
    "much drift": replace(PRESET, c_perp=0.3, c=1.0),
}


@pytest.mark.parametrize("kl", [0.0, 0.5])
@pytest.mark.parametrize("name", ["easy", "hard"])
@pytest.mark.parametrize("case", CASES)
def test_steps_agree_with_the_equations(case: str, name: str, kl: float) -> None:
    p, n, step_size = CASES[case], 6, 0.3
    problems = population(difficulty(name), seed=1, n_train=24, n_validation=5, s=p.s, m=p.m, r=16)
    batches = np.array([np.random.default_rng(t).permutation(24)[:8] for t in range(6)])
    state, slow = State.initial(24, 16), Slow(problems, p, n, step_size, kl)
    ours, theirs = np.random.default_rng(7), np.random.default_rng(7)
    for t, batch in enumerate(batches):
        advance(
            state,
            problems,
            batches[t : t + 1],
            p,
            rollouts_per_problem=n,
            step_size=step_size,
            kl=kl,
            rng=ours,
        )
        slow.step(batch, theirs)
        np.testing.assert_allclose(state.w, slow.w, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state.u, slow.u, rtol=1e-12, atol=1e-12)
        expected = [slow.W, slow.ema, slow.updates]
        np.testing.assert_allclose(state.scalars, expected, rtol=1e-12, atol=1e-12)
    assert ours.bit_generator.state == theirs.bit_generator.state
    assert np.any(state.w != 0)
    z = np.array([slow.logit(i) for i in range(24)])
    p_train = success(state, problems, p, train=True)
    np.testing.assert_allclose(p_train, 1 / (1 + np.exp(-z)), rtol=1e-12)


def advanced(steps: list[int], n_train: int = 24, problems: ProblemSet | None = None, **changes) -> State:
    problems = problems or population(
        difficulty("easy"), seed=0, n_train=n_train, n_validation=5, s=1.5, m=0.3, r=16
    )
    state, rng = State.initial(n_train, 16), np.random.default_rng(0)
    order = np.random.default_rng(1)
    batches = np.array([order.permutation(n_train)[:8] for _ in range(sum(steps))])
    arguments = {"rollouts_per_problem": 8, "step_size": 0.3, "kl": 0.5, **changes}
    start = 0
    for count in steps:
        advance(state, problems, batches[start : start + count], PRESET, rng=rng, **arguments)
        start += count
    return state


def test_steps_in_pieces_are_the_same_steps() -> None:
    whole, pieces = advanced([30]), advanced([1, 0, 9, 20])
    for name in ("w", "u", "scalars"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    assert whole.scalars[2] == 30


@pytest.mark.parametrize("logit", [-800.0, 800.0])
def test_without_any_signal_nothing_moves(logit: float) -> None:
    problems = population(difficulty("easy"), seed=0, n_train=24, n_validation=5, s=1.5, m=0.3, r=16)
    flat = replace(problems, b=np.full(24, logit))
    state = advanced([20], problems=flat)
    assert not np.any(state.w)
    assert not np.any(state.u)
    assert state.scalars[0] == 0


def test_only_problems_in_the_batch_are_memorised() -> None:
    problems = population(difficulty("easy"), seed=0, n_train=24, n_validation=5, s=1.5, m=0.3, r=16)
    state = State.initial(24, 16)
    advance(
        state,
        problems,
        np.array([[2, 5, 7]]),
        PRESET,
        rollouts_per_problem=32,
        step_size=0.3,
        kl=0.0,
        rng=np.random.default_rng(0),
    )
    assert np.flatnonzero(state.u).tolist() == [2, 5, 7]


def test_kl_pulls_back() -> None:
    problems = population(difficulty("easy"), seed=0, n_train=24, n_validation=5, s=1.5, m=0.3, r=16)
    free, held = (advanced([200], kl=kl) for kl in (0.0, 2.0))
    distance = [np.abs(success(s, problems, PRESET, train=True) - 1 / (1 + np.exp(-problems.b))).mean()
                for s in (free, held)]  # fmt: skip
    assert distance[1] < 0.8 * distance[0]


def test_success_of_the_initial_state_is_the_initial_success() -> None:
    problems = population(difficulty("hard"), seed=0, n_train=24, n_validation=30, s=1.5, m=0.3, r=16)
    start = State.initial(24, 16)
    np.testing.assert_allclose(success(start, problems, PRESET), 1 / (1 + np.exp(-problems.b_val)))
    np.testing.assert_allclose(success(start, problems, PRESET, train=True), 1 / (1 + np.exp(-problems.b)))


def test_preset_I_is_the_documented_one() -> None:
    expected = {
        "q": 0.75, "sigma2": 200, "s": 1.5, "m": 0.3, "kappa": 1, "c_perp": 0.003, "f_in": 0.02,
        "kl_easy": 0.5, "kl_hard": 0, "lr_easy": 0.02, "lr_hard": 0.05, "c": 0.1, "r": 128,
    }  # fmt: skip
    assert {name: getattr(PRESET, name) for name in PARAMETER_NAMES} == expected
