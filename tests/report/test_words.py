"""Plain words: numbers, intervals, and summaries that say what is not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.fits.flags import Code, having
from isolaw.fits.law import Law
from isolaw.fits.law_document import LawDocument, LawEntry
from isolaw.fits.quantity import Quantity
from isolaw.fits.studies.backtest import backtest
from isolaw.report import answer_words, backtest_words, captions, words
from isolaw.report.page import tables
from isolaw.report.series import law_line
from isolaw.runs import Runs

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0"),
        (512.0, "512"),
        (1024, "1,024"),
        (65536, "65,536"),
        (999_999, "999,999"),
        (1e6, "1e+06"),
        (2_681_470, "2.68e+06"),
        (1234.5, "1,230"),
        (0.68341, "0.683"),
        (12.345, "12.3"),
        (-3.0, "-3"),
        (-2e6, "-2e+06"),
        (0.0001234, "0.000123"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([32.0, 128.0], "95 % of draws: 32 to 128"),
        ([None, 128.0], "95 % of draws: 128 or less"),
        ([32.0, None], "95 % of draws: 32 or more"),
        ([64.0, 64.0], "95 % of draws: 64"),
    ],
)
def test_interval(ends: list[float | None], text: str) -> None:
    assert words.interval(ends) == text


@pytest.mark.parametrize(
    ("value", "interval", "status", "text"),
    [
        (64.0, [32.0, 128.0], "ok", "64 (95 % of draws: 32 to 128)"),
        (64.0, None, "ok", "64"),
        (64.0, [32.0, None], "lower_bound", "64, perhaps more (95 % of draws: 32 or more)"),
        (64.0, [None, 128.0], "upper_bound", "64, perhaps less (95 % of draws: 128 or less)"),
        (0.71234, None, "not_identified", "0.712 (not identified)"),
        (None, None, "refused", "not stated"),
    ],
)
def test_quantity(value: float | None, interval: Any, status: str, text: str) -> None:
    assert words.quantity(Quantity(value, interval, status)) == text


def fit(synthetic: Make, pairs: Any = None, **options: Any) -> Law:
    setting = options.pop("setting", "fixed-bp")
    return isolaw.fit(synthetic(pairs or [(32, n) for n in LEVELS], **options), setting=setting, bootstrap=20)


def test_summary_of_a_law_at_the_edge(synthetic: Make) -> None:
    law = fit(synthetic, compute=1e7, noise=0.003)
    first, start, end, *rest = words.law_summary(law.document)
    assert first.startswith("avg@4 on validation: 12 runs, n = 8, 32, 128, 512; problems_per_batch = 32")
    assert "setting fixed-bp, curve exp" in first
    assert start == "n* at C = 16,384: 8, perhaps less (95 % of draws: 8 or less)."
    assert end == "n* at C = 1e+07: 512, perhaps more (95 % of draws: 512 or more)."
    overtakes = [line for line in rest if "overtakes" in line]
    assert [line.split(" at ")[0] for line in overtakes] == [
        "n = 32 overtakes n = 8",
        "n = 128 overtakes n = 32",
        "n = 512 overtakes n = 128",
    ]
    assert all("95 % of draws" in line for line in overtakes)
    assert any(
        line.startswith("Saturation: not reached; a level would lie at 512, perhaps more") for line in rest
    )


def test_summary_counts_steps_where_the_batch_is_fixed(synthetic: Make) -> None:
    law = fit(synthetic, [(1024 // n, n) for n in LEVELS], setting="fixed-b")
    text = "\n".join(words.law_summary(law.document))
    assert "batch_rollouts = 1024" in text
    assert "n* at M = 1: " in text
    assert " C = " not in text


def test_summary_without_a_law(synthetic: Make) -> None:
    law = fit(synthetic, reward=lambda b, n, c: 0.6 - 0.01 * np.log2(n) - 0.3 * np.exp(-c / 1e5))
    lines = words.law_summary(law.document)
    assert all(isinstance(line, str) and line for line in lines)
    assert not any("None" in line or "nan" in line for line in lines)


def test_a_constant_is_called_one(synthetic: Make) -> None:
    law = fit(synthetic, reward=lambda b, n, c: 0.5 + 0.1 * (n == 32) - 0.2 * np.exp(-c / 1e5), noise=0.003)
    assert any(line.startswith("A constant n = 32 loses at most") for line in words.law_summary(law.document))


def test_the_laws_are_told_apart(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], compute=1e7, noise=0.003), bootstrap=60)
    comparison = law.document.comparison
    line = next(own for own in words.law_summary(law.document) if own.startswith("Law: the rewards prefer "))
    names = {"logistic": "a logistic, n levelling off", "power": "a power law", "linear": "n linear in log C"}
    assert line.startswith(f"Law: the rewards prefer {names[comparison.preferred]}")
    for name, fitted in comparison.laws.items():
        difference = fitted.aic - comparison.laws[comparison.preferred].aic
        assert (f"{name} {difference:+.1f}" in line) == (name != comparison.preferred)
    held = comparison.laws[comparison.preferred].held_out_regret
    assert f"It loses {held:.4f} in reward on held-out seeds" in line
    assert f"the best constant n {comparison.laws['constant'].held_out_regret:.4f}" in line


UNSTATED = "Law: no preference is stated with fewer than 3 seeds per configuration (the fewest here: 2)."


def test_two_seeds_prefer_no_law(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], compute=1e7, noise=0.003, seeds=2), bootstrap=60)
    document = law.document
    told = [*words.law_summary(document), *answer_words.prediction_summary(law.predict(1e6), document)]
    (line,) = [own for own in told if own.startswith("Law: ")]
    laws = document.comparison.laws
    least = min(fitted.aic for fitted in laws.values())
    aics = ", ".join(f"{name} {fitted.aic - least:+.1f}" for name, fitted in laws.items())
    assert line == f"{UNSTATED} AIC above the least: {aics}."
    for claim in ("rewards prefer", "by the law", "levels off", "hardly matters"):
        assert not any(claim in own for own in told)
    assert words.equation(document) == ""
    assert law_line(law, np.array([1e5])) == (None, None)
    assert "The dashed line" not in captions.n_star(document)
    table = tables.laws(document)
    assert table is not None
    assert not any("preferred" in row[0].text for row in table.rows)
    assert "do not prefer" not in tables.parameters(document).caption


@pytest.mark.parametrize(
    ("status", "refused", "text"),
    [
        ("ok", None, "n* levels off at 64."),
        ("lower_bound", None, "not reached; a level would lie at 64, perhaps more."),
        ("not_identified", None, "not identified."),
        (
            "lower_bound",
            "few_seeds",
            "not stated with fewer than 3 seeds; a level would lie at 64, perhaps more.",
        ),
        ("not_identified", "few_seeds", "not stated with fewer than 3 seeds."),
    ],
)
def test_only_a_level_that_is_known_is_one(synthetic: Make, status: Any, refused: Any, text: str) -> None:
    document = isolaw.fit(synthetic([(32, n) for n in LEVELS]), bootstrap=0).document
    document = replace(
        document,
        params={**document.params, "saturation": Quantity(64.0, None, status)},
        comparison=replace(document.comparison, refused=refused),
    )
    assert words.saturation(document) == f"Saturation: {text}"


def test_two_seeds_judge_no_law_of_the_papers_way(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], compute=1e7, noise=0.003, seeds=2)
    assert words.verdict(isolaw.fit(runs, method="paper", bootstrap=10).document) == UNSTATED


def test_a_constant_that_is_preferred_is_called_one(synthetic: Make) -> None:
    def reward(_b: int, n: int, compute: Any) -> Any:
        return 0.6 - 0.02 * np.log2(n / 64) ** 2 - 0.2 * np.exp(-compute / 1e5)

    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], reward, noise=0.003), bootstrap=60)
    line = next(own for own in words.law_summary(law.document) if own.startswith("Law: the rewards prefer "))
    assert "a constant n (AIC" in line
    assert "the best constant" not in line


def test_summary_of_a_prediction(synthetic: Make) -> None:
    law = fit(synthetic, noise=0.003, attributes={"n_train_problems": 2000})
    prediction = law.predict(3e6)
    a = prediction.allocation
    lines = answer_words.prediction_summary(prediction, law.document)
    assert lines[0] == (
        f"For a budget of C = 3e+06 rollouts: n = {a.rollouts_per_problem} rollouts for each of B_p = 32 "
        f"problems, M = {a.steps:,} steps ({prediction.unspent:,} rollouts left over)."
    )
    best = prediction.options[0]
    assert lines[1] == (
        f"Expected to lose {best.expected_regret:.4f} in avg@4 against the best there is; "
        f"within 0.005 of it in {best.probability:.0%} of draws."
    )
    assert lines[2] == f"avg@4 then: {words.quantity(best.reward)}."
    star = words.quantity(prediction.n_star)
    assert lines[3].startswith(f"n*, where the fitted reward is highest: {star}")
    assert ("by the law (logistic)" in lines[3]) == (prediction.law_n.value is not None)
    for other in prediction.options[1:]:
        (line,) = [own for own in lines if own.startswith(f"  n = {other.allocation.rollouts_per_problem}, ")]
        assert f"loses {other.expected_regret:.4f}" in line
        assert f"in {other.probability:.0%} of draws" in line
    assert any(line.startswith("Epochs: ") for line in lines)
    assert [line for line in lines if line.startswith("Take care: ")] == [
        f"Take care: {words.flag(flag)}." for flag in prediction.flags
    ]


def test_from_one_n_the_best_cannot_be_told(synthetic: Make) -> None:
    """All with as many steps: at the largest budget the largest n is alone."""
    law = fit(synthetic, compute=lambda b, n: 200 * b * n)
    alone, several = law.predict(3e6), law.predict(1e5)
    lines = answer_words.prediction_summary(alone, law.document)
    assert lines[0].startswith(
        "At C = 3e+06 rollouts only n = 512 was measured, so the best n cannot be told"
    )
    assert lines[1].startswith("What n = 512 loses against another n is not known")
    assert not any("Expected to lose" in line or "highest" in line for line in lines)
    assert any(line.startswith("Take care: one n: ") for line in lines)
    assert answer_words.answer(several).startswith("For a budget of ")
    assert not having(several.flags, Code.ONE_N)


@pytest.mark.parametrize(("seeds", "few"), [(2, True), (3, False)])
def test_two_seeds_are_few(synthetic: Make, seeds: int, few: bool) -> None:
    law = fit(synthetic, seeds=seeds, noise=0.003)
    lines = answer_words.prediction_summary(law.predict(1e6), law.document)
    assert any(line.startswith("Take care: two seeds per configuration: ") for line in lines) == few
    assert bool(having(law.document.flags, Code.TWO_SEEDS)) == few


@pytest.mark.parametrize(
    ("name", "theta", "text", "n"),
    [
        ("constant", [3.0], "n* = 8", 8.0),
        ("power", [-4.0, 2.0], "n* = 0.0625 C^0.602", 2.0**6),
        ("linear", [-110.0, 24.0], "n* = −110 + 24 log10 C", 10.0),
        ("non-monotone", [-8.0, 5.0, -0.4], "log2 n* = −8 + 5 log10 C − 0.4 (log10 C)²", 2.0**7),
    ],
)
def test_the_preferred_law_is_quoted(
    synthetic: Make, name: str, theta: list[float], text: str, n: float
) -> None:
    law = fit(synthetic, noise=0.003)
    document = preferring(law, name, theta)
    assert words.equation(document) == text
    assert answer_words.by_law(law.predict(1e5), document) == words.number(n)
    drawn = preferring(law, name, theta, tuple((t - 1, t + 1) for t in theta))
    told = {
        "constant": " (95 % of draws: 4 to 16)",
        "power": " (exponent, 95 % of draws: 0.301 to 0.903)",
    }
    assert words.equation(drawn) == text + told.get(name, "")
    by = words.number(n) + (told[name] if name == "constant" else "")
    assert answer_words.by_law(law.predict(1e5), drawn) == by
    older = preferring(law, name, [])
    assert words.equation(older) == answer_words.by_law(law.predict(1e5), older) == ""


def preferring(law: Law, name: str, theta: list[float], interval: Any = None) -> LawDocument:
    """The law's document, had the rewards preferred this one."""
    entry = LawEntry(0.0, 0.0, tuple(theta), interval, chi2=1.0, aic=3.0, held_out_regret=None)
    comparison = replace(law.document.comparison, preferred=name, laws={name: entry})
    return replace(law.document, comparison=comparison)


