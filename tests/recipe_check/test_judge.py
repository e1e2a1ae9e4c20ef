"""What is decided within noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols

from isolaw.recipe_check.judge import judge


def rewards(
    means: list[float], seeds: int, noise: float, rng: np.random.Generator
) -> dict[int, dict[int, float]]:
    shared = rng.normal(0, 0.1, seeds)
    return {
        k: {s: m + shared[s] + noise * rng.standard_normal() for s in range(seeds)}
        for k, m in enumerate(means)
    }


def test_noise_is_that_of_a_two_way_analysis_of_variance() -> None:
    table = rewards([0.1, 0.2, 0.3, 0.3], 3, 0.02, np.random.default_rng(0))
    frame = pd.DataFrame([(k, s, r) for k, own in table.items() for s, r in own.items()], columns=list("ksr"))
    fitted = ols("r ~ C(k) + C(s)", frame).fit()
    found = judge(table)
    assert found.error == pytest.approx(np.sqrt(fitted.mse_resid / 3))
    difference = fitted.t_test("C(k)[T.2] - C(k)[T.1] = 0")
    assert found.mean[2] - found.mean[1] == pytest.approx(difference.effect[0])
    assert found.better(2, 1) == bool(difference.pvalue < 0.05)
    low, high = difference.conf_int()[0]
    assert found.least == pytest.approx((high - low) / 2)


def test_equal_recipes_are_decided_in_one_of_twenty() -> None:
    rng = np.random.default_rng(1)
    decided = [judge(rewards([0.5] * 4, 2, 0.01, rng)) for _ in range(2000)]
    share = np.mean([found.better(0, 1) or found.better(1, 0) for found in decided])
    assert 0.04 < share < 0.06


def test_one_seed_decides_nothing_and_instability_is_no_noise() -> None:
    found = judge({"a": {0: 0.1}, "b": {0: 0.9}})
    assert (found.error, found.least, found.undecided("a")) == (None, None, ["b"])
    table = rewards([0.5, 0.6, 0.6], 3, 0.001, np.random.default_rng(2))
    wild = {**table, 9: {0: 0.0, 1: 0.3, 2: 0.1}}
    assert not judge(wild).better(1, 0)
    assert judge(wild, unstable=[9]).better(1, 0)
    assert judge(wild, unstable=[9]).better(1, 9)
