"""The whole way from runs to a law: known truths come back, and odd data are refused or survived."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, curve_fit

import isolaw
from isolaw.errors import InputError, IsolawError, Refused
from isolaw.fits.law import Law
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
Reward = Callable[[int, int, Any], Any]
LEVELS = [8, 16, 32, 64, 128, 256, 512]
STATUSES = {"ok", "lower_bound", "upper_bound", "not_identified", "refused"}


def level_off(b: int, n: int, compute: Any) -> Any:
    """n = 8 is never best; n* rises from 16 to 128 and stays: 256 and 512 are worse for ever.

    B_p = 16 costs 0.02, B_p = 32 costs 0.002 against 64.
    """
    doublings = math.log2(n / 8)
    ceiling = 0.5 + 0.04 * min(doublings, 4) - 0.06 * max(doublings - 4, 0) - 0.1 * (n == 8)
    cost = {16: 0.02, 32: 0.002}.get(b, 0.0)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7)) - cost


def rising(_b: int, n: int, compute: Any) -> Any:
    """Larger n are better for ever, later."""
    ceiling = 0.5 + 0.03 * math.log2(n / 8)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))


def best_n(reward: Reward, pairs: list[tuple[int, int]], compute: np.ndarray) -> np.ndarray:
    """The n of the highest true curve."""
    values = np.array([reward(b, n, compute) for b, n in pairs])
    return np.array([n for _, n in pairs])[values.argmax(axis=0)]


def logistic(x: np.ndarray, b: float, rise: float, k: float, x0: float) -> np.ndarray:
    return b + rise / (1 + np.exp(-k * (x - x0)))


def column(law: Law, name: str) -> np.ndarray:
    return np.array([p[name] for p in law.document["frontier"]])


def quantities(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every estimate in a document, with where it is."""
    if isinstance(node, dict):
        if "status" in node:
            yield path, node
        for key, value in node.items():
            yield from quantities(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from quantities(value, f"{path}/{index}")


def check_document(law: Law) -> None:
    """What holds for every law: strict JSON, statuses from the list, intervals in order."""
    json.dumps(law.document, allow_nan=False)
    for path, q in quantities(law.document):
        assert q["status"] in STATUSES, path
        assert "interval" in q, path
        assert ("x" if path.startswith("/crossovers") else "value") in q, path
        if q["interval"] is not None and None not in q["interval"]:
            assert q["interval"][0] <= q["interval"][1], path


def certain(law: Law) -> list[str]:
    """Where a continuous estimate has an interval of no width and status ok; n* itself is discrete."""
    return [
        path
        for path, q in quantities(law.document)
        if q["status"] == "ok" and not path.endswith("/n_star") and q["interval"] is not None
        if None not in q["interval"] and q["interval"][1] - q["interval"][0] <= 1e-12 * abs(q["interval"][1])
    ]


SETTINGS: dict[str, Any] = {
    "fixed-bp": {"pairs": [(32, n) for n in LEVELS], "compute": 1e7},
    "fixed-b": {"pairs": [(4096 // n, n) for n in LEVELS], "compute": 4096 * 3000},
    "joint": {"pairs": [(b, n) for b in (16, 32, 64) for n in LEVELS], "compute": 1e7},
}


@pytest.fixture(scope="module", params=SETTINGS)
def known(request: pytest.FixtureRequest, synthetic: Make) -> tuple[str, Law]:
    """A law fitted to curves with a known truth and hardly any noise."""
    own = SETTINGS[request.param]
    runs = synthetic(own["pairs"], level_off, noise=2e-4, compute=own["compute"], checkpoints=40)
    return request.param, isolaw.fit(runs, setting=request.param, bootstrap=40)


def truth_of(setting: str, law: Law) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute, x and true n* along the law's frontier."""
    x = column(law, "x")
    compute = x * 4096 if setting == "fixed-b" else x
    return (
        compute,
        x if setting == "fixed-b" else np.log10(x),
        best_n(level_off, SETTINGS[setting]["pairs"], compute),
    )


def test_the_best_n_comes_back(known: tuple[str, Law]) -> None:
    setting, law = known
    check_document(law)
    compute, _, expected = truth_of(setting, law)
    found = column(law, "n_star_strict")
    pairs = SETTINGS[setting]["pairs"]
    # Within 2 % of a change of n* either side of it is right.
    steady = np.array(
        [len(set(best_n(level_off, pairs, c * np.array([0.98, 1, 1.02])))) == 1 for c in compute]
    )
    assert steady.sum() >= 40
    assert found[steady].tolist() == expected[steady].tolist()
    assert column(law, "n_star_tolerance").tolist() == sorted(column(law, "n_star_tolerance"))
    assert not column(law, "censored").any()
    rewards = np.array([p["reward"]["value"] for p in law.document["frontier"]])
    best = np.max([level_off(b, n, compute) for b, n in pairs], axis=0)
    np.testing.assert_allclose(rewards, best, atol=0.002)


def test_the_law_comes_back(known: tuple[str, Law]) -> None:
    """As scipy fits it to the true n* at the same budgets."""
    setting, law = known
    _, x, expected = truth_of(setting, law)
    steep = 10 / np.ptp(x) if setting == "fixed-b" else 7
    middle = np.median(x[expected == 32])
    best, _ = curve_fit(logistic, x, np.log2(expected), [4, 3, steep, middle])
    found = [law.params[name].value for name in ("b", "L", "k", "x0")]
    assert found == pytest.approx(best, rel=0.05)
    assert all(law.params[name].status == "ok" for name in ("b", "L", "k", "x0"))


def test_saturation_is_stated_where_it_lies_inside_the_grid(known: tuple[str, Law]) -> None:
    _, law = known
    saturation = law.params["saturation"]
    assert saturation.status == "ok"
    assert saturation.value == pytest.approx(128, rel=0.1)
    assert not any("saturation" in w for w in law.document["warnings"])
    assert law.document["comparison"]["verdict"] == "logistic"


def test_x_is_named(known: tuple[str, Law]) -> None:
    setting, law = known
    x = law.document["x"]
    if setting == "fixed-b":
        assert law.document["fixed"] == {"batch_rollouts": 4096}
        assert (x["name"], x["unit"], x["log10"]) == ("steps", "steps", False)
        assert x["range"] == [1.0, 3000.0]
    else:
        assert (x["name"], x["unit"], x["log10"]) == ("compute", "rollouts", True)
        assert x["range"][0] == (64 if setting == "joint" else 32) * 512
    assert column(law, "x")[[0, -1]] == pytest.approx(x["range"])
    assert len(law.document["frontier"]) == 50


def test_crossovers_come_back(known: tuple[str, Law]) -> None:
    setting, law = known
    pairs = SETTINGS[setting]["pairs"]
    scale = 1 / 4096 if setting == "fixed-b" else 1.0
    checked = 0
    for c in law.document["crossovers"]:

        def lead(x: float, small: int = c["from"], large: int = c["to"]) -> float:
            own = {n: max(level_off(b, n, x) for b, m in pairs if m == n) for n in (small, large)}
            return own[large] - own[small]

        if c["supported"] and c["from"] >= 16 and c["to"] <= 128:
            root = brentq(lead, 2e4, SETTINGS[setting]["compute"])
            assert c["x"] == pytest.approx(root * scale, rel=0.01)
            assert c["interval"][0] <= c["x"] <= c["interval"][1]
            checked += 1
    assert checked == 6


def test_the_contract_of_the_document(known: tuple[str, Law]) -> None:
    setting, law = known
    d = law.document
    keys = "format setting fixed metric eval_set method x grid sources params frontier crossovers curves "
    assert set((keys + "bootstrap comparison warnings").split()) <= set(d)
    assert (d["format"], d["setting"], d["method"]) == ("isolaw.law/1", setting, "paper")
    assert (d["metric"], d["eval_set"]) == ("avg@4", "validation")
    for point in d["frontier"]:
        assert {"x", "n_star", "n_star_strict", "n_star_tolerance", "reward", "censored"} <= set(point)
        for name in ("n_star", "reward"):
            assert set(point[name]) == {"value", "interval", "status"}
    for crossing in d["crossovers"]:
        assert {"from", "to", "x", "interval", "status", "supported"} <= set(crossing)
    for q in d["params"].values():
        assert set(q) == {"value", "interval", "status"}
    assert {"unit", "draws", "failed"} <= set(d["bootstrap"])
    assert len(d["curves"]) == len(d["grid"]) == len(SETTINGS[setting]["pairs"])


# Saturation


def test_at_the_grids_edge_saturation_is_a_lower_bound(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS[::2]], rising, compute=1e7), bootstrap=30)
    assert column(law, "n_star_strict")[-1] == 512
    q = law.params["saturation"]
    assert (q.value, q.status) == (512.0, "lower_bound")
    assert q.interval is None or q.interval[1] is None
    assert any("n = 512 is the grid's edge" in w for w in law.document["warnings"])
    assert law.document["frontier"][-1]["n_star"]["status"] == "lower_bound"
    assert "grid edge" in law.document["frontier"][-1]["censored_by"]


@pytest.mark.parametrize("levels", [LEVELS, LEVELS[::2]], ids=["doublings", "quadruplings"])
@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_a_rise_that_the_runs_do_not_finish_is_no_saturation(
    synthetic: Make, levels: list[int], share: float
) -> None:
    """The runs end a little before the largest n takes over: n* is on its last stair but one, not level."""
    last = brentq(lambda c: rising(0, levels[-1], c) - rising(0, levels[-2], c), 1e5, 1e8)
    runs = synthetic([(32, n) for n in levels], rising, compute=share * last, noise=0.003)
    law = isolaw.fit(runs, bootstrap=40)
    assert column(law, "n_star_strict")[-1] < levels[-1]
    assert law.params["saturation"].status != "ok"


def falling(_b: int, n: int, compute: Any) -> Any:
    """Larger n rise faster and end lower: n* comes down."""
    ceiling = 0.7 - 0.03 * math.log2(n / 8)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (1e6 / (n / 8) ** 0.7))


def test_a_falling_n_star_has_no_law(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS[::2]], falling, noise=0.005), bootstrap=30)
    check_document(law)
    assert not law.document["comparison"]["monotone"]
    assert law.document["comparison"]["verdict"] == "no law"
    assert any("comes down again" in w for w in law.document["warnings"])
    assert law.params["L"].status != "ok"
    assert law.params["saturation"].status != "ok"


