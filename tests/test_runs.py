"""The data model: validated on entry, unchanged through Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isolaw.errors import DataError
from isolaw.runs import COLUMNS, KEY, Runs


def table(*changes: dict[str, Any], **columns: Any) -> pd.DataFrame:
    """Three steps of one run; ``changes`` are row by row, ``columns`` for all rows."""
    rows = [
        {
            "run_id": "a",
            "problem_set": "easy",
            "algorithm": "grpo",
            "problems_per_batch": 4,
            "rollouts_per_problem": 8,
            "seed": 0,
            "step": step,
            "compute": 32 * step,
            "eval_set": "validation",
            "metric": "avg@4",
            "value": 0.1 * step,
        }
        for step in range(3)
    ]
    for row, change in zip(rows, changes, strict=False):
        row.update(change)
    return pd.DataFrame(rows).assign(**columns)


def test_columns_and_dtypes() -> None:
    runs = Runs(table())
    assert runs.points.dtypes.astype(str).to_dict() == COLUMNS
    assert runs.points["tokens"].isna().all()
    assert len(runs) == 1


@pytest.mark.parametrize("value", [5e-324, -1e-320, 1e-200])
def test_a_value_whose_square_is_zero_is_zero(value: float) -> None:
    assert (Runs(table().assign(value=value)).points["value"] == 0).all()


def test_sorted_by_key_whatever_the_order() -> None:
    both = pd.concat([table(run_id="b"), table(metric="best@4"), table()])
    shuffled = both.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(Runs(both).points, Runs(shuffled).points)
    points = Runs(shuffled).points
    assert points[KEY].apply(tuple, axis=1).is_monotonic_increasing


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (table().drop(columns="seed"), ["missing columns: seed"]),
        (table().rename(columns={"compute": "computes"}), ["compute", "did you mean 'computes'"]),
        (table().iloc[:0], ["no rows"]),
        (table({}, {"value": np.nan}, {}), ["1 values are not finite", "row 1", "step 1"]),
        (table({}, {}, {"value": np.inf}), ["not finite", "row 2"]),
        (table({"value": "high"}), ["value", "row 0", "'high'"]),
        (table({}, {"compute": "much"}), ["compute", "row 1", "'much'"]),
        (table({}, {"step": None}), ["step", "row 1"]),
        (table({}, {"rollouts_per_problem": 0}), ["rollouts_per_problem must be at least 1", "row 1"]),
        (table({"problems_per_batch": -4}), ["problems_per_batch must be at least 1", "row 0"]),
        (table({"compute": -1}), ["compute must be at least 0", "row 0"]),
        (table({}, {}, {"step": 1}), ["repeated (run, step)", "row 2", 'columns={"seed": "<column>"}']),
        (
            table({}, {}, {"compute": 16}),
            ["must grow", "row 2", "16 after 32", 'columns={"seed": "<column>"}'],
        ),
        (table({}, {}, {"compute": 32}), ["must grow", "32 after 32"]),
    ],
)
def test_refused(points: pd.DataFrame, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        Runs(points, source="here.csv")
    message = str(error.value)
    assert message.startswith("here.csv: ")
    for word in words:
        assert word in message


def test_one_step_has_one_compute() -> None:
    other = table({"compute": 1}, {"compute": 40}, eval_set="train")
    with pytest.raises(DataError, match="compute"):
        Runs(pd.concat([table(), other], ignore_index=True))


@pytest.mark.parametrize("column", ["step", "rollouts_per_problem", "seed"])
def test_counts_are_whole_numbers(column: str) -> None:
    points = table().astype({column: float})
    points[column] += 0.4
    with pytest.raises(DataError, match=column):
        Runs(points)


@pytest.mark.parametrize("value", [np.inf, 1e30])
def test_compute_that_no_integer_holds(value: float) -> None:
    with pytest.raises(DataError) as error:
        Runs(table({}, {}, {"compute": value}))
    assert "-92233" not in str(error.value)  # the message shows what was found


@pytest.mark.parametrize("column", ["rollouts_per_problem", "problems_per_batch", "seed"])
@pytest.mark.parametrize("kind", [int, str])
def test_categories_of_counts_are_integers(column: str, kind: type) -> None:
    points = table()
    points[column] = points[column].astype(kind).astype("category")
    pd.testing.assert_frame_equal(Runs(points).points, Runs(table()).points)


@pytest.mark.parametrize("column", ["rollouts_per_problem", "problems_per_batch", "seed", "step", "value"])
@pytest.mark.parametrize(
    "value",
    [pd.Interval(1, 2), {"a": 1}, [1], {1}, 1j, 10**400, 10**5000, np.arange(3)],
    ids=lambda v: type(v),
)
def test_values_that_are_no_numbers(column: str, value: Any) -> None:
    points = table().astype({column: object})
    points[column] = pd.Series([value] * len(points), dtype=object)
    with pytest.raises(DataError, match=column) as error:
        Runs(points)
    assert len(str(error.value)) < 500


def test_columns_of_complex_numbers_and_intervals() -> None:
    for column in (np.array([1j] * 3), pd.arrays.IntervalArray.from_breaks(range(4))):
        with pytest.raises(DataError, match="seed"):
            Runs(table().assign(seed=column))


def test_counts_have_a_limit() -> None:
    with pytest.raises(DataError, match=r"must be a whole number from 1 to 2\^53: row 0 has 1e\+300"):
        Runs(table(rollouts_per_problem=1e300))


def test_many_bad_rows_are_not_all_listed() -> None:
    points = pd.concat([table(seed=s, run_id=str(s), value=np.nan) for s in range(10)], ignore_index=True)
    with pytest.raises(DataError, match=r"30 values are not finite.* and 25 more"):
        Runs(points)


def test_parquet_gives_everything_back(tmp_path: Path) -> None:
    path = tmp_path / "points.parquet"
    runs = Runs(table(tokens=[0, 10, None], wall_s=1.5, n_samples=4), {"a": {"lr": 0.02, "model": "x"}})
    runs.to_parquet(path)
    again = Runs.from_parquet(path)
    pd.testing.assert_frame_equal(runs.points, again.points)
    assert again.attributes == {"a": {"lr": 0.02, "model": "x"}}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"step,value\n1,2\n"])
def test_not_parquet(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "points.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"points\.parquet: not a readable Parquet file"):
        Runs.from_parquet(path)


def test_concat_and_select() -> None:
    a, b = Runs(table(), {"a": {"lr": 1.0}}), Runs(table(run_id="b", seed=1), {"b": {"lr": 2.0}})
    both = Runs.concat([a, b])
    assert len(both) == 2
    assert both.table()["lr"].to_dict() == {"a": 1.0, "b": 2.0}
    only = both.select(["b"])
    pd.testing.assert_frame_equal(only.points, b.points)
    assert only.attributes == b.attributes
    with pytest.raises(DataError, match="repeated"):
        Runs.concat([a, a])


def test_the_copy_is_a_copy() -> None:
    runs = Runs(table())
    copy = runs.to_pandas()
    copy["value"] = 9.0
    assert runs.points["value"].max() < 1


def test_metrics_of_a_set() -> None:
    runs = Runs(pd.concat([table(), table(metric="best@4"), table(eval_set="train", metric="reward")]))
    assert runs.metrics("validation") == ["avg@4", "best@4"]
    assert runs.metrics("train") == ["reward"]
    assert runs.metrics("aime24") == []
