"""Predictions: never over budget, the least expected loss first, and nothing that is not known."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from shared_laws import LEVELS, METHODS, NAMES, NOISE, REACH, SharedLaws, rewards

import isolaw
from isolaw.errors import InputError
from isolaw.fits.allocations import comparable_compute, reached_compute
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.predict import _RISK, Prediction
from isolaw.fits.surface.slices import RewardModel, Slices, slices
from isolaw.runs import Runs
from isolaw.step_cost import Cost, CostOrigin, StepPart

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
Places = list[tuple[int, int]]
BETWEEN = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
WIDER = [2, 3, 4, 6, *BETWEEN, 768, 1024, 1536, 2048]  # what competes beyond the runs
EACH_HOLD = ("B_p", "B", "nothing")
CASES = [name for name in NAMES if "equal" not in name]
# From a few steps to where nothing is recommended; half of them within the runs.
TWELVE = [1300.0, 3e4, 1e5, 1.5e5, 4e5, 9e5, 2e6, 2.9e6, 3.3e6, 7e6, 9.5e6, 3e9]


@pytest.fixture(scope="module")
def predicted(shared: SharedLaws) -> Callable[..., Prediction]:
    """The prediction of each law, budget and cap, made once."""
    return functools.cache(
        lambda name, budget, cap=None: shared.law(name).predict(budget, max_batch_rollouts=cap)
    )


def check_budget(law: Law, name: str, p: Prediction, budget: float, cap: int | None) -> None:
    """The budget is kept, and what is listed competes."""
    json.dumps(p.to_dict(), allow_nan=False)
    a = p.allocation
    if a is None or p.unspent is None:
        assert budget > 9.9 * REACH or "equal" in name
        return
    assert a.problems_per_batch * a.rollouts_per_problem * a.steps + p.unspent == int(budget) == p.compute
    assert 0 <= p.unspent < a.batch_rollouts
    assert a.steps == int(budget) // (a.problems_per_batch * a.rollouts_per_problem) >= 1
    measured = {(g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid}
    for o in p.options:
        n, b = o.allocation.rollouts_per_problem, o.allocation.problems_per_batch
        assert o.allocation.steps >= 1
        assert o.allocation.compute <= budget
        assert cap is None or o.allocation.batch_rollouts <= cap
        assert o.measured == ((b, n) in measured)
        assert n in (WIDER if "surface" in name else LEVELS)
        beyond = ranges_beyond(p) and o.allocation.steps >= 20
        assert n in BETWEEN or beyond
        further = {8, 128} if "nothing" in name and beyond else set()
        assert b in {known for known, _ in measured} | further or "B" in name.split()
    if "B" in name.split():
        assert a.batch_rollouts == 1024
    if "B_p" in name.split():
        assert a.problems_per_batch == 32


def ranges_beyond(p: Prediction) -> bool:
    """Whether n or B_p beyond the measured ones competed."""
    measured = [
        [g.rollouts_per_problem for g in p.document.grid],
        [g.problems_per_batch for g in p.document.grid],
    ]
    compared = zip((p.compared, p.compared_batches), measured, strict=True)
    return any(ends is not None and (ends[0] < min(law) or ends[1] > max(law)) for ends, law in compared)


def check_reach(law: Law, p: Prediction, budget: float) -> None:
    """Intervals up to ten times the compute to which three n ran, then nothing; paper: bounds from three."""
    reach = comparable_compute(law.document.grid)
    assert reach == pytest.approx(REACH, rel=0.05)
    data = p.to_dict()
    assert p.comparable == pytest.approx(10 * reach, rel=1e-6)
    codes = {flag.code for flag in p.flags}
    assert (Code.FAR in codes) == (int(budget) > 10 * reach)
    if int(budget) > 10 * reach:
        assert p.options == []
        assert (p.allocation, p.unspent, p.reward.status) == (None, None, "refused")
        nothing = ["rollouts_per_problem", "problems_per_batch", "steps", "unspent", "expected_loss"]
        assert [data[key] for key in [*nothing, "probability_within_tolerance", "epochs"]] == [None] * 7
        assert data["reward"] == {"value": None, "interval": None, "status": "refused"}
        assert p.n_star.status in ("not_identified", "refused")
        assert p.n_star.interval is None
        return
    assert p.options
    if int(budget) > 3 * reach:
        assert Code.CENSORED in codes
        if law.document.method == "paper":
            assert p.n_star.status in ("lower_bound", "upper_bound", "not_identified")
            assert (p.reward.interval, p.reward.status) == (None, "not_identified")
        else:
            assert p.reward.interval is not None
    assert p.reward.value is not None


def check_bounds(law: Law, p: Prediction, budget: float) -> None:
    """n* at an end of what competes is a bound on that side; beyond the measured n, a flag says so."""
    q = p.n_star
    edge = [flag.text for flag in flags_with(p.flags, Code.GRID_EDGE)]
    fits = [g.rollouts_per_problem for g in law.document.grid if g.step_cost <= budget]
    if q.value is not None and p.compared is not None:
        assert p.compared[0] - 1e-9 <= q.value <= p.compared[1] + 1e-9
        assert ranges_beyond(p) or min(fits) - 1e-9 <= q.value <= max(fits) + 1e-9
    if q.status == "lower_bound":
        assert q.value == pytest.approx(p.compared[1]) or law.document.method == "paper"
        assert "larger" in edge[0]
        assert q.interval is None or q.interval[1] is None
    elif q.status == "upper_bound":
        assert q.value == pytest.approx(p.compared[0]) or law.document.method == "paper"
        assert "smaller" in edge[0]
        assert q.interval is None or q.interval[0] is None
    elif q.status == "ok":  # or some of its draws lie there
        beyond = q.value >= max(fits) - 1e-9 or q.value <= min(fits) + 1e-9
        assert not edge or beyond or "the largest measured n, or more" in edge[0]


@pytest.mark.parametrize("name", NAMES)
def test_properties_over_twelve_budgets(shared: SharedLaws, predicted: Any, name: str) -> None:
    """Those of a plane, where a prediction takes longest, over every second one."""
    law = shared.law(name)
    for budget in TWELVE[:: 2 if name == "surface nothing" else 1]:
        p = predicted(name, budget)
        check_budget(law, name, p, budget, None)
        if "equal" not in name:
            check_reach(law, p, budget)
            check_bounds(law, p, budget)


@pytest.mark.parametrize("name", CASES)
def test_a_cap_is_kept(shared: SharedLaws, predicted: Any, name: str) -> None:
    for budget, cap in ((4e5, 1024), (7e6, 1500)):
        check_budget(shared.law(name), name, predicted(name, budget, cap), budget, cap)


def by_hand(law: Law, p: Prediction, budget: float) -> tuple[Places, np.ndarray, np.ndarray, np.ndarray]:
    """Affordable configurations, their rewards (K, D), the best there is (D,) and its n (D,).

    For the surface its draws themselves, or the pool's, over the grid that holds all that may be recommended.
    """
    places = [(g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid]
    places = [p for p in places if p[0] * p[1] <= budget]
    if law.surface is None:
        curves = np.array([law.curves(b, n)(int(budget))[1:, 0] for b, n in places])
        n = np.array([n for _, n in places])
        return places, curves, curves.max(axis=0), n[curves.argmax(axis=0)]
    fixed_b, beyond = law.document.hold == "B", ranges_beyond(p)
    joint = law.document.hold == "nothing"  # there only powers of two compete beyond the runs
    if joint and beyond:
        wider = [n for n in [*BETWEEN, *WIDER] if n in BETWEEN or n & (n - 1) == 0]
        places += [(b, n) for b in (8, 128) for n in wider if b * n * 20 <= budget and 16 <= b * n <= 2**18]
    for b in sorted({b for b, _ in places} - ({8, 128} if joint else set())):
        own = [n for m, n in places if fixed_b or m == b]
        more = [n for n in BETWEEN if min(own) <= n <= max(own)]
        more += [
            n for n in WIDER
            if beyond and n not in BETWEEN and (1024 if fixed_b else b * n) * 20 <= budget
            and not (joint and n & (n - 1))
        ]  # fmt: skip
        places += [(1024 // n if fixed_b else b, n) for n in more if 1024 % n == 0 or not fixed_b]
    places = sorted(set(places))
    cut = cut_of(law, law.surface.drawn(), budget, places)
    reward = cut.reward[1:, 0]
    at = [np.argmin(np.abs(cut.log2_n - np.log2(n)) + np.abs(cut.log2_b - np.log2(b))) for b, n in places]
    return places, reward[:, at].T, reward.max(axis=1), np.exp2(cut.log2_n[reward.argmax(axis=1)])


@pytest.fixture(scope="module")
def hand(shared: SharedLaws, predicted: Any) -> Callable[[str, float], Any]:
    """`by_hand`, of each law and budget once."""
    return functools.cache(lambda name, budget: by_hand(shared.law(name), predicted(name, budget), budget))


def cut_of(law: Law, model: RewardModel, budget: float, places: Places) -> Slices:
    """The model at the budget, over what is between these places."""
    u, v = (np.log2([p[i] for p in places]) for i in (1, 0))

    def allowed(log2_n: Any, log2_b: Any) -> Any:
        inside = (log2_n >= u.min() - 1e-6) & (log2_n <= u.max() + 1e-6)
        inside &= (log2_b >= v.min() - 1e-6) & (log2_b <= v.max() + 1e-6)
        return inside & (log2_n + log2_b <= (u + v).max() + 1e-6)

    measured = {(g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid}
    more = np.log2([(n, b) for b, n in places if (b, n) not in measured]) if set(places) - measured else None
    return slices(model, np.array([float(int(budget))]), allowed, more)


def test_a_batch_whose_runs_ended_early_does_not_leave_without_a_word(synthetic: Make) -> None:
    """Its reward at the budget cannot be known, and the others' expected loss does not count it."""
    ends = {16: 3e6, 64: 1e6, 256: 1e6}
    shapes = [(b, n) for b in ends for n in (4, 16, 64)]
    law = isolaw.fit(synthetic(shapes, compute=lambda b, _: ends[b], seeds=1), draws=20)
    texts = [str(flag) for flag in flags_with(law.predict(2e7).flags, Code.LIMITED)]
    assert any("the runs of B_p = 64, 256 ended before a tenth of this budget" in text for text in texts)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("budget", [3e4, 4e5])
