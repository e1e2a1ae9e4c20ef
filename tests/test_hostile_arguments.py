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

    monkeypatch.setattr("isolaw.fits.pipeline._misfit", fail)


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


@pytest.mark.parametrize(
    "values", [HUGE, [HUGE] * 5, [1, "a"], {1}, [[1, 2], [3]], 1j, "x" * 100_000], ids=brief
)
def test_points(values: Any) -> None:
    assert rejected(isolaw.fit_points, values, [8, 9, 20, 60, 64]).startswith("compute")


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
