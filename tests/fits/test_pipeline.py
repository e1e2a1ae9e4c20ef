"""The whole way from runs to a law: known truths come back, by either method, in every hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq, curve_fit

import isolaw
from isolaw.errors import InputError
from isolaw.evidence import amount
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.law import Law
from isolaw.runs import Runs

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

Make = Callable[..., Runs]
METHODS = ("surface", "paper")
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
    return np.array([getattr(p, name) for p in law.document.frontier])


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
    json.dumps(law.to_dict(), allow_nan=False)
    for path, q in quantities(law.to_dict()):
        assert q["status"] in STATUSES, path
        assert "interval" in q, path
        assert ("x" if path.startswith("/crossovers") else "value") in q, path
        if q["interval"] is not None and None not in q["interval"]:
            assert q["interval"][0] <= q["interval"][1], path


def certain(law: Law) -> list[str]:
    """Where a continuous estimate has an interval of no width and status ok; n* itself is discrete."""
    return [
        path
        for path, q in quantities(law.to_dict())
        if q["status"] == "ok" and not path.endswith("/n_star") and q["interval"] is not None
        if None not in q["interval"] and q["interval"][1] - q["interval"][0] <= 1e-12 * abs(q["interval"][1])
    ]


SETTINGS: dict[str, Any] = {
    "B_p": {"pairs": [(32, n) for n in LEVELS], "compute": 1e7},
    "B": {"pairs": [(4096 // n, n) for n in LEVELS], "compute": 4096 * 3000},
    "nothing": {"pairs": [(b, n) for b in (16, 32, 64) for n in LEVELS], "compute": 1e7},
}


@pytest.fixture(scope="module", params=SETTINGS)
def known(request: pytest.FixtureRequest, synthetic: Make) -> tuple[str, Law]:
    """The paper's law of curves with a known truth and hardly any noise."""
    own = SETTINGS[request.param]
    runs = synthetic(own["pairs"], level_off, noise=2e-4, compute=own["compute"], checkpoints=40)
    return request.param, isolaw.fit(runs, hold=request.param, method="paper", draws=40)


def truth_of(hold: str, law: Law) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute, x and true n* along the law's frontier."""
    x = column(law, "x")
    compute = x * 4096 if hold == "B" else x
    return (
        compute,
        x if hold == "B" else np.log10(x),
        best_n(level_off, SETTINGS[hold]["pairs"], compute),
    )


def test_the_best_n_comes_back(known: tuple[str, Law]) -> None:
    hold, law = known
    check_document(law)
    compute, _, expected = truth_of(hold, law)
    found = column(law, "n_star_strict")
    pairs = SETTINGS[hold]["pairs"]
    # Within 2 % of a change of n* either side of it is right.
    steady = np.array(
        [len(set(best_n(level_off, pairs, c * np.array([0.98, 1, 1.02])))) == 1 for c in compute]
    )
    assert steady.sum() >= 40
    assert found[steady].tolist() == expected[steady].tolist()
    assert column(law, "n_star_tolerance").tolist() == sorted(column(law, "n_star_tolerance"))
    assert not column(law, "censored").any()
    rewards = np.array([p.reward.value for p in law.document.frontier])
    best = np.max([level_off(b, n, compute) for b, n in pairs], axis=0)
    np.testing.assert_allclose(rewards, best, atol=0.002)


def test_the_law_comes_back(known: tuple[str, Law]) -> None:
    """As scipy fits it to the true n* at the same budgets."""
    hold, law = known
    _, x, expected = truth_of(hold, law)
    steep = 10 / np.ptp(x) if hold == "B" else 7
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
    assert not flags_with(law.document.flags, Code.NO_SATURATION)
    assert law.document.comparison.verdict == "logistic"


