"""What a simulated run records."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw import metrics
from isolaw.backends.bandit import _EVAL_SETS, _Evaluation, _update_of
from isolaw.backends.bandit.options import create

EXACT = {"points": 6, "samples": 0, "sets": ["validation", "train"]}
STILL = {"lr": 1e-12, "kl": 0.0}


def test_exact_values_are_those_of_the_success_probabilities(spec) -> None:
    this = spec(evaluation={**EXACT, "metrics": ["avg@4", "best@128", "worst@2"]})
    model = create(this)
    rows = _Evaluation(this, _update_of(this), lambda *_: np.random.default_rng(0)).rows(model, 0)
    found = {(r.eval_set, r.metric): r.value for r in rows}
    for name in _EVAL_SETS:
        p = model.success(train=name == "train")
        assert found[name, "avg@4"] == pytest.approx(np.mean(p))
        assert found[name, "best@128"] == pytest.approx(np.mean(1 - (1 - p) ** 128))
        assert found[name, "worst@2"] == pytest.approx(np.mean(p**2))
        assert found[name, "zero_fraction"] == np.mean(p < 0.02)
        assert found[name, "gini"] == metrics.landscape(p).gini
    assert {r.n_samples for r in rows} == {None}


def test_samples_scatter_around_the_exact_values(spec, values) -> None:
    """Nothing is learned here, so every look measures the same probabilities."""
    exact = values(spec(recipe=STILL, evaluation=EXACT))
    noisy = values(spec(recipe=STILL, evaluation={**EXACT, "samples": 64, "points": 60}))
    for metric in ("avg@4", "best@4", "worst@4"):
        looks = np.array([v for (_, s, m), v in noisy.items() if (s, m) == ("validation", metric)])
        assert len(looks) > 20
        assert looks.std() > 0
        error = looks.std(ddof=1) / np.sqrt(len(looks))
        assert looks.mean() == pytest.approx(exact[0, "validation", metric], abs=4 * error)


def test_measuring_interference_changes_nothing_else(spec, values) -> None:
    with_it, without = (
        values(spec(evaluation={**EXACT, "metrics": ["avg@1", *more]}))
        for more in (["histogram", "interference"], [])
    )
    assert without == {key: with_it[key] for key in without}
    new = {metric for *_, metric in with_it.keys() - without.keys()}
    assert {"interference", "spillover"} < new
    for (step, _, metric), value in with_it.items():
        if metric == "interference":
            assert 0 <= value <= 1
            assert with_it[step, "train", "spillover"] > 0


def test_the_histogram_is_the_share_of_problems_in_each_bin(spec, values) -> None:
    found = values(spec(evaluation={**EXACT, "metrics": ["avg@1", "histogram"]}))
    last = max(step for step, *_ in found)
    for step in (0, last):
        shares = {m: v for (t, s, m), v in found.items() if (t, s) == (step, "train") and "pass@1 in" in m}
        assert len(shares) == 20
        assert sum(shares.values()) == pytest.approx(1)
    easy = [found[0, "train", f"pass@1 in [{k / 20:.2f}, {(k + 1) / 20:.2f})"] for k in range(6, 12)]
    assert sum(easy) == pytest.approx(1)  # all between 0.3 and 0.6


def test_interference_is_the_share_of_change_that_is_a_loss(spec) -> None:
    """A policy in which one step moves the other problems by known amounts."""

    class Known:
        def __init__(self) -> None:
            self.p = np.full(50, 0.5)

        def success(self, train: bool = False) -> np.ndarray:
            return self.p.copy()

        def drift(self) -> float:
            return 0.0

        def arrays(self) -> dict[str, np.ndarray]:
            return {"p": self.p.copy()}

        def restore(self, arrays: dict[str, np.ndarray]) -> None:
            self.p = arrays["p"]

        def advance(self, batches, update, rng) -> None:
            assert update.staleness == 0
            assert len(set(batches[0])) == 8
            others = np.delete(np.arange(50), batches[0])
            self.p[batches[0]] += 0.4  # what the step is for counts neither way
            self.p[others[:10]] -= 0.01
            self.p[others[10:40]] += 0.02

    this = spec(evaluation={**EXACT, "metrics": ["interference"]}, recipe={"staleness": 3})
    model = Known()
    rows = _Evaluation(this, _update_of(this), lambda *_: np.random.default_rng(0)).rows(model, 0)
    found = {r.metric: r for r in rows}
    assert found["interference"].value == pytest.approx(0.1 / 0.7)
    assert found["spillover"].value == pytest.approx(0.7 / 42)
    assert found["spillover"].n_problems == 42
    np.testing.assert_array_equal(model.p, 0.5)


def test_where_no_problem_is_left_there_is_no_interference(spec, run) -> None:
    whole = spec(problems_per_batch=50, evaluation={**EXACT, "metrics": ["interference"]})
    one = spec(
        options={"model": "tabular"}, problems={}, problems_per_batch=1,
        evaluation={**EXACT, "metrics": ["interference"]},
    )  # fmt: skip
    for this in (whole, one):
        assert not {r.metric for c in run(this) for r in c.rows} & {"interference", "spillover"}


def test_drift_begins_at_nought_and_grows(spec, values) -> None:
    found = values(spec(evaluation=EXACT))
    drift = [v for (_, _, metric), v in sorted(found.items()) if metric == "drift"]
    assert drift[0] == 0
    assert drift[-1] > drift[1] > 0
