"""A law on disk: what goes in comes out, nothing else is written over, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.fits.document.codec import Malformed
from isolaw.fits.document.files import check_writable, save
from isolaw.fits.draws import Draws
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.law import Law
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]


@pytest.fixture(scope="module")
def law(synthetic: Make) -> Law:
    return isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.005), draws=25)


@pytest.fixture(scope="module")
def paper(synthetic: Make) -> Law:
    return isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.005), method="paper", draws=25)


@pytest.fixture(scope="module")
def other(synthetic: Make) -> Law:
    return isolaw.fit(synthetic([(16, n) for n in LEVELS], noise=0.005, rng=1), draws=25)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["surface", "paper"])
@pytest.mark.parametrize("hold", ["B_p", "B", "nothing"])
def test_round_trip(synthetic: Make, tmp_path: Path, hold: Any, method: Any) -> None:
    pairs = {
        "B_p": [(32, n) for n in LEVELS],
        "B": [(1024 // n, n) for n in LEVELS],
        "nothing": [(b, n) for b in (16, 32) for n in LEVELS],
    }[hold]
    runs = synthetic(pairs, noise=0.005)
    before = isolaw.fit(runs, hold=hold, method=method, draws=8)
    path = before.save(tmp_path / "law.json")
    after = Law.load(path)
    assert after.document == before.document
    pd.testing.assert_frame_equal(after.draws.table(), before.draws.table())
    assert repr(after) == repr(before)
    assert after.params == before.params
    for budget in (3e4, 5e5, 1e7):
        assert after.predict(budget) == before.predict(budget)
        assert after.predict(budget).to_dict() == before.predict(budget).to_dict()


def test_round_trip_of_a_refused_law(synthetic: Make, tmp_path: Path) -> None:
    """The smallest n is best everywhere: there is no law, but there is something to predict from."""
    runs = synthetic(
        [(32, n) for n in LEVELS], lambda b, n, c: 0.3 + (0.3 - 0.01 * np.log2(n)) * (1 - np.exp(-c / 3e4))
    )
    for method in ("surface", "paper"):
        before = isolaw.fit(runs, method=method, draws=10)
        assert method == "surface" or before.params["b"].status == "refused"
        after = Law.load(before.save(tmp_path / "law.json"))
        assert after.params == before.params
        assert after.predict(5e5) == before.predict(5e5)
        assert before.predict(5e5).allocation.rollouts_per_problem <= 16


def test_what_is_on_disk(law: Law, tmp_path: Path) -> None:
    path = law.save(tmp_path / "deep" / "down" / "law.json")
    document = json.loads(path.read_text())
    assert document["format"] == "isolaw.law/1"
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == sorted(["law.json", document["bootstrap"]["file"]])
    draws = pd.read_parquet(path.with_name(document["bootstrap"]["file"]))
    assert len(draws) == 26
    assert all(name.startswith("surface.") for name in draws.columns)
    assert document["curves"] == []  # only the paper's method fits learning curves


def test_curves_on_disk(paper: Law, tmp_path: Path) -> None:
    path = paper.save(tmp_path / "law.json")
    document = json.loads(path.read_text())
    draws = pd.read_parquet(path.with_name(document["bootstrap"]["file"]))
    assert {f"32x{n}.{name}" for n in LEVELS for name in ("R0", "A", "tau")} <= set(draws.columns)
    for n, curve in zip(LEVELS, document["curves"], strict=True):
        assert curve["parameters"]["A"]["value"] == draws[f"32x{n}.A"][0]


def test_strict_json_on_disk(law: Law, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(law.save(tmp_path / "law.json").read_text(), parse_constant=refuse)


def test_without_its_draws_a_law_predicts_without_intervals(law: Law, tmp_path: Path) -> None:
    path = law.save(tmp_path / "law.json")
    path.with_name(json.loads(path.read_text())["bootstrap"]["file"]).unlink()
    bare = Law.load(path)
    for budget in (3e4, 5e5, 1e7):
        full, lone = law.predict(budget), bare.predict(budget)
        (missing,) = flags_with(lone.flags, Code.NO_DRAWS)
        assert missing.text.startswith("the file of draws is missing, so there are no intervals")
        # By the estimate alone: that of the most likely hyperparameters, of which draws have others too.
        mine = {o.allocation: o for o in full.options}
        for o in lone.options:
            assert (o.reward.interval, o.probability) == (None, None)
            if o.allocation in mine:
                near = 0.005 if budget <= 1e6 else 0.1
                assert o.reward.value == pytest.approx(mine[o.allocation].reward.value, abs=near)
        assert (full.allocation is None) == (lone.allocation is None)
        before, after = full.n_star, lone.n_star
        assert after.interval is None
        assert (after.value is None) == (before.value is None)
        assert after.value is None or abs(np.log2(after.value / before.value)) < 0.5
        for before, after in ((full.b_star, lone.b_star), (full.unspent, lone.unspent)):
            assert type(before) is type(after)


def test_a_law_is_replaced_with_its_draws(law: Law, other: Law, tmp_path: Path) -> None:
    path = law.save(tmp_path / "law.json")
    other.save(path)
    assert Law.load(path).document.fixed == {"problems_per_batch": 16}
    assert len(list(tmp_path.iterdir())) == 2
    other.save(path)  # the same again changes nothing
    assert len(list(tmp_path.iterdir())) == 2
    pd.testing.assert_frame_equal(Law.load(path).draws.table(), other.draws.table())


def test_two_laws_in_one_folder(law: Law, other: Law, tmp_path: Path) -> None:
    a, b = law.save(tmp_path / "a.json"), other.save(tmp_path / "b.json")
    law.save(tmp_path / "c.json").unlink()
    assert Law.load(a).predict(5e5) == law.predict(5e5)
    assert Law.load(b).predict(5e5) == other.predict(5e5)


@pytest.mark.parametrize("hold", ["B_p", "B", "nothing"])
def test_the_surface_comes_back(synthetic: Make, tmp_path: Path, hold: Any) -> None:
    """Draw by draw, at any allocation and budget; from the document alone its most likely mean."""
    pairs = {
        "B_p": [(32, n) for n in LEVELS],
        "B": [(1024 // n, n) for n in LEVELS],
        "nothing": [(b, n) for b in (16, 32) for n in LEVELS],
    }[hold]
    before = isolaw.fit(synthetic(pairs, noise=0.005, between=0.01), hold=hold, draws=25)
    path = before.save(tmp_path / "law.json")
    after = Law.load(path)
    at = (np.array([3.0, 4.4, 9.0]), np.full(3, 4.5), np.array([3e4, 5e5, 3e6]))
    assert before.surface is not None
    assert after.surface is not None
    drawn = before.surface.rewards(*at)
    assert drawn.shape == (26, 3)
    np.testing.assert_array_equal(after.surface.rewards(*at), drawn)
    path.with_name(json.loads(path.read_text())["bootstrap"]["file"]).unlink()
    bare = Law.load(path).surface
    assert bare is not None
    assert bare.rewards(*at).shape == (1, 3)
    np.testing.assert_allclose(bare.mode, before.surface.mode)
    assert bare.bounds == before.surface.bounds == (0.0, 1.0)
    assert bare.effective == before.surface.effective > 1
    assert isolaw.fit(synthetic(pairs), hold=hold, method="paper", draws=5).surface is None


def test_draws_of_another_surface_are_refused(law: Law, other: Law) -> None:
    """Draws that lack the surface's columns, or whose estimate is that of another fit, are of another law."""
    table = law.draws.table()
    for wrong in (table.drop(columns=table.columns[0]), other.draws.table(), table.iloc[:0]):
        with pytest.raises(Malformed, match="another law"):
            Draws.from_table(law.document, wrong)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"notes\n",
        b"{}",
        b"[]",
        b'"isolaw.law/1"',
        b'{"format": "isolaw.law/3"}',
        b"\xff\xfe\x00\x01",
        b"{",
    ],
)
def test_what_is_not_a_law_is_neither_read_nor_replaced(law: Law, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    for attempt in (law.save, check_writable, lambda p: save(law.document, p), Law.load):
        with pytest.raises(DataError) as error:
            attempt(path)
        assert str(error.value).startswith(f"{path}: ")
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["mine.json"]


def test_places_where_nothing_can_be_written(law: Law, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="found a directory"):
        law.save(tmp_path)
    with pytest.raises(DataError, match=r"law\.json"):
        law.save(tmp_path / "file" / "law.json")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json: No such file"):
        Law.load(tmp_path / "gone.json")
    with pytest.raises(DataError, match="directory"):
        Law.load(tmp_path)


def test_other_formats_are_named(law: Law, tmp_path: Path) -> None:
    path = tmp_path / "law.json"
    path.write_text(json.dumps({**law.to_dict(), "format": "isolaw.law/3"}))
    accepted = r"found 'isolaw\.law/3'; expected 'isolaw\.law/1'"
    with pytest.raises(DataError, match=accepted):
        Law.load(path)


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(key)


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a surface of nothing": lambda d: d.update(surface={}),
    "observations of nothing": lambda d: d["surface"].update(observations={}),
    "observations of a text": lambda d: d["surface"]["observations"].update(reward="high"),
    "fewer rewards than times": lambda d: d["surface"]["observations"]["reward"].pop(),
    "a run of no configuration": lambda d: d["surface"]["observations"]["run_place"].__setitem__(0, 99),
    "hyperparameters of another surface": lambda d: d["surface"]["theta"].pop(),
    "no number among observations": lambda d: d["surface"]["observations"]["reward"].__setitem__(0, None),
    "only the format": lambda d: [d.pop(k) for k in list(d) if k != "format"],
    "no bootstrap": _without("bootstrap"),
    "no curves": lambda d: (d.pop("curves"), d["bootstrap"].pop("file")),
    "a curve of another family": lambda d: d.update(curve="hill"),
    "an unknown family": lambda d: d.update(curve="cubic"),
    "no frontier": lambda d: d.update(frontier=[]),
    "a text for a number": lambda d: d["frontier"][3].update(x="many"),
    "a number for a text": lambda d: d.update(metric=4),
    "no number": lambda d: d["frontier"][0].update(x=float("nan")),
    "true for a number": lambda d: d["grid"][0].update(runs=True),
    "an unknown status": lambda d: d["params"]["b"].update(status="fine"),
    "a step for nothing": lambda d: d["grid"][0].update(step_cost=0),
    "half a range": lambda d: d["x"].update(range=[1.0]),
    "warnings of version 1": lambda d: d.update(warnings=["one seed per configuration: so it is"]),
    "draws elsewhere": lambda d: d["bootstrap"].update(file="../draws.parquet"),
    "draws are no file name": lambda d: d["bootstrap"].update(file=3),
    "draws are no table": lambda d: d["bootstrap"].update(file="broken.parquet"),
    "draws of another law": lambda d: d["bootstrap"].update(file="foreign.parquet"),
}
OF_CURVES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "curves of another family": lambda d: d.update(curve="hill"),
    "one curve less": lambda d: d["curves"].pop(),
    "a curve without an error": lambda d: d["curves"][0].update(rms=float("nan")),
    "a curve without a value": lambda d: d["curves"][0]["parameters"]["A"].update(value=None),
}