def test_x_is_named(known: tuple[str, Law]) -> None:
    hold, law = known
    x = law.document.x
    if hold == "B":
        assert law.document.fixed == {"batch_rollouts": 4096}
        assert (x.name, x.unit, x.log10) == ("steps", "steps", False)
        assert x.range == (1.0, 3000.0)
    else:
        assert (x.name, x.unit, x.log10) == ("compute", "rollouts", True)
        assert x.range[0] == (64 if hold == "nothing" else 32) * 512
    assert column(law, "x")[[0, -1]] == pytest.approx(x.range)
    assert len(law.document.frontier) == 50


def test_crossovers_come_back(known: tuple[str, Law]) -> None:
    hold, law = known
    pairs = SETTINGS[hold]["pairs"]
    scale = 1 / 4096 if hold == "B" else 1.0
    checked = 0
    for c in law.document.crossovers:

        def lead(x: float, small: int = c.from_, large: int = c.to) -> float:
            own = {n: max(level_off(b, n, x) for b, m in pairs if m == n) for n in (small, large)}
            return own[large] - own[small]

        if c.supported and c.from_ >= 16 and c.to <= 128:
            root = brentq(lead, 2e4, SETTINGS[hold]["compute"])
            assert c.x == pytest.approx(root * scale, rel=0.01)
            assert c.interval[0] <= c.x <= c.interval[1]
            checked += 1
    assert checked == 6


def test_the_contract_of_the_document(known: tuple[str, Law]) -> None:
    hold, law = known
    d = law.to_dict()
    keys = "format hold fixed metric eval_set method x grid sources params frontier crossovers curves "
    assert set((keys + "bootstrap comparison warnings").split()) <= set(d)
    assert (d["format"], d["hold"], d["method"]) == ("isolaw.law/1", hold, "paper")
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
    assert len(d["curves"]) == len(d["grid"]) == len(SETTINGS[hold]["pairs"])


# The surface


def smooth(b: Any, n: Any, compute: Any) -> Any:
    """Ceiling and time scale are smooth in log n; B_p = 45 is best."""
    u, v = np.log2(n / 8), np.log2(b / 45)
    ceiling = 0.5 + 0.05 * u - 0.004 * u * u - 0.01 * v * v
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * 2 ** (0.7 * u)))