def test_expected_loss_by_hand(
    shared: SharedLaws, predicted: Any, hand: Any, name: str, budget: float
) -> None:
    """Mean loss over draws, and how often it is within tolerance; what loses more is not listed."""
    places, reward, best, _ = hand(name, budget)
    loss = np.maximum(best - reward, 0)
    expected = {p: (lost.mean(), np.mean(lost <= TOLERANCE)) for p, lost in zip(places, loss, strict=True)}
    p = predicted(name, budget)
    listed = {}
    for o in p.options:
        place = (o.allocation.problems_per_batch, o.allocation.rollouts_per_problem)
        listed[place] = o.expected_loss
        assert o.expected_loss == pytest.approx(expected[place][0], abs=1e-9)
        assert o.probability == pytest.approx(expected[place][1], abs=0.021)
    document = shared.law(name).document
    best_b, best_n = document.rules.best
    share = np.clip(np.log2(budget / reached_compute(document.grid)), 0.0, 1.0)
    moves = (document.method == "surface") * share

    def risked(place: tuple[int, int]) -> float:
        b, n = place
        past = max(math.log2(8 / n), math.log2(n / 512), 0.0) + ("nothing" in name and b in (8, 128))
        moved = abs(math.log2(n / best_n)) + (document.hold != "B") * abs(math.log2(b / best_b))
        return float(expected[place][0] + _RISK * (2 * past + moves * moved))

    order = [risked((o.allocation.problems_per_batch, o.allocation.rollouts_per_problem)) for o in p.options]
    assert order[0] == pytest.approx(min(map(risked, expected)), abs=1e-9)
    assert set(listed) >= {place for place, (mean, _) in expected.items() if mean <= TOLERANCE - 1e-9}
    assert all(loss <= TOLERANCE for loss in list(listed.values())[1:])
    assert np.all(np.diff(order) >= -1e-12)
    assert min(listed.values()) >= 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("budget", [4e5, 9e5])
