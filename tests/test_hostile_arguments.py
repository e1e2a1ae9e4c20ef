"""Hostile values as arguments of public functions: an error of isolaw, before a fit begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import IsolawError
from isolaw.fits.law import Law
from isolaw.runs import Runs

HUGE = 10**400
NAN = float("nan")
PATHS = ["", "a\0b", "a\ud800b", "x" * 300, "x/" * 3000]


def brief(value: Any) -> str:
    return type(value).__name__ if type(value) is object else ascii(value)[:12]  # no address in the name


@pytest.fixture(scope="module")
def runs(synthetic: Callable[..., Runs]) -> Runs:
    return synthetic([(32, n) for n in (8, 16, 32)], seeds=2, checkpoints=10)


@pytest.fixture(scope="module")
def law(runs: Runs) -> Law:
    return isolaw.fit(runs, draws=0)


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("a fit began")

    monkeypatch.setattr("isolaw.fits.pipeline.estimate", fail)


def rejected(function: Any, *args: Any, **keywords: Any) -> str:
    with pytest.raises(IsolawError) as error:
        function(*args, **keywords)
    assert len(str(error.value)) < 2000
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metric", 5),
        ("metric", NAN),
        ("metric", b"avg@4"),
        ("eval_set", ["validation"]),
        ("seed", -1),
        ("seed", HUGE),
        ("seed", 0.5),
        ("seed", True),
        ("draws", NAN),
        ("draws", HUGE),
        ("draws", 1e300),
        ("where", {1: 2}),
        ("hold", "x" * 100_000),
        ("curve", "x" * 100_000),
        ("method", 1j),
        ("records", HUGE),
        ("records", float("inf")),
    ],
    ids=brief,
)
@pytest.mark.usefixtures("no_fit")
def test_fit(name: str, value: Any, runs: Runs) -> None:
    assert rejected(isolaw.fit, runs, **{name: value}).startswith(f"{name}: found ")


@pytest.mark.parametrize("compute", [-1, 0, HUGE, 1e300, NAN, "", "x" * 100_000, 1j, None, [1e6]], ids=brief)
@pytest.mark.usefixtures("no_fit")
def test_answer_looks_at_compute_before_it_fits(compute: Any, runs: Runs) -> None:
    rejected(isolaw.answer, runs, compute)


@pytest.mark.usefixtures("no_fit")
def test_a_right_compute_reaches_the_fit(runs: Runs) -> None:
    with pytest.raises(pytest.fail.Exception, match="a fit began"):
        isolaw.answer(runs, 1e6, draws=0)


@pytest.mark.parametrize("compute", [-1, HUGE, NAN, "x" * 100_000], ids=brief)
def test_predict(compute: Any, law: Law) -> None:
    rejected(law.predict, compute)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hold", 5), ("hold", "x" * 100_000), ("where", 5), ("draws", -1), ("fit_below", HUGE)],
    ids=brief,
)
@pytest.mark.usefixtures("no_fit")
def test_backtest(name: str, value: Any, runs: Runs) -> None:
    assert rejected(isolaw.backtest, runs, **{"fit_below": 1e4, name: value}).startswith(f"{name}: found ")


@pytest.mark.parametrize("path", PATHS, ids=brief)
def test_a_path_that_no_file_can_have(
    path: str, law: Law, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for function in (isolaw.read, isolaw.read_cost, isolaw.status, law.save, Law.load, Runs.from_parquet):
        rejected(function, path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("source", [HUGE, NAN, None, 1j, {1}, object(), int], ids=brief)
def test_a_source_that_is_none(source: Any) -> None:
    rejected(isolaw.read, source)
    rejected(isolaw.fit, source)


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


ODD: dict[str, tuple[Callable[..., Any], str]] = {
    "a type as B_p": (lambda _: isolaw.Allocation(int, 8, 1), "problems_per_batch: found type"),
    "half a rollout": (lambda _: isolaw.Allocation(8, 0.5, 1), "rollouts_per_problem: found 0.5"),
    "truth as M": (lambda _: isolaw.Allocation(8, 8, True), "steps: found True"),
    "no problems": (lambda _: isolaw.Allocation.within(1e5, 0, 8), "problems_per_batch: found 0"),
    "a budget as text": (lambda _: isolaw.Allocation.within("1M", 8, 8), "compute: found '1M'"),
    "NaN rollouts": (lambda _: isolaw.Allocation.within(NAN, 8, 8), "compute: found nan"),
    "no argument for a stage": (
        lambda runs: isolaw.answer(runs, 1e5, draws=0, progress=lambda: None),
        "progress: found function; expected a function of 2 arguments",
    ),
    "two for a share": (
        lambda runs: isolaw.backtest(runs, 1e4, progress=lambda a, b: None),
        "progress: found function; expected a function of 1 argument",
    ),
    "none for an event": (lambda _: isolaw.sweep({}, on_event=lambda: None), "on_event: found function"),
    "no table": (lambda _: isolaw.SizeCurves.from_table(5), "table: found 5"),
    "a list as x": (lambda _: isolaw.SizeCurves.from_table(pd.DataFrame(), []), "x: found []"),
    "no data": (lambda _: isolaw.SweepSpec.parse(5), "data: found 5"),
    "numbers as settings": (lambda _: isolaw.SweepSpec.read(None, [5]), "settings: found [5]"),
    "a base of no class": (lambda _: isolaw.SweepSpec.read(None, (), 5), "base: found 5"),
    "a long file": (lambda _: isolaw.SweepSpec.read("x" * 100_000), "path: found a path of 100,000 bytes"),
    "unshowable": (lambda runs: isolaw.fit(runs, method=Unshowable()), "method: found Unshowable"),
    "a folder": (lambda runs: runs.to_parquet("."), ".: "),
    "half a surrogate": (lambda runs: runs.metrics("\ud800"), "eval_set: found '\\ud800'"),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.usefixtures("no_fit")
def test_odd_arguments(case: str, runs: Runs) -> None:
    call, message = ODD[case]
    assert rejected(call, runs).startswith(message)


def test_a_batch_beyond_all_numbers() -> None:
    assert isolaw.Allocation.within(1e6, HUGE, 8).steps == 0


def test_numbers_of_numpy_are_numbers(law: Law) -> None:
    assert law.predict(np.float32(1e5)).compute == law.predict(np.int64(100_000)).compute


@pytest.mark.parametrize("n", [1e300, HUGE, -1, 0.5], ids=brief)
@pytest.mark.parametrize("name", ["n", "B_p"])
def test_a_table(name: str, n: Any) -> None:
    table = pd.DataFrame(
        {"B_p": 32, "n": 8, "seed": 0, "step": range(3), "avg@4": [0.1, 0.2, 0.3]}, dtype=object
    )
    table[name] = pd.Series([n] * 3, dtype=object)
    message = rejected(isolaw.read, table)
    assert "repeated" not in message
    assert name in message or {"n": "rollouts_per_problem", "B_p": "problems_per_batch"}[name] in message
    if n == 1e300:
        assert "must be a whole number from 1 to 2^53" in message


@pytest.mark.parametrize("name", ["n", "B_p", "seed"])
def test_a_table_with_categories(name: str) -> None:
    table = pd.DataFrame({"B_p": 32, "n": 8, "seed": 0, "step": range(3), "avg@4": [0.1, 0.2, 0.3]})
    categories = table.astype({name: "category"})
    pd.testing.assert_frame_equal(isolaw.read(categories).points, isolaw.read(table).points)


NA_STEPS = [pd.Series([1, pd.NA, 3, 4, 5, 6], dtype=dtype) for dtype in (object, "Int64")]
NO_STEPS = pd.Series([pd.NA] * 3 + [4, 5, 6], dtype="Int64")
LARGE_STEPS = [pd.Series([*item, 4, 5, 6], dtype=object) for item in ([1e300] * 3, [1, 2, 1e300], [HUGE] * 3)]


@pytest.mark.parametrize("step", [*NA_STEPS, NO_STEPS, *LARGE_STEPS], ids=lambda own: str(own.iloc[0])[:6])
@pytest.mark.parametrize("run_id", [None, "a"])
def test_steps(step: pd.Series, run_id: str | None) -> None:
    table = pd.DataFrame({"B_p": 32, "n": [8] * 3 + [16] * 3, "step": step, "avg@4": [0.1, 0.2, 0.3] * 2})
    message = rejected(isolaw.read, table if run_id is None else table.assign(run_id=run_id))
    assert message.startswith(("DataFrame: step", "DataFrame: n changes "))


@pytest.mark.parametrize(
    "keywords",
    [
        {"attributes": 5},
        {"attributes": {"a": 1}},
        {"attributes": {1: {}}},
        {"attributes": {"a": {1: 2}}},
        {"source": 5},
        {"notes": "abc"},
        {"notes": (1,)},
        {"problems": 5},
    ],
    ids=str,
)
def test_runs_of_wrong_parts(keywords: dict[str, Any], runs: Runs) -> None:
    (name,) = keywords
    assert rejected(Runs, runs.points, **keywords).startswith(f"{name}: found ")


def test_runs_of_a_wrong_table(runs: Runs) -> None:
    points = runs.points
    assert "several columns 'run_id'" in rejected(Runs, pd.concat([points, points], axis=1))
    assert "missing columns: seed" in rejected(Runs, points.rename(columns={"seed": 3}))
    assert "run_id is missing in row 0" in rejected(Runs, points.assign(run_id=pd.NA))
    huge = points.assign(problems_per_batch=2**40, rollouts_per_problem=2**40)
    assert "B_p · n · step must be at most 2^53" in rejected(Runs, huge)
    for run_ids in (5, "a", [[1]]):
        assert rejected(runs.select, run_ids).startswith("run_ids: found ")
    for parts in ([], [5], 5):
        rejected(Runs.concat, parts)


def test_messages_cut_long_names(runs: Runs) -> None:
    long = "loss" + "x" * 100_000
    rejected(isolaw.fit, runs, long)
    rejected(isolaw.fit, Runs(runs.points.assign(metric=long, eval_set=long)))
    rejected(isolaw.read, runs.points, set=[f"n={long}"])
    rejected(isolaw.read, runs.points, set=[f"{long}="])
