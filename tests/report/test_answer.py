"""An answer: its lines, what they rest on, and what to run next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.errors import DataError, InputError, Refused
from isolaw.report.answer import Answer
from isolaw.report.text import prediction as words

LEVELS = [8, 32, 128, 512]


@pytest.fixture(scope="module")
def found(synthetic: Callable[..., Any]) -> Answer:
    return isolaw.answer(synthetic([(32, n) for n in LEVELS], noise=0.003), "2.5M", draws=20)


def test_it_is_what_fit_and_predict_say(found: Answer, synthetic: Callable[..., Any]) -> None:
    runs = synthetic([(32, n) for n in LEVELS], noise=0.003)
    law = isolaw.fit(runs, draws=20)
    prediction = law.predict(2.5e6)
    assert found.prediction.to_dict() == prediction.to_dict()
    a = prediction.allocation
    assert (found.n, found.B_p, found.M) == (a.rollouts_per_problem, a.problems_per_batch, a.steps)
    assert (found.loss, found.interval) == (prediction.options[0].expected_loss, prediction.reward.interval)
    assert found.backtest["fit_below"] == max(g.measured[1] for g in law.document.grid) / 8


def test_at_most_eight_lines_in_the_words_of_predict(found: Answer) -> None:
    lines = repr(found).splitlines()
    assert len(lines) <= 8
    assert lines[:3] == words._verdict(found.prediction)
    assert lines[3].startswith("Gain over the best at ")
    assert lines[4].startswith("Highest reward at n* ")
    assert [line.partition(":")[0] for line in lines[5:]] == ["Backtest", "Weak points"]
    rules = found.backtest["rules"]
    assert f"lost {rules['isolaw']['mean_loss']:.4f} in avg@4 on held-out seeds" in lines[5]
    assert f"{rules['largest n']['mean_loss']:.4f} (largest n)" in lines[5]
    table = found.table()
    assert table.iloc[0][["n", "B_p", "M"]].tolist() == [found.n, found.B_p, found.M]
    assert len(table) == len(found.prediction.options)
    assert "<table" in found._repr_html_()


def test_a_failed_backtest_changes_the_headline(found: Answer) -> None:
    def told(difference: float, error: float | None) -> str:
        rules = dict(found.backtest["rules"])
        lost = rules["isolaw"]["mean_loss"] + difference
        against = {"difference": difference, "standard_error": error}
        rules["n = 16"] = rules["n = 16"] | {"mean_loss": lost, "against_isolaw": against}
        rules = {name: rules[name] for name in ("isolaw", "n = 16")}
        return replace(found, backtest={**found.backtest, "rules": rules}).lines()[0]

    warning = " Do not rely on it: in the backtest of these runs, the simple rule 'n = 16' did better."
    assert told(-0.02, 0.004).endswith(warning)
    assert told(-0.02, None).endswith(warning)
    for difference, error in ((-0.02, 0.011), (-0.004, 0.0001), (0.02, 0.001)):
        assert told(difference, error) == found.lines()[0]


def test_after_a_failed_backtest_the_budget_is_not_to_be_spent(
    found: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {name: {**found.backtest["rules"][name]} for name in ("isolaw", "best measured")}
    rules["best measured"] |= {"mean_loss": 0.0, "against_isolaw": {"difference": -1, "standard_error": 0.1}}
    failed = {**found.backtest, "rules": rules}
    monkeypatch.setattr(type(found.fitted), "backtest", lambda *_: failed)
    predict = type(found.law).predict
    choices: dict[str, float] = {}
    changed = lambda *a, **k: replace(predict(*a, **k), rules=choices, step=None)  # noqa: E731
    monkeypatch.setattr(type(found.law), "predict", changed)
    for choice, start in (
        (
            4,
            "Do not spend the budget yet: train one more seed of n = 4, the choice of ",
        ),
        (found.n, "No"),
    ):
        choices["best_measured"] = float(choice)
        answer = isolaw.answer(found.fitted.runs, "2.5M", draws=20)
        assert answer.next.what.startswith(start)
        assert any(line.startswith(f"Next: {start}") for line in answer.lines())


@pytest.mark.parametrize("longest", [1.6e6, 8e6])
def test_one_n_that_ran_longer_does_not_prevent_a_backtest(synthetic: Callable, longest: float) -> None:
    ends = dict.fromkeys(LEVELS, 1e6) | {8: longest}
    runs = synthetic([(32, n) for n in LEVELS], noise=0.003, compute=lambda _, n: ends[n])
    backtest = isolaw.answer(runs, "2M", draws=20).backtest
    assert not isinstance(backtest, str)
    assert 0.9e6 < backtest["budgets"][-1] <= 1e6


def test_the_gain_is_the_difference_of_rewards_drawn_together(found: Answer) -> None:
    gain, law = found.gain, found.law
    today = gain.today
    reached = sorted(g.measured[1] for g in law.document.grid)[-3]
    assert today.compute == int(reached)
    places = np.log2([[found.n, today.n], [found.B_p, today.B_p]])
    reward = law.surface.drawn().rewards(*places, np.array([2.5e6, reached]))
    drawn = reward[1:, 0] - reward[1:, 1]
    assert gain.reward.value == pytest.approx(reward[0, 0] - reward[0, 1])
    assert gain.reward.interval == pytest.approx(np.quantile(drawn, [0.025, 0.975]))
    assert "Gain over the best at 999k rollouts, the most that three n were trained to (n = " in repr(found)
    # The truth of the synthetic runs: the ceiling rises by .03 for each doubling of n.
    truth = [
        (c := 0.5 + 0.03 * np.log2(n / 8)) - (c - 0.3) * np.exp(-x / (3e4 * (n / 8) ** 0.7))
        for n, x in ((found.n, 2.5e6), (today.n, float(today.compute)))
    ]
    low, high = gain.reward.interval
    assert low <= truth[0] - truth[1] <= high


def test_a_law_in_a_folder_without_logs_is_named_beside_what_is_missing(
    found: Answer, tmp_path: Path
) -> None:
    found.law.save(tmp_path / "law.json")
    with pytest.raises(DataError, match=r"found no log and (?s:.*)law\.json: a law, which has no runs"):
        isolaw.answer(tmp_path, 5e5, draws=20)


def test_within_the_runs_there_is_no_larger_budget(found: Answer) -> None:
    own = isolaw.answer(found.study.runs, 5e5, draws=20)
    assert own.gain is None
    assert "The runs cover this budget: they go to 999k rollouts, the most that three n " in repr(own)


def test_too_far_for_an_allocation(found: Answer) -> None:
    own = isolaw.answer(found.study.runs, "30M", draws=20)
    assert (own.n, own.B_p, own.M, own.loss, own.interval, own.gain) == (None,) * 6
    lines = own.lines()
    assert lines[0] == "isolaw recommends no allocation for 30M rollouts."
    assert lines[2].startswith("Next: Train n = ")
    assert lines[3].startswith("The largest budget with a recommendation is 10M rollouts: n = ")
    assert len(own.table()) == 0
    assert own.to_dict()["nearest"]["rollouts_per_problem"] == own.nearest.n


def test_mistakes(found: Answer, synthetic: Callable[..., Any], tmp_path: Path) -> None:
    law = found.law.save(tmp_path / "law.json")
    with pytest.raises(DataError, match=r"law\.json: a law, which has no runs; .*: isolaw predict .* 2x$"):
        isolaw.answer(law, 1e6)
    with pytest.raises(InputError, match=r"found 'much'; expected rollouts, e\.g\. 1e6 or 1M, a multiple"):
        isolaw.answer(found.study.runs, "much", draws=20)
    with pytest.raises(Refused):
        isolaw.answer(synthetic([(32, 8), (32, 16)]), 1e6)


def test_a_law_and_a_prediction_print_what_they_found(found: Answer) -> None:
    prediction, law = found.prediction, found.law
    assert str(prediction).splitlines() == words.prediction_lines(prediction)
    split = f"n = {found.n}, B_p = 32, M = {found.M}"
    assert repr(prediction) == f"<Prediction: 2.5e6 rollouts: {split}; expected loss {found.loss:.4f}>"
    text = law.summary().splitlines()
    assert [line.partition(" ")[0] for line in text[:3]] == ["For", "Expected", "Next:"]
    rows = text[text.index(next(line for line in text if line.startswith("law "))) :]
    assert [row.split()[0] for row in rows[1:6]] == ["constant", "power", "linear", "quadratic", "logistic"]
    preferred = law.document.comparison.preferred
    assert law.formula.startswith("n* = " if preferred in ("power", "constant", "linear") else "log2 n* = ")
    assert law.formula in law.summary()
    missed = law.residuals()["residual"]
    assert f"Residuals of {len(missed)} mean rewards: {(missed**2).mean() ** 0.5:.4f} (root" in law.summary()
