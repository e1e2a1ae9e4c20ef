"""What to run next: from the gaps of a fit, and nothing where there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.design.decisions import Decision, DecisionStage, Ending, Request
from isolaw.report.text.runs_to_add import advice
from isolaw.runs import Runs

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]


def what(runs: Runs, compute: float = 1e6, **options: Any) -> list[str]:
    law = isolaw.fit(runs, **({"draws": 10} | options))
    return [own.what for own in advice(law.document, law.predict(compute))]


def learnt(ceiling: Any, compute: Any) -> Any:
    """A reward that rises from 0.3, where no n differs, to a ceiling."""
    return 0.3 + (ceiling - 0.3) * (1 - np.exp(-compute / 1e5))


def peaked(_b: int, n: int, compute: Any, best: float = 128) -> Any:
    """Highest at one n, whatever C."""
    return learnt(0.6 - 0.01 * np.log2(n / best) ** 2, compute)


def test_nothing_is_missing(synthetic: Make) -> None:
    assert what(synthetic([(32, n) for n in (32, 64, 128, 256, 512)], peaked, noise=0.002)) == []


def test_the_best_n_lies_between(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], lambda b, n, c: peaked(b, n, c, best=64), noise=0.002)
    assert what(runs) == ["Add n = 64."]


def test_an_edge_is_moved(synthetic: Make) -> None:
    rising = synthetic([(32, n) for n in LEVELS], lambda b, n, c: learnt(0.5 + 0.02 * np.log2(n), c))
    falling = synthetic([(32, n) for n in LEVELS], lambda b, n, c: learnt(0.8 - 0.02 * np.log2(n), c))
    for runs, n, keys in ((rising, "1,024", "8, 32, 128, 512, 1024"), (falling, "4", "4, 8, 32, 128, 512")):
        law = isolaw.fit(runs, draws=10)
        first = advice(law.document, None)[0]
        assert first.what == f"Add n = {n}."
        assert first.keys == (f"grid.rollouts_per_problem=[{keys}]",)
        assert f"'grid.rollouts_per_problem=[{keys}]'" in first.command("runs/a")
        assert first.command("") == ""


@pytest.mark.parametrize(
    ("sign", "b", "keys"), [(1, 64, "8, 16, 32, 64"), (-1, 4, "4, 8, 16, 32"), (0, 0, "")]
)
def test_a_batch_at_an_edge_is_moved(synthetic: Make, sign: int, b: int, keys: str) -> None:
    """Where B_p = 16 is best, nothing is to be added."""

    def reward(batch: int, n: int, compute: Any) -> Any:
        x = np.log2(batch / 16)
        ceiling = 0.6 - 0.01 * np.log2(n / 128) ** 2 + 0.03 * (sign * x if sign else -abs(x))
        return learnt(ceiling, compute)

    runs = synthetic([(own, n) for own in (8, 16, 32) for n in LEVELS], reward, noise=0.002)
    law = isolaw.fit(runs, hold="nothing", draws=10)
    found = [own for own in advice(law.document, law.predict(1e6)) if "B_p" in own.what]
    assert [own.what for own in found] == ([f"Add B_p = {b}."] if b else [])
    assert [own.keys for own in found] == ([(f"grid.problems_per_batch=[{keys}]",)] if b else [])


def test_a_law_of_batches_is_advised_about_batches(synthetic: Make) -> None:
    """At one n the largest B_p is best: more n would not help."""
    places = [(b, 32) for b in (8, 16, 32, 64)]
    runs = synthetic(places, lambda b, n, c: learnt(0.5 + 0.02 * np.log2(b), c), noise=0.002)
    law = isolaw.fit(runs, hold="n", draws=10)
    first = advice(law.document, law.predict(1e6))[0]
    assert first.what == "Run B_p = 128 first, to C = 9.99e5 rollouts each."
    assert first.keys == ("grid.problems_per_batch=[8, 16, 32, 64, 128]",)
    assert first.why == "The best B_p may be beyond the measured B_p."


def test_short_runs_go_on(synthetic: Make) -> None:
    """All with as many steps: the small n end early."""
    runs = synthetic([(32, n) for n in LEVELS], compute=lambda b, n: 200 * b * n)
    assert "Run n = 8, 32 to C = 6e5." in what(runs, 6e5)  # as far as the budget goes


@pytest.mark.parametrize(("seeds", "more"), [(1, True), (2, True), (3, False)])
def test_seeds(synthetic: Make, seeds: int, more: bool) -> None:
    found = what(synthetic([(32, n) for n in LEVELS], peaked, noise=0.002, seeds=seeds))
    assert ("Run 3 seeds of every configuration." in found) == more


def test_a_far_budget_wants_longer_runs(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], peaked, noise=0.002), draws=10)
    assert not any("third of the budget" in own.what for own in advice(law.document, law.predict(3e6)))
    for compute, goal in ((9e6, "3e6"), (3e7, "1e7")):
        prediction = law.predict(compute)
        (far,) = (own for own in advice(law.document, prediction) if "third of the budget" in own.what)
        assert far.what == f"Run n = 8, 32, 128, 512 to C = {goal}, a third of the budget."
        assert far.keys == (f"sweep.compute={int(compute) // 3}",)
        assert far.why.startswith("A recommendation requires that three n") == (not prediction.options)


def test_runs_that_collapse_are_looked_at(synthetic: Make) -> None:
    def reward(b: int, n: int, compute: Any) -> Any:
        value = peaked(b, n, compute)
        return np.where(compute > 3e5, 0.1, value) if b == 16 else value

    runs = synthetic([(b, n) for b in (16, 32) for n in LEVELS], reward, noise=0.002)
    assert "Check the unstable runs with B_p = 16 before you use them." in what(runs, hold="nothing")


def test_what_a_race_left_behind_is_not_run_further(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], peaked, noise=0.002, seeds=1)
    points = runs.points
    short = points[(points["rollouts_per_problem"] != 8) | (points["compute"] <= 2e5)]
    law = isolaw.fit(Runs(short, runs.attributes), draws=10)
    end = int(points["compute"].max())
    assert any(own.what.startswith("Run n = 8 to C") for own in advice(law.document, None))
    asked = Decision(DecisionStage.RUNG, tuple(Request(32, n, 0, end) for n in LEVELS), cost=9)
    found = {"spent": 1000, "compute": end, "best": (32, 128), "expected_loss": 0.02}
    for ending, text, keys in (
        (Ending.SPENT, "Raise the spend of the race", ("design.spend=2000",)),
        (Ending.COMPLETE, "Add seeds to the race.", ("sweep.seeds=2",)),
        (Ending.FAILED, "Continue the race.", ("design.kind=race",)),
    ):
        own = advice(law.document, None, [asked, Decision(DecisionStage.STOP, ending=ending, **found)])
        assert own[0].what.startswith(text)
        assert own[0].keys == keys
        assert not any("Run n = 8" in other.what or "seeds of every" in other.what for other in own)
    (going,) = (own for own in advice(law.document, None, [asked]) if "race" in own.what)
    assert going.command("runs/a") == "isolaw sweep --out runs/a --set design.kind=race"
    certain = [
        asked,
        Decision(DecisionStage.STOP, ending=Ending.CERTAIN, **{**found, "expected_loss": 0.0}),
    ]
    assert not any("race" in own.what for own in advice(law.document, law.predict(end), certain))
    (far,) = (own for own in advice(law.document, law.predict(9 * end), certain) if "race" in own.what)
    assert far.what.endswith("in a new directory.")


def test_a_small_budget_asks_for_no_larger_runs(synthetic: Make) -> None:
    def length(b: int, n: int) -> float:
        return 1e6 if n > 8 else 2e5

    runs = synthetic([(32, n) for n in LEVELS], peaked, compute=length, noise=0.002)
    assert what(runs, 1e6)[0] == "Run n = 8 to C = 9.99e5."
    assert what(runs, 1e5) == []
    small = isolaw.fit(
        synthetic([(32, n) for n in LEVELS[1:]], lambda b, n, c: learnt(0.9 - 0.05 * n**0.5, c))
    )
    first = advice(small.document, small.predict(4e4))[0]
    assert first.what.endswith("first, to C = 40,000 rollouts each.")
