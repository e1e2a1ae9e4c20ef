"""What a calibration sees of runs: bins of checkpoints, learning rates, difficulty, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.calibration.observed import BINS, _spread, observe
from isolaw.calibration.recorded import lr_factor
from isolaw.config.run import EXPONENTS
from isolaw.errors import DataError, InputError, Refused
from isolaw.runs import Runs

CELLS = [(32, 8), (32, 32), (32, 128)]
Synthetic = Callable[..., Runs]
RECORDED = {"lr": 1e-3, "kl": 0.0, "n_train_problems": 500, "lr_scaling": "sqrt", "replacement": False}


def test_each_cell_has_bins_of_log_compute(synthetic: Synthetic) -> None:
    seen = observe(synthetic(CELLS, seeds=2, noise=1e-5, checkpoints=60, attributes=RECORDED))
    assert [(c.problems_per_batch, c.rollouts_per_problem) for c in seen.protocol.cells] == CELLS
    assert len(seen.reward) == sum(len(c.steps) for c in seen.protocol.cells)
    for cell in seen.protocol.cells:
        assert cell.runs == 2
        assert cell.steps[0] == 0
        assert 5 < len(cell.steps) <= BINS + 1
        assert list(cell.steps) == sorted(set(cell.steps))
        assert len(cell.answers) == len(cell.steps)
    first = len(seen.protocol.cells[0].steps)
    assert seen.reward[0] == pytest.approx(0.3, abs=1e-3)  # before training, as in `synthetic`
    assert np.diff(seen.reward[:first]).min() > -1e-4
    assert (seen.protocol.n_train, seen.protocol.shared) == (500, True)
    assert "kl" not in seen.space.names


def test_a_cap_on_compute_leaves_the_rest_out(synthetic: Synthetic) -> None:
    runs = synthetic(CELLS, attributes=RECORDED)
    seen = observe(runs, until=2e5)
    assert max(c.compute[-1] for c in seen.protocol.cells) <= 2e5
    assert max(c.compute[-1] for c in observe(runs).protocol.cells) > 9e5


def test_what_is_not_recorded_is_assumed_in_words(synthetic: Synthetic) -> None:
    text = " ".join(observe(synthetic(CELLS)).assumed)
    for word in ("D is not recorded", "lr ∝ √B", "KL penalty", "best@k"):
        assert word in text
    assert "D is not recorded" not in " ".join(observe(synthetic(CELLS), n_train=100).assumed)
    seen = observe(synthetic(CELLS, zero=False))
    assert "before the first step" in " ".join(seen.assumed)


@pytest.mark.parametrize("rule", EXPONENTS)
def test_lr_of_a_rule_and_lr_that_follows_it_are_the_same(synthetic: Synthetic, rule: str) -> None:
    cells = [(16, 8), (32, 128), (64, 32)]  # which no two rules give the same
    named = observe(synthetic(cells, attributes=RECORDED | {"lr_scaling": rule}))
    factors = np.array([c.factor for c in named.protocol.cells])
    assert factors == pytest.approx([lr_factor(b, n, rule) for b, n in cells])
    assert named.recipe["lr_scaling"] == rule
    runs = synthetic(cells, attributes={"kl": 0.0, "n_train_problems": 500})
    keys = runs.table()[["problems_per_batch", "rollouts_per_problem"]]
    for run_id, own in runs.attributes.items():
        own["lr"] = 1e-6 * lr_factor(*keys.loc[run_id], rule)
    followed = observe(runs)
    assert [c.factor for c in followed.protocol.cells] == pytest.approx(factors)  # as a forecast has them
    assert followed.recipe["lr_scaling"] == rule


def test_lr_of_no_rule_is_refused(synthetic: Synthetic) -> None:
    runs = synthetic(CELLS, attributes={"kl": 0.0, "n_train_problems": 500})
    for own, lr in zip(runs.attributes.values(), np.repeat([1e-4, 1e-6, 1e-4], 3), strict=True):
        own["lr"] = lr
    with pytest.raises(DataError, match=r"lr: found .*1e-06 .*where=.*0\.0001"):
        observe(runs)
    assert [c.rollouts_per_problem for c in observe(runs, where={"lr": 1e-4}).protocol.cells] == [8, 128]


def test_what_no_simulation_can_repeat_is_named_all_at_once(synthetic: Synthetic) -> None:
    wrong = {"lr": -1, "advantage": "gae", "staleness": -2, "replacement": "no", "n_train_problems": 0}
    runs = synthetic(CELLS, attributes=wrong)
    points = runs.points.assign(n_problems=0, n_samples=-4)
    with pytest.raises(DataError) as caught:
        observe(Runs(points, runs.attributes))
    for name, value in {**wrong, "n_problems": 0, "n_samples": -4}.items():
        assert re.search(rf"{name}: found '?{value}'?(\.0)?; expected", str(caught.value))


def test_compute_in_steps_is_refused(synthetic: Synthetic) -> None:
    runs = synthetic(CELLS, attributes=RECORDED)
    with pytest.raises(DataError, match=r"compute: found at most 976 for .* expected rollouts, 1,024 for"):
        observe(Runs(runs.points.assign(compute=runs.points["step"]), runs.attributes))


def test_seeds_that_differ_and_seeds_that_end_early(synthetic: Synthetic) -> None:
    assert np.isnan(observe(synthetic(CELLS, seeds=1)).between).all()
    runs = synthetic(CELLS, seeds=30, noise=1e-6, between=0.1)
    assert np.sqrt(np.mean(observe(runs).between)) == pytest.approx(0.1, rel=0.2)
    early = runs.points["run_id"].eq("32x8s3") & (runs.points["compute"] > 1e5)
    seen = observe(Runs(runs.points[~early], runs.attributes))
    assert any("1 of 30 runs end by C = " in text for text in seen.assumed)
    assert seen.ends[0] == runs.points["compute"][runs.points["rollouts_per_problem"] == 8].max()


def test_difficulty_that_is_given_is_not_varied(synthetic: Synthetic) -> None:
    seen = observe(synthetic(CELLS), problems="easy")
    assert seen.space.problems == "easy"
    assert not {"mean", "spread"} & set(seen.space.names)


def test_refusals(synthetic: Synthetic) -> None:
    with pytest.raises(Refused, match="2 configurations; found 1"):
        observe(synthetic(CELLS[:1]))
    runs = synthetic(CELLS, seeds=2)
    with pytest.raises(Refused, match=r"found 0 up to C = 100 \(--until\) .*needs 5"):
        observe(runs, until=100)
    with pytest.raises(InputError, match="until: found -5"):
        observe(runs, until=-5)
    other = Runs(runs.points.assign(metric="best@4"), runs.attributes)
    with pytest.raises(InputError, match="found 'best@4'; expected a mean of successes"):
        observe(other, metric="best@4")
    for i, own in enumerate(runs.attributes.values()):
        own["model"] = "ab"[i % 2]
    with pytest.raises(DataError, match=r"differ in model \(a, b\)"):
        observe(runs)


@given(
    mean=st.floats(0.02, 0.98),
    spread=st.floats(0.1, 300.0),
    k=st.sampled_from([2, 4, 16]),
    kind=st.sampled_from(["best", "worst"]),
)
def test_spread_of_a_beta_from_its_moments(mean: float, spread: float, k: int, kind: str) -> None:
    """E[p^k] of Beta(μ ν, (1 − μ) ν) and of 1 − p, as products, give ν back."""
    share = mean if kind == "worst" else 1 - mean
    i = np.arange(k)
    value = float(np.prod((share * spread + i) / (spread + i)))
    found = _spread(mean, {(kind, k): value if kind == "worst" else 1 - value})
    assert found is not None
    again = float(np.prod((share * found + i) / (found + i)))
    assert again == pytest.approx(value, rel=0.05, abs=0.003)


def test_spread_of_nothing() -> None:
    assert _spread(0.5, {}) is None