def true_ridge(hold: str, compute: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log2 of the best n between 8 and 512 (at the best B_p), by brute force, and its reward."""
    n, b = 2 ** np.linspace(3, 9, 601), {"B_p": 32.0, "nothing": 45.0}.get(hold)
    values = np.array([smooth(4096 / n if b is None else b, n, c) for c in compute])
    return np.log2(n[values.argmax(axis=1)]), values.max(axis=1)


@pytest.fixture(scope="module", params=SETTINGS)
def surface(request: pytest.FixtureRequest, synthetic: Make) -> tuple[str, Law]:
    own = SETTINGS[request.param]
    runs = synthetic(own["pairs"], smooth, noise=1e-3, compute=own["compute"], checkpoints=40)
    return request.param, isolaw.fit(runs, hold=request.param, draws=80)


def test_the_ridge_comes_back(surface: tuple[str, Law]) -> None:
    """Within half a doubling (of which the grid takes an eighth), and what is lost by that is 0.003 at most.

    Over a plane n* moves along with B_p.
    """
    hold, law = surface
    check_document(law)
    assert (law.document.method, law.document.curve, law.document.records) == ("surface", None, None)
    x = column(law, "x")
    compute = x * 4096 if hold == "B" else x
    truth, best = true_ridge(hold, compute)
    found = np.array([p.n_star.value for p in law.document.frontier])
    error = np.log2(found) - truth
    assert np.abs(error).max() <= 0.5 + 1e-9
    assert np.abs(error).mean() < 0.2
    rewards = np.array([p.reward.value for p in law.document.frontier])
    np.testing.assert_allclose(rewards, best, atol=0.015)
    b = {"B_p": 32, "B": 4096 / found, "nothing": 45}[hold]
    assert (best - smooth(b, found, compute)).max() < 0.003
    inside = (found > 8.1) & (found < 511)
    assert inside.sum() >= 25
    assert len(set(found[inside])) > len(LEVELS)  # it is not one of those measured


def test_an_end_of_the_grid_is_a_bound(surface: tuple[str, Law]) -> None:
    _, law = surface
    for point in law.document.frontier:
        q = point.n_star
        edge = {8.0: "upper_bound", 512.0: "lower_bound"}.get(q.value, "ok")
        assert point.censored == (edge != "ok") == ("grid_edge" in point.censored_by)
        if q.interval is None:
            continue
        assert q.status == edge
        assert (q.interval[0] is None) >= (edge == "upper_bound")
        assert (q.interval[1] is None) >= (edge == "lower_bound")


def test_the_laws_are_compared(surface: tuple[str, Law]) -> None:
    """n* rises all along, so that a constant is beaten; not over a plane."""
    hold, law = surface
    comparison = law.document.comparison
    assert comparison.monotone
    if hold == "nothing":
        assert (comparison.laws, comparison.preferred, comparison.verdict) == ({}, None, None)
        return
    assert {"constant", "power", "linear", "non-monotone", "logistic"} == set(comparison.laws)
    assert comparison.preferred == comparison.verdict
    assert comparison.preferred not in ("constant", None)
    best, constant = (comparison.laws[name] for name in (comparison.preferred, "constant"))
    assert best.mean_loss < 0.2 * constant.mean_loss
    assert best.better["constant"] >= 0.95


def test_where_the_ridge_levels_off(surface: tuple[str, Law]) -> None:
    """At fixed B the true ridge rests at 156, or a bound near it is said; else n* may be at the edge."""
    hold, law = surface
    saturation = law.params["saturation"]
    if hold == "B":
        assert saturation.status in ("ok", "lower_bound")
        assert saturation.value == pytest.approx(156, rel=0.25)
    else:
        assert saturation.value >= 512 / 2**0.5 - 1e-6
        assert saturation.interval[1] is None


# Saturation


@pytest.mark.parametrize("method", METHODS)
def test_at_the_grids_edge_saturation_is_a_lower_bound(synthetic: Make, method: Any) -> None:
    runs = synthetic([(32, n) for n in LEVELS[::2]], rising, compute=1e7)
    law = isolaw.fit(runs, method=method, draws=30)
    assert column(law, "n_star_strict")[-1] == 512
    q = law.params["saturation"]
    assert (q.value, q.status) == (512.0, "lower_bound")
    assert q.interval is not None
    assert q.interval[1] is None
    (edge,) = flags_with(law.document.flags, Code.GRID_EDGE)
    assert "the largest measured n, 512, is the best" in edge.text
    assert law.document.frontier[-1].n_star.status == "lower_bound"
    assert "grid_edge" in law.document.frontier[-1].censored_by


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "share", "levels"),
    [
        ("surface", 0.6, LEVELS),
        ("surface", 0.8, LEVELS[::2]),
        ("surface", 0.95, LEVELS),
        ("paper", 0.6, LEVELS[::2]),
        ("paper", 0.8, LEVELS),
        ("paper", 0.95, LEVELS[::2]),
    ],
)
def test_a_rise_that_the_runs_do_not_finish_is_no_saturation(
    synthetic: Make, method: Any, share: float, levels: list[int]
) -> None:
    """The runs end a little before the largest n takes over: n* is on its last stair but one, not level."""
    last = brentq(lambda c: rising(0, levels[-1], c) - rising(0, levels[-2], c), 1e5, 1e8)
    runs = synthetic([(32, n) for n in levels], rising, compute=share * last, noise=0.003)
    law = isolaw.fit(runs, method=method, draws=60)
    assert column(law, "n_star_strict")[-1] < levels[-1]
    assert law.params["saturation"].status != "ok"


def falling(_b: int, n: int, compute: Any) -> Any:
    """Larger n rise faster and end lower: n* comes down."""
    ceiling = 0.7 - 0.03 * math.log2(n / 8)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (1e6 / (n / 8) ** 0.7))


@pytest.mark.parametrize("method", METHODS)
def test_a_falling_n_star_has_no_saturation(synthetic: Make, method: Any) -> None:
    runs = synthetic([(32, n) for n in LEVELS[::2]], falling, noise=0.005)
    law = isolaw.fit(runs, method=method, draws=60)
    check_document(law)
    assert not law.document.comparison.monotone
    if method == "paper":
        assert law.document.comparison.verdict == "no law"
    assert flags_with(law.document.flags, Code.NOT_MONOTONE)
    assert law.params["L"].status != "ok"
    assert law.params["saturation"].status == "refused"


# Censoring


def test_runs_of_equal_length_censor_what_only_large_n_reach(synthetic: Make) -> None:
    """Every run has 300 steps: beyond the end of the small ones, n* is only a bound."""
    runs = synthetic([(32, n) for n in LEVELS[:5]], rising, compute=lambda b, n: 300 * b * n)
    law = isolaw.fit(runs, method="paper", draws=20)
    x, strict, censored = (column(law, name) for name in ("x", "n_star_strict", "censored"))
    for at, n, flag in zip(x, strict, censored, strict=True):
        neighbours = [m for m in (n // 2, n * 2) if m in LEVELS[:5]]
        missing = [m for m in neighbours if at >= 301 * 32 * m]
        assert flag == (bool(missing) or n in (8, 128))
    assert flags_with(law.document.flags, Code.CENSORED)
    assert law.params["saturation"].status == "refused"


def test_beyond_three_times_where_three_n_ran_n_star_is_not_known(synthetic: Make) -> None:
    """Every run has 300 steps: all n compete wherever one ran, until those that compare are far behind."""
    runs = synthetic([(32, n) for n in LEVELS], rising, compute=lambda b, n: 300 * b * n)
    law = isolaw.fit(runs, draws=20)
    check_document(law)
    reach = 301 * 32 * 128
    for point in law.document.frontier:
        assert 8 <= point.n_star.value <= 512
        known = point.x <= 3 * reach
        assert known or (point.n_star.status, point.n_star.interval) == ("not_identified", None)
    assert sum(p.x > 3 * reach for p in law.document.frontier) >= 2
    (flag,) = flags_with(law.document.flags, Code.CENSORED)
    assert flag.text.endswith(f"n* is not known: fewer than three n ran past C = {amount(reach - 32 * 128)}")
    assert law.params["saturation"].status != "ok"


def test_what_has_no_neighbour_says_nothing(synthetic: Make) -> None:
    """n = 8 alone ran on for long: that it is the best of one does not bend the law down."""
    levels = [8, 32, 128, 512]
    plain = synthetic([(32, n) for n in levels], rising, start=3e4, compute=2e6, zero=False)
    longer = synthetic([(32, 8)], rising, start=3e4, compute=6e7, zero=False, checkpoints=60)
    table, more = plain.to_pandas(), longer.to_pandas()
    more = more[more["compute"] > table["compute"].max() + 32 * 512]
    both = Runs(pd.concat([table, more], ignore_index=True))
    laws = [isolaw.fit(runs, method="paper", draws=0) for runs in (plain, both)]
    alone = [p for p in laws[1].document.frontier if p.n_star.status == "not_identified"]
    assert [p.n_star_strict for p in alone].count(8) >= 10
    x = np.log10(np.geomspace(6e4, 1.5e6, 20))
    before, after = (logistic(x, *(law.params[name].value for name in ("b", "L", "k", "x0"))) for law in laws)
    np.testing.assert_allclose(after, before, atol=0.35)


@pytest.mark.parametrize(
    "wrong",
    [
        {"curve": "linear"},
        {"records": 0.0},
        {"records": math.nan},
        {"records": "some"},
        {"draws": -1},
        {"draws": 10_001},
        {"hold": "all"},
        {"method": "best"},
        {"x": "dollars"},
    ],
)
def test_wrong_arguments(synthetic: Make, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"expected|accepted"):
        isolaw.fit(synthetic([(32, n) for n in LEVELS[:3]]), **wrong)
