"""Predictions: never over budget, measured configurations only, and the least expected regret first."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import InputError
from isolaw.fits.flags import Code, having
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.predict import Prediction
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
Places = list[tuple[int, int]]
LEVELS = [8, 32, 128, 512]
NOISE = {"noise": 0.004, "between": 0.004}


def rewards(b: int, n: int, compute: Any) -> Any:
    """Larger n are better, later; B_p = 16 costs 0.02, B_p = 32 costs 0.002."""
    ceiling = 0.5 + 0.03 * math.log2(n / 8) - {16: 0.02, 32: 0.002}.get(b, 0.0)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))


GRIDS: dict[str, tuple[Places, dict[str, Any]]] = {
    "fixed-bp": ([(32, n) for n in LEVELS], {**NOISE, "attributes": {"n_train_problems": 2000}}),
    "fixed-b": ([(1024 // n, n) for n in LEVELS], NOISE),
    "joint": ([(b, n) for b in (16, 32, 64) for n in LEVELS], NOISE),
}
METHODS = ("surface", "paper")
CASES = [f"{method} {setting}" for method in METHODS for setting in (*GRIDS, "refused")]


@pytest.fixture(scope="module")
def laws(synthetic: Make) -> dict[str, Law]:
    """One law of each method and setting, and one that was refused."""
    out = {}
    flat = synthetic(
        [(32, n) for n in LEVELS], lambda b, n, c: rewards(32, 8, c) - 0.01 * math.log2(n), **NOISE
    )
    for method in METHODS:
        for setting, (pairs, options) in GRIDS.items():
            runs = synthetic(pairs, rewards, **options)
            out[f"{method} {setting}"] = isolaw.fit(runs, setting=setting, method=method, bootstrap=40)
        out[f"{method} refused"] = isolaw.fit(flat, method=method, bootstrap=40)
        assert out[f"{method} refused"].logistic is None
    return out


budgets = st.floats(3.1, 9.5).map(lambda e: 10**e)


@given(st.sampled_from(CASES), budgets, st.none() | st.integers(1024, 40_000))
def test_the_budget_is_kept(laws: dict[str, Law], case: str, budget: float, cap: int | None) -> None:
    law = laws[case]
    p = law.predict(budget, max_batch_rollouts=cap)
    a = p.allocation
    assert a.problems_per_batch * a.rollouts_per_problem * a.steps + p.unspent == int(budget) == p.compute
    assert 0 <= p.unspent < a.batch_rollouts
    assert a.steps == int(budget) // (a.problems_per_batch * a.rollouts_per_problem) >= 1
    for o in p.options:
        assert o.allocation.steps >= 1
        assert o.allocation.compute <= budget
        assert cap is None or o.allocation.batch_rollouts <= cap
        assert (o.allocation.problems_per_batch, o.allocation.rollouts_per_problem) in {
            (g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid
        }
    if "fixed-b" in case.split():
        assert a.batch_rollouts == 1024
    if "fixed-bp" in case.split():
        assert a.problems_per_batch == 32
    json.dumps(p.to_dict(), allow_nan=False)


def by_hand(law: Law, budget: float) -> tuple[Places, np.ndarray, np.ndarray, np.ndarray]:
    """Affordable configurations, their rewards (K, D), the best there is (D,) and its n (D,).

    For the surface: by normal equations for the polynomial, and a fine grid for its maximum.
    """
    places = [(g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid]
    places = [p for p in places if p[0] * p[1] <= budget]
    curves = np.array([law.curves(b, n)(int(budget))[1:, 0] for b, n in places])
    n = np.array([n for _, n in places])
    if law.document.method == "paper":
        return places, curves, curves.max(axis=0), n[curves.argmax(axis=0)]
    b = np.array([b for b, _ in places])
    joint = law.document.setting == "joint"
    degree = min(3, len(set(n)) - 1)

    def basis(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        columns = [u**i for i in range(degree + 1)]
        return np.stack(columns + ([v, v * v, u * v] if joint else []), axis=-1)

    at = basis(np.log2(n), np.log2(b))
    coefficients = np.linalg.lstsq(at, curves, rcond=None)[0]
    u = np.linspace(np.log2(n.min()), np.log2(n.max()), 1201)
    v = np.linspace(np.log2(b.min()), np.log2(b.max()), 41) if joint else np.log2(b[:1])
    grid_u, grid_v = (g.ravel() for g in np.meshgrid(u, v, indexing="ij"))
    total = np.log2(n * b)
    run = (grid_u + grid_v <= total.max() + 1e-9) & (grid_u + grid_v >= total.min() - 1e-9)
    grid_u, grid_v = (grid_u[run], grid_v[run]) if joint else (grid_u, grid_v)
    values = basis(grid_u, grid_v) @ coefficients
    return places, at @ coefficients, values.max(axis=0), 2 ** grid_u[values.argmax(axis=0)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("budget", [3e4, 4e5, 9e5])
def test_regret_by_hand(laws: dict[str, Law], case: str, budget: float) -> None:
    """Mean loss over draws, and how often it is within tolerance; what loses more is not listed."""
    law = laws[case]
    places, reward, best, _ = by_hand(law, budget)
    loss = np.maximum(best - reward, 0)
    expected = {p: (own.mean(), np.mean(own <= TOLERANCE)) for p, own in zip(places, loss, strict=True)}
    p = law.predict(budget)
    # In the joint setting the maximum is sought on a coarser grid of B_p.
    close = 2e-4 if "joint" in case else 1e-5
    listed = {}
    for o in p.options:
        place = (o.allocation.problems_per_batch, o.allocation.rollouts_per_problem)
        listed[place] = o.expected_regret
        assert o.expected_regret == pytest.approx(expected[place][0], abs=close)
        assert o.probability == pytest.approx(expected[place][1], abs=0.03)
    least = min(mean for mean, _ in expected.values())
    assert p.options[0].expected_regret == pytest.approx(least, abs=close)
    assert set(listed) >= {place for place, (mean, _) in expected.items() if mean <= TOLERANCE - close}
    assert all(regret <= TOLERANCE for regret in list(listed.values())[1:])
    regrets = [o.expected_regret for o in p.options]
    assert regrets == sorted(regrets)
    assert min(regrets) >= 0


@pytest.mark.parametrize("case", [c for c in CASES if "joint" not in c])
@pytest.mark.parametrize("budget", [1.5e5, 4e5, 9e5])
def test_n_star_by_hand(laws: dict[str, Law], case: str, budget: float) -> None:
    law = laws[case]
    places, _, _, n = by_hand(law, budget)
    q = law.predict(budget).n_star
    low, high = min(m for _, m in places), max(m for _, m in places)
    draws = np.where(n >= high, np.inf, np.where(n <= low, -np.inf, n))
    if q.status == "ok":
        assert low < q.value < high
    if q.interval is None:
        return
    ends = np.quantile(draws, [0.025, 0.05, 0.95, 0.975], method="inverted_cdf")
    if q.interval[0] is not None and math.isfinite(ends[0]):
        assert q.interval[0] <= ends[1] * 1.01
    if q.interval[1] is not None and math.isfinite(ends[-1]):
        assert q.interval[1] >= ends[2] * 0.99
    if law.document.method == "paper":
        assert {end for end in q.interval if end is not None} <= set(LEVELS)


def test_joint_finds_the_best_batch(laws: dict[str, Law]) -> None:
    """B_p = 16 costs 0.02; 32 costs 0.002, which is within tolerance of 64."""
    for method in METHODS:
        p = laws[f"{method} joint"].predict(1e6)
        assert p.allocation.problems_per_batch in (32, 64)
        assert {o.allocation.problems_per_batch for o in p.options} <= {32, 64}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("best", "told"),
    [
        (16, ["the best B_p may be smaller than 16, the smallest measured"]),
        (32, []),
        (64, ["the best B_p may be larger than 64, the largest measured"]),
    ],
)
def test_a_batch_at_the_edge_is_flagged(synthetic: Make, method: Any, best: int, told: list[str]) -> None:
    def reward(b: int, n: int, compute: Any) -> Any:
        return rewards(32, n, compute) - 0.02 * abs(math.log2(b / best))

    runs = synthetic([(b, n) for b in (16, 32, 64) for n in LEVELS], reward, **NOISE)
    p = isolaw.fit(runs, setting="joint", method=method, bootstrap=40).predict(1e6)
    assert p.allocation.problems_per_batch == best
    assert [flag.text for flag in having(p.flags, Code.BATCH_EDGE)] == told


@pytest.mark.parametrize("method", METHODS)
def test_fixed_b_trades_n_for_problems(laws: dict[str, Law], method: str) -> None:
    seen = {laws[f"{method} fixed-b"].predict(c).allocation for c in (5e4, 2e5, 9e5)}
    assert len({a.rollouts_per_problem for a in seen}) > 1
    assert all(a.problems_per_batch * a.rollouts_per_problem == 1024 for a in seen)


@pytest.mark.parametrize("case", CASES)
def test_the_reward_is_that_of_the_chosen_one(laws: dict[str, Law], case: str) -> None:
    law = laws[case]
    p = law.predict(4e5)
    places, reward, _, _ = by_hand(law, 4e5)
    own = reward[places.index((p.allocation.problems_per_batch, p.allocation.rollouts_per_problem))]
    assert p.reward.interval == pytest.approx(tuple(np.percentile(own, [2.5, 97.5])), abs=1e-6)
    if "refused" not in case:
        truth = rewards(p.allocation.problems_per_batch, p.allocation.rollouts_per_problem, 4e5)
        assert p.reward.value == pytest.approx(float(truth), abs=0.02)


@given(st.sampled_from(CASES), budgets)
def test_bounds_are_flagged(laws: dict[str, Law], case: str, budget: float) -> None:
    """n* at an end of what was measured and can be paid for is a bound on that side, and says so."""
    law = laws[case]
    p = law.predict(budget)
    q = p.n_star
    edge = [flag.text for flag in having(p.flags, Code.GRID_EDGE)]
    fits = [n for b, n in grid(law) if b * n <= budget]
    if budget > 10 * 999_936:
        assert (q.status, q.interval) == ("not_identified", None)
        assert p.reward.status == "not_identified"
        return
    if q.value is not None:
        assert min(fits) - 1e-9 <= q.value <= max(fits) + 1e-9
    if q.status == "lower_bound":
        assert q.value == pytest.approx(max(fits))
        assert "larger" in edge[0]
        assert q.interval is None or q.interval[1] is None
    elif q.status == "upper_bound":
        assert q.value == pytest.approx(min(fits))
        assert "smaller" in edge[0]
        assert q.interval is None or q.interval[0] is None
    elif q.status == "ok":  # or some of its draws lie there
        assert not edge or "of draws n* is the largest measured" in edge[0]


def grid(law: Law) -> Places:
    return [(g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid]


def told(law: Law, budget: float, code: Code) -> str:
    return "; ".join(flag.text for flag in having(law.predict(budget).flags, code))


@pytest.mark.parametrize("method", METHODS)
def test_flags(laws: dict[str, Law], method: str) -> None:
    law = laws[f"{method} fixed-bp"]
    assert {flag.code for flag in law.predict(3e5).flags} <= {Code.OPEN_CEILING}
    assert law.predict(3e5).n_star.status == "ok"
    assert told(law, 9e6, Code.EXTRAPOLATION).startswith("9 times")
    assert not told(law, 9e6, Code.FAR)
    assert told(law, 1.1e7, Code.FAR).startswith("more than 10 times what was measured")
    assert law.predict(1.1e7).reward.status == "not_identified"
    assert law.predict(1.1e7).n_star.status == "not_identified"
    assert law.predict(1.1e7).law_n.status == "not_identified"
    assert not told(law, 5e5, Code.EXTRAPOLATION)
    assert told(law, 9e6, Code.GRID_EDGE) == "the best n may be larger than 512, the largest measured"
    assert law.predict(9e6).n_star.status == "lower_bound"
    assert told(law, 2e4, Code.GRID_EDGE) == "the best n may be smaller than 8, the smallest measured"
    assert law.predict(2e4).n_star.status == "upper_bound"
    assert laws[f"{method} refused"].predict(5e5).law_n.status == "refused"


@pytest.mark.parametrize("method", METHODS)
def test_the_cap_is_flagged_where_it_binds(laws: dict[str, Law], method: str) -> None:
    law = laws[f"{method} fixed-bp"]
    free, capped = law.predict(8e6), law.predict(8e6, max_batch_rollouts=4096)
    assert (free.allocation.rollouts_per_problem, capped.allocation.rollouts_per_problem) == (512, 128)
    assert having(capped.flags, Code.LIMITED)
    assert not having(law.predict(8e6, max_batch_rollouts=16384).flags, Code.LIMITED)
    further = {flag.code for flag in law.predict(5e6, max_batch_rollouts=4096).flags}
    assert {Code.LIMITED, Code.EXTRAPOLATION, Code.GRID_EDGE} <= further


@pytest.mark.parametrize("method", METHODS)
def test_two_n_that_fit_are_compared_by_their_curves(laws: dict[str, Law], method: str) -> None:
    """A surface needs three; what is left under the cap is a choice between measured curves."""
    law = laws[f"{method} fixed-bp"]
    p = law.predict(4e5, max_batch_rollouts=1024)
    curves = np.array([law.curves(32, n)(4e5)[:, 0] for n in (8, 32)])
    best = p.options[0]
    chosen = [8, 32].index(best.allocation.rollouts_per_problem)
    assert best.expected_regret == pytest.approx(
        np.mean(curves.max(axis=0) - curves[chosen], where=[False] + [True] * 40)
    )
    assert law.predict(4e5, max_batch_rollouts=256).allocation.rollouts_per_problem == 8


@pytest.mark.parametrize("method", METHODS)
def test_where_none_was_measured_it_is_flagged(synthetic: Make, method: Any) -> None:
    """Below the first checkpoint of all, and under a cap that leaves only what ended earlier."""
    ranges = {8: (2e4, 1e5), 16: (2e4, 1e6), 32: (2e4, 1e6), 64: (4e4, 1e6)}
    runs = synthetic(
        [(32, n) for n in ranges],
        rewards,
        start=lambda b, n: ranges[n][0],
        compute=lambda b, n: ranges[n][1],
        zero=False,
        noise=1e-3,
    )
    law = isolaw.fit(runs, method=method, records="off", bootstrap=10)
    for options in ({"compute": 5e3}, {"compute": 5e5, "max_batch_rollouts": 300}):
        p = law.predict(**options)
        assert any("none was measured" in flag.text for flag in having(p.flags, Code.EXTRAPOLATION))
    assert not having(law.predict(5e5).flags, Code.EXTRAPOLATION)
    # All batches fit; that some were not measured here is no limit of the budget.
    assert not having(law.predict(5e5).flags, Code.LIMITED)


@pytest.mark.parametrize("method", METHODS)
def test_epochs(laws: dict[str, Law], method: str) -> None:
    law = laws[f"{method} fixed-bp"]
    assert law.document.epochs_seen == pytest.approx(32 * (1_000_000 // 256) / 2000)
    p = law.predict(5e5)
    assert p.epochs == pytest.approx(p.allocation.problems_per_batch * p.allocation.steps / 2000)
    assert not having(p.flags, Code.EPOCHS)
    few = law.predict(5e5, n_train_problems=10)
    assert few.epochs == pytest.approx(p.epochs * 200)
    assert having(few.flags, Code.EPOCHS)
    assert having(few.flags, Code.FEWER_PROBLEMS)
    unknown = laws[f"{method} joint"].predict(5e5)
    assert unknown.epochs is None
    assert unknown.to_dict()["epochs"] is None
    assert having(laws[f"{method} joint"].predict(5e5, n_train_problems=10).flags, Code.EPOCHS)


@pytest.mark.parametrize("method", METHODS)
def test_only_what_was_measured_at_the_budget_competes(synthetic: Make, method: Any) -> None:
    """Inside the sweep's range, a curve is not continued: neither beyond its end nor before its start."""
    ranges = {8: (1e4, 2e5), 16: (1e4, 1e6), 32: (1e4, 1e6), 64: (4e4, 1e6), 128: (2e5, 1e6)}
    runs = synthetic(
        [(32, n) for n in ranges],
        lambda b, n, c: 0.5 - 0.2 * np.exp(-c / 2e5) + 1e-5 * n,
        start=lambda b, n: ranges[n][0],
        compute=lambda b, n: ranges[n][1],
        zero=False,
        noise=1e-4,
    )
    law = isolaw.fit(runs, method=method, records=None, bootstrap=15)
    for budget in (2e4, 1e5, 5e5):
        p = law.predict(budget)
        measured = {n for n, (low, high) in ranges.items() if low <= budget <= high}
        assert {o.allocation.rollouts_per_problem for o in p.options} <= measured


