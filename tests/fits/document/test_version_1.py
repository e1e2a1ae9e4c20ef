"""Laws that isolaw wrote as ``isolaw.law/1``: they load, predict from their curves, and say what they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolaw.errors import DataError
from isolaw.fits.document.version_1 import FORMAT, converted
from isolaw.fits.flags import Code, Flag, having
from isolaw.fits.law import Law
from isolaw.report.figures.law import law_figure
from isolaw.report.text import law as law_text
from isolaw.report.text import prediction as prediction_text

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

DATA = Path(__file__).parent / "data"
NAMES = ["version-1", "version-1-paper"]


def test_the_laws_are_of_version_1() -> None:
    assert {json.loads((DATA / f"{name}.json").read_text())["format"] for name in NAMES} == {FORMAT}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1e5, 2e6, 4e6])
def test_predictions_follow_its_curves(name: str, budget: float) -> None:
    """There is no surface: measured n compete by their learning curves, in every draw of the file."""
    law = Law.load(DATA / f"{name}.json")
    assert law.surface is None
    p = law.predict(budget)
    json.dumps(p.to_dict(), allow_nan=False)
    places = [(g.problems_per_batch, g.rollouts_per_problem) for g in law.document.grid]
    rewards = np.array([law.curves(*place)(budget)[:, 0] for place in places])
    assert rewards.shape[1] > 1
    regret = (rewards.max(axis=0) - rewards)[:, 1:].mean(axis=1)
    found = {(o.allocation.problems_per_batch, o.allocation.rollouts_per_problem): o for o in p.options}
    assert set(found) <= set(places)
    for place, own, values in zip(places, regret, rewards, strict=True):
        if place in found:
            assert found[place].expected_loss == pytest.approx(own)
            assert found[place].reward.value == pytest.approx(values[0])
    best = p.options[0].allocation
    assert places[int(regret.argmin())] == (best.problems_per_batch, best.rollouts_per_problem)
    assert p.n_star.value == places[int(rewards[:, 0].argmax())][1]


@pytest.mark.parametrize("name", NAMES)
def test_far_beyond_its_runs_it_recommends_nothing_either(name: str) -> None:
    assert Law.load(DATA / f"{name}.json").predict(1e9).allocation is None


@pytest.mark.parametrize("name", NAMES)
def test_it_says_so(name: str) -> None:
    flags = Law.load(DATA / f"{name}.json").document.flags
    assert flags[-1].code == Code.VERSION_1
    assert flags[-1].text.startswith(
        "fitted by an older isolaw: predictions follow its learning curves alone"
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_read(name: str) -> None:
    law = Law.load(DATA / f"{name}.json")
    assert law_text.law_summary(law.document)
    assert prediction_text.prediction_summary(law.predict(2e6), law.document)
    assert law_figure(law).axes


def test_warnings_become_flags() -> None:
    first, _ = Law.load(DATA / "version-1.json").document.flags
    assert first == Flag(Code.VERSION_1, "a note of the reader")
    *flags, _ = Law.load(DATA / "version-1-paper.json").document.flags
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
def test_damage_is_one_message(tmp_path: Path, key: str) -> None:
    data = json.loads((DATA / "version-1.json").read_text())
    path = tmp_path / "law.json"
    damaged: list[Any] = [{**data, key: damage} for damage in (None, 3, "text", [1], {"a": 1})]
    for own in (*damaged, {k: v for k, v in data.items() if k != key}):
        path.write_text(json.dumps(own))
        with pytest.raises(DataError, match=r"law\.json: the law is damaged: "):
            Law.load(path)
