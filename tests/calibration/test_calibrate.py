"""A whole calibration, small: its ensemble, its preset file, and how one that was killed continues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from isolaw.calibration.calibrate import Calibration, calibrate
from isolaw.errors import DataError
from isolaw.report.text.calibration import cautions
from isolaw.runs import Runs
from isolaw.simulators.model import Floats
from isolaw.simulators.presets import read_preset

pytestmark = pytest.mark.usefixtures("quick_calibration")
FIRST, SIMULATIONS, MEMBERS = 40, 68, 8  # of `quick_calibration`


@pytest.fixture
def runs(synthetic: Callable[..., Runs]) -> Runs:
    recorded = {"lr": 1e-3, "kl": 0.0, "n_train_problems": 100}
    return synthetic([(8, 4), (8, 16)], seeds=1, checkpoints=10, compute=20_000, attributes=recorded)


def same(a: Calibration, b: Calibration) -> bool:
    return np.array_equal(a.x, b.x) and np.array_equal(a.replayed, b.replayed)


def test_the_preset_is_the_ensemble(runs: Runs, tmp_path: Path) -> None:
    shares: list[float] = []
    found = calibrate(runs, jobs=1, out=tmp_path / "mine.toml", progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert found.x.shape == (MEMBERS, found.space.size)
    assert found.replayed.shape == (MEMBERS, len(found.observed.reward))
    preset = read_preset(tmp_path / "mine.toml")
    assert (preset.name, found.name) == ("mine", "mine")
    assert preset.cells == ((8, 4), (8, 16))
    assert preset.n_train == 100
    assert preset.recipe["lr_scaling"] == found.observed.recipe["lr_scaling"]
    assert len(preset.members) == MEMBERS
    assert preset.left == found.discrepancy.to_dict()
    assert len(preset.left["left"]) == np.count_nonzero(
        [s for c in found.observed.protocol.cells for s in c.steps]
    )
    for ours, theirs in zip(found.members, preset.members, strict=True):
        assert ours.pop("problems") == theirs["problems"]
        assert {k: theirs[k] for k in ours} == pytest.approx(ours, rel=1e-5)
    central = preset.members[0]
    assert preset.constants["lr_easy"] == preset.constants["lr_hard"] == central["lr"]
    assert preset.constants["sigma2"] == central["sigma2"]
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]  # the rounds are not left behind


def test_what_it_says_of_constants(runs: Runs) -> None:
    found = calibrate(runs, jobs=1)
    assert [c.name for c in found.constants] == list(found.space.names)
    for c in found.constants:
        assert c.interval[0] <= c.value <= c.interval[1]
        assert c.identified == (c.narrowed < 0.5)
    assert 0 <= found.covered <= 1
    assert found.error == pytest.approx(
        np.sqrt(np.mean((found.replayed.mean(axis=0) - found.observed.reward) ** 2))
    )


def test_rewards_that_hardly_move_are_told_from_those_that_do(runs: Runs) -> None:
    found = calibrate(runs, jobs=1)
    steps = np.concatenate([cell.steps for cell in found.observed.protocol.cells])
    sd = 0.02
    known = replace(
        found, posterior=replace(found.posterior, covariance=sd**2 * np.eye(len(steps)), discrepancy=0.0)
    )
    for rise, moved in ((0.0, False), (sd, False), (-10 * sd, True), (10 * sd, True)):
        reward = 0.3 + rise * (steps > np.median(steps))
        seen = replace(known, observed=replace(found.observed, reward=reward))
        assert seen.moved == moved
        assert any("nothing learned" in own.text for own in cautions(seen)) != moved
    bump: Floats = 0.3 + 10 * sd * np.isin(steps, np.unique(steps)[4:8])  # rises, and ends where it began
    assert replace(known, observed=replace(found.observed, reward=bump)).moved


def test_an_ensemble_that_misses_the_runs_and_seeds_that_differ_are_named(runs: Runs) -> None:
    found = calibrate(runs, jobs=1)
    steps = np.concatenate([cell.steps for cell in found.observed.protocol.cells])
    sd = 0.02
    known = replace(
        found, posterior=replace(found.posterior, covariance=sd**2 * np.eye(len(steps)), discrepancy=0.0)
    )
    mean = known.replayed.mean(axis=0)
    for away, missed in ((sd, False), (2.9 * sd, False), (3.1 * sd, True)):
        seen = replace(known, observed=replace(found.observed, reward=mean + away))
        assert any("does not fit these runs" in own.text for own in cautions(seen)) == missed
    assert known.seeds_apart is None  # one seed
    for sd_of_runs, apart in ((2.9, False), (3.1, True)):
        later = [np.count_nonzero(cell.steps) for cell in found.observed.protocol.cells]
        between = (sd_of_runs * sd) ** 2 / np.array(later)  # independent noise, averaged over a run
        cells = tuple(replace(c, runs=2) for c in found.observed.protocol.cells)
        two = replace(known.posterior, covariance=known.posterior.covariance / 2)
        protocol = replace(found.observed.protocol, cells=cells)
        seen = replace(
            known, posterior=two, observed=replace(found.observed, protocol=protocol, between=between)
        )
        assert (seen.seeds_apart is not None) == apart
        assert any("seeds differ" in own.text for own in cautions(seen)) == apart


def test_one_that_was_killed_continues_to_the_same_ensemble(runs: Runs, tmp_path: Path) -> None:
    whole = calibrate(runs, jobs=1)
    assert same(whole, calibrate(runs, jobs=2))  # nor does it depend on threads
    done: list[float] = []

    def kill(share: float) -> None:
        if share * SIMULATIONS > FIRST + 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(runs, jobs=1, out=tmp_path / "p.toml", progress=kill)
    kept = tmp_path / ".p.toml.rounds.npz"
    assert kept.is_file()
    assert not (tmp_path / "p.toml").exists()
    again = calibrate(runs, jobs=1, out=tmp_path / "p.toml", progress=done.append)
    assert same(whole, again)
    assert min(done) * SIMULATIONS > FIRST  # the first round was not repeated
    assert not kept.exists()


def test_rounds_of_another_question_are_not_used(runs: Runs, tmp_path: Path) -> None:
    def kill(share: float) -> None:
        if share * SIMULATIONS > FIRST:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(runs, jobs=1, out=tmp_path / "p.toml", progress=kill)
    assert same(calibrate(runs, jobs=1, seed=1), calibrate(runs, jobs=1, seed=1, out=tmp_path / "p.toml"))


def test_files_that_are_not_its_own(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "p.toml"
    out.write_text("[sweep]\n")
    with pytest.raises(DataError, match=r"p\.toml"):
        calibrate(runs, jobs=1, out=out, progress=lambda _: pytest.fail("nothing is simulated"))
    assert out.read_text() == "[sweep]\n"
    out.unlink()
    kept = tmp_path / ".p.toml.rounds.npz"
    kept.write_bytes(b"PK damaged")
    with pytest.warns(UserWarning, match=r"\.p\.toml\.rounds\.npz: cannot be read .* rounds again"):
        found = calibrate(runs, jobs=1, out=out)
    assert found.members == calibrate(runs, jobs=1).members
    assert not kept.exists()


def test_a_preset_is_replaced_by_a_new_one(runs: Runs, tmp_path: Path) -> None:
    first = calibrate(runs, jobs=1, out=tmp_path / "p.toml")
    calibrate(runs, jobs=1, out=tmp_path / "p.toml", seed=1)
    found = read_preset(tmp_path / "p.toml")
    assert found.constants["lr_easy"] != pytest.approx(first.members[0]["lr"], rel=1e-5)
    assert asdict(found)["provenance"]["runs"] == 2