@pytest.mark.parametrize("method", METHODS)
def test_without_a_law_the_best_measured_one_is_chosen(synthetic: Make, method: Any) -> None:
    """n = 8 is best wherever it was measured with others; n = 64 stopped early, on a steep rise."""
    levels = [8, 16, 32, 64]

    def reward(_b: int, n: int, compute: Any) -> Any:
        if n == 64:
            return 0.2 + 0.6 * (1 - np.exp(-compute / 1e6))
        return 0.6 - 0.05 * math.log2(n / 8) - 0.3 * np.exp(-compute / 3e4)

    runs = synthetic(
        [(32, n) for n in levels], reward, compute=lambda b, n: 3e5 if n == 64 else 3e6, noise=0.003
    )
    law = isolaw.fit(runs, method=method, bootstrap=10)
    if method == "paper":
        assert law.logistic is None
    assert law.predict(2.5e6).allocation.rollouts_per_problem == 8


@pytest.mark.parametrize("budget", [math.nan, math.inf, 0, 0.5, -1e6])
def test_no_budget(laws: dict[str, Law], budget: float) -> None:
    with pytest.raises(InputError, match="accepted: a number of rollouts from 1 to 1e"):
        laws["surface fixed-bp"].predict(budget)


def test_what_cannot_be_afforded(laws: dict[str, Law]) -> None:
    law = laws["surface fixed-bp"]
    with pytest.raises(InputError, match=r"a budget of 255 .* 256 rollouts"):
        law.predict(255)
    with pytest.raises(InputError, match=r"max_batch_rollouts = 255 .* 256 rollouts"):
        law.predict(1e6, max_batch_rollouts=255)
    with pytest.raises(InputError, match="n_train_problems 0"):
        law.predict(1e6, n_train_problems=0)
    assert law.predict(256).allocation.compute == 256


