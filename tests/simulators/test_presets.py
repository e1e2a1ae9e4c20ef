"""Preset files: read by name or path, and refused with their name where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolaw.errors import InputError
from isolaw.simulators import presets
from isolaw.simulators.presets import is_preset, read_preset, shipped
from isolaw.simulators.problems import difficulty


def test_a_file(preset_file: Path) -> None:
    found = read_preset(preset_file)
    assert (found.name, found.problems, found.n_train) == ("preset", "beta(3,4)", 100)
    assert len(found.members) == 4
    assert {"lr", "kl", "sigma2", "problems"} <= found.members[0].keys()
    assert found.cells == ((8, 4), (8, 8), (8, 16), (8, 32))
    assert (found.measured, found.reward) == (2e5, "avg@4 on validation")
    assert is_preset(preset_file)


def test_shipped_ones_are_whole() -> None:
    for name in shipped():
        found = read_preset(name)
        difficulty(found.problems)
        assert found.members
        assert found.measured > 0
        assert found.cells


def test_the_hard_preset_is_the_easy_one_on_hard_problems_without_kl() -> None:
    easy, hard = read_preset("published-easy"), read_preset("published-hard")
    for one, other in zip(easy.members, hard.members, strict=True):
        assert other == {**one, "problems": "hard", "kl": 0.0}
    assert hard.constants == {**easy.constants, "kl_easy": 0.0, "kl_hard": 0.0}
    assert easy.discrepancy > 0
    assert (bool(easy.left), bool(hard.left)) == (True, False)  # what was left of easy runs


def test_a_name_near_a_shipped_one_is_suggested(
    preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "FOLDER", tmp_path)
    (tmp_path / "published-easy.toml").write_text(preset_file.read_text())
    assert read_preset("published-easy").name == "published-easy"
    with pytest.raises(InputError, match="did you mean 'published-easy'"):
        read_preset("published-esay")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("isolaw.preset/1", "isolaw.preset/9", r"found format 'isolaw.preset/9'; expected .*preset/1"),
        ("[ensemble]", "[others]", "ensemble: a required key is missing"),
        ("n_train = 100", 'n_train = "many"', "n_train: found 'many'; expected a whole number"),
        ("[preset]", "[preset", "preset.toml: "),
    ],
)
def test_a_damaged_file_is_named(preset_file: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "preset.toml"
    path.write_text(preset_file.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message) as raised:
        read_preset(path)
    assert str(path) in str(raised.value)


def test_a_member_without_a_constant_is_damage(preset_file: Path, tmp_path: Path) -> None:
    lines = preset_file.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("sigma2 = ["))
    lines[at] = "sigma2 = [1.0]"
    (tmp_path / "short.toml").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"short.toml: ensemble: .*as many values"):
        read_preset(tmp_path / "short.toml")
    with pytest.raises(InputError, match=r"gone.toml: No such file"):
        read_preset(tmp_path / "gone.toml")
    (tmp_path / "notes.toml").write_text("[notes]\n")
    assert not is_preset(tmp_path / "notes.toml")