def test_n_star_by_hand(shared: SharedLaws, predicted: Any, hand: Any, name: str, budget: float) -> None:
    places, _, _, n = hand(name, budget)
    q = predicted(name, budget).n_star
    low, high = min(m for _, m in places), max(m for _, m in places)
    draws = np.where(n >= high, np.inf, np.where(n <= low, -np.inf, n))
    if q.status == "ok":
        assert low < q.value < high
    if q.interval is None:
        return
    ends = np.quantile(draws, [0.025, 0.05, 0.95, 0.975], method="inverted_cdf")
    if q.interval[0] is not None and math.isfinite(ends[0]):
        assert q.interval[0] <= ends[1] * 1.1
    if q.interval[1] is not None and math.isfinite(ends[-1]):
        assert q.interval[1] >= ends[2] * 0.9
    if "paper" in name:
        assert {end for end in q.interval if end is not None} <= set(LEVELS)


@pytest.mark.parametrize("hold", EACH_HOLD)
def test_what_is_recommended_is_good(predicted: Any, hold: str) -> None:
    """By the truth: it loses 0.01 at most, and its reward is in its interval, or near."""
    batches = {"B_p": lambda n: [32], "B": lambda n: [1024 // n], "nothing": lambda n: [16, 32, 64]}[hold]
    for budget in (2e5, 9e5):
        p = predicted(f"surface {hold}", budget)
        assert p.allocation is not None
        best = max(float(rewards(b, n, budget)) for n in WIDER for b in batches(n) if b * n * 20 <= budget)
        truth = float(rewards(p.allocation.problems_per_batch, p.allocation.rollouts_per_problem, budget))
        assert best - truth < 0.01
        assert p.reward.interval is not None
        low, high = p.reward.interval
        assert low - 0.01 < truth < high + 0.01


def test_joint_finds_the_best_batch(predicted: Any) -> None:
    """B_p = 16 costs 0.02; 32 costs 0.002, which is within tolerance of 64."""
    for method in METHODS:
        p = predicted(f"{method} nothing", 9e5)
        assert p.allocation.problems_per_batch in (32, 64)
        beyond = {128} if method == "surface" else set()  # not measured, so it may be as good as 64
        assert {o.allocation.problems_per_batch for o in p.options} <= {32, 64} | beyond


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("best", "told"),
    [
        (16, ["the best B_p may be smaller than 16, the smallest that ran"]),
        (32, []),
        (64, ["the best B_p may be larger than 64, the largest that ran"]),
    ],
)
def test_a_batch_at_the_edge_is_flagged(synthetic: Make, method: Any, best: int, told: list[str]) -> None:
    def reward(b: int, n: int, compute: Any) -> Any:
        ceiling = 0.5 + 0.03 * math.log2(n / 8) - 0.02 * abs(math.log2(b / best))
        return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))

    runs = synthetic([(b, n) for b in (16, 32, 64) for n in LEVELS[1:]], reward, checkpoints=12, **NOISE)
    p = isolaw.fit(runs, hold="nothing", method=method, draws=16).predict(9e5)
    beyond = {16: 8, 64: 128}.get(best) if method == "surface" else None  # what rises to the edge may go on
    assert p.allocation.problems_per_batch in (best, beyond)
    assert [flag.text for flag in flags_with(p.flags, Code.BATCH_EDGE)] == told