def test_the_preferred_law_stays_within_what_was_measured(synthetic: Make) -> None:
    law = fit(synthetic, noise=0.003)
    for theta, text in (
        (2.0, "less than 8, the smallest measured"),
        (12.0, "more than 512, the largest measured"),
    ):
        document = preferring(law, "constant", [theta])
        assert answer_words.by_law(law.predict(1e5), document) == text


def test_a_backtest_says_what_was_chosen_with_each_seed_left_out(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], noise=0.01, compute=3e6)
    result = backtest(runs, 3e5, bootstrap=20)
    for rule, found in result["rules"].items():
        assert [len(places) for places in found["allocations"]] == [3] * 4
        for text, places in zip(backtest_words.choices(result, rule), found["allocations"], strict=True):
            assert {f"n {n}" for _, n in places} == {" ".join(part.split()[:2]) for part in text.split(", ")}
    lines = backtest_words.backtest_summary(result)
    ours = result["rules"]["isolaw"]
    least, most = (f([n for _, n in ours["allocations"][0]]) for f in (min, max))
    assert f"{ours['regret'][0]:.4f} (n {least if least == most else f'{least}–{most}'})" in lines[2]


def test_summary_of_points() -> None:
    budgets = np.geomspace(1e5, 1e7, 30)
    rng = np.random.default_rng(0)
    n_star = 2 ** (3 + 6 / (1 + np.exp(-7 * (np.log10(budgets) - 6.1))) + 0.1 * rng.standard_normal(30))
    document, _ = isolaw.fit_points(budgets, n_star)
    first, second = words.points_summary(document)
    assert first.startswith("30 points, SSE ")
    for name in ("L = ", "k = ", "log10 C0 = ", "b = "):
        assert name in first
    assert first.count("(SE ") == 4
    assert second == "Standard errors: conditional on independent points."
    falling, _ = isolaw.fit_points(budgets, n_star[::-1])
    assert "(SE " not in words.points_summary(falling)[0]
    assert words.points_summary(falling)[0].count("(not identified)") == 4
