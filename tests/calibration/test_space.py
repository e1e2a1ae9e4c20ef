"""Coordinates and their priors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from isolaw.calibration.observed import BINS
from isolaw.calibration.rounds import FIRST, MEMBERS, NEXT, ROUNDS
from isolaw.calibration.space import CONSTANTS, Beforehand, Space, parameters
from isolaw.simulators.problems import difficulty

BEFORE = Beforehand(mean=0.4, mean_sd=0.1, spread=5.0, spread_sd=0.3)


def test_zero_is_the_centre_and_every_constant_is_in_its_range() -> None:
    space = Space.of(BEFORE, kl=True)
    assert space.names == (*(c.name for c in CONSTANTS), "mean", "spread")
    centre = space.values(np.zeros(space.size))
    assert centre == pytest.approx({c.name: c.centre for c in space.coordinates})
    for x in (-4.0, 4.0):
        for c, value in zip(space.coordinates, space.values(np.full(space.size, x)).values(), strict=True):
            assert 0 < value < (1 if c.kind == "logit" else np.inf)


def test_a_coordinate_is_standard_normal_beforehand() -> None:
    lr = CONSTANTS[0]
    draws = lr.value(np.random.default_rng(0).standard_normal(4000))
    low, high = (lr.centre * np.exp(lr.sd * norm.ppf(share)) for share in (0.05, 0.95))
    assert np.mean((draws > low) & (draws < high)) == pytest.approx(0.9, abs=0.02)


def test_problems_have_the_mean_and_its_spread() -> None:
    space = Space.of(BEFORE, kl=True)
    text = space.problems_of(space.values(np.zeros(space.size)))
    assert text == "beta(2,3)"
    assert difficulty(text).easy
    extreme = space.problems_of({"mean": 0.5, "spread": 1e9})
    assert extreme == "beta(500,500)"
    assert Space.of("0.5 easy + 0.5 hard", kl=True).problems_of({}) == "0.5 easy + 0.5 hard"


def test_without_a_penalty_its_weight_is_zero_and_not_varied() -> None:
    space = Space.of("easy", kl=False)
    assert "kl" not in space.names
    found = parameters(space.values(np.zeros(space.size)))
    assert found.kl_easy == found.kl_hard == 0.0
    assert found.lr_easy == found.lr_hard == CONSTANTS[0].centre


def test_the_numbers_of_simulations_in_the_docs_are_current() -> None:
    page = (Path(__file__).parents[2] / "docs" / "calibrate.md").read_text()
    for words in (
        f"It draws {FIRST} sets of constants",
        f"{ROUNDS - 1} rounds of {NEXT} simulations",
        f"{MEMBERS} draws from the last posterior",
        f"at most {BINS} bins of log C and step 0",
    ):
        assert words in page, words
