"""Tables in memory, whoever's they are: the same runs as from their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import isolaw
from isolaw.errors import DataError, InputError
from isolaw.readers.table_files import as_pandas
from isolaw.runs import Runs

TAN = Path(__file__).parents[2] / "examples" / "data" / "tan_rollout_n_base.csv"
HOW: dict[str, Any] = {
    "metric": "holdout_acc_raw",
    "columns": {"n": "rollout_n", "C": "prompts_seen*n"},
    "set": {"B_p": 512},
}


class Streams:
    """What only has Arrow's stream, as a polars DataFrame."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.table = pa.Table.from_pandas(frame, preserve_index=False)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class Dataset:
    """What only becomes pandas, as one of Hugging Face datasets."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def to_pandas(self) -> pd.DataFrame:
        return self.frame.copy()


def frame(seeds: int = 1) -> pd.DataFrame:
    """A wide table of isolaw's symbols: n is 8, 16 and 32, and the reward rises."""
    rows = [
        {
            "B_p": 4,
            "n": n,
            "seed": seed,
            "step": at * 32 // n,
            "val_acc": 0.8 - 0.5 / (1 + at * 4 / n) + seed / 1e3,
        }
        for n in (8, 16, 32)
        for seed in range(seeds)
        for at in (0, 5, 10, 20, 30, 40, 60, 80, 100)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("kind", [lambda own: own, pa.Table.from_pandas, Streams, Dataset])
def test_any_table_is_read_as_its_file(kind: Any) -> None:
    expected = isolaw.read(TAN, **HOW)
    own = pd.read_csv(TAN)
    before = own.copy()
    runs = isolaw.read(kind(own), **HOW)
    pd.testing.assert_frame_equal(runs.points, expected.points)
    assert runs.table().equals(expected.table())
    pd.testing.assert_frame_equal(own, before)  # untouched
    assert runs.source == "DataFrame"


def test_the_data_models_own_table_needs_no_keywords() -> None:
    runs = isolaw.read(TAN, **HOW)
    pd.testing.assert_frame_equal(isolaw.read(runs.to_pandas()).points, runs.points)
    pd.testing.assert_frame_equal(isolaw.read(pa.Table.from_pandas(runs.points)).points, runs.points)


@pytest.mark.slow
def test_runs_are_exported_by_arrow(tiny) -> None:
    for runs in (isolaw.read(TAN, **HOW), isolaw.sweep(tiny())):
        table = pa.table(runs)
        pd.testing.assert_frame_equal(table.to_pandas(), runs.to_pandas())
        back = isolaw.read(table)
        pd.testing.assert_frame_equal(back.points, runs.points)
        assert back.attributes == runs.attributes
        assert back.simulated is runs.simulated
        bare = isolaw.read(table.replace_schema_metadata(None))  # as polars, which keeps no metadata
        pd.testing.assert_frame_equal(bare.points, runs.points)
        assert bare.simulated is runs.simulated


def test_runs_are_exported_as_the_consumer_asks() -> None:
    runs = isolaw.read(TAN, **HOW)
    wanted = pa.table(runs).schema.set(3, pa.field("problems_per_batch", pa.int32()))
    assert pa.table(runs, schema=wanted).schema.field("problems_per_batch").type == pa.int32()


def test_damaged_attributes_are_an_error() -> None:
    table = pa.table(isolaw.read(TAN, **HOW)).replace_schema_metadata({"isolaw.attributes": "{"})
    with pytest.raises(DataError, match="attributes of its runs, in the metadata, are damaged"):
        isolaw.read(table)


def test_columns_by_their_symbols() -> None:
    runs = isolaw.read(frame(), metric="val_acc")
    assert sorted(runs.table()["rollouts_per_problem"]) == [8, 16, 32]
    assert set(runs.points["problems_per_batch"]) == {4}
    assert any("B_p for problems_per_batch, n for rollouts_per_problem" in note for note in runs.notes)
    # A column that the user gives another meaning, or that stands beside the long name, is not taken.
    runs = isolaw.read(
        frame().rename(columns={"n": "group"}).assign(n=7),
        metric="val_acc",
        columns={"n": "group", "n_problems": "n"},
    )
    assert sorted(runs.table()["rollouts_per_problem"]) == [8, 16, 32]
    assert set(runs.points["n_problems"]) == {7}


def test_a_reward_is_a_column_too() -> None:
    runs = isolaw.read(
        frame().assign(best=90.0), columns={"avg@4": "val_acc", "best@4": "best"}, set={"eval_set": "aime24"}
    )
    assert runs.metrics("aime24") == ["avg@4", "best@4"]
    assert set(runs.points.loc[runs.points["metric"] == "best@4", "value"]) == {0.9}
    assert len(runs) == 3  # a reward is not what tells runs apart


def test_an_index_becomes_columns() -> None:
    runs = isolaw.read(frame().set_index(["n", "step"]), metric="val_acc")
    pd.testing.assert_frame_equal(runs.points, isolaw.read(frame(), metric="val_acc").points)


def test_several_frames_and_files(tmp_path: Path) -> None:
    first, second = frame().query("n == 8"), frame().query("n > 8")
    second.to_csv(tmp_path / "second.csv", index=False)
    runs = isolaw.read(first, tmp_path / "second.csv", metric="val_acc")
    assert len(runs) == 3
    assert len(isolaw.read(isolaw.read(first, metric="val_acc"), second, metric="val_acc")) == 3


def test_nested_columns_are_left_out() -> None:
    own = frame().assign(tags=[["a"]] * len(frame()))
    runs = isolaw.read(pa.Table.from_pandas(own), metric="val_acc")
    assert any("isolaw left out nested columns: tags" in note for note in runs.notes)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, ["found NoneType", "a path, Runs, or a table"]),
        ({"step": [1]}, ["found dict"]),
        (frame().iloc[:0], ["no rows", "val_acc"]),
        (pd.concat([frame(), frame()[["n"]]], axis=1), ["two columns are called 'n'"]),
        (frame().groupby("n").agg({"val_acc": ["mean", "std"]}), ["columns of 2 levels"]),
        (
            frame().assign(val_acc=["high", *[0.5] * (len(frame()) - 1)]),
            ["value is not a number", "row 0 has 'high'"],
        ),
        (frame().drop(columns="seed").pipe(lambda t: pd.concat([t, t])), ["repeated (run, step)"]),
    ],
    ids=range(7),
)
def test_what_is_no_table_of_runs(table: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        isolaw.read(table, metric="val_acc")
    for word in words:
        assert word in str(error.value)


def test_a_lazy_table_is_collected_by_its_owner() -> None:
    class Lazy:
        def collect(self) -> pd.DataFrame:
            return frame()

    with pytest.raises(DataError, match=r"found Lazy; .*; call its collect\(\) first"):
        as_pandas(Lazy())


def test_settings_are_constants_and_keywords_of_files_are_refused() -> None:
    own = frame().drop(columns="B_p")
    runs = isolaw.read(own, set=["B_p=4"], metric="val_acc")
    pd.testing.assert_frame_equal(runs.points, isolaw.read(frame(), metric="val_acc").points)
    with pytest.raises(InputError, match=r"no run matches 'other\*'; found a DataFrame"):
        isolaw.read(own, set=["B_p=4", "other*:seed=3"], metric="val_acc")
    with pytest.raises(InputError, match="name_pattern applies to files; found a DataFrame"):
        isolaw.read(frame(), metric="val_acc", name_pattern="n{n}")


# Functions of runs


def test_fit_takes_what_read_takes(tmp_path: Path) -> None:
    own = frame(seeds=2)
    own.to_csv(tmp_path / "t.csv", index=False)
    how: dict[str, Any] = {"columns": {"n": "group"}, "set": {"B_p": 4}}
    foreign = own.drop(columns="B_p").rename(columns={"n": "group"})
    expected = isolaw.fit(isolaw.read(own, metric="val_acc"), draws=0).document.frontier
    for law in (
        isolaw.fit(foreign, metric="val_acc", draws=0, **how),
        isolaw.fit(tmp_path / "t.csv", "val_acc", draws=0, where={"B_p": 4}),
    ):
        assert law.document.frontier == expected


@pytest.mark.slow
def test_other_functions_take_what_read_takes(tmp_path: Path) -> None:
    own = frame(seeds=2)
    runs = isolaw.read(own, metric="val_acc")
    answer = isolaw.answer(own, 8000, "val_acc", draws=0)
    assert answer.write_page(tmp_path / "report.html").exists()
    assert isolaw.backtest(own, 8000, "val_acc", set={"problem_set": "math"}, draws=0) == (
        isolaw.backtest(runs, 8000, "val_acc", draws=0)
    )
    found = isolaw.compare_shapes(own, (4, 8), (4, 32), compute=6000, metric="val_acc", draws=10)
    assert found.difference.value > 0
    rates = pd.concat([own.assign(lr=0.1), own.assign(lr=0.2)])
    tuned = isolaw.retune(rates, "val_acc", "validation", columns={"lr": "lr"})
    assert len(tuned.runs) == 6


def test_keywords_of_reading_need_something_to_read() -> None:
    runs = isolaw.read(frame(), metric="val_acc")
    with pytest.raises(InputError, match="set: found Runs, which are already read"):
        isolaw.fit(runs, set={"B_p": 4})
    with pytest.raises(TypeError, match="unexpected keyword 'constant'; to read a table: columns, set"):
        isolaw.fit(frame(), constant={"B_p": 4})  # type: ignore[call-arg]


def test_runs_of_a_foreign_table_names_the_reader() -> None:
    with pytest.raises(DataError, match=r"missing columns: run_id.* isolaw.read\(df, columns="):
        Runs(frame())
    with pytest.raises(InputError, match=r"points: found \[1, 2\]; expected a DataFrame. isolaw.read\("):
        Runs([1, 2])  # type: ignore[arg-type]


# One set of names


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"set": {"B_p": 4, "n": 8}}, (4, 8)),
        ({"set": {"problems_per_batch": 4, "rollouts_per_problem": 8}}, (4, 8)),
        ({"set": {"B": 32, "n": 8}}, (4, 8)),
        ({"columns": {"n": "group"}, "set": {"B": 32}}, (4, 8)),
        ({"columns": {"n": "group", "B_p": "32/n"}}, (4, 8)),
        ({"columns": {"M": "it", "n": "group", "C": "B_p*n*M"}, "set": {"B_p": 4}}, (4, 8)),
    ],
    ids=str,
)
def test_symbols_and_names_alike(how: dict[str, Any], expected: tuple[int, int]) -> None:
    table = pd.DataFrame({"it": [1, 2], "step": [1, 2], "group": [8, 8], "acc": [0.1, 0.2]})
    points = isolaw.read(table, metric="acc", **how).points
    assert set(zip(points["problems_per_batch"], points["rollouts_per_problem"], strict=True)) == {expected}
    np.testing.assert_array_equal(points["compute"], [32, 64])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"set": {"n": 8, "rollouts_per_problem": 4}}, "found 8 and 4 under two names"),
        ({"set": {"n": 8}, "columns": {"rollouts_per_problem": "group"}}, "is given twice"),
        ({"set": {"n": 8, "B_p": 4, "B": 64}}, r"row 0: B = 64 is not B_p · n = 4 · 8"),
        ({"set": {"n": 8, "B": 36}}, r"row 0: B = 36 is not B_p · n = 4.5 · 8"),
    ],
    ids=str,
)
def test_one_thing_given_twice(how: dict[str, Any], words: str) -> None:
    table = pd.DataFrame({"step": [1, 2], "group": [8, 8], "acc": [0.1, 0.2]})
    with pytest.raises(InputError, match=words):
        isolaw.read(table, metric="acc", **how)