# Censoring


def test_runs_of_equal_length_censor_what_only_large_n_reach(synthetic: Make) -> None:
    """Every run has 300 steps: beyond the end of the small ones, n* is only a bound."""
    runs = synthetic([(32, n) for n in LEVELS[:5]], rising, compute=lambda b, n: 300 * b * n)
    law = isolaw.fit(runs, bootstrap=20)
    x, strict, censored = (column(law, name) for name in ("x", "n_star_strict", "censored"))
    for at, n, flag in zip(x, strict, censored, strict=True):
        neighbours = [m for m in (n // 2, n * 2) if m in LEVELS[:5]]
        missing = [m for m in neighbours if at >= 301 * 32 * m]
        assert flag == (bool(missing) or n in (8, 128))
    assert any("a neighbouring n was not measured" in w for w in law.document["warnings"])
    assert law.params["saturation"].status == "refused"


def test_what_has_no_neighbour_says_nothing(synthetic: Make) -> None:
    """n = 8 alone ran on for long: that it is the best of one does not bend the law down."""
    levels = [8, 32, 128, 512]
    plain = synthetic([(32, n) for n in levels], rising, start=3e4, compute=2e6, zero=False)
    longer = synthetic([(32, 8)], rising, start=3e4, compute=6e7, zero=False, checkpoints=60)
    table, more = plain.to_pandas(), longer.to_pandas()
    more = more[more["compute"] > table["compute"].max() + 32 * 512]
    both = Runs(pd.concat([table, more], ignore_index=True))
    laws = [isolaw.fit(runs, bootstrap=0) for runs in (plain, both)]
    alone = [p for p in laws[1].document["frontier"] if p["n_star"]["status"] == "not_identified"]
    assert [p["n_star_strict"] for p in alone].count(8) >= 10
    x = np.log10(np.geomspace(6e4, 1.5e6, 20))
    before, after = (law.logistic(x)[0] for law in laws if law.logistic is not None)
    np.testing.assert_allclose(after, before, atol=0.35)


# Odd data


def test_too_little(synthetic: Make) -> None:
    with pytest.raises(Refused, match="Add runs"):
        isolaw.fit(synthetic([(32, 8)]))
    with pytest.raises(Refused, match="Add runs"):
        isolaw.fit(synthetic([(32, 8), (32, 64)]))
    with pytest.raises(Refused, match="a curve needs 5"):
        isolaw.fit(synthetic([(32, n) for n in LEVELS], checkpoints=4, zero=False))


def test_flat_curves_have_no_records(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], lambda b, n, c: 0.5 + 0 * c, noise=0)
    with pytest.raises(Refused, match="--records off"):
        isolaw.fit(runs)


CONSTANT = {n: 0.6 if n == 32 else 0.5 for n in LEVELS}
ODD: dict[str, tuple[Reward, dict[str, Any]]] = {
    "all rewards equal": (lambda b, n, c: 0.5 + 0 * c, {"noise": 0.0}),
    "flat": (lambda b, n, c: 0.5 + 0 * c, {"noise": 0.01}),
    "falling": (lambda b, n, c: 0.5 - 0.3 * (1 - np.exp(-c / 1e5)), {"noise": 0.005}),
    "n* constant": (lambda b, n, c: CONSTANT[n] - (CONSTANT[n] - 0.3) * np.exp(-c / 1e5), {"noise": 0.005}),
    "n* falls": (falling, {"noise": 0.005}),
    "less than a factor of two": (rising, {"noise": 0.005, "start": 6e5, "zero": False}),
    "straight lines": (lambda b, n, c: 0.3 + 1e-8 * c * math.log2(n), {"noise": 0.002}),
    "percent": (lambda b, n, c: 100 * rising(b, n, c), {"noise": 0.5}),
    "negative": (lambda b, n, c: rising(b, n, c) - 5, {"noise": 0.005}),
    "one seed": (rising, {"noise": 0.01, "seeds": 1}),
    "much noise": (rising, {"noise": 0.2}),
    "five checkpoints": (rising, {"noise": 0.005, "checkpoints": 6}),
}


def outcome(runs: Runs, **options: Any) -> Law | IsolawError:
    """A law, or what isolaw said instead; any other exception is a defect."""
    try:
        return isolaw.fit(runs, **options)
    except IsolawError as error:
        return error


@pytest.mark.parametrize(("curve", "records"), [("exp", 0.005), ("exp", None), ("hill", 0.005)])
@pytest.mark.parametrize("name", ODD)
def test_odd_data(synthetic: Make, name: str, curve: str, records: float | None) -> None:
    """A result or a refusal that says what to do; no NaN, no warning, no certainty where data vary."""
    reward, options = ODD[name]
    runs = synthetic([(32, n) for n in LEVELS[::2]], reward, **options)
    law = outcome(runs, curve=curve, records=records, bootstrap=30)
    if isinstance(law, IsolawError):
        assert isinstance(law, Refused)
        assert any(word in str(law) for word in ("Add", "Run ", "--records off"))
        return
    check_document(law)
    if options["noise"]:
        assert certain(law) == []
    for budget in (2e4, 5e5, 3e7):
        prediction = law.predict(budget)
        json.dumps(prediction.to_dict(), allow_nan=False)
        assert prediction.allocation.compute <= budget
    fine = np.linspace(4, 8, 200)
    if law.logistic is not None:
        assert np.all(np.diff(law.logistic(fine), axis=1) >= -1e-9)


@pytest.mark.parametrize("rng", range(5))
def test_a_narrow_range_of_compute(synthetic: Make, rng: int) -> None:
    """Over less than a factor of two some draws have wild laws; they are draws all the same."""
    runs = synthetic([(32, n) for n in LEVELS[::2]], rising, noise=0.005, start=6e5, zero=False, rng=rng)
    law = outcome(runs, bootstrap=60)
    if isinstance(law, Law):
        check_document(law)
        assert law.params["saturation"].status != "ok"


def test_a_constant_n_star_is_called_constant(synthetic: Make) -> None:
    reward, options = ODD["n* constant"]
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS[::2]], reward, **options), bootstrap=30)
    assert set(column(law, "n_star_strict")) == {32}
    assert law.document["comparison"]["verdict"] == "constant"
    assert law.document["comparison"]["constant"]["n"] == 32
    assert law.predict(5e5).allocation.rollouts_per_problem == 32