@pytest.mark.parametrize("method", METHODS)
def test_fixed_b_trades_n_for_problems(predicted: Any, method: str) -> None:
    seen = {predicted(f"{method} B", c).allocation for c in (3e4, 1.5e5, 9e5)}
    assert len({a.rollouts_per_problem for a in seen}) > 1
    assert all(a.problems_per_batch * a.rollouts_per_problem == 1024 for a in seen)


# n*, B_p* and M*


@pytest.mark.parametrize("budget", [1e5, 4e5, 9e5])
def test_at_a_fixed_b_p_m_star_follows_from_n_star(predicted: Any, budget: float) -> None:
    p = predicted("surface B_p", budget)
    assert (p.b_star.value, p.b_star.interval, p.b_star.status) == (32, None, "ok")
    assert p.m_star.value == pytest.approx(budget / (32 * p.n_star.value))
    flipped = {"ok": "ok", "lower_bound": "upper_bound", "upper_bound": "lower_bound"}
    assert p.m_star.status == flipped[p.n_star.status]
    assert p.n_star.interval is not None
    assert p.m_star.interval is not None
    for end, other in zip(p.n_star.interval, p.m_star.interval[::-1], strict=True):
        assert (end is None) == (other is None)
        if end is not None and other is not None:
            assert other == pytest.approx(budget / (32 * end), rel=0.02)


@pytest.mark.parametrize("budget", [1e5, 4e5, 9e5])
def test_at_a_fixed_b_b_p_star_is_b_over_n_star(predicted: Any, budget: float) -> None:
    p = predicted("surface B", budget)
    assert p.b_star.value == pytest.approx(1024 / p.n_star.value)
    assert (p.m_star.value, p.m_star.interval, p.m_star.status) == (pytest.approx(budget / 1024), None, "ok")


@pytest.mark.parametrize("budget", [1e5, 4e5, 9e5])
def test_over_a_plane_the_three_spend_the_budget(predicted: Any, budget: float) -> None:
    p = predicted("surface nothing", budget)
    assert p.n_star.value * p.b_star.value * p.m_star.value == pytest.approx(budget)
    assert 8 <= p.b_star.value <= 128
    for q in (p.n_star, p.b_star, p.m_star):
        if q.interval is None:
            continue
        low, high = q.interval
        assert low is None or low <= q.value
        assert high is None or q.value <= high


def test_runs_of_one_batch_size_say_nothing_of_others(shared: SharedLaws) -> None:
    p = isolaw.fit(shared.runs("surface B_p"), hold="nothing", draws=20).predict(3e5)
    assert p.n_star.value is not None
    assert {q.status for q in (p.b_star, p.m_star)} == {"refused"}


