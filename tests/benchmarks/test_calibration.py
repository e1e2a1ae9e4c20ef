"""Calibration: each part against a closed form or the backend, and a whole one, small."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import isolaw
from isolaw.backends.bandit import _Bandit
from isolaw.config import SweepSpec
from isolaw.config.run import EXPONENTS
from isolaw.errors import DataError, InputError, Refused
from isolaw.fits import ESTIMATOR
from isolaw.fits.blas import one_blas_thread
from isolaw.runs import Runs
from isolaw.simulators.interference import PRESETS
from isolaw.simulators.presets import read_preset, shipped
from isolaw.simulators.problems import difficulty

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.calibration import __main__ as command
from benchmarks.calibration import calibrate as calibrating
from benchmarks.calibration import rounds
from benchmarks.calibration.ahead import forecast
from benchmarks.calibration.calibrate import VERSION, calibrate
from benchmarks.calibration.discrepancy import Discrepancy
from benchmarks.calibration.emulator import Emulator
from benchmarks.calibration.ensemble import read_ensemble
from benchmarks.calibration.observed import BINS, observe
from benchmarks.calibration.recorded import lr_factor
from benchmarks.calibration.simulation import Protocol, SimulatedCell
from benchmarks.calibration.space import CONSTANTS, Beforehand, Space, parameters

CELLS = [(32, 8), (32, 32), (32, 128)]
STEPS = tuple(range(11))
RECORDED = {"lr": 1e-3, "kl": 0.0, "n_train_problems": 500, "lr_scaling": "sqrt", "replacement": False}
Synthetic = Callable[..., Runs]


# Pages and presets


def test_the_pages_have_the_tables_of_this_version() -> None:
    """Otherwise: python -m benchmarks.calibration known, published and rest, then tables."""
    results = json.loads(command.SUMMARY.read_text())
    versions = results["calibration"], results["estimator"], results["simulator"]
    assert versions == (VERSION, ESTIMATOR, _Bandit.version)
    assert "\n".join(command.lines(results)) in command.README.read_text()
    assert {read_ensemble(name).provenance["calibration"] for name in shipped()} == {VERSION}
    assert "\n".join(command.preset_lines()) in command.DOCS.read_text()
    error = f"{read_ensemble('published-easy').provenance['error']:.3f}".lstrip("0")
    assert f"fitted to within {error}" in " ".join((ROOT / "README.md").read_text().split())


def test_the_readme_has_the_numbers_of_simulations() -> None:
    page = command.README.read_text()
    for words in (
        f"{rounds.FIRST} sets of constants",
        f"{rounds.ROUNDS - 1} rounds of {rounds.NEXT} simulations",
        f"{rounds.MEMBERS} draws from the last posterior",
        f"at most {BINS} bins of log C and step 0",
    ):
        assert words in page, words


def test_the_hard_preset_is_the_easy_one_on_hard_problems_without_kl() -> None:
    easy, hard = read_ensemble("published-easy"), read_ensemble("published-hard")
    for one, other in zip(easy.members, hard.members, strict=True):
        assert other == {**one, "problems": "hard", "kl": 0.0}
    assert easy.discrepancy.size == hard.discrepancy.size > 0
    assert (len(easy.discrepancy.left) > 0, len(hard.discrepancy.left)) == (True, 0)  # what easy runs left
    central = easy.members[0]
    assert read_preset("published-easy").constants["lr_easy"] == central["lr"]


@pytest.mark.nightly
@pytest.mark.slow
def test_examples_in_docstrings() -> None:
    for folder in ("calibration", "replication"):
        for path in (ROOT / "benchmarks" / folder).glob("*.py"):
            module = importlib.import_module(f"benchmarks.{folder}.{path.stem}")
            assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


# What a calibration sees of runs


def test_cells_have_bins_of_log_compute(synthetic: Synthetic) -> None:
    seen = observe(synthetic(CELLS, seeds=2, noise=1e-5, checkpoints=60, attributes=RECORDED))
    assert [c.key for c in seen.protocol.cells] == CELLS
    for cell in seen.protocol.cells:
        assert (cell.runs, cell.steps[0]) == (2, 0)
        assert 5 < len(cell.steps) == len(cell.answers) <= BINS + 1
        assert list(cell.steps) == sorted(set(cell.steps))
    assert seen.reward[0] == pytest.approx(0.3, abs=1e-3)  # before training, as in `synthetic`
    assert (seen.protocol.n_train, seen.protocol.shared, "kl" in seen.space.names) == (500, True, False)
    text = " ".join(observe(synthetic(CELLS)).assumed)
    for word in ("D is not recorded", "lr ∝ √B", "KL penalty", "best@k"):
        assert word in text


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("rule", EXPONENTS)
def test_lr_of_a_rule_and_lr_that_follows_it_are_the_same(synthetic: Synthetic, rule: str) -> None:
    cells = [(16, 8), (32, 128), (64, 32)]  # which no two rules give the same
    named = observe(synthetic(cells, attributes=RECORDED | {"lr_scaling": rule}))
    factors = np.array([c.factor for c in named.protocol.cells])
    assert factors == pytest.approx([lr_factor(b, n, rule) for b, n in cells])
    runs = synthetic(cells, attributes={"kl": 0.0, "n_train_problems": 500})
    keys = runs.table()[["problems_per_batch", "rollouts_per_problem"]]
    for run_id, facts in runs.attributes.items():
        facts["lr"] = 1e-6 * lr_factor(*keys.loc[run_id], rule)
    followed = observe(runs)
    assert [c.factor for c in followed.protocol.cells] == pytest.approx(factors)
    assert followed.recipe["lr_scaling"] == named.recipe["lr_scaling"] == rule


@pytest.mark.nightly
@pytest.mark.slow
def test_runs_that_no_simulation_can_repeat_are_refused(synthetic: Synthetic) -> None:
    wrong = {"lr": -1, "advantage": "gae", "staleness": -2, "replacement": "no", "n_train_problems": 0}
    runs = synthetic(CELLS, attributes=wrong)
    with pytest.raises(DataError) as raised:
        observe(runs)
    for name, value in wrong.items():
        assert re.search(rf"{name}: found '?{value}'?(\.0)?; expected", str(raised.value))
    runs = synthetic(CELLS, attributes={"kl": 0.0, "n_train_problems": 500})
    for facts, lr in zip(runs.attributes.values(), np.repeat([1e-4, 1e-6, 1e-4], 3), strict=True):
        facts["lr"] = lr
    with pytest.raises(DataError, match=r"lr: found .*1e-06"):
        observe(runs)
    assert [c.rollouts_per_problem for c in observe(runs, where={"lr": 1e-4}).protocol.cells] == [8, 128]
    with pytest.raises(Refused, match="2 configurations; found 1"):
        observe(synthetic(CELLS[:1]))
    with pytest.raises(InputError, match="expected a mean of successes"):
        observe(Runs(runs.points.assign(metric="best@4"), {}), metric="best@4")


def test_coordinates_are_standard_normal_beforehand() -> None:
    space = Space.of(Beforehand(mean=0.4, mean_sd=0.1, spread=5.0, spread_sd=0.3), kl=True)
    centre = space.values(np.zeros(space.size))
    assert centre == pytest.approx({c.name: c.centre for c in space.coordinates})
    assert space.problems_of(centre) == "beta(2,3)"
    without = Space.of("easy", kl=False)
    population = parameters(without.values(np.zeros(without.size)))
    assert (population.kl_easy, population.lr_easy) == (0.0, CONSTANTS[0].centre)


# The simulation, the emulator, the discrepancy


@pytest.mark.nightly
@pytest.mark.slow
def test_a_protocol_simulates_what_the_backend_does(tiny: Callable[..., SweepSpec], tmp_path: Path) -> None:
    """Runs of one seed have the same problems in both, so their differences are those of rollouts."""
    seeds = 24
    spec = tiny(
        sweep={"compute": 64 * 60, "seeds": seeds}, grid={"rollouts_per_problem": [8]},
        bandit={"parameters": {"lr_easy": 0.1}}, problems={"set": "easy"},
        evaluation={"points": 4, "samples": 400, "metrics": ["avg@4"]},
    )  # fmt: skip
    points = isolaw.sweep(spec, tmp_path / "runs").to_pandas()
    points = points[(points["metric"] == "avg@4") & (points["eval_set"] == "validation")]
    last = points[points["step"] == 60].sort_values("seed")["value"].to_numpy()
    cell = SimulatedCell(8, 8, lr_factor(8, 8), (0, 20, 60), (0, 0, 0))
    protocol, population = Protocol((cell,), 50, 40, False), replace(PRESETS["P"], lr_easy=0.1)
    ours = [protocol.simulate(population, difficulty("easy"), seed)[-1] for seed in range(seeds)]
    difference = np.array(ours) - last
    assert np.ptp(ours) > 0.05  # problems differ between seeds …
    assert difference.std() < 0.8 * np.std(ours)  # … and are those of the backend
    assert abs(difference.mean()) < min(4 * difference.std() / np.sqrt(seeds), 0.02)
    diverged = protocol.simulate(replace(population, lr_easy=1e200), difficulty("easy"), 0)
    assert diverged[0] > 0.2
    assert diverged[1:].tolist() == [0.0, 0.0]


@pytest.mark.nightly
@pytest.mark.slow
@one_blas_thread()
def test_posterior_of_a_linear_simulator_with_gaussian_noise() -> None:
    """z = A x + b + e with x ~ N(0, I): mean (I + A'A / s²)⁻¹ A'(z₀ − b) / s², covariance the inverse."""
    rng = np.random.default_rng(0)
    slopes, level, sd = np.array([[0.8, 0.1], [0.0, 0.5], [0.3, -0.6], [0.2, 0.2]]), 0.4, 0.3
    x = rng.standard_normal((4000, 2))
    rewards = x @ slopes.T + level + sd * rng.standard_normal((4000, 4))
    measured = slopes @ [0.7, -0.5] + level
    emulator = Emulator.fit(x, rewards, measured)
    precision = np.eye(2) + slopes.T @ slopes / sd**2
    expected = np.linalg.solve(precision, slopes.T @ (measured - level) / sd**2)
    axis = np.linspace(-3, 3, 91)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log = emulator.log_posterior(grid)
    weight = np.exp(log - log.max())
    mean = np.average(grid, axis=0, weights=weight)
    covariance = ((grid - mean) * weight[:, None]).T @ (grid - mean) / weight.sum()
    assert mean == pytest.approx(expected, abs=0.03)
    assert covariance == pytest.approx(np.linalg.inv(precision), rel=0.08, abs=0.003)
    assert emulator.discrepancy == 0.0
    beyond = np.linalg.svd(slopes)[0][:, 2]  # where no x leads
    apart = Emulator.fit(x, rewards, measured + 8 * sd * beyond)
    # Of four components one is 8 s off, and the nearest simulations nearly meet all: 64 s² / (2 s² + δ²) = 4
    assert apart.discrepancy == pytest.approx(np.sqrt(14) * sd, rel=0.15)
    assert np.ptp(apart.log_posterior(grid)) < np.ptp(log)  # which widens it


def drawn(left: Discrepancy, n: int, compute: list[float]) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation of d in the cell (4, n)."""
    rows = left.draws([(4, n)], np.array([compute]), 2000, np.random.default_rng(0))[:, 0]
    return rows.mean(axis=0), rows.std(axis=0)


def test_discrepancy_of_one_measurement_in_closed_form() -> None:
    """d' given e = d + noise of variance v: mean δ² r e / (δ² + v), variance δ² − δ⁴ r² / (δ² + v)."""
    delta, v, e, c = 0.05, 0.03**2, 0.08, 800.0
    one = Discrepancy(delta, np.array([e]), np.log([[c, 2, 4]]), (v / 2, v / 3, v / 6), (3.0, 1.5))
    for n, at in ((2, c), (2, 4 * c), (16, c), (16, 10 * c)):
        r = np.exp(-np.log(at / c) / 3 - np.log(n / 2) / 1.5)
        mean, sd = drawn(one, n, [at])
        assert mean[0] == pytest.approx(delta**2 * r * e / (delta**2 + v), rel=1e-4)
        assert sd[0] == pytest.approx(np.sqrt(delta**2 - delta**4 * r**2 / (delta**2 + v)), rel=0.05)


def test_discrepancy_begins_where_the_runs_ended_and_returns_to_the_mechanism() -> None:
    cells = [SimulatedCell(4, n, 1.0, STEPS, (0,) * len(STEPS)) for n in (2, 16)]
    residuals = np.concatenate([np.full(len(STEPS), 0.04), np.full(len(STEPS), -0.06)])
    fitted = Discrepancy.of(0.05, cells, residuals, 1e-6 * np.eye(len(residuals)))
    assert len(fitted.left) == 20  # nothing before the first step
    for n, residual in ((2, 0.04), (16, -0.06)):
        mean, sd = drawn(replace(fitted, lengths=(2.0, 1.0)), n, [10 * 4 * n, 1e2 * 10 * 4 * n, 1e12])
        assert mean[0] == pytest.approx(residual, abs=0.001)
        assert abs(mean[1]) < abs(mean[0])
        assert sd[0] < 0.01 < sd[1]
        assert (mean[2], sd[2]) == (pytest.approx(0, abs=0.005), pytest.approx(0.05, rel=0.1))
    again = Discrepancy.read(0.05, fitted.to_dict())
    np.testing.assert_allclose(drawn(again, 2, [200.0]), drawn(fitted, 2, [200.0]), rtol=1e-2)


# A whole calibration


@pytest.mark.nightly
@pytest.mark.slow
def test_from_runs_to_a_forecast(
    synthetic: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FIRST": 40, "NEXT": 20, "ROUNDS": 2, "MEMBERS": 8}.items():
        for module in (calibrating, rounds):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(rounds, "_STEPS", {False: (20, 40), True: (20, 40)})
    monkeypatch.setattr(rounds, "_THIN", 10)
    attributes = {"lr": 1e-3, "kl": 0.0, "n_train_problems": 100}
    runs = synthetic([(8, 4), (8, 16)], seeds=1, checkpoints=10, compute=20_000, attributes=attributes)
    calibration = calibrate(runs, jobs=1, out=tmp_path / "mine.toml")
    ensemble, preset = read_ensemble(tmp_path / "mine.toml"), read_preset(tmp_path / "mine.toml")
    assert len(ensemble.members) == 8
    for x, member in zip(calibration.x, ensemble.members, strict=True):
        values = calibration.observed.space.member(x)
        assert values.pop("problems") == member["problems"]
        assert {k: member[k] for k in values} == pytest.approx(values, rel=1e-5)
    assert preset.preset.n_train == ensemble.n_train == 100
    assert preset.constants["sigma2"] == ensemble.members[0]["sigma2"]
    assert [c.name for c in calibration.constants] == list(calibration.observed.space.names)
    np.testing.assert_array_equal(calibrate(runs, jobs=2).x, calibration.x)  # whatever the processes

    ahead = forecast(ensemble, 40_000, [(8, 32), (8, 4)], jobs=1)
    assert (ahead.cells, ahead.rewards.shape[:2]) == (((8, 4), (8, 32)), (8, 2))
    starts = np.isfinite(ahead.rewards).argmax(axis=2)
    assert (starts[:, 0] < starts[:, 1]).all()  # no reward before a first step
    left = Discrepancy(0.01, np.array([0.03]), np.log([[40_000, 32, 8]]))
    shifted, without = (
        forecast(replace(ensemble, discrepancy=d), 40_000, ahead.cells, jobs=1)
        for d in (left, Discrepancy.read(0.0, {}))
    )
    above = (shifted.rewards - without.rewards).mean(axis=0)[:, -1]
    assert above == pytest.approx([0.03 / 8, 0.03], rel=1e-3)  # l = 1: n = 4 is log 8 from n = 32