def test_falling_rewards_are_not_called_rising(synthetic: Make) -> None:
    reward, options = ODD["falling"]
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS[::2]], reward, **options), records=None, bootstrap=10)
    assert not any("still rising" in w for w in law.document["warnings"])


def test_copies_of_one_run_are_not_several_seeds(synthetic: Make) -> None:
    """The same log under three seeds has no variation between seeds: say so, or refuse."""
    one = synthetic([(32, n) for n in LEVELS[::2]], rising, noise=0.01, seeds=1).to_pandas()
    copies = [one.assign(seed=s, run_id=one["run_id"] + f"copy{s}") for s in range(3)]
    law = outcome(Runs(pd.concat(copies, ignore_index=True)), bootstrap=20)
    if isinstance(law, IsolawError):
        assert "seed" in str(law)
        return
    assert any(word in w for w in law.document["warnings"] for word in ("identical", "same", "copies"))
    assert certain(law) == []


@pytest.mark.parametrize("jump", [0.1, -0.3])
@pytest.mark.parametrize("records", [0.005, None], ids=["records", "all"])
def test_an_outlier_does_not_move_n_by_more_than_a_level(
    synthetic: Make, jump: float, records: float | None
) -> None:
    """One evaluation of one run is off by ten standard deviations and more."""
    runs = synthetic([(32, n) for n in LEVELS], level_off, compute=1e7, noise=0.01)
    table = runs.to_pandas()
    own = table[(table["rollouts_per_problem"] == 64) & (table["seed"] == 1)].sort_values("compute")
    table.loc[own.index[15], "value"] += jump
    clean, hit = (isolaw.fit(r, records=records, bootstrap=15) for r in (runs, Runs(table)))
    check_document(hit)
    for budget in (5e4, 5e5, 5e6):
        n = [law.predict(budget).allocation.rollouts_per_problem for law in (clean, hit)]
        assert 0.5 <= n[1] / n[0] <= 2


