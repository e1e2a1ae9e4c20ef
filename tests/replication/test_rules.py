"""Each finding on tables whose truth is known: every verdict can be reached, and only by what it claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isolaw.fits.studies.retune import retune
from isolaw.replication import rules
from isolaw.replication.verdicts import Finding, Floats
from isolaw.runs import Runs

LEVELS = [2**k for k in range(2, 12)]
U = np.log2(LEVELS)
SEEDS = 8


def humps(peaks: Any, noise: float = 0.0, rng: int = 0) -> Floats:
    """Rewards (S, …, N) that are highest at log2 n = ``peaks`` (…), with a seed's own level."""
    generator = np.random.default_rng(rng)
    reward = 0.5 - 0.004 * (U - np.asarray(peaks, dtype=float)[..., None]) ** 2
    seeds = generator.standard_normal((SEEDS, *(1,) * reward.ndim))
    return reward + 0.05 * seeds + noise * generator.standard_normal((SEEDS, *reward.shape))


def along(peaks: Any, noise: float = 0.0) -> Floats:
    """The same along budgets, (S, N, X)."""
    return np.moveaxis(humps(peaks, noise), 1, 2)


def verdicts(make: Callable[[float, float], Finding]) -> list[str]:
    """A large and sure effect, a small and sure one, an unsure one, and one in the other direction."""
    return [make(*case).verdict for case in ((3.0, 1e-4), (0.5, 1e-4), (0.5, 0.05), (-3.0, 1e-4))]


ALL = ["yes", "partly", "no", "no"]


def test_f1_rises() -> None:
    assert verdicts(lambda d, e: rules.rises("easy", LEVELS, along(5 + d * np.linspace(0, 1, 6), e))) == ALL


@pytest.mark.parametrize(("end", "verdict"), [(9.0, "yes"), (9.3, "yes"), (9.9, "partly"), (11.5, "partly")])
def test_f1_saturates_when_the_top_two_are_not_best(end: float, verdict: str) -> None:
    found = rules.rises("easy", LEVELS, along([5, 7, end], 1e-5))
    assert found.verdict == verdict
    assert found.effect.verdict == "yes"
    assert ("no saturation" in found.notes[0]) == (verdict == "partly")


def test_f1_says_where_n_star_is_a_bound() -> None:
    found = rules.rises("hard", LEVELS, along([1.0, 7.0, 12.0], 1e-5))
    assert "start: n* is at the grid's edge, 4" in found.notes
    assert "end: n* is at the grid's edge, 2048" in found.notes
    assert found.effect.value == pytest.approx(9.0)


def test_f1_says_where_the_frontier_falls() -> None:
    values = along(np.linspace(5, 8, 9), 1e-6)
    assert any(n.startswith("reward on the frontier") for n in rules.rises("easy", LEVELS, values).notes)
    values[:, :, 4] += 0.2
    assert any(n.endswith("at C/4") for n in rules.rises("easy", LEVELS, values).notes)


def test_f1_without_runs_is_not_measured() -> None:
    found = rules.rises("easy", LEVELS, np.full((SEEDS, 10, 5), np.nan))
    assert found.verdict == "not measured"
    assert found.to_dict()["effect"]["value"] is None


def test_f2_harder() -> None:
    assert verdicts(lambda d, e: rules.harder(LEVELS, humps(6.0, e), humps(6.0 - d, e, rng=1))) == ALL


def test_f3_sharpening() -> None:
    def easy(d: float, e: float) -> Finding:
        return rules.sharpening("easy", LEVELS, humps(6 + d / 2, e), humps(6 - d / 2, e))

    def hard(d: float, e: float) -> Finding:
        return rules.sharpening("hard", LEVELS, humps(6 - d / 2, e), humps(6 + d / 2, e))

    assert verdicts(easy) == ALL
    assert verdicts(hard) == ALL
    assert easy(3, 0).statement == "worst@4 needs a larger n than best@4"
    assert hard(3, 0).statement == "best@4 needs a larger n than worst@4"


def test_f4a_batches() -> None:
    def found(of_batch: float, noise: float, of_n: float = 0.004) -> Finding:
        generator = np.random.default_rng(0)
        reward = -of_n * (U - 6.5) ** 2 - of_batch * np.array([1.0, 0.0, 0.3, 0.6])[:, None]
        values = reward + noise * generator.standard_normal((SEEDS, *reward.shape))
        return rules.batches(LEVELS, [16, 32, 64, 128], values, 32)

    # An n off by 8 costs 0.004 · 9 = 0.036.
    assert found(0.005, 1e-5).effect.value == pytest.approx(0.031, abs=1e-3)
    assert found(0.005, 1e-5).verdict == "yes"
    assert found(0.03, 1e-5).verdict == "partly"
    assert found(0.005, 0.1).verdict == "no"
    assert found(0.06, 1e-5).verdict == "no"


def test_f4b_shifts() -> None:
    assert verdicts(lambda d, e: rules.shifts(LEVELS, 4096, along(5 + d * np.linspace(0, 1, 6), e))) == ALL


@pytest.mark.parametrize(
    ("peaks", "verdict"),
    [
        ([4, 5, 7, 8, 6, 5], "yes"),  # up and down
        ([9, 7, 5, 5, 7, 9], "yes"),  # down and up
        ([4, 5, 6, 7, 6.5, 6.4], "partly"),  # turns, but by less than a doubling
        ([4, 5, 6, 7, 8, 9], "no"),
        ([6, 6, 6, 6, 6, 6], "no"),
    ],
)
def test_f4c_turns(peaks: list[float], verdict: str) -> None:
    assert rules.turns(LEVELS, 4096, along(peaks, 2e-4)).verdict == verdict


