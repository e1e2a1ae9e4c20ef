"""Parts of runs in tables: joined where one continues another, apart where anything says so."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.runs import Runs

PUBLISHED = Path(__file__).parents[3] / "shared/data/published/cbs/curves_n16.csv"
HEAD = "id,name,problems_per_batch,rollouts_per_problem,lr,fixed,created,step,value\n"


def segment(
    id: str, name: str, steps: dict[int, float], lr: str = "1e-6", more: str = "False,2026-06-01"
) -> str:
    return "".join(f"{id},{name},8,4,{lr},{more},{step},{value}\n" for step, value in steps.items())


FIRST = segment("a", "p8_n4", {0: 0.1, 10: 0.2, 20: 0.3})
NEXT = segment("b", "p8_n4", {20: 0.35, 30: 0.4, 40: 0.5}, more="False,2026-06-02")


def read(folder: Path, text: str, **options: object) -> Runs:
    (folder / "t.csv").write_text(HEAD + text)
    return isolaw.read(folder / "t.csv", **options)  # type: ignore[arg-type]


def curves(runs: Runs) -> dict[str, dict[int, float]]:
    return {
        str(run): dict(zip(rows["step"], rows["value"], strict=True))
        for run, rows in runs.points.groupby("run_id")
    }


def test_a_segment_that_goes_on_beyond_another_continues_it_and_its_values_hold(tmp_path: Path) -> None:
    runs = read(tmp_path, NEXT + FIRST)  # the order in the file is no order in time
    assert curves(runs) == {"p8_n4": {0: 0.1, 10: 0.2, 20: 0.35, 30: 0.4, 40: 0.5}}
    assert runs.points["compute"].tolist() == [0, 320, 640, 960, 1280]
    assert any("2 segments are 1 runs: p8_n4" in note for note in runs.notes)
    assert any(
        "1 step repeated with other values; isolaw kept the later values" in note for note in runs.notes
    )


def test_a_restart_next_to_a_segment_is_a_repeat(tmp_path: Path) -> None:
    runs = read(tmp_path, FIRST + NEXT + segment("c", "p8_n4", {25: 0.3, 35: 0.4}, more="False,2026-06-02"))
    assert curves(runs)["p8_n4/c"] == {25: 0.3, 35: 0.4}
    assert len(curves(runs)["p8_n4"]) == 5
    assert runs.table()["seed"].to_dict() == {"p8_n4": 0, "p8_n4/c": 1}
    assert any("p8_n4 and p8_n4/c" in note for note in runs.notes)


@pytest.mark.parametrize(
    ("other", "attribute"),
    [
        (segment("b", "p8_n4", {20: 0.3, 30: 0.4}, lr="2e-6"), "lr"),  # the name hides it
        (segment("b", "p8_n4_new", {20: 0.3, 30: 0.4}, more="True,2026-06-02"), "fixed"),
    ],
)
def test_another_recipe_is_another_run_and_no_repeat(tmp_path: Path, other: str, attribute: str) -> None:
    table = read(tmp_path, FIRST + other).table()
    assert table[attribute].nunique() == len(table) == 2
    assert (table["seed"] == 0).all()


def test_rows_that_stand_twice_count_once_and_ones_that_differ_are_asked(tmp_path: Path) -> None:
    assert curves(read(tmp_path, FIRST + NEXT + FIRST + NEXT)) == curves(read(tmp_path, FIRST + NEXT))
    with pytest.raises(DataError, match=r"repeated \(run, step\)"):
        read(tmp_path, FIRST + NEXT + segment("a", "p8_n4", {10: 0.25}))


def test_names_give_what_a_pattern_says_and_may_not_contradict_a_column(tmp_path: Path) -> None:
    newer = segment("b", "p8_n4_v2", {0: 0.1, 30: 0.4})
    table = read(tmp_path, FIRST + newer, name_pattern="*_v{version}").table()
    assert table["version"].to_dict() == {"p8_n4": "none", "p8_n4_v2": 2}
    assert (table["seed"] == 0).all()
    with pytest.raises(
        DataError, match=r"line 5: problems_per_batch is 6 in the name 'p6_n4'.*but 8 in the col"
    ):
        read(tmp_path, FIRST + segment("b", "p6_n4", {0: 0.1}), name_pattern="p{B_p}_*")


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published sweep")
def test_a_published_sweep_of_115_segments() -> None:
    runs = isolaw.read(PUBLISHED, metric="avg@1")
    raw = pd.read_csv(PUBLISHED).drop_duplicates(["id", "step"])
    restarts = {"yb5ba4ai", "6amdhe1j"}  # by the sweep's own description
    raw["run"] = raw["name"] + raw["id"].map(lambda own: f"/{own}" if own in restarts else "")
    starts = raw.groupby("id")["step"].transform("min")
    # The later segment of a run is the one that starts later.
    expected = raw.assign(starts=starts).sort_values("starts").drop_duplicates(["run", "step"], keep="last")
    points = runs.points.set_index(["run_id", "step"])["value"].sort_index()
    assert points.to_dict() == expected.set_index(["run", "step"])["value"].to_dict()
    table = runs.table()
    for name in ("lr", "kl", "fixed"):
        assert table[name].to_dict() == raw.groupby("run")[name].first().to_dict()


@pytest.mark.parametrize(
    ("epochs", "steps", "expected"),
    [
        ("1 1 1 2 2 2 3", "1 2 3 1 2 3 1", [1, 2, 3, 4, 5, 6, 7]),
        ("0 0 1 1", "0 1 0 1", [0, 1, 2, 3]),
        ("1 1 2 2", "5 10 5 10", r"columns=\{\"step\": \"\(epoch-1\)\*400\+step\"\}"),
        ("1 1 1 2 2 3 3 3", "1 2 3 1 2 1 2 3", "not every step has a row"),
    ],
)
def test_steps_that_start_again_where_the_epoch_rises(
    tmp_path: Path, epochs: str, steps: str, expected: list[int] | str
) -> None:
    rows = [f"{e},{s},0.{i}1\n" for i, (e, s) in enumerate(zip(epochs.split(), steps.split(), strict=True))]
    (tmp_path / "t.csv").write_text("epoch,step,avg@4\n" + "".join(rows))
    if isinstance(expected, list):
        runs = isolaw.read(tmp_path / "t.csv", set={"B_p": 8, "n": 4})
        assert runs.points["step"].tolist() == expected
        assert runs.points["value"].tolist() == [float(f"0.{i}1") for i in range(len(rows))]
        assert any("the steps start again with each epoch, so isolaw counts" in note for note in runs.notes)
    else:
        with pytest.raises(DataError, match=expected):
            isolaw.read(tmp_path / "t.csv", set={"B_p": 8, "n": 4})