@settings(max_examples=25)
@given(st.data())
def test_whatever_the_rewards(synthetic: Make, data: st.DataObject) -> None:
    """Any curves at all: a law that is monotone and strict JSON, or a refusal."""
    levels = data.draw(st.lists(st.sampled_from(LEVELS), min_size=2, max_size=5, unique=True))
    seed = data.draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    shape = {n: rng.uniform(0, 1, 2) for n in levels}
    tau = {n: 10 ** rng.uniform(3, 8) for n in levels}
    runs = synthetic(
        [(32, n) for n in sorted(levels)],
        lambda b, n, c: shape[n][0] + (shape[n][1] - shape[n][0]) * np.exp(-c / tau[n]),
        seeds=data.draw(st.sampled_from([1, 2, 3])),
        noise=data.draw(st.sampled_from([0.0, 1e-3, 0.05])),
        start=lambda b, n: 10 ** rng.uniform(3, 5.5),
        zero=data.draw(st.booleans()),
        rng=seed,
    )
    law = outcome(runs, records=data.draw(st.sampled_from([0.005, None])), bootstrap=8)
    if isinstance(law, IsolawError):
        assert str(law)
        return
    check_document(law)
    if law.logistic is not None:
        assert np.all(np.diff(law.logistic(np.linspace(2, 9, 100)), axis=1) >= -1e-9)
    prediction = law.predict(10 ** data.draw(st.floats(5, 9)))
    json.dumps(prediction.to_dict(), allow_nan=False)


