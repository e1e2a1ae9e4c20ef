"""Preset files: read by name or path, and refused with their name where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw.errors import InputError
from isolaw.simulators import presets
from isolaw.simulators.presets import read_preset, shipped
from isolaw.simulators.problems import difficulty


def test_a_file_and_those_that_ship(preset_file: Path) -> None:
    preset = read_preset(preset_file)
    assert (preset.preset.problems, preset.preset.n_train) == ("beta(3,4)", 100)
    assert preset.constants["sigma2"] == 1500.0
    for name in shipped():
        difficulty(read_preset(name).preset.problems)


def test_a_name_near_a_shipped_one_is_suggested(
    preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "FOLDER", tmp_path)
    (tmp_path / "published-easy.toml").write_text(preset_file.read_text())
    assert read_preset("published-easy").constants
    with pytest.raises(InputError, match="did you mean 'published-easy'"):
        read_preset("published-esay")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("isolaw.preset/1", "isolaw.preset/9", r"found format 'isolaw.preset/9'; expected .*preset/1"),
        ("[constants]", "[others]", "constants: a required key is missing"),
        ("n_train = 100", 'n_train = "many"', "n_train: found 'many'; expected a whole number"),
        ("beta(3,4)", "beta(3)", "preset.problems: found 'beta\\(3\\)'"),
        ("[preset]", "[preset", "preset.toml: "),
    ],
)
def test_a_damaged_file_is_named(preset_file: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "preset.toml"
    path.write_text(preset_file.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message) as raised:
        read_preset(path)
    assert str(path) in str(raised.value)
    with pytest.raises(InputError, match=r"gone.toml: No such file"):
        read_preset(tmp_path / "gone.toml")
