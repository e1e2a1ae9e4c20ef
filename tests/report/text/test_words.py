"""Plain words: numbers, intervals, and summaries that say what is not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw import evidence as numbers
from isolaw.evidence import Quantity
from isolaw.fits.document.schema import LawDocument, LawEntry
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.fits.law import Law
from isolaw.fits.optimum import to_measured_level
from isolaw.fits.studies.backtest import backtest
from isolaw.report.page import law_charts
from isolaw.report.page.law_charts import _law_line as law_line
from isolaw.report.text import law as law_text
from isolaw.report.text import prediction as prediction_text
from isolaw.report.text import studies
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
        (99_999, "99,999"),
        (393_216, "3.93e5"),
        (999_999, "1e6"),
        (1e6, "1e6"),
        (2_681_470, "2.68e6"),
        (1234.5, "1,230"),
        (0.68341, "0.683"),
        (12.345, "12.3"),
        (-3.0, "-3"),
        (-2e6, "-2e6"),
        (0.0001234, "0.000123"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert numbers.number(value) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([32.0, 128.0], "95 % interval: 32–128"),
        ([None, 128.0], "95 % bound: at most 128"),
        ([32.0, None], "95 % bound: at least 32"),
        ([64.0, 64.0], "95 % interval: 64"),
        ([-1.0, 2.0], "95 % interval: -1 to 2"),
        ([1e6, 2e6], "95 % interval: 1e6 to 2e6"),
    ],
)
def test_interval(ends: list[float | None], text: str) -> None:
    assert numbers.interval(ends) == text


@pytest.mark.parametrize(
    ("value", "interval", "status", "text"),
    [
        (64.0, [32.0, 128.0], "ok", "64 (95 % interval: 32–128)"),
        (64.0, None, "ok", "64"),
        (64.0, [32.0, None], "lower_bound", "64, perhaps more (95 % bound: at least 32)"),
        (64.0, [None, 128.0], "upper_bound", "64, perhaps less (95 % bound: at most 128)"),
        (0.71234, None, "not_identified", "0.712 (not identified)"),
        (None, None, "refused", "not stated"),
    ],
)
def test_quantity(value: float | None, interval: Any, status: str, text: str) -> None:
    assert str(Quantity(value, interval, status)) == text


def fit(synthetic: Make, pairs: Any = None, **options: Any) -> Law:
    hold = options.pop("hold", "B_p")
    return isolaw.fit(synthetic(pairs or [(32, n) for n in LEVELS], **options), hold=hold, draws=12)


def test_summary_of_a_law_at_the_edge(synthetic: Make) -> None:
    law = fit(synthetic, compute=1e7, noise=0.003)
    document = law.document
    law_line, first, ends, *rest = law_text.law_summary(document)
    assert law_line.startswith("isolaw prefers the law n* = ")
    assert first.startswith("avg@4 on validation, fitted to 12 runs with n = 8, 32, 128, 512 and B_p = 32.")
    assert "isolaw holds B_p fixed." in first
    intervals = [to_measured_level(point.n_star, document) for point in document.frontier]
    at = [
        f"{law_text.star(n_star)} at C = {numbers.number(point.x)}"
        for n_star, point in zip(intervals, document.frontier, strict=True)
    ]
    assert ends == f"n*, the n of 8–512 with the highest reward, is {at[0]} and {at[-1]}."
    assert "(95 % bound)" in at[-1]
    overtakes = [line for line in rest if "overtakes" in line]
    assert [line.split(" at ")[0] for line in overtakes] == [
        "n = 32 overtakes n = 8",
        "n = 128 overtakes n = 32",
        "n = 512 overtakes n = 128",
    ]
    assert all("(95 % " in line for line in overtakes)
    level = "No sign yet that n* levels off; if it does, at 512, perhaps more"
    assert any(line.startswith(level) for line in rest)


def test_summary_counts_steps_where_the_batch_is_fixed(synthetic: Make) -> None:
    law = fit(synthetic, [(1024 // n, n) for n in LEVELS], hold="B")
    text = "\n".join(law_text.law_summary(law.document))
    assert " and B = 1024. isolaw holds B fixed." in text
    assert " at M = 1 and " in text
    assert " C = " not in text


def test_summary_without_a_law(synthetic: Make) -> None:
    law = fit(synthetic, reward=lambda b, n, c: learnt(0.6 - 0.01 * np.log2(n), c))
    lines = law_text.law_summary(law.document)
    assert all(isinstance(line, str) and line for line in lines)
    assert not any("None" in line or "nan" in line for line in lines)


def learnt(ceiling: Any, compute: Any) -> Any:
    """A reward that rises from 0.3, where no n differs, to a ceiling."""
    return 0.3 + (ceiling - 0.3) * (1 - np.exp(-compute / 1e5))


def test_the_paper_says_where_its_logistic_fails(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], lambda b, n, c: learnt(0.5 + 0.1 * (n == 32), c), noise=0.003)
    document = isolaw.fit(runs, method="paper", draws=10).document
    assert law_text.verdict(document) == ""
    falls = replace(document, comparison=replace(document.comparison, verdict="no law"))
    assert law_text.verdict(falls) == "isolaw prefers no law: the logistic does not describe n*."


@pytest.fixture(scope="module")
def rising(synthetic: Make) -> Law:
    return isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.003), draws=60)


def test_the_laws_are_told_apart_by_draws(rising: Law) -> None:
    comparison = rising.document.comparison
    own = comparison.laws[comparison.preferred]
    line = law_text.law_summary(rising.document)[0]
    name = law_text.form(comparison.preferred, rising.document)
    assert line == (
        f"isolaw prefers the law {law_text.equation(rising.document)}, {name}. On average over C, its n "
        f"loses {own.mean_loss:.4f} in avg@4 against the best n; the best constant n loses "
        f"{comparison.laws['constant'].mean_loss:.4f}. No other law loses less in 95 % of draws."
    )
    assert own.better["constant"] >= 0.95
    others = {
        name: law.better[comparison.preferred] for name, law in comparison.laws.items() if law is not own
    }
    assert max(others.values()) < 0.95


def test_draws_that_prefer_none_say_so(rising: Law) -> None:
    comparison = replace(rising.document.comparison, preferred=None, verdict=None)
    document = replace(rising.document, comparison=comparison)
    assert law_text.verdict(document) == "The draws prefer no law."
    assert law_text.equation(document) == ""
    assert law_line(document, np.array([1e5])) is None


@pytest.mark.parametrize(("verdict", "said"), [("constant", True), ("power", False), (None, False)])
def test_a_constant_that_loses_little_is_named(rising: Law, verdict: str | None, said: bool) -> None:
    comparison = replace(rising.document.comparison, verdict=verdict)
    text = law_text.verdict(replace(rising.document, comparison=comparison))
    constant = comparison.laws["constant"]
    n = round(2 ** constant.theta[0])
    line = f"On the fitted surface, n = {n} loses at most {constant.max_loss:.3f} at any budget."
    assert text.endswith(line) == said


def test_without_draws_no_law_is_preferred(synthetic: Make) -> None:
    document = isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.003), draws=0).document
    assert law_text.verdict(document).startswith("Without draws, isolaw prefers no law.")
    assert prediction_text.laws(document).rows[1][-1].text == ""


UNSTATED = "Comparing laws needs 3 seeds per configuration; some have 2."


def test_two_seeds_prefer_no_law(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], compute=1e7, noise=0.003, seeds=2), draws=60)
    document = law.document
    told = [*law_text.law_summary(document), *prediction_text.prediction_lines(law.predict(1e6))]
    assert UNSTATED in told
    for claim in ("prefer ", " law: ", "levels off at", "hardly matters"):
        assert not any(claim in message for message in told)
    assert law_text.equation(document) == ""
    assert law_line(document, np.array([1e5])) is None
    assert "The dashed line" not in law_charts._n_star_caption(document)
    table = prediction_text.laws(document)
    assert table is not None
    assert not any("preferred" in row[0].text for row in table.rows)


@pytest.mark.parametrize(
    ("status", "why", "text"),
    [
        ("ok", None, "n* levels off at 64."),
        (
            "lower_bound",
            None,
            "No sign yet that n* levels off; if it does, at 64, perhaps more.",
        ),
        (
            "lower_bound",
            "no draws",
            "No sign yet that n* levels off; if it does, at 64, perhaps more.",
        ),
        ("refused", "it falls", "No sign yet that n* levels off."),
    ],
)
def test_only_a_level_that_is_known_is_one(rising: Law, status: Any, why: str | None, text: str) -> None:
    value = None if status == "refused" else 64.0
    document = replace(
        rising.document,
        params={**rising.document.params, "saturation": Quantity(value, None, status)},
        flags=() if why is None else (Flag(Code.NO_SATURATION, why),),
    )
    assert law_text.saturation(document) == text


def test_two_seeds_judge_no_law_of_the_papers_way(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], compute=1e7, noise=0.003, seeds=2)
    assert law_text.verdict(isolaw.fit(runs, method="paper", draws=10).document) == UNSTATED


def test_a_constant_that_is_preferred_is_called_one(synthetic: Make) -> None:
    def reward(_b: int, n: int, compute: Any) -> Any:
        return learnt(0.6 - 0.02 * np.log2(n / 64) ** 2, compute)

    law = isolaw.fit(synthetic([(32, n) for n in (16, 32, 64, 128, 256)], reward, noise=0.003), draws=60)
    line = law_text.law_summary(law.document)[0]
    assert line.startswith("isolaw prefers the law n* = ")
    assert ", a constant n. On average over C, its n loses " in line
    assert "the best constant" not in line


def test_summary_of_a_prediction(synthetic: Make) -> None:
    law = fit(synthetic, noise=0.003, attributes={"n_train_problems": 2000})
    prediction = law.predict(3e6)
    a, best = prediction.allocation, prediction.options[0]
    lines = prediction_text.prediction_lines(prediction)
    assert lines[0] == f"For 3M rollouts: n = {a.rollouts_per_problem:,}, B_p = 32, M = {a.steps:,} steps."
    assert lines[1].startswith(
        f"Expected loss {best.expected_loss:.4f} in avg@4 against the best of n = 2–2,048; "
        f"{numbers.share(best.probability)} of draws lose at most 0.005."
    )
    assert ("No run has this allocation" in lines[1]) == (not best.measured)
    assert lines[1].endswith(f" Predicted avg@4: {best.reward}.")
    assert lines[2] == f"Next: {prediction.next}"
    assert f"Highest reward at n* {law_text.star(prediction.n_star)}." in lines
    assert any(line.startswith("Simple rules choose n = ") for line in lines)
    for other in prediction.options[1:]:
        (line,) = [
            item for item in lines if item.startswith(f"  n = {other.allocation.rollouts_per_problem}, ")
        ]
        assert f"expected loss {other.expected_loss:.4f}" in line
        assert f"in {numbers.share(other.probability)} of draws" in line
        assert ("(not measured)" in line) == (not other.measured)
    assert any(line.startswith("The allocation makes ") for line in lines)
    cautions = [line.removeprefix("Caution: ") for line in lines if line.startswith("Caution: ")]
    assert cautions == [f"{note}." for note in law_text.notes(prediction.flags)]


def test_a_note_begins_with_a_capital_unless_it_begins_with_a_name() -> None:
    texts = ["the budget is large", "isolaw uses acc, the only accuracy", "n* may be larger"]
    said = law_text.notes(Flag(Code.AS_READ, text) for text in texts)
    assert said == ["The budget is large", *texts[1:]]


@pytest.mark.parametrize(
    ("hold", "places"),
    [("B", [(1024 // n, n) for n in LEVELS]), ("nothing", [(b, n) for b in (8, 32) for n in LEVELS])],
)
def test_where_reward_is_highest(synthetic: Make, hold: str, places: Any) -> None:
    """B_p* only where the hold leaves it open; no text but the recommendation names one n."""
    law = fit(synthetic, places, hold=hold, noise=0.003)
    prediction = law.predict(1e6)
    line = prediction_text._optimum(prediction)
    joint = f" and B_p* {law_text.star(prediction.b_star)}" if hold == "nothing" else ""
    assert line == f"Highest reward at n* {law_text.star(prediction.n_star)}{joint}."


def test_between_three_and_ten_times_n_star_of_the_paper_is_a_bound(synthetic: Make) -> None:
    rising = isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.003), method="paper", draws=20)
    prediction = rising.predict(6e6)
    lines = prediction_text.prediction_lines(prediction)
    bound = replace(prediction, n_star=Quantity(512.0, (128.0, None), "lower_bound"))
    assert prediction_text.stars(bound) == {
        "n*": "at least 128 (95 % bound), which is only a bound so far beyond the runs"
    }
    unknown = replace(prediction, n_star=Quantity(512.0, None, "not_identified"))
    assert prediction_text.stars(unknown) == {"n*": "not known"}
    assert any(line.startswith("Caution: Long extrapolation: ") for line in lines)


def test_beyond_ten_times_nothing_is_recommended(rising: Law) -> None:
    far = rising.predict(3e7)
    nearest = prediction_text.largest_with_recommendation(rising, far)
    lines = prediction_text.prediction_lines(far, nearest)
    assert lines[:2] == [
        "isolaw recommends no allocation for 30M rollouts.",
        "Long extrapolation: fewer than three values of n ran past 999k rollouts; this budget is 30× that.",
    ]
    assert lines[2].startswith("Next: Train n = 32, 128, 512 at B_p = 32 to 3.")
    assert lines[2].endswith("A recommendation needs three n that reach a tenth of the budget.")
    assert lines[3].startswith("The largest budget with a recommendation is 10M rollouts: n = ")
    assert lines[4:] == prediction_text.prediction_lines(rising.predict(1e7))[1:]
    assert prediction_text.prediction_lines(far) == lines[:3]
    assert prediction_text.largest_with_recommendation(rising, nearest) is None


def test_the_budget_instead_is_what_is_printed(synthetic: Make) -> None:
    law = fit(synthetic, noise=0.003, compute=1_234_567)
    far = law.predict(1e9)
    nearest = prediction_text.largest_with_recommendation(law, far)
    assert nearest is not None
    assert nearest.options
    assert nearest.compute == float(f"{nearest.compute:.3g}") <= far.comparable


@pytest.mark.parametrize(("seeds", "few"), [(2, True), (3, False)])
def test_two_seeds_are_few(synthetic: Make, seeds: int, few: bool) -> None:
    law = fit(synthetic, seeds=seeds, noise=0.003)
    lines = prediction_text.prediction_lines(law.predict(1e6))
    assert ("Caution: With two seeds per n, the error bars are rough." in lines) == few
    assert bool(flags_with(law.document.flags, Code.TWO_SEEDS)) == few


@pytest.mark.parametrize(
    ("name", "theta", "text", "in_steps"),
    [
        ("constant", [3.0], "n* = 8", "n* = 8"),
        ("power", [-4.0, 2.0], "n* = 0.0625 C^0.602", "log2 n* = −4 + 2 M"),
        ("linear", [-110.0, 24.0], "n* = −110 + 24 log10 C", "n* = −110 + 24 M"),
        (
            "non-monotone",
            [-8.0, 5.0, -0.4],
            "log2 n* = −8 + 5 log10 C − 0.4 (log10 C)²",
            "log2 n* = −8 + 5 M − 0.4 M²",
        ),
    ],
)
def test_the_preferred_law_is_quoted(
    rising: Law, name: str, theta: list[float], text: str, in_steps: str
) -> None:
    document = preferring(rising, name, theta)
    assert law_text.equation(document) == text
    steps = replace(document, x=replace(document.x, name="steps", log10=False))
    assert law_text.equation(steps) == in_steps
    drawn = preferring(rising, name, theta, tuple((t - 1, t + 1) for t in theta))
    told = {
        "constant": " (95 % interval: 4–16)",
        "power": " (exponent, 95 % interval: 0.301–0.903)",
    }
    assert law_text.equation(drawn) == text + told.get(name, "")
    assert law_text.equation(preferring(rising, name, [])) == ""


def preferring(law: Law, name: str, theta: list[float], interval: Any = None) -> LawDocument:
    """The law's document, had the draws preferred this one."""
    entry = LawEntry(0.0, 0.0, tuple(theta), interval)
    comparison = replace(law.document.comparison, preferred=name, laws={name: entry})
    return replace(law.document, comparison=comparison)