def test_in_other_units_there_is_no_m_star(shared: SharedLaws) -> None:
    """A step of another n costs other tokens, so that steps do not follow from n*."""
    table = shared.runs("surface B_p").to_pandas()
    law = isolaw.fit(Runs(table.assign(tokens=table["compute"] * 100)), x="tokens", draws=20)
    p = law.predict(3e7)
    assert p.unit == "tokens"
    assert p.m_star.status == "refused"
    assert p.n_star.value is not None
    assert p.allocation.steps == int(3e7 // (3200 * p.allocation.rollouts_per_problem))
    assert 0 <= p.unspent < 3200 * p.allocation.rollouts_per_problem


# How far runs carry


def test_runs_of_equal_steps_say_which_to_extend(synthetic: Make) -> None:
    """Every run has 300 steps: to compare n at the budget of the largest, the smaller must go on."""
    levels = [8, 16, 32, 64, 128, 256, 512]
    runs = synthetic([(32, n) for n in levels], rewards, compute=lambda b, n: 300 * b * n, **NOISE)
    law = isolaw.fit(runs, draws=50)
    reach = 301 * 32 * 128  # to which three n ran
    assert comparable_compute(law.document.grid) == reach
    at_reach, bound, far = (law.predict(k * reach) for k in (1, 4, 11))
    assert not flags_with(at_reach.flags, Code.CENSORED, Code.FAR)
    (flag,) = flags_with(bound.flags, Code.CENSORED)
    assert flag.text.endswith("ran past 1.23M rollouts; this budget is 4× that")
    assert flags_with(far.flags, Code.FAR)
    assert far.allocation is None
    assert [run.rollouts_per_problem for run in far.step.runs] == [128]  # 256 and 512 ran far enough
    assert far.step.spent < far.compute


def test_accuracies_stay_between_0_and_1(synthetic: Make) -> None:
    """Rewards near 1 that still rise, and a fall that would cross 0: bounded in every draw, however far."""

    def nearly(_b: int, n: int, compute: Any) -> Any:
        return 0.98 - 0.6 * np.exp(-compute / 5e5) - 0.003 * abs(math.log2(n / 64))

    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], nearly, **NOISE), draws=60)
    for times in (1.0, 3.0, 10.0):
        p = law.predict(times * 9.8e5)
        assert p.options
        for o in p.options:
            values = [o.reward.value, *(o.reward.interval or ())]
            assert all(0 <= v <= 1 for v in values)
        assert 0 <= p.options[0].expected_loss <= 1
    for point in law.document.frontier:
        assert all(0 <= v <= 1 for v in (point.reward.value, *(point.reward.interval or ())))


# Continuity: what a little more or less data, or budget, may change

NINE = [8 * 2**i for i in range(9)]
BUDGETS = (1e5, 4e5, 1.003e6)  # the last is just past where the runs end
SMALL = {"noise": 0.006, "between": 0.01}


class Said:
    """What a law says of a budget, and what that is worth by the truth."""

    def __init__(self, law: Law, budget: float, truth: Any) -> None:
        p = law.predict(budget)
        assert p.allocation is not None
        assert law.surface is not None
        fine = 2 ** np.linspace(3, 11, 801)
        best = float(truth(32, fine, budget).max())
        self.lost = best - float(truth(32, p.allocation.rollouts_per_problem, budget))
        self.star = p.n_star
        u = np.arange(3.0, 12.0)
        self.rewards = law.surface.rewards(u, np.full(9, 5.0), np.full(9, budget))

    def near(self, other: Said) -> None:
        """The same but for little: bounds are several times what sound data change."""
        assert abs(self.lost - other.lost) < 0.003
        assert np.abs(self.rewards[0] - other.rewards[0]).max() < 0.01
        spread = [value.rewards[1:].std(axis=0) for value in (self, other)]
        assert np.abs(np.log2(spread[0] / spread[1])).max() < 1
        assert self.star.status == other.star.status == "ok"
        for a, b in zip(self.star.interval or (), other.star.interval or (), strict=True):
            assert abs(math.log2(a / b)) < 0.75


def one_batch_later(table: Any, run_ids: list[str]) -> Any:
    """These runs with one more checkpoint, a step later, its reward about that of the last."""
    import pandas as pd

    more = table[table["run_id"].isin(run_ids)].sort_values("step").groupby("run_id").tail(1).copy()
    more["step"] += 1
    more["compute"] += 32 * more["rollouts_per_problem"]
    more["value"] += 0.006 * np.random.default_rng(0).standard_normal(len(more))
    return pd.concat([table, more], ignore_index=True)


