"""A law and its predictions as DataFrames: the document's numbers, one place each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.fits.law import Law
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers

LEVELS = [8, 32, 128, 512]


@pytest.fixture(scope="module")
def law(synthetic: Callable[..., Runs]) -> Law:
    return isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.005), draws=25)


def end(value: float) -> float | None:
    return None if math.isnan(value) else value


def test_the_frontier_is_the_documents(law: Law) -> None:
    table = law.frontier()
    assert list(table) == [
        "compute", "n_star", "n_star_low", "n_star_high", "n_star_status", "n_star_strict",
        "n_star_tolerance", "reward", "reward_low", "reward_high", "reward_status",
        "censored", "censored_by",
    ]  # fmt: skip
    assert len(table) == len(law.document.frontier)
    for row, point in zip(table.itertuples(), law.document.frontier, strict=True):
        assert (row.compute, row.n_star, row.reward) == (point.x, point.n_star.value, point.reward.value)
        assert row.n_star_status == point.n_star.status
        assert (end(row.n_star_low), end(row.n_star_high)) == (point.n_star.interval or (None, None))
        assert (row.n_star_strict, row.censored) == (point.n_star_strict, point.censored)
        assert row.censored_by == ", ".join(point.censored_by)
    assert law.frontier()["n_star"].dtype == np.float64


def test_crossovers_are_the_documents(law: Law) -> None:
    table = law.crossovers()
    assert list(table) == [
        "n_from", "n_to", "compute", "compute_low", "compute_high", "compute_status", "supported",
    ]  # fmt: skip
    for row, itertuple in zip(table.itertuples(), law.document.crossovers, strict=True):
        assert (row.n_from, row.n_to, end(row.compute)) == (itertuple.from_, itertuple.to, itertuple.x)
        assert (end(row.compute_low), end(row.compute_high)) == (itertuple.interval or (None, None))
        assert (row.compute_status, row.supported) == (itertuple.status, itertuple.supported)


def test_budgets_have_the_laws_own_name(synthetic: Callable[..., Runs]) -> None:
    runs = synthetic([(1024 // n, n) for n in LEVELS], noise=0.005)
    law = isolaw.fit(runs, hold="B", draws=0)
    assert law.frontier().columns[0] == "steps"
    assert law.crossovers().columns[2] == "steps"


def test_the_summary_survives_its_file(law: Law, tmp_path: Any) -> None:
    path = law.save(tmp_path / "law.json")
    text = law.summary()
    assert "\navg@4 on validation, fitted to " in text
    assert "\nn*, the n of 8–512 with the highest reward, is " in text
    assert Law.load(path).summary() == text


def test_notebooks_show_tables_that_escape_their_text(law: Law, synthetic: Callable[..., Runs]) -> None:
    runs = synthetic([(32, n) for n in LEVELS])
    runs.notes = ("a <b>note</b>",)
    for value in (runs, law, law.predict(1e6), law.predict(1e9)):
        assert value._repr_html_().startswith("<")
    assert "a &lt;b&gt;note" in runs._repr_html_()
    assert "<td>512</td>" in runs._repr_html_()
    assert "n*, the n of 8–512 with the highest reward, is " in law._repr_html_()
    assert "Expected loss" in law.predict(1e6)._repr_html_()
    assert "isolaw recommends no allocation" in law.predict(1e9)._repr_html_()
