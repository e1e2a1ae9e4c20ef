"""Laws that isolaw wrote as ``isolaw.law/1``: they load, predict and read as they did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from isolaw.errors import DataError
from isolaw.fits.flags import Code, Flag, having
from isolaw.fits.law import Law
from isolaw.fits.version_1 import FORMAT, converted
from isolaw.report import answer_words, words
from isolaw.report.figures import law_figure

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DATA = Path(__file__).parent / "data"
NAMES = ["version-1", "version-1-paper"]
BUDGETS = (1e5, 2e6, 8e6)


@pytest.fixture(scope="module")
def expected() -> Any:
    """What version 1 said of its laws."""
    return json.loads((DATA / "version-1.expected.json").read_text(encoding="utf-8"))


def test_the_laws_are_of_version_1() -> None:
    assert {json.loads((DATA / f"{name}.json").read_text())["format"] for name in NAMES} == {FORMAT}


@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_those_of_version_1(name: str, expected: Any) -> None:
    law = Law.load(DATA / f"{name}.json")
    for budget, before in zip(BUDGETS, expected[name]["predictions"], strict=True):
        found = law.predict(budget).to_dict()
        printed = [words.flag(Flag(**own)) for own in found.pop("flags")]
        assert printed == [own.replace("one seed:", "one seed per configuration:") for own in before["flags"]]
        assert found == {key: _near(value) for key, value in before.items() if key != "flags"}


def _near(value: Any) -> Any:
    """Equal but for rounding, which differs from processor to processor."""
    if isinstance(value, dict):
        return {key: _near(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_near(own) for own in value]
    return pytest.approx(value, rel=1e-5, abs=1e-8) if isinstance(value, float) else value


@pytest.mark.parametrize("name", NAMES)
def test_it_renders_as_it_did(name: str, expected: Any) -> None:
    law = Law.load(DATA / f"{name}.json")
    assert words.law_summary(law.document) == expected[name]["lines"]
    for budget, before in zip(BUDGETS, expected[name]["answers"], strict=True):
        lines = answer_words.prediction_summary(law.predict(budget), law.document)
        assert lines == [line.replace("one seed:", "one seed per configuration:") for line in before]
    assert law_figure(law).axes


def test_warnings_become_flags() -> None:
    assert Law.load(DATA / "version-1.json").document.flags == (Flag(Code.VERSION_1, "a note of the reader"),)
    flags = Law.load(DATA / "version-1-paper.json").document.flags
    assert [flag.code for flag in flags] == [Code.ONE_SEED, Code.VERSION_1, Code.NO_SATURATION]
    assert having(flags, Code.NO_SATURATION)[0].text == "there are fewer than three seeds per configuration"


@pytest.mark.parametrize("name", NAMES)
def test_saved_again_it_is_of_this_version(name: str, tmp_path: Path) -> None:
    law = Law.load(DATA / f"{name}.json")
    path = law.save(tmp_path / "law.json")
    assert json.loads(path.read_text())["format"] == "isolaw.law/2"
    again = Law.load(path)
    assert again.document == law.document
    assert again.predict(2e6) == law.predict(2e6)


def test_a_law_of_version_1_is_replaced_with_its_draws(tmp_path: Path) -> None:
    for file in DATA.glob("version-1-[0-9a-f]*"):
        shutil.copy(file, tmp_path)
    shutil.copy(DATA / "version-1.json", tmp_path)
    other = Law.load(DATA / "version-1-paper.json")
    other.save(tmp_path / "version-1.json")
    assert len(list(tmp_path.iterdir())) == 2
    assert Law.load(tmp_path / "version-1.json").document.method == "paper"


def test_before_there_were_intervals_of_theta() -> None:
    """The first laws of version 1 have neither θ nor seeds."""
    data = json.loads((DATA / "version-1.json").read_text())
    for law in data["comparison"]["laws"].values():
        del law["theta"], law["interval"]
    del data["comparison"]["refused"], data["comparison"]["seeds"]
    comparison = converted(data)["comparison"]
    assert comparison["seeds"] == 3
    assert {tuple(law["theta"]) for law in comparison["laws"].values()} == {()}


@pytest.mark.parametrize("key", ["grid", "frontier", "curves", "bootstrap", "comparison", "warnings", "x"])
@pytest.mark.parametrize("damage", [None, 3, "text", [1], {"a": 1}], ids=str)
def test_damage_is_one_message(tmp_path: Path, key: str, damage: Any) -> None:
    data = json.loads((DATA / "version-1.json").read_text())
    path = tmp_path / "law.json"
    for own in ({**data, key: damage}, {k: v for k, v in data.items() if k != key}):
        path.write_text(json.dumps(own))
        with pytest.raises(DataError, match=r"law\.json: a damaged law: "):
            Law.load(path)
