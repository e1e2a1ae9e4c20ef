"""Presets around a preset."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolaw.errors import InputError
from isolaw.replication import jitter
from isolaw.replication.battery import Battery
from isolaw.replication.findings import findings
from isolaw.replication.jitter import around, constants_of, jittered, study
from isolaw.simulators import interference
from isolaw.simulators.presets import read_preset


def test_every_number_of_the_preset_but_whole_ones_and_zeros() -> None:
    name, preset = next(iter(interference.PRESETS.items()))
    values = asdict(preset)
    constants = constants_of("interference", name, {"sigma2": 12.5})
    assert constants["sigma2"] == 12.5
    assert "r" not in constants
    assert {k for k, v in values.items() if v and k not in ("r", "sigma2")} == set(constants) - {"sigma2"}
    assert {"lr_easy", "lr_hard", "q"} <= set(constants)


def test_factors_are_log_uniform_between_a_half_and_two() -> None:
    constants = {"sigma2": 100.0, "kappa": 3.0}
    drawn = np.array([list(jittered("interference", constants, i).values()) for i in range(400)])
    factors = np.log2(drawn / [3.0, 100.0])  # by name
    assert factors.min() >= -1
    assert factors.max() <= 1
    np.testing.assert_allclose(factors.mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(factors.std(axis=0), 1 / np.sqrt(3), atol=0.05)
    assert abs(np.corrcoef(factors.T)[0, 1]) < 0.15
    least, most = interference.BOUNDS["rho"]
    kept = [jittered("interference", {"rho": 0.9}, i)["rho"] for i in range(50)]
    assert max(kept) == most
    assert min(kept) > least


def test_the_small_battery(small: Callable[..., Battery]) -> None:
    chosen = small(
        settings=["bandit.parameters.sigma2=77.0", "grid.rollouts_per_problem=[4,8,16,64,256,1024]"]
    )
    tried = around(chosen, 3)
    assert tried.seeds == (1000, 1001, 1002, 1003)
    assert not set(tried.seeds) & set(chosen.seeds)
    assert tried.levels == [8, 16, 64, 256, 1024]
    parameters = tried.base.bandit["parameters"]
    assert parameters["r"] == 8  # as it was set, not jittered
    assert 77 / 2 <= parameters["sigma2"] <= 77 * 2
    names = list(tried.experiments())
    assert not [n for n in names if n.endswith("-eta")]
    assert len([n for n in names if n.startswith("easy-d") and n != "easy-decoupled"]) == 1
    assert 0.01 <= tried.tabular_constants["lr_easy"] <= 0.04


def test_around_a_calibrated_preset_are_its_members(small: Callable[..., Battery]) -> None:
    chosen = small(preset="published-easy", settings=["bandit.parameters.kl_hard=0"])
    assert chosen.n_train == small().n_train  # as it was set
    member = read_preset("published-easy").members[3]
    easy, hard = (around(chosen, 3).resolved(name) for name in ("easy", "hard"))
    found = easy.options["parameters"]
    assert [found[k] for k in ("sigma2", "q", "lr_easy")] == [member[k] for k in ("sigma2", "q", "lr")]
    assert (easy.recipe.kl, hard.recipe.kl) == (member["kl"], 0)
    with pytest.raises(InputError, match="found 101; expected at most 100, the members of published-easy"):
        findings(preset="published-easy", jitter=101)  # before anything is simulated


def test_counts_and_what_was_judged_before(
    small: Callable[..., Battery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Battery] = []

    def judge(battery: Battery, *_: Any) -> dict[str, Any]:
        judged.append(battery)
        verdict = "yes" if len(judged) % 2 else "no"
        return {"findings": [{"finding": "F1", "set": "easy", "verdict": verdict, "effect": {"value": 1.0}}]}

    monkeypatch.setattr(jitter, "judge", judge)
    found = study(small(), 3, tmp_path)
    assert found["presets"] == len(judged) == 3
    assert found["verdicts"] == {"F1 easy": {"yes": 2, "partly": 0, "no": 1, "not measured": 0}}
    assert "sigma2" in found["constants"]
    assert study(small(), 3, tmp_path) == found
    assert len(judged) == 3
    assert study(small(), 4, tmp_path)["verdicts"]["F1 easy"] == {
        "yes": 2,
        "partly": 0,
        "no": 2,
        "not measured": 0,
    }
    assert len(judged) == 4
    # Of another preset the files are not believed.
    study(small(settings=["bandit.parameters.sigma2=77.0"]), 1, tmp_path)
    assert len(judged) == 5
    record = json.loads((tmp_path / "jitter" / "001.json").read_text())
    assert record["constants"]["sigma2"] == around(small(), 1).base.bandit["parameters"]["sigma2"]
