"""``bandit.preset`` as a file: a fitted population, its problems and its D."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw.errors import SpecError
from isolaw.simulators.presets import read_preset


def test_the_preset_brings_constants_problems_and_their_number(spec, preset_file: Path) -> None:
    found, preset = spec(problems={}, options={"preset": str(preset_file)}), read_preset(preset_file)
    assert found.problems.set == "beta(3,4)"
    assert found.problems.n_train == 100
    assert found.recipe.lr == preset.constants["lr_easy"]
    given = found.options["parameters"]
    assert {name: preset.constants[name] for name in given} == given


def test_what_a_spec_says_itself_holds(spec, preset_file: Path) -> None:
    own = {"preset": str(preset_file), "parameters": {"sigma2": 7.0}}
    found = spec(problems={"set": "hard", "n_train": 64}, options=own, recipe={"lr": 0.5})
    assert (found.problems.set, found.problems.n_train, found.recipe.lr) == ("hard", 64, 0.5)
    assert found.options["parameters"]["sigma2"] == 7.0


def test_a_run_is_known_by_its_constants_and_not_by_the_file(spec, preset_file: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.toml").write_text(preset_file.read_text())
    first, copy = (spec(options={"preset": str(p)}) for p in (preset_file, tmp_path / "copy.toml"))
    assert first == copy
    assert str(preset_file) not in first.model_dump_json()
    (tmp_path / "other.toml").write_text(preset_file.read_text().replace("sigma2 = 1500.0", "sigma2 = 9.0"))
    other = spec(options={"preset": str(tmp_path / "other.toml")})
    assert other.run_id != first.run_id == copy.run_id


def test_mistakes_are_named(spec, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"bandit\.preset: .*gone\.toml: No such file"):
        spec(options={"preset": str(tmp_path / "gone.toml")})
    (tmp_path / "notes.toml").write_text("[notes]\n")
    with pytest.raises(SpecError, match=r"notes\.toml: found format None; expected a preset"):
        spec(options={"preset": str(tmp_path / "notes.toml")})