@pytest.fixture(scope="module")
def nine(synthetic: Make, truth: Any) -> tuple[Any, dict[float, Said]]:
    """27 runs of nine n, and what their law says."""
    table = synthetic([(32, n) for n in NINE], truth, rng=0, **SMALL).to_pandas()
    law = isolaw.fit(Runs(table), draws=48)
    for budget in BUDGETS:
        said = Said(law, budget, truth)
        for factor in (0.99, 1.01):  # (c) the budget moves by 1 %
            Said(law, budget * factor, truth).near(said)
    return table, {budget: Said(law, budget, truth) for budget in BUDGETS}


LATER = {
    "8": ["32x8s0"],
    "128": ["32x128s1"],
    "2048": ["32x2048s2"],
    "two n": [f"32x{n}s{s}" for n in (32, 256) for s in range(3)],
}


NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)


@pytest.mark.parametrize("which", ["8", *(pytest.param(n, marks=NIGHTLY) for n in ("128", "2048")), "two n"])
def test_one_batch_later_hardly_matters(nine: Any, truth: Any, which: str) -> None:
    """Also where two n end a batch later than all others, and the budget lies between the two ends."""
    table, said = nine
    law = isolaw.fit(Runs(one_batch_later(table, LATER[which])), draws=48)
    for budget in BUDGETS:
        Said(law, budget, truth).near(said[budget])


@pytest.mark.parametrize(
    "run_id", [*(pytest.param(value, marks=NIGHTLY) for value in ("32x8s0", "32x64s1")), "32x2048s2"]
)
def test_one_run_of_27_hardly_matters(nine: Any, truth: Any, run_id: str) -> None:
    table, said = nine
    law = isolaw.fit(Runs(table[table["run_id"] != run_id]), draws=48)
    for budget in BUDGETS:
        Said(law, budget, truth).near(said[budget])


@pytest.mark.parametrize("end", [4e5, 7e5])
def test_an_n_that_ends_early_still_competes(synthetic: Make, truth: Any, end: float) -> None:
    """The best n ran to half the budget: it is neither forgotten there, nor a jump away from it."""
    runs = synthetic([(32, n) for n in NINE], truth, compute=lambda b, n: end if n == 128 else 1e6, **SMALL)
    law = isolaw.fit(runs, draws=48)
    last = next(g.measured[1] + g.step_cost for g in law.document.grid if g.rollouts_per_problem == 128)
    before, after = (Said(law, last * k, truth) for k in (0.999, 1.001))
    before.near(after)
    assert Said(law, 1e6, truth).lost < 0.004


# Flags and refusals


def test_ten_times_within_a_step_is_ten_times(synthetic: Make) -> None:
    """A grid to a nominal C ends up to a step before it."""
    law = isolaw.fit(synthetic([(32, n) for n in (64, 256, 1024)], compute=4e5), draws=10)
    reach = comparable_compute(law.document.grid)
    step = max(entry.step_cost for entry in law.document.grid if entry.end == reach)
    assert law.predict(10 * (reach + 0.9 * min(step, 0.1 * reach))).options
    assert not law.predict(10 * (reach + 1.1 * min(step, 0.1 * reach))).options


def told(law: Law, budget: float, code: Code) -> str:
    return "; ".join(flag.text for flag in flags_with(law.predict(budget).flags, code))


@pytest.mark.parametrize("method", METHODS)
def test_flags(shared: SharedLaws, method: str) -> None:
    law = shared.law(f"{method} B_p")
    assert {flag.code for flag in law.predict(3e5).flags} <= {Code.UNCERTAIN}
    assert law.predict(3e5).n_star.status == "ok"
    assert told(law, 9e6, Code.EXTRAPOLATION) == "this budget is 9× the longest run"
    then = ", so n* is at most a bound" if method == "paper" else ""
    text = "long extrapolation: fewer than three values of n ran past 999k rollouts; this budget is "
    assert told(law, 9e6, Code.CENSORED) == f"{text}9× that{then}"
    assert not told(law, 9e6, Code.FAR)
    assert told(law, 1.1e7, Code.FAR) == f"{text}11× that"
    assert not told(law, 5e5, Code.EXTRAPOLATION)
    assert told(law, 2e4, Code.GRID_EDGE) == "the best n may be smaller than 8, the smallest measured n"
    assert law.predict(2e4).n_star.value <= 8
    assert told(law, 3e5, Code.FLAT) == ""