@pytest.mark.parametrize("method", METHODS)
def test_of_equals_the_smaller_is_taken(synthetic: Make, method: Any) -> None:
    """All rewards are equal, up to rounding: the fewest rollouts for each problem, and n* is not stated."""
    runs = synthetic([(32, n) for n in LEVELS], lambda b, n, c: 0.1 + 0.2 + 0 * c, noise=0)
    p = isolaw.fit(runs, method=method, records="off", bootstrap=5).predict(5e5)
    assert [o.allocation.rollouts_per_problem for o in p.options] == LEVELS
    assert p.n_star.status == "refused"
    assert having(p.flags, Code.FLAT)


@pytest.mark.parametrize("case", CASES)
def test_the_shape_of_the_json(laws: dict[str, Law], case: str) -> None:
    p = laws[case].predict(4e5, n_train_problems=6000)
    data = p.to_dict()
    assert data["compute"] == 400_000
    assert data["unit"] == "rollouts"
    for name in ("reward", "n_star", "law_n"):
        assert set(data[name]) == {"value", "interval", "status"}
    n, b, steps = (data[k] for k in ("rollouts_per_problem", "problems_per_batch", "steps"))
    assert n * b * steps + data["unspent"] == 400_000
    assert all(isinstance(v, int) for v in (n, b, steps, data["unspent"]))
    first = data["options"][0]
    assert {k: first[k] for k in ("rollouts_per_problem", "problems_per_batch", "steps")} == {
        "rollouts_per_problem": n,
        "problems_per_batch": b,
        "steps": steps,
    }
    for option in data["options"]:
        assert set(option["reward"]) == {"value", "interval", "status"}
        assert 0 <= option["probability_within_0.005"] <= 1
        assert option["expected_regret"] >= 0
    assert data["expected_regret"] == first["expected_regret"]
    assert isinstance(p, Prediction)
