"""The verdict on two recipes: sentences that follow from the intervals, whichever way round."""

from __future__ import annotations

from typing import Any

import pytest

from isolaw.evidence import REFUSED, Quantity
from isolaw.fits.studies.recipes import (
    Contrast,
    RecipeComparison,
    TwoRecipes,
    _without_wide,
    sign_of_difference,
)
from isolaw.report.text.comparisons import _verdict as verdict
from isolaw.report.text.comparisons import recipes

NAMES = ("old", "new")


def row(value: float, interval: Any = None, status: Any = "ok") -> TwoRecipes:
    return TwoRecipes(Quantity(0.5), Quantity(0.5), Quantity(value, interval, status))


def words(compute: float | None = None, **rows: TwoRecipes) -> dict[str, str]:
    usual = {
        "A": row(0.01, (-0.01, 0.03)),
        "C_mid": row(1.1, (0.8, 1.5)),
        "end": row(0.01, (-0.01, 0.03)),
        "predicted": row(0.01, (-0.02, 0.04)),
        "reward": row(0.02, (0.01, 0.03)),
    }
    mean = Contrast([(32, 8)], usual | rows)
    return verdict(
        RecipeComparison(NAMES, {}, "avg@4", "validation", compute, [mean], mean, True, ("run", "run"), [])
    )


@pytest.mark.parametrize(
    ("interval", "neutral", "expected"),
    [
        ((0.1, 0.2), 0.0, 1),
        ((-0.2, -0.1), 0.0, -1),
        ((-0.1, 0.1), 0.0, 0),
        ((0.5, 0.9), 1.0, -1),
        ((0.9, 1.1), 1.0, 0),
        (None, 0.0, None),
    ],
)
def test_sides(interval: Any, neutral: float, expected: int | None) -> None:
    assert sign_of_difference(Quantity(0.3, interval), neutral) == expected
    assert sign_of_difference(Quantity(0.3, interval, "not_identified"), neutral) is None


@pytest.mark.parametrize(
    ("a", "text"),
    [
        (row(0.03, (0.01, 0.05)), "new has the higher ceiling, by 0.03 (95 %: 0.01 to 0.05)"),
        (row(-0.03, (-0.05, -0.01)), "old has the higher ceiling, by 0.03 (95 %: 0.01 to 0.05)"),
        (
            row(-0.01, (-0.05, 0.01)),
            "neither recipe has the higher ceiling beyond noise; old leads by 0.01 (95 %: -0.01 to 0.05)",
        ),
        (row(0.03), "new has the higher ceiling, by 0.03 (without an interval, so this may be noise)"),
        (row(0.0), "neither recipe has the higher ceiling, since both are equal"),
        (
            row(0.03, None, "not_identified"),
            "the curves do not determine which recipe has the higher ceiling",
        ),
    ],
)
def test_ceilings(a: TwoRecipes, text: str) -> None:
    assert words(A=a)["ceiling"] == text


@pytest.mark.parametrize(
    ("ratio", "start"),
    [
        (
            row(2.0, (1.5, 2.5)),
            "old is faster, since the C_mid of new is 2 times the C_mid of old (95 %: 1.5 to 2.5)",
        ),
        (row(0.5, (0.4, 0.6)), "new is faster, since the C_mid of new is 0.5 times"),
        (row(0.5, (0.4, 1.6)), "neither recipe is faster beyond noise; the C_mid of new is 0.5 times"),
        (row(0.5), "the C_mid of new is 0.5 times the C_mid of old (without an interval"),
        (row(1.0), "neither recipe is faster, since both are equal"),
        (row(0.5, None, "not_identified"), "the curves do not determine which recipe is faster"),
    ],
)
def test_speed(ratio: TwoRecipes, start: str) -> None:
    assert words(C_mid=ratio)["speed"].startswith(start)


UP, DOWN, EITHER = row(0.02, (0.01, 0.03)), row(-0.02, (-0.03, -0.01)), row(0.01, (-0.01, 0.03))


@pytest.mark.parametrize(
    ("end", "predicted", "parts"),
    [
        (UP, UP, ("new ends 0.02 higher (95 %: 0.01 to 0.03)", "first half of the compute predicts this")),
        (
            DOWN,
            DOWN,
            ("old ends 0.02 higher (95 %: 0.01 to 0.03)", "first half of the compute predicts this"),
        ),
        (UP, EITHER, ("new ends", "does not show this")),
        (UP, DOWN, ("new ends", "predicts the opposite")),
        (DOWN, UP, ("old ends", "predicts the opposite")),
        (
            EITHER,
            UP,
            ("no more than noise (95 %: -0.01 to 0.03)", "half of the compute predicts a difference"),
        ),
        (EITHER, EITHER, ("no more than noise", "predicts the same")),
        (UP, TwoRecipes(REFUSED, REFUSED, REFUSED), ("new ends", "cannot be fitted")),
        (EITHER, TwoRecipes(REFUSED, REFUSED, REFUSED), ("no more than noise", "cannot be fitted")),
        (TwoRecipes(REFUSED, REFUSED, REFUSED), UP, ("not tested", "no compute was measured for both")),
        (row(0.02), UP, ("not tested", "have no interval")),
        (row(0.0), row(0.0), ("not tested", "both end at the same reward")),
    ],
)
def test_the_first_half(end: TwoRecipes, predicted: TwoRecipes, parts: tuple[str, ...]) -> None:
    text = words(end=end, predicted=predicted)["first half"]
    assert all(part in text for part in parts), text


def test_a_budget_has_a_sentence_of_its_own() -> None:
    assert "reward" not in words()
    assert words(1e6)["reward"] == "new is better at C = 1e6, by 0.02 (95 %: 0.01 to 0.03)"


def test_a_ceiling_whose_interval_is_far_wider_than_the_rewards_is_unknown() -> None:
    """A score within 0 and 1 has no bounds of its own, so its curve can leave the ceiling open to 16."""
    ceilings = Quantity(0.108, (0.0147, 16.2)), Quantity(0.12, (0.1, 0.2)), Quantity(0.01, (-16.0, 0.2))
    open_ended = TwoRecipes(*ceilings)
    end = TwoRecipes(Quantity(0.1), Quantity(0.11), Quantity(0.01, (-0.01, 0.03)))
    rows = {"A": open_ended, "C_mid": row(1.1), "end": end, "predicted": row(0.01), "error": row(0.0)}
    mean = Contrast([(32, 8)], _without_wide(rows))
    made = RecipeComparison(NAMES, {}, "score", "validation", None, [mean], mean, True, ("run", "run"), [])
    said = recipes(made)
    assert "16.2" not in str(said)
    assert "0.12" in str(said)
    assert said.data["verdict"]["ceiling"].startswith("the curves do not determine which")
    assert said.data["mean"]["A"]["first"]["status"] == "not_identified"