@pytest.mark.parametrize(
    ("name", "theta", "text"),
    [
        ("constant", (3.0,), "n0 = 8 (4 to 16)"),
        ("power", (-4.0, 2.0), "α = −4 (−5 to −3), β = 2 (1 to 3)"),
        (
            "logistic",
            (3.0, 6.0, 0.0, 5.0),
            "b = 3 (2 to 4), L = 6 (5 to 7), k = 1 (0.368 to 2.72), x0 = 5 (4 to 6)",
        ),
    ],
)
def test_parameters_of_a_law(name: str, theta: tuple[float, ...], text: str) -> None:
    ends = tuple((t - 1, t + 1) for t in theta)
    assert law_text.parameters(name, LawEntry(0.0, 0.0, theta, ends)) == text
    assert law_text.parameters(name, LawEntry(0.0, 0.0, (), None)) == ""


@pytest.mark.parametrize("method", ["surface", "paper"])
def test_the_drawn_law_is_the_law_of_the_document(synthetic: Make, method: Any) -> None:
    document = isolaw.fit(synthetic([(32, n) for n in LEVELS]), method=method, draws=0).document
    logistic = {name: document.params[name].value for name in ("b", "L", "x0")}
    entry = LawEntry(0.0, 0.0, (5.0, 0.0), None)
    comparison = replace(document.comparison, laws={"power": entry}, preferred="power")
    drawn = law_line(replace(document, comparison=comparison), 10 ** np.array([logistic["x0"]]))
    expected = 5.0 if method == "surface" else logistic["b"] + logistic["L"] / 2
    assert drawn == pytest.approx(2**expected)


@pytest.mark.slow
@pytest.mark.numbers
def test_a_backtest_says_what_was_chosen_with_each_seed_left_out(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], noise=0.01, compute=3e6)
    result = backtest(runs, 6e5, draws=8)
    for rule, found in result["rules"].items():
        assert [len(places) for places in found["allocations"]] == [3] * 4
        for text, places in zip(studies.choices(result, rule), found["allocations"], strict=True):
            assert {f"n {n}" for _, n in places} == {" ".join(part.split()[:2]) for part in text.split(", ")}