@pytest.mark.parametrize("method", METHODS)
def test_the_cap_is_flagged_where_it_binds(shared: SharedLaws, method: str) -> None:
    law = shared.law(f"{method} B_p")
    free, capped = law.predict(8e6), law.predict(8e6, max_batch_rollouts=4096)
    assert free.allocation.rollouts_per_problem > 128 >= capped.allocation.rollouts_per_problem
    assert flags_with(capped.flags, Code.LIMITED)
    at_cap = flags_with(law.predict(8e6, max_batch_rollouts=16384).flags, Code.LIMITED)
    assert bool(at_cap) == (method == "surface")  # where n = 1,024 would compete
    further = {flag.code for flag in law.predict(5e6, max_batch_rollouts=1024).flags}
    assert {Code.LIMITED, Code.EXTRAPOLATION, Code.CENSORED} <= further
    assert law.predict(4e5, max_batch_rollouts=256).allocation.rollouts_per_problem == 8
    for n_star in (capped.n_star, law.predict(4e5, max_batch_rollouts=4096).n_star):
        assert n_star.value <= 128 + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_epochs(shared: SharedLaws, method: str) -> None:
    law = shared.law(f"{method} B_p")
    assert law.document.epochs_seen == pytest.approx(32 * (1_000_000 // 256) / 2000)
    p = law.predict(5e5)
    assert p.epochs == pytest.approx(p.allocation.problems_per_batch * p.allocation.steps / 2000)
    assert not flags_with(p.flags, Code.EPOCHS)
    few = law.predict(5e5, n_train_problems=10)
    assert few.epochs == pytest.approx(p.epochs * 200)
    assert flags_with(few.flags, Code.EPOCHS)
    assert flags_with(few.flags, Code.FEWER_PROBLEMS)
    unknown = shared.law(f"{method} nothing").predict(5e5)
    assert unknown.epochs is None
    assert unknown.to_dict()["epochs"] is None
    assert flags_with(shared.law(f"{method} nothing").predict(5e5, n_train_problems=10).flags, Code.EPOCHS)


@pytest.mark.parametrize("budget", [math.nan, math.inf, 0, 0.5, -1e6])
def test_no_budget(shared: SharedLaws, budget: float) -> None:
    with pytest.raises(InputError, match="expected a number of rollouts from 1 to 1e"):
        shared.law("surface B_p").predict(budget)


def test_what_cannot_be_afforded(shared: SharedLaws) -> None:
    law = shared.law("surface B_p")
    with pytest.raises(InputError, match=r"a budget of 255 .* 256 rollouts"):
        law.predict(255)
    with pytest.raises(InputError, match=r"max_batch_rollouts = 255 .* 256 rollouts"):
        law.predict(1e6, max_batch_rollouts=255)
    with pytest.raises(InputError, match="n_train_problems: found 0"):
        law.predict(1e6, n_train_problems=0)
    assert law.predict(256).allocation.compute == 256


@pytest.mark.parametrize("method", METHODS)
def test_of_equals_none_is_taken(shared: SharedLaws, method: str) -> None:
    """The reward never changes, up to rounding: no allocation is better, and n* is not stated."""
    p = shared.law(f"{method} equal").predict(5e5)
    assert p.options == []
    assert {q.status for q in (p.n_star, p.b_star, p.m_star)} == {"refused"}
    assert flags_with(p.flags, Code.FLAT)


@pytest.mark.parametrize("case", CASES)
def test_the_shape_of_the_json(shared: SharedLaws, case: str) -> None:
    p = shared.law(case).predict(4e5, n_train_problems=6000)
    data = p.to_dict()
    assert data["compute"] == 400_000
    assert data["unit"] == "rollouts"
    for name in ("reward", "n_star", "b_star", "m_star"):
        assert set(data[name]) == {"value", "interval", "status"}
    n, b, steps = (data[k] for k in ("rollouts_per_problem", "problems_per_batch", "steps"))
    assert n * b * steps + data["unspent"] == 400_000
    assert all(isinstance(v, int) for v in (n, b, steps, data["unspent"], data["comparable"]))
    first = data["options"][0]
    assert {k: first[k] for k in ("rollouts_per_problem", "problems_per_batch", "steps")} == {
        "rollouts_per_problem": n,
        "problems_per_batch": b,
        "steps": steps,
    }
    for option in data["options"]:
        assert set(option["reward"]) == {"value", "interval", "status"}
        probability = option["probability_within_tolerance"]
        assert probability is None or 0 <= probability <= 1
        assert option["expected_loss"] >= 0
    assert data["expected_loss"] == first["expected_loss"]
    assert isinstance(p, Prediction)


# -- budgets in hours -------------------------------------------------------------------------------------


def cost_of(step_s: float, rollout_s: float, **more: Any) -> Cost:
    parts = {"step": StepPart(step_s, rollout_s)}
    return Cost(parts, 1.0, "rollouts", CostOrigin.RATE, **{"gpus": 8, "batches": (128, 32_768)} | more)


@pytest.mark.parametrize("case", ["paper B_p", "paper nothing", "surface B", "surface nothing"])
def test_where_a_rollout_costs_the_same_everywhere_hours_are_rollouts(shared: SharedLaws, case: str) -> None:
    cost = cost_of(0.0, 0.0036)
    hours, plain = shared.law(case).predict("1.6gpuh", cost=cost), shared.law(case).predict(200_000)
    assert (hours.compute, hours.unit, hours.asked) == (720, "seconds", "1.6gpuh")
    if case.startswith("paper"):
        assert [o.to_dict() for o in hours.options] == [o.to_dict() for o in plain.options]
    assert hours.allocation is not None
    assert plain.allocation is not None
    assert hours.allocation.batch_rollouts == plain.allocation.batch_rollouts
    assert hours.allocation.steps == plain.allocation.steps
    for in_hours, in_rollouts in ((hours.n_star, plain.n_star), (hours.m_star, plain.m_star)):
        assert 0.5 < in_hours.value / in_rollouts.value < 2  # a step of few draws' grid over a plane


def test_a_step_of_any_size_that_takes_time_favours_large_batches(shared: SharedLaws) -> None:
    law, seconds = shared.law("surface nothing"), 3600.0
    cheap, dear = cost_of(0.0, 0.02), cost_of(20.0, 0.002)
    for cost in (cheap, dear):
        p = law.predict("1h", cost=replace(cost, price=2.5))
        json.dumps(p.to_dict(), allow_nan=False)
        for option in p.options:
            a = option.allocation
            step = cost.step(a.problems_per_batch, a.rollouts_per_problem)
            assert step is not None
            assert a.steps == seconds // step
            spent = p.spent(option)
            assert spent is not None
            assert spent.seconds.value == pytest.approx(a.steps * step)
            assert spent.gpu_hours is not None
            assert spent.gpu_hours.value <= 8
            assert spent.money is not None
            assert spent.money.value == pytest.approx(2.5 * spent.gpu_hours.value)
    few, many = (law.predict("1h", cost=cost).allocation for cost in (cheap, dear))
    assert few is not None
    assert many is not None
    assert many.batch_rollouts > few.batch_rollouts


def test_more_hours_never_bring_back_a_recommendation(shared: SharedLaws) -> None:
    """An n whose steps are fast is the first to be too far away; the slow ones that remain are no answer."""
    law, cost = shared.law("surface B_p"), cost_of(60.0, 0.0005)
    answered = [
        bool(law.predict(f"{hours}h", cost=cost).options) for hours in np.geomspace(1, 3000, 20).round()
    ]
    assert answered[0]
    assert not answered[-1]
    assert answered == sorted(answered, reverse=True)


def test_budgets_in_hours_that_cannot_be_answered(shared: SharedLaws) -> None:
    law = shared.law("surface B_p")
    with pytest.raises(InputError, match="requires the cost of a step"):
        law.predict("8gpuh")
    with pytest.raises(InputError, match="384gpuh"):
        law.predict("8 gpu", cost=cost_of(1.0, 0.0))
    with pytest.raises(InputError, match="the shortest step takes 5e\\+03 s"):
        law.predict("1h", cost=cost_of(5000.0, 0.0))
    with pytest.raises(InputError, match="timed steps of only 64 rollouts"):
        law.predict("1h", cost=cost_of(1.0, 0.0, batches=(64,)))
    one = law.predict("1h", cost=cost_of(2.0, 0.0, batches=(32 * 128,)))
    assert {o.allocation.rollouts_per_problem for o in one.options} == {128}
    assert Code.COST_UNKNOWN in {flag.code for flag in one.flags}
    assert law.predict("1000h", cost=cost_of(1.0, 0.0)).allocation is None
    small = law.predict(1e5, cost=cost_of(1.0, 0.0, batches=(1, 2)))
    assert Code.COST_EXTRAPOLATED in {flag.code for flag in small.flags}
    assert law.predict(1e5).to_dict()["cost"] is None


def test_runs_that_ended_before_a_tenth_of_the_budget_do_not_compete(synthetic: Make) -> None:
    """Runs of equal steps: at the compute of the largest n, small n would be pure extrapolation."""
    runs = synthetic([(32, n) for n in (8, 32, 128, 512)], compute=lambda b, n: 60.0 * b * n, **NOISE)
    law = isolaw.fit(runs, draws=16)
    p = law.predict(60.0 * 32 * 512)
    assert {o.allocation.rollouts_per_problem for o in p.options} <= {64, 96, *range(128, 2049)}
    assert ["the runs of n = 8, 32 ended" in f.text for f in flags_with(p.flags, Code.LIMITED)] == [True]
    assert not flags_with(law.predict(60.0 * 32 * 64).flags, Code.LIMITED)
