"""What a simulated run records."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw import metrics
from isolaw.backends.bandit import _EVAL_SETS, _Evaluation
from isolaw.backends.bandit.options import create

EXACT = {"points": 6, "samples": 0, "sets": ["validation", "train"]}
STILL = {"lr": 1e-12, "kl": 0.0}


def test_exact_values_are_those_of_the_success_probabilities(spec) -> None:
    this = spec(evaluation={**EXACT, "metrics": ["avg@4", "best@128", "worst@2"]})
    model = create(this)
    rows = _Evaluation(this, lambda *_: np.random.default_rng(0)).rows(model, 0)
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


def test_drift_begins_at_nought_and_grows(spec, values) -> None:
    found = values(spec(evaluation=EXACT))
    drift = [v for (_, _, metric), v in sorted(found.items()) if metric == "drift"]
    assert drift[0] == 0
    assert drift[-1] > drift[1] > 0