def test_f4c_is_not_taken_in_by_noise() -> None:
    """The largest turn of a flat, noisy path is always there; judged on the seed left out it is not."""
    generator = np.random.default_rng(5)
    found = []
    for _ in range(40):
        values = along(np.full(8, 6.0)) + 0.01 * generator.standard_normal((SEEDS, 10, 8))
        found.append(rules.turns(LEVELS, 4096, values).verdict)
    assert sum(v != "no" for v in found) <= 4


def test_f5a_alone() -> None:
    # The middle of the grid is at 6.5.
    assert verdicts(lambda d, e: rules.alone("constant", LEVELS, along(np.full(5, 6.5 - d), e))) == ALL


def test_f5b_landscape() -> None:
    def found(fewer: float, flatter: float = 0.05, noise: float = 1e-4) -> Finding:
        generator = np.random.default_rng(0)

        def falling(by: float) -> Floats:
            return 0.3 - by * (U - U[2]) / 5 + noise * generator.standard_normal((SEEDS, 10))

        return rules.landscape("hard", LEVELS, falling(fewer), falling(flatter), falling(0.0))

    assert found(0.05).verdict == "yes"
    assert found(0.005).verdict == "partly"
    assert found(0.05, flatter=-0.05).verdict == "partly"  # fewer, but more skewed
    assert found(0.05, noise=0.2).verdict == "no"
    assert found(-0.05).verdict == "no"
    assert found(0.05).effect.value == pytest.approx(0.05, abs=1e-3)  # n = 16 against n = 512


def test_f6_capped() -> None:
    def found(d: float, e: float) -> Finding:
        return rules.capped(LEVELS, [32, 500, 2000], humps([6 - d / 2, 6, 6 + d / 2], e))

    assert verdicts(found) == ALL
    assert found(3, 0).tolerance is not None
    assert not any("not monotone" in note for note in found(3, 0).notes)
    hump = rules.capped(LEVELS, [32, 500, 2000], humps([4.0, 9.0, 7.0]))
    assert "n* is not monotone in D, so only the smallest and the largest D are compared" in hump.notes


def test_f7_decoupled() -> None:
    generator = np.random.default_rng(0)

    def found(full: float, part: float) -> list[str]:
        seed = 0.1 * generator.standard_normal(SEEDS)
        noisy = [
            seed + v + 5e-4 * generator.standard_normal(SEEDS) for v in (0.6, 0.6 + full, 0.6 + part, 0.5)
        ]
        return [f.verdict for f in rules.decoupled("easy", (256, 64), *noisy)]

    assert found(0.02, -0.02) == ["yes", "yes"]
    assert found(0.02, -0.004) == ["yes", "partly"]
    assert found(-0.02, 0.02) == ["no", "no"]
    flat = np.zeros(SEEDS)
    assert (
        "about equal to n = 64, as in the paper's appendix"
        in rules.decoupled("easy", (256, 64), flat, flat, flat, flat)[1].notes
    )


def test_retuned_takes_the_eta_that_is_best_on_the_others() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((SEEDS, 10, 4, 5))
    tuned, share = rules.retuned(noise)
    # Of equal η the best of the others is a draw like any: no bias from choosing, as its own best would have.
    assert abs(tuned.mean()) < 0.2 < noise.max(axis=3).mean()
    assert share.sum() == pytest.approx(1)
    noise[..., 3] += 100
    np.testing.assert_array_equal(rules.retuned(noise)[0], noise[..., 3])
    noise[2, 4, 1, 3] = np.nan  # diverged for one seed: not used by any
    tuned, share = rules.retuned(noise)
    assert np.abs(tuned[:, 4, 1]).max() < 10
    assert np.isfinite(tuned).all()


def test_the_control_compares_with_the_rule() -> None:
    values = along([5, 7, 9], 1e-5)
    tuned, share = along([5, 5.2, 5.4], 1e-5), np.array([0.1, 0.2, 0.4, 0.2, 0.1])
    found = rules.lr_control("easy", LEVELS, values, tuned, (0.125, 0.25, 0.5, 1.0, 2.0), share)
    assert (found.key, found.verdict) == ("F1 lr", "partly")
    assert "the square-root rule rises by 4.00 doublings" in found.notes[-1]


def test_a_row_is_plain_data() -> None:
    import json

    row = rules.rises("easy", LEVELS, along([5, 7, 9], 1e-5)).to_dict()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert {"finding", "set", "verdict", "effect", "effects", "tolerance", "notes", "statement"} == set(row)


def test_retuned_is_what_fit_retune_does() -> None:
    values = np.random.default_rng(3).standard_normal((3, 2, 4, 3))
    values[1, 0, 2:, 2] = np.nan  # diverged
    rows, facts = [], {}
    for (s, i, x, e), value in np.ndenumerate(values):
        n, run_id = (8, 16)[i], f"{i}{s}{e}"
        facts[run_id] = {"lr": (0.1, 0.2, 0.4)[e]}
        if np.isfinite(value):
            rows.append(
                {
                    "run_id": run_id, "problem_set": "p", "algorithm": "grpo", "problems_per_batch": 10,
                    "rollouts_per_problem": n, "seed": s, "step": x + 1, "compute": (x + 1) * 10 * n,
                    "eval_set": "validation", "metric": "avg@4", "value": value,
                }
            )  # fmt: skip
    points = retune(Runs(pd.DataFrame(rows), facts), "avg@4", "validation").runs.points
    theirs = points.pivot(index=["seed", "rollouts_per_problem"], columns="step", values="value")
    np.testing.assert_array_equal(theirs.to_numpy().reshape(3, 2, 4), rules.retuned(values)[0])