def test_a_better_family_is_named(synthetic: Make) -> None:
    def hill(_b: int, n: int, compute: Any) -> Any:
        with np.errstate(divide="ignore"):
            return 0.3 + 0.4 / (1 + (3e4 * n / 8 / np.maximum(compute, 1e-9)) ** 0.8)

    law = isolaw.fit(synthetic([(32, n) for n in LEVELS[::2]], hill, noise=0.002), bootstrap=5)
    misfit = law.document["comparison"]["curves"]
    assert misfit["hill"] == pytest.approx(0.002, rel=0.2)
    assert misfit["exp"] > 2 * misfit["hill"]
    assert any("--curve hill fits the checkpoints better" in w for w in law.document["warnings"])
    with_hill = isolaw.fit(
        synthetic([(32, n) for n in LEVELS[::2]], hill, noise=0.002), curve="hill", bootstrap=5
    )
    assert not any("--curve" in w for w in with_hill.document["warnings"])


@pytest.mark.parametrize(
    "wrong",
    [{"curve": "linear"}, {"records": 0.0}, {"records": math.nan}, {"bootstrap": -1}, {"setting": "all"}],
)
def test_arguments(synthetic: Make, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="accepted"):
        isolaw.fit(synthetic([(32, n) for n in LEVELS[:3]]), **wrong)