@pytest.mark.parametrize("name", [*DAMAGE, *OF_CURVES])
def test_a_damaged_law_is_named(law: Law, paper: Law, tmp_path: Path, name: str) -> None:
    path = (law if name in DAMAGE else paper).save(tmp_path / "law.json")
    (tmp_path / "broken.parquet").write_bytes(b"hello")
    pd.DataFrame({"a": [1.0]}).to_parquet(tmp_path / "foreign.parquet")
    document = json.loads(path.read_text())
    {**DAMAGE, **OF_CURVES}[name](document)
    path.write_text(json.dumps(document))
    with pytest.raises(DataError) as error:
        Law.load(path).predict(5e5)
    assert "law.json" in str(error.value) or ".parquet" in str(error.value)


@pytest.mark.parametrize("value", [32, np.int64(32), "32"], ids=["int", "numpy", "text"])
def test_what_is_fixed_may_come_from_anywhere(synthetic: Make, tmp_path: Path, value: Any) -> None:
    """A NumPy integer, as `runs.table()` gives, is no reason to lose a finished fit."""
    runs = synthetic([(32, n) for n in LEVELS])
    law = isolaw.fit(runs, where={"problems_per_batch": value}, draws=5)
    again = Law.load(law.save(tmp_path / "law.json"))
    assert again.predict(5e5) == law.predict(5e5)


def test_curves_and_levels(law: Law, paper: Law) -> None:
    assert law.levels.tolist() == paper.levels.tolist() == LEVELS
    curves = paper.curves(32, 128)
    assert curves([1e5]).shape == (26, 1)
    with pytest.raises(InputError, match="B_p = 128, n = 12, of which the law has no run; expected B_p = 32"):
        paper.curves(128, 12)
    with pytest.raises(InputError, match="only laws of method='paper' have learning curves"):
        law.curves(32, 128)
    entry = next(c for c in paper.document.curves if c.rollouts_per_problem == 128)
    assert curves.parameters()["tau"][0] == pytest.approx(entry.parameters["tau"].value)


def test_repr(law: Law) -> None:
    assert repr(law) == "<Law: B_p = 32, n in 8..512, C in 16,384..1e6>"
